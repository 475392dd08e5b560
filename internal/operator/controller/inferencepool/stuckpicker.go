package inferencepool

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// findStuckPicker looks for a pod of the pickers' Deployment that does not start. A Deployment does not report one: while it
// replaces its pods, those before serve on, and it looks as if all were well.
func (r *cluster) findStuckPicker(ctx context.Context) (err error) {
	r.stuckPicker, r.pickerTrouble, err = StuckPicker(ctx, r.Client, r.picker)
	return err
}

// StuckPicker returns the first pod of a Deployment of pickers that does not start, and why; empty for none.
func StuckPicker(ctx context.Context, reader client.Reader, pickers *appsv1.Deployment) (name string, why lifecycle.Trouble, err error) {
	if pickers == nil || pickers.Status.UnavailableReplicas == 0 || pickers.Spec.Selector == nil {
		return "", why, nil
	}
	var list corev1.PodList
	// The listed pods are shared with the cache and must not be changed.
	if err := reader.List(ctx, &list, client.InNamespace(pickers.Namespace),
		client.MatchingLabels(pickers.Spec.Selector.MatchLabels), client.UnsafeDisableDeepCopy); err != nil {
		return "", why, fmt.Errorf("listing the pods of %s/%s: %w", pickers.Namespace, pickers.Name, err)
	}
	for i := range list.Items {
		pod := &list.Items[i]
		trouble := troubleOf(pod)
		if trouble.Reason == "" || !pod.DeletionTimestamp.IsZero() || !ofDeployment(pod, pickers.Name) ||
			name != "" && pod.Name > name {
			continue
		}
		name, why = pod.Name, trouble
	}
	return name, why, nil
}

// ofDeployment reports whether a pod belongs to a ReplicaSet of a Deployment, by the name that Deployments give to those. A pod
// of another owner can have the labels that a Deployment selects.
func ofDeployment(pod *corev1.Pod, deployment string) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "ReplicaSet" && owner.Name == deployment+"-"+pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
}

// pickerOf returns the name of the pool whose pickers a pod belongs to by its labels; "" for none.
func pickerOf(pod *corev1.Pod) string {
	if pod.Labels[resources.LabelComponent] != resources.ComponentPicker {
		return ""
	}
	return pod.Labels[resources.LabelInstance]
}
