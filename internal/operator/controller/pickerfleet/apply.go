package pickerfleet

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/objects"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// owns reports whether the fleet controls an object.
func (r *scope) owns(o metav1.Object) bool { return metav1.IsControlledBy(o, r.fleet.PickerFleet) }

// mayTake reports whether an object is of the operator's making for a fleet of this name that does not exist any more: the pools
// of that fleet have kept it.
func (r *scope) mayTake(o metav1.Object) bool {
	owner := metav1.GetControllerOf(o)
	return o.GetLabels()[resources.LabelFleet] == r.key.Name && o.GetAnnotations()[objects.AnnotationApplied] != "" &&
		o.GetDeletionTimestamp().IsZero() && (owner == nil || owner.Kind == v1alpha1.KindPickerFleet && owner.Name == r.key.Name)
}

// apply brings one object to what is wanted, when it differs.
func (r *scope) apply(ctx context.Context, want *unstructured.Unstructured) error {
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
	case err == nil && !r.owns(live) && !r.mayTake(live):
		switch gvk := want.GroupVersionKind(); {
		case resources.IsTraffic(gvk): // the gateway is configured by hand
		case isDoor(gvk):
			r.door.Taken = append(r.door.Taken, key.kind+" "+key.name)
		default:
			r.taken = append(r.taken, key.kind+" "+key.name)
		}
		return nil
	case err == nil && r.owns(live) && (objects.Holds(live.Object, want.Object) ||
		r.memory.applied[key] == applied{hash, live.GetResourceVersion()}):
		return nil
	}
	err = r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(want), client.FieldOwner(resources.Manager), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("applying %s %s: %w", key.kind, key.name, err)
	}
	r.memory.applied[key] = applied{hash, want.GetResourceVersion()}
	return nil
}

// made are the objects of one kind that the operator has made for a fleet.
func (r *Reconciler) made(ctx context.Context, key types.NamespacedName,
	gvk schema.GroupVersionKind) ([]metav1.PartialObjectMetadata, error) {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	err := r.Direct.List(ctx, &list, client.InNamespace(key.Namespace), client.MatchingLabels{resources.LabelFleet: key.Name})
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing %s of fleet %s: %w", gvk.Kind, key, err)
	}
	made := list.Items[:0]
	for i := range list.Items {
		if list.Items[i].Annotations[objects.AnnotationApplied] != "" {
			made = append(made, list.Items[i])
		}
	}
	return made, nil
}

// keepCertificates renews the fleet's CA and its pickers' certificate when it is time. The Secrets belong to the pickers'
// ServiceAccount: the operator has no right to delete Secrets, and with the account they go when the fleet and its pools do. So the
// account comes first.
func (r *scope) keepCertificates(ctx context.Context) error {
	account, err := r.keepAccount(ctx)
	if err != nil || account == nil {
		return err
	}
	if due := r.certificatesDue(); account.UID == r.memory.account && r.now.Before(due) {
		r.wakeAt(due)
		return nil
	}
	names := resources.NamesOfFleet(r.key.Name)
	ca, caErr := r.secret(ctx, names.CA)
	leaf, leafErr := r.secret(ctx, names.TLS)
	switch {
	case caErr != nil:
		return caErr
	case leafErr != nil:
		return leafErr
	case len(r.taken) > 0:
		return nil
	}
	newCA, newLeaf, trusted, next, err := resources.FleetCertificates(r.fleet, account, ca, leaf, r.now)
	if r.certificates = err; err != nil {
		r.wakeAt(r.now.Add(missingEvery))
		return nil //nolint:nilerr // a condition says so, and the other objects are kept
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
		err = r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(resources.Manager), client.ForceOwnership)
		if objects.Refused(err) {
			return r.pass(fmt.Errorf("keeping Secret %s: %w", s.Name, err))
		}
		if err != nil {
			return fmt.Errorf("keeping Secret %s: %w", s.Name, err)
		}
	}
	for _, s := range [][2]*corev1.Secret{{ca, newCA}, {leaf, newLeaf}} {
		if err := r.hand(ctx, s[0], s[1], account); err != nil {
			return err
		}
	}
	r.memory.trusted, r.memory.certsAt, r.memory.certsSeen, r.memory.account = trusted, next, r.now, account.UID
	r.wakeAt(r.certificatesDue())
	return nil
}

// hand makes the pickers' account the owner of a Secret that was not applied: another account of the name had it.
func (r *scope) hand(ctx context.Context, secret, applied *corev1.Secret, account *corev1.ServiceAccount) error {
	if secret == nil || applied != nil || metav1.IsControlledBy(secret, account) {
		return nil
	}
	next := secret.DeepCopy()
	next.OwnerReferences = resources.OwnedByAccount(account)
	err := r.Client.Patch(ctx, next, client.MergeFromWithOptions(secret, client.MergeFromWithOptimisticLock{}))
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("taking over Secret %s: %w", secret.Name, err)
	}
	return nil
}

// certificatesDue is when the Secrets of the certificates are read next.
func (r *scope) certificatesDue() time.Time {
	every := secretsEvery
	if r.pickers != nil && r.pickers.Status.ReadyReplicas < r.fleet.Spec.Replicas {
		every = missingEvery
	}
	if again := r.memory.certsSeen.Add(every); again.Before(r.memory.certsAt) {
		return again
	}
	return r.memory.certsAt
}

// keepAccount applies the pickers' ServiceAccount and returns it; nil if it cannot be the fleet's.
func (r *scope) keepAccount(ctx context.Context) (*corev1.ServiceAccount, error) {
	want, err := resources.FleetAccount(r.config, r.fleet)
	if err != nil {
		return nil, err
	}
	before := len(r.taken) + len(r.refused)
	if err := r.pass(r.apply(ctx, want)); err != nil || len(r.taken)+len(r.refused) > before {
		return nil, err
	}
	account := &corev1.ServiceAccount{}
	if err := r.Direct.Get(ctx, client.ObjectKeyFromObject(want), account); err != nil {
		return nil, fmt.Errorf("reading the service account of fleet %s: %w", r.key, err)
	}
	return account, nil
}

// secret of the fleet; nil when there is none.
func (r *scope) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	got := &corev1.Secret{}
	err := r.Direct.Get(ctx, types.NamespacedName{Namespace: r.key.Namespace, Name: name}, got)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading Secret %s: %w", name, err)
	case got.Labels[resources.LabelFleet] != r.key.Name || got.Labels["app.kubernetes.io/managed-by"] != resources.Manager:
		r.taken = append(r.taken, "Secret "+name)
		return nil, nil
	case !got.DeletionTimestamp.IsZero():
		return nil, fmt.Errorf("the Secret %s is being deleted", name)
	}
	return got, nil
}
