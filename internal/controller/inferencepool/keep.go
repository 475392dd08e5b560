package inferencepool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/children"
	"github.com/kvasir-dev/kvasir/internal/policyref"
)

// applied is what this process has applied last, and what came of it.
type applied struct{ hash, version string }

// annotationApplied holds a hash of what was applied, so that a field that is not wanted any more is noticed after a
// restart, too.
const annotationApplied = "kvasir.dev/applied"

// keepChildren keeps what stands beside the pods: secrets, pickers, the gateway's objects. An object of that name that
// is not ours is left alone.
func (r *round) keepChildren(ctx context.Context) error {
	if r.Children == nil {
		return nil
	}
	config := r.Children()
	if err := r.optional.keep(config); err != nil {
		return err
	}
	if err := r.keepKey(ctx); err != nil {
		return err
	}
	if err := r.keepCertificates(ctx); err != nil {
		return err
	}
	input := children.Input{Pool: r.pool, Trusted: r.memory.trusted}
	if r.policy != nil {
		input.TenantSecrets = tenantSecrets(r.policy)
	}
	objects, err := children.Objects(config, input)
	if err != nil {
		return fmt.Errorf("pickers of pool %s: %w", r.key, err)
	}
	wanted := map[objectKey]bool{}
	for _, o := range objects {
		wanted[objectKey{o.GetKind(), o.GetName()}] = true
		if err := r.apply(ctx, o); err != nil {
			return err
		}
	}
	return r.deleteUnwanted(ctx, config, wanted)
}

// keyEvery is how often the Secret of the key root is looked at: somebody may have deleted it.
const keyEvery = 10 * time.Minute

// keepKey makes the key root where there is none, and makes it anew where the pool asks for that.
func (r *round) keepKey(ctx context.Context) error {
	if r.pool.Spec.KeySpace.SecretRef.Name != "" {
		return nil
	}
	asked := r.pool.Annotations[v1alpha1.AnnotationRotateKey]
	if due := r.memory.keyAt.Add(keyEvery); r.memory.keyFor == asked && !r.memory.keyAt.IsZero() && r.now.Before(due) {
		r.wakeAt(due)
		return nil
	}
	got := &corev1.Secret{}
	err := r.Direct.Get(ctx, types.NamespacedName{Namespace: r.key.Namespace, Name: children.KeyName(r.key.Name)}, got)
	switch {
	case apierrors.IsNotFound(err):
		err = r.Client.Create(ctx, children.KeySecret(r.pool))
	case err == nil && !metav1.IsControlledBy(got, r.pool):
		r.problems.taken = append(r.problems.taken, "Secret "+got.Name)
		return nil
	case err == nil:
		if next := children.RotatedKey(r.pool, got); next != nil {
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
	r.wakeAt(r.now.Add(keyEvery))
	return nil
}

// keepCertificates renews the pool's own CA and its pickers' certificate when it is time.
func (r *round) keepCertificates(ctx context.Context) error {
	if r.pool.Spec.Picker.Mode == v1alpha1.PickerExternal {
		return nil
	}
	if r.now.Before(r.memory.certsAt) {
		r.wakeAt(r.memory.certsAt)
		return nil
	}
	ca, err := r.secret(ctx, children.CAName(r.key.Name))
	if err != nil {
		return err
	}
	leaf, err := r.secret(ctx, children.TLSName(r.key.Name))
	if err != nil {
		return err
	}
	newCA, newLeaf, trusted, next, err := children.Certificates(r.pool, ca, leaf, r.now)
	if err != nil {
		return fmt.Errorf("certificates of pool %s: %w", r.key, err)
	}
	// The CA first: a certificate of a CA that is lost could not be renewed.
	for _, s := range []*corev1.Secret{newCA, newLeaf} {
		if s == nil {
			continue
		}
		u, err := children.Applied(s)
		if err != nil {
			return err
		}
		if err := r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(children.Manager), client.ForceOwnership); err != nil {
			return fmt.Errorf("keeping secret %s: %w", s.Name, err)
		}
	}
	r.memory.trusted, r.memory.certsAt = trusted, next
	r.wakeAt(next)
	return nil
}

// secret of this pool; nil when there is none.
func (r *round) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	got := &corev1.Secret{}
	err := r.Direct.Get(ctx, types.NamespacedName{Namespace: r.key.Namespace, Name: name}, got)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading secret %s: %w", name, err)
	case !metav1.IsControlledBy(got, r.pool):
		r.problems.taken = append(r.problems.taken, "Secret "+name)
		return nil, fmt.Errorf("secret %s belongs to somebody else", name)
	}
	return got, nil
}

// apply brings one object to what is wanted, when it differs.
func (r *round) apply(ctx context.Context, want *unstructured.Unstructured) error {
	key := objectKey{want.GetKind(), want.GetName()}
	hash, err := hashOf(want)
	if err != nil {
		return err
	}
	annotations := want.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[annotationApplied] = hash
	want.SetAnnotations(annotations)

	live, err := r.live(ctx, want)
	switch {
	case meta.IsNoMatchError(err):
		return nil // an optional API that went
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("reading %s %s: %w", key.kind, key.name, err)
	case err == nil && !metav1.IsControlledBy(live, r.pool):
		if gvk := want.GroupVersionKind(); gvk == children.GIEKind || gvk == children.RouteKind {
			r.problems.gateway = append(r.problems.gateway, key.kind+" "+key.name) // the pool serves without
			return nil
		}
		r.problems.taken = append(r.problems.taken, key.kind+" "+key.name)
		return nil
	case err == nil && (holds(live.Object, want.Object) || r.memory.applied[key] == applied{hash, live.GetResourceVersion()}):
		return nil
	}
	if err := r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(want), client.FieldOwner(children.Manager), client.ForceOwnership); err != nil {
		return fmt.Errorf("applying %s %s: %w", key.kind, key.name, err)
	}
	r.memory.applied[key] = applied{hash, want.GetResourceVersion()}
	return nil
}

// live reads an object as it is: in its type where the operator knows it, because by that its changes are watched. (A
// cache of untyped objects is another one, and may lag behind the event that has brought us here.)
func (r *round) live(ctx context.Context, want *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	gvk := want.GroupVersionKind()
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(gvk)
	into := client.Object(live)
	if typed, err := r.Client.Scheme().New(gvk); err == nil {
		if o, ok := typed.(client.Object); ok {
			into = o
		}
	}
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(want), into)
	if apierrors.IsNotFound(err) { // the cache may have the operator's own objects only
		err = r.Direct.Get(ctx, client.ObjectKeyFromObject(want), into)
	}
	if err != nil || into == client.Object(live) {
		return live, err //nolint:wrapcheck // the caller says what was read
	}
	if live.Object, err = runtime.DefaultUnstructuredConverter.ToUnstructured(into); err != nil {
		return nil, fmt.Errorf("reading fields: %w", err)
	}
	live.SetGroupVersionKind(gvk)
	return live, nil
}

func hashOf(o *unstructured.Unstructured) (string, error) {
	raw, err := json.Marshal(o.Object)
	if err != nil {
		return "", fmt.Errorf("writing %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8]), nil
}

// holds is whether a live object has all that is wanted; what the API server or others have added does not count.
func holds(live, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		l, ok := live.(map[string]any)
		if !ok {
			return len(want) == 0 && live == nil
		}
		for k, v := range want {
			if !holds(l[k], v) {
				return false
			}
		}
		return true
	case []any:
		l, ok := live.([]any)
		if !ok || len(l) != len(want) {
			return len(want) == 0 && live == nil
		}
		for i := range want {
			if !holds(l[i], want[i]) {
				return false
			}
		}
		return true
	}
	return fmt.Sprint(live) == fmt.Sprint(want) // numbers come as int64 and float64
}

// deleteUnwanted deletes what this process has applied and the pool does not want any more, and after a start whatever
// a pool might have left.
func (r *round) deleteUnwanted(ctx context.Context, config children.Config, wanted map[objectKey]bool) error {
	swept := sweep{config, r.pool.Generation}
	if r.memory.swept == swept {
		return nil
	}
	for _, gvk := range children.Kinds(config) {
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
			if wanted[objectKey{gvk.Kind, o.Name}] || !metav1.IsControlledBy(o, r.pool) || o.Annotations[annotationApplied] == "" {
				continue
			}
			o.SetGroupVersionKind(gvk)
			if err := r.Client.Delete(ctx, o, client.Preconditions{UID: uid(o.UID)}); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return fmt.Errorf("deleting %s %s: %w", gvk.Kind, o.Name, err)
			}
		}
	}
	r.memory.swept = swept
	return nil
}

// sweep is what the last look for unwanted objects went by.
type sweep struct {
	config     children.Config
	generation int64
}

// findPolicy finds the policy that the pool follows.
func (r *round) findPolicy(ctx context.Context) error {
	var list v1alpha1.RoutingPolicyList
	if err := r.Client.List(ctx, &list, client.InNamespace(r.key.Namespace)); err != nil {
		return fmt.Errorf("listing policies of %s: %w", r.key.Namespace, err)
	}
	policies := make([]*v1alpha1.RoutingPolicy, len(list.Items))
	for i := range list.Items {
		policies[i] = &list.Items[i]
	}
	r.policy = policyref.Winners(policies, nil)[r.key]
	return nil
}

func tenantSecrets(p *v1alpha1.RoutingPolicy) []string {
	var names []string
	for _, ref := range p.Spec.Admission.Tenants.SecretRefs {
		names = append(names, ref.Name)
	}
	return names
}
