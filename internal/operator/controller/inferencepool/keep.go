package inferencepool

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/objects"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// applied is what this process has applied last, and the resulting version.
type applied struct{ hash, version string }

// children is the part that maintains the objects beside the pods.
type children struct {
	*scope
	*observed
}

// keep maintains the child objects beside the pods: secrets, pickers, the gateway's objects. It does not touch an
// object of that name that belongs to another owner. An object that the API server refuses does not hold up the others. It
// returns what it has found of gateways, with an error as well.
func (r *children) keep(ctx context.Context) (network networkFacts, err error) {
	if r.Children == nil {
		return network, nil
	}
	config := r.Children()
	if err := r.optional.Keep(r.optionalKinds(config)); err != nil {
		return network, err
	}
	if network, err = r.findGateways(ctx, &config); err != nil {
		return network, err
	}
	kept, disruption := &secrets{r.scope, r.picker}, &budget{r.scope, r.observed}
	secretsErr := errors.Join(r.passRefusal(kept.keepKey(ctx)), r.passRefusal(kept.keepCertificates(ctx)))
	input := resources.Input{Pool: r.pool, Trusted: r.trustedBy(ctx), Move: r.move, Gateways: network.gateways, Sets: r.sets()}
	protected, err := disruption.protected(ctx)
	if err != nil {
		return network, errors.Join(secretsErr, err)
	}
	replaces, evictions, err := disruption.replacesFirst(ctx)
	if err != nil {
		return network, errors.Join(secretsErr, err)
	}
	input.Protected, input.Surge = protected, r.memory.evictions.surge
	input.Replaces, input.Evictions, input.ServesUnready = replaces, evictions, disruption.servesUnready()
	input.WaitSince = r.memory.evictions.waitSince
	if r.policy != nil {
		input.PolicySecrets = r.policy.Spec.SecretNames()
	}
	objects, err := resources.Objects(config, input)
	if err != nil {
		return network, fmt.Errorf("pickers of pool %s: %w", r.key, errors.Join(secretsErr, err))
	}
	if r.pickersAfter, err = r.pickersAhead(ctx, &config); err != nil {
		return network, errors.Join(secretsErr, err)
	}
	wanted := map[objectKey]bool{}
	for _, o := range objects {
		wanted[objectKey{o.GetKind(), o.GetName()}] = true
	}
	for _, o := range objects {
		if r.memory.trusted == nil && o.GetKind() == "ConfigMap" && o.GetName() == resources.CAName(r.key.Name) {
			continue // its certificates are not known, and those that are there stay
		}
		if r.pickersAfter != "" && o.GetKind() == "Deployment" {
			continue // it stays as it is until it is its turn
		}
		r.fitDefinition(o)
		before := len(r.problems.refused) + len(r.problems.taken)
		if err := r.passRefusal(r.apply(ctx, o)); err != nil {
			return network, errors.Join(secretsErr, err)
		}
		if len(r.problems.refused)+len(r.problems.taken) > before && o.GetKind() == "NetworkPolicy" && o.GetName() == r.key.Name {
			network.absent = true
		}
	}
	return network, errors.Join(secretsErr, r.passRefusal(r.deleteUnwanted(ctx, config, wanted)))
}

// refusedEvery is how often what the API server refuses is tried again: the cause is not in an object that is watched.
const refusedEvery = 10 * time.Second

// passRefusal keeps an error with which the API server refuses an object for a condition, and returns any other. A refusal
// must not stop what is independent of the refused object, and is retried at a steady pace.
func (r *scope) passRefusal(err error) error {
	if !objects.Refused(err) {
		return err
	}
	r.problems.refused = append(r.problems.refused, err.Error())
	r.wakeAt(r.now.Add(refusedEvery))
	return nil
}

// secrets is the part that maintains the Secrets of a pool.
type secrets struct {
	*scope
	picker *appsv1.Deployment // nil when there is none yet
}

// secretsEvery returns how often the Secrets that the operator makes are read: it is not allowed to watch them, and one might
// have been deleted or changed. Replicas of the picker that do not become ready can wait for just that Secret.
func (r *secrets) secretsEvery() time.Duration {
	if r.picker != nil && r.picker.Status.ReadyReplicas < ptr.Deref(r.picker.Spec.Replicas, 1) {
		return missingEvery
	}
	return foundEvery
}

// keepKey creates the key root if there is none, and recreates it if the pool requests that.
func (r *secrets) keepKey(ctx context.Context) error {
	if r.pool.Spec.KeySpace.SecretRef.Name != "" {
		return nil
	}
	asked := r.pool.Annotations[v1alpha1.AnnotationRotateKey]
	if due := r.memory.keyAt.Add(r.secretsEvery()); r.memory.keyFor == asked && !r.memory.keyAt.IsZero() && r.now.Before(due) {
		r.wakeAt(due)
		return nil
	}
	got := &corev1.Secret{}
	err := r.Direct.Get(ctx, types.NamespacedName{Namespace: r.key.Namespace, Name: resources.KeyName(r.key.Name)}, got)
	switch {
	case apierrors.IsNotFound(err):
		err = r.Client.Create(ctx, resources.KeySecret(r.pool))
	case err == nil && !metav1.IsControlledBy(got, r.pool):
		ours, adoptErr := r.adoptSecret(ctx, got)
		if adoptErr != nil {
			return adoptErr
		}
		if !ours {
			r.problems.taken = append(r.problems.taken, "Secret "+got.Name)
			return nil
		}
	case err == nil:
		if next := resources.RotatedKey(r.pool, got); next != nil {
			err = r.Client.Patch(ctx, next, client.MergeFromWithOptions(got, client.MergeFromWithOptimisticLock{}))
		}
	}
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		r.retry = true
		return nil
	}
	if err != nil {
		return fmt.Errorf("keeping the key root of pool %s: %w", r.key, err)
	}
	r.memory.keyAt, r.memory.keyFor = r.now, asked
	r.wakeAt(r.now.Add(r.secretsEvery()))
	return nil
}

// keepCertificates renews the pool's own CA and its pickers' certificate when it is time.
func (r *secrets) keepCertificates(ctx context.Context) error {
	if r.pool.Spec.Picker.Mode == v1alpha1.PickerExternal {
		return nil
	}
	if due := r.certificatesDue(); r.now.Before(due) {
		r.wakeAt(due)
		return nil
	}
	ca, err := r.secret(ctx, resources.CAName(r.key.Name))
	if err != nil {
		return err
	}
	leaf, err := r.secret(ctx, resources.TLSName(r.key.Name))
	if err != nil {
		return err
	}
	newCA, newLeaf, trusted, next, err := resources.Certificates(r.pool, ca, leaf, r.now)
	if err != nil {
		return &certificateError{r.key, err}
	}
	// The CA first: a certificate of a CA that is lost could not be renewed.
	for _, s := range []*corev1.Secret{newCA, newLeaf} {
		if s == nil {
			continue
		}
		u, err := resources.Applied(s)
		if err != nil {
			return err
		}
		if err := r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(resources.Manager),
			client.ForceOwnership); err != nil {
			return fmt.Errorf("keeping secret %s: %w", s.Name, err)
		}
	}
	r.memory.trusted, r.memory.certsAt, r.memory.certsSeen = trusted, next, r.now
	r.wakeAt(r.certificatesDue())
	return nil
}

// certificatesDue returns when the Secrets of the certificates are read next, at the latest when a certificate needs
// renewal.
func (r *secrets) certificatesDue() time.Time {
	if again := r.memory.certsSeen.Add(r.secretsEvery()); again.Before(r.memory.certsAt) {
		return again
	}
	return r.memory.certsAt
}

// secret of this pool; nil when there is none.
func (r *secrets) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	got := &corev1.Secret{}
	err := r.Direct.Get(ctx, types.NamespacedName{Namespace: r.key.Namespace, Name: name}, got)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading secret %s: %w", name, err)
	case !metav1.IsControlledBy(got, r.pool):
		ours, err := r.adoptSecret(ctx, got)
		if err != nil {
			return nil, err
		}
		if !ours {
			r.problems.taken = append(r.problems.taken, "Secret "+name)
			return nil, fmt.Errorf("secret %s belongs to another owner", name)
		}
	}
	return got, nil
}

// adoptSecret adopts an orphaned Secret of the operator's making, and reports whether the Secret is the pool's now.
func (r *secrets) adoptSecret(ctx context.Context, secret *corev1.Secret) (bool, error) {
	if secret.Labels[labelInstance] != r.key.Name || secret.Labels[labelManagedBy] != resources.Manager {
		return false, nil
	}
	may, err := r.mayAdopt(ctx, secret)
	if err != nil || !may {
		return false, err
	}
	return true, r.adoptObject(ctx, secret)
}

// apply brings one object to what is wanted, when it differs.
func (r *children) apply(ctx context.Context, want *unstructured.Unstructured) error {
	key := objectKey{want.GetKind(), want.GetName()}
	hash, err := objects.Mark(want)
	if err != nil {
		return err
	}
	live, err := objects.Live(ctx, r.Client, r.Direct, want)
	switch {
	case meta.IsNoMatchError(err):
		return nil // an optional API that went
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("reading %s %s: %w", key.kind, key.name, err)
	case err == nil && !metav1.IsControlledBy(live, r.pool):
		may, err := false, error(nil)
		if live.GetAnnotations()[objects.AnnotationApplied] != "" {
			may, err = r.mayAdopt(ctx, live)
		}
		if err != nil {
			return err
		}
		if may {
			break // it is applied with its new owner
		}
		if resources.IsTraffic(want.GroupVersionKind()) {
			return nil // the gateway is configured by hand
		}
		if gvk := want.GroupVersionKind(); gvk == resources.GIEKind || gvk == resources.RouteKind {
			r.problems.gateway = append(r.problems.gateway, key.kind+" "+key.name) // the pool serves without
			return nil
		}
		r.problems.taken = append(r.problems.taken, key.kind+" "+key.name)
		return nil
	case err == nil && (objects.Holds(live.Object, want.Object) || r.memory.applied[key] == applied{hash, live.GetResourceVersion()}):
		r.memory.learnFamily(live)
		return nil
	}
	err = r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(want), client.FieldOwner(resources.Manager), client.ForceOwnership)
	if protocolUndeclared(want, err) {
		r.memory.noProtocolUntil, r.retry = r.now.Add(foundEvery), true
		return nil
	}
	if gvk := want.GroupVersionKind(); objects.Refused(err) &&
		(resources.IsTraffic(gvk) || gvk == resources.GIEKind || gvk == resources.RouteKind) {
		// Another release of the gateway, perhaps. The pool serves without.
		why := fmt.Sprintf("%s %s is refused: %v", key.kind, key.name, err)
		if resources.IsTraffic(gvk) {
			r.problems.traffic = append(r.problems.traffic, why)
		} else {
			r.problems.route = append(r.problems.route, why)
		}
		r.wakeAt(r.now.Add(refusedEvery))
		return nil
	}
	if err != nil {
		return fmt.Errorf("applying %s %s: %w", key.kind, key.name, err)
	}
	r.memory.applied[key] = applied{hash, want.GetResourceVersion()}
	r.memory.learnFamily(want)
	return nil
}

// learnFamily reads the family that the API server has given to a Service which asks for none: that of the cluster's pods.
func (m *memory) learnFamily(stored *unstructured.Unstructured) {
	if stored.GetKind() != "Service" {
		return
	}
	if families, _, _ := unstructured.NestedStringSlice(stored.Object, "spec", "ipFamilies"); len(families) > 0 {
		m.family = corev1.IPFamily(families[0])
	}
}

// guessFamily takes the family from the pods that there are, as long as no Service was read: a pod that is created meanwhile could never be
// reached otherwise.
func (m *memory) guessFamily(pods []*corev1.Pod) {
	for _, pod := range pods {
		if m.family != "" {
			return
		}
		if ip, err := netip.ParseAddr(pod.Status.PodIP); err == nil {
			m.family = corev1.IPv4Protocol
			if ip.Unmap().Is6() {
				m.family = corev1.IPv6Protocol
			}
		}
	}
}

// deleteUnwanted deletes what this process has applied and the pool does not want any more, and after a start whatever
// a pool might have left.
func (r *children) deleteUnwanted(ctx context.Context, config resources.Config, wanted map[objectKey]bool) error {
	swept := sweep{config, r.pool.Generation, r.move.KeepsOwn}
	if r.memory.swept == swept {
		return nil
	}
	for _, gvk := range resources.Kinds(config) {
		var list metav1.PartialObjectMetadataList
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		err := r.Direct.List(ctx, &list, client.InNamespace(r.key.Namespace), client.MatchingLabels{labelInstance: r.key.Name})
		if meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("listing %s of pool %s: %w", gvk.Kind, r.key, err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			if wanted[objectKey{gvk.Kind, o.Name}] || !metav1.IsControlledBy(o, r.pool) || o.Annotations[objects.AnnotationApplied] == "" {
				continue
			}
			o.SetGroupVersionKind(gvk)
			if err := r.Client.Delete(ctx, o, client.Preconditions{UID: uid(o.UID)}); err != nil && !apierrors.IsNotFound(err) &&
				!apierrors.IsConflict(err) {
				return fmt.Errorf("deleting %s %s: %w", gvk.Kind, o.Name, err)
			}
		}
	}
	r.memory.swept = swept
	return nil
}

// sweep is what the last look for unwanted objects went by.
type sweep struct {
	config     resources.Config
	generation int64
	keepsOwn   bool // the pickers of a pool in a fleet
}

// findPolicy finds the policy that the pool follows.
func (r *cluster) findPolicy(ctx context.Context) error {
	var list v1alpha1.RoutingPolicyList
	if err := r.Client.List(ctx, &list, client.InNamespace(r.key.Namespace)); err != nil {
		return fmt.Errorf("listing policies of %s: %w", r.key.Namespace, err)
	}
	policies := make([]*v1alpha1.RoutingPolicy, len(list.Items))
	for i := range list.Items {
		policies[i] = &list.Items[i]
	}
	r.policy = config.PolicyWinners(policies, nil)[r.key]
	return nil
}
