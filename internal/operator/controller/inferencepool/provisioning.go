package inferencepool

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// provisions reports whether the cluster takes ProvisioningRequests.
func (r *scope) provisions() bool { return r.Children != nil && r.Children().Provisioning }

// waits reports whether a pod waits for what its ProvisioningRequest brings.
func waits(pod *corev1.Pod) bool {
	return pod.Annotations[resources.AnnotationConsumes] != "" && pod.Spec.NodeName == "" && pod.DeletionTimestamp.IsZero() &&
		markOf(pod).Reason == ""
}

// askForNodes makes the requests of pods that wait for theirs. They belong to the pods, so that they go with them.
func (r *placing) askForNodes(ctx context.Context) error {
	if !r.provisions() {
		return nil
	}
	there := map[string]bool{}
	for _, pod := range r.pods {
		uid := string(pod.UID)
		if !waits(pod) {
			continue
		}
		there[uid] = true
		if r.memory.provisioned[uid] {
			continue
		}
		if err := r.askFor(ctx, pod); err != nil {
			return err
		}
		r.memory.provisioned[uid] = true
	}
	for uid := range r.memory.provisioned {
		if !there[uid] {
			delete(r.memory.provisioned, uid)
		}
	}
	return nil
}

// askFor one pod's node. The template is applied first: a request without it would be refused permanently.
func (r *placing) askFor(ctx context.Context, pod *corev1.Pod) error {
	shape, err := r.shape(pod.Labels[v1alpha1.LabelRevision])
	if err != nil {
		return nil //nolint:nilerr // a pod of a revision that is not kept any more is about to go
	}
	options := r.injection()
	options.Name, options.Revision = pod.Name, pod.Labels[v1alpha1.LabelRevision]
	options.Island = r.islands.spec(pod.Labels[r.islandLabel()])
	wanted, _, err := podtemplate.Pod(shape, &options)
	if err != nil {
		return fmt.Errorf("asking for a node for pod %s: %w", pod.Name, err)
	}
	template, request := resources.Provisioning(r.pool, wanted, pod)
	for _, o := range []client.Object{template, request} {
		err := r.Client.Create(ctx, o)
		switch {
		case err == nil || apierrors.IsAlreadyExists(err):
		case meta.IsNoMatchError(err):
			return nil // the API went
		default:
			return fmt.Errorf("asking for a node for pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

// denied is why the cluster will not bring the node that a pod waits for; empty while it might.
func (r *placing) denied(ctx context.Context, pod *corev1.Pod) (string, error) {
	if !r.provisions() || !waits(pod) || !r.memory.provisioned[string(pod.UID)] {
		return "", nil
	}
	request := &unstructured.Unstructured{}
	request.SetGroupVersionKind(resources.ProvisioningKind)
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(pod), request)
	switch {
	case meta.IsNoMatchError(err) || apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("reading the request for pod %s: %w", pod.Name, err)
	}
	return deniedBy(request), nil
}

// deniedBy is the message of a request that has failed.
func deniedBy(request *unstructured.Unstructured) string {
	raw, err := json.Marshal(request.Object["status"])
	var status struct{ Conditions []metav1.Condition }
	if err != nil || json.Unmarshal(raw, &status) != nil {
		return "" // of another version of the API
	}
	if c := meta.FindStatusCondition(status.Conditions, "Failed"); c != nil && c.Status == metav1.ConditionTrue {
		return c.Reason + ": " + c.Message
	}
	return ""
}
