package inferencepool

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

const (
	// pickersAtOnce is how many pools get a new image of the pickers at the same time. The first one gets it alone.
	pickersAtOnce = 4
	// pickersWithin is how long pickers that have the image and are not available hold up other pools. A Deployment takes as long to
	// report that its new pods do not come.
	pickersWithin = 10 * time.Minute
	// pickersProven is how long the first pool's pickers must have been available until others follow.
	pickersProven = 2 * time.Minute
	// TurnEvery is how often a pool looks whether it is its turn: the objects of other pools are not watched for it.
	TurnEvery = 10 * time.Second
)

// pickersAhead returns the pool whose pickers get the operator's image before those of this one do, empty if it is this pool's turn. An
// upgrade of the operator changes the image for all pools, and nothing but the pickers of the first ones shows whether it works.
//
// Whose turn it is follows from the Deployments and the pools alone, so another replica of the operator continues. A pool whose spec has
// changed does not wait.
func (r *children) pickersAhead(ctx context.Context, c *resources.Config) (string, error) {
	if r.picker == nil || r.pool.Generation != r.pool.Status.ObservedGeneration {
		return "", nil
	}
	ahead, err := (&Turns{r.Client, r.Others}).Ahead(ctx, c, r.picker, r.now)
	if ahead != "" {
		r.wakeAt(r.now.Add(TurnEvery))
	}
	return ahead, err
}

// Turns decides in which order pickers get the operator's image.
type Turns struct {
	// Client reads from a cache.
	Client client.Reader
	Others *Others
}

// Ahead returns the pool, or the fleet, whose pickers get the operator's image before these do, empty if it is their turn.
func (o *Turns) Ahead(ctx context.Context, c *resources.Config, pickers *appsv1.Deployment, now time.Time) (string, error) {
	if pickerImage(pickers) == c.PickerImage {
		return "", nil
	}
	var list appsv1.DeploymentList
	// The Deployments are shared with the cache and only read.
	if err := o.Client.List(ctx, &list, client.UnsafeDisableDeepCopy, client.MatchingLabels{
		resources.LabelComponent: resources.ComponentPicker, labelManagedBy: resources.Manager,
	}); err != nil {
		return "", fmt.Errorf("listing the pickers of all pools: %w", err)
	}
	var ours []*appsv1.Deployment
	for i := range list.Items {
		if operator, ok := resources.OperatorOf(&list.Items[i]); ok && operator == c.Operator {
			ours = append(ours, &list.Items[i])
		}
	}
	t := turnsOf(ours, c.PickerImage, now)
	for _, d := range t.next {
		if len(t.busy) >= t.limit {
			break
		}
		if client.ObjectKeyFromObject(d) == client.ObjectKeyFromObject(pickers) {
			return "", nil
		}
		if o.updates(ctx, d) {
			t.busy = append(t.busy, d)
		}
	}
	if len(t.busy) < t.limit {
		return "", nil // another operator made its Deployment, and this one takes it over
	}
	owner := metav1.GetControllerOf(t.busy[0])
	return t.busy[0].Namespace + "/" + owner.Name, nil
}

// updates reports whether the operator will give pickers its image when it is their turn: not if their pool goes, is not accepted, or is
// left to another operator.
func (o *Turns) updates(ctx context.Context, d *appsv1.Deployment) bool {
	owner := metav1.GetControllerOf(d)
	key := types.NamespacedName{Namespace: d.Namespace, Name: owner.Name}
	if owner.Kind == v1alpha1.KindPickerFleet {
		fleet := &v1alpha1.PickerFleet{}
		if o.Client.Get(ctx, key, fleet) != nil || !fleet.DeletionTimestamp.IsZero() {
			return false
		}
		_, others, err := o.Others.Manages(ctx, fleet, d)
		return !others && err == nil
	}
	pool := &v1alpha1.InferencePool{}
	if o.Client.Get(ctx, key, pool) != nil || !pool.DeletionTimestamp.IsZero() {
		return false
	}
	if _, others, err := o.Others.Manages(ctx, pool, d); others || err != nil {
		return false
	}
	return pool.Spec.Picker.Mode != v1alpha1.PickerExternal && !meta.IsStatusConditionFalse(pool.Status.Conditions, v1alpha1.ConditionAccepted)
}

// turns is how far the pickers of an operator's pools are with its image.
type turns struct {
	// busy have the image and are not available yet; next do not have it, in the order in which they get it.
	busy, next []*appsv1.Deployment
	// limit is how many can be busy.
	limit int
}

// turnsOf judges the pickers of an operator. Pickers that are available begin, because those that were not before show nothing.
func turnsOf(all []*appsv1.Deployment, image string, now time.Time) turns {
	t, fresh := turns{limit: 1}, []*appsv1.Deployment(nil)
	for _, d := range all {
		switch {
		case metav1.GetControllerOf(d) == nil || !d.DeletionTimestamp.IsZero() || d.Spec.Paused:
		case pickerImage(d) != image:
			t.next = append(t.next, d)
		case pickersUpdated(d):
			if proven := provenUpdate(d); now.Before(proven) {
				fresh = append(fresh, d)
			} else {
				t.limit = pickersAtOnce
			}
		case !pickersFail(d, now):
			t.busy = append(t.busy, d)
		}
	}
	if t.limit == 1 { // an image that crashes after a while shows it in the first pool
		t.busy = append(t.busy, fresh...)
	}
	order := func(a, b *appsv1.Deployment) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}
	slices.SortFunc(t.busy, order)
	slices.SortFunc(t.next, func(a, b *appsv1.Deployment) int {
		switch availableA, availableB := pickersServe(a), pickersServe(b); {
		case availableA && !availableB:
			return -1
		case availableB && !availableA:
			return 1
		}
		return order(a, b)
	})
	return t
}

// pickerImage is the image of a Deployment of pickers.
func pickerImage(d *appsv1.Deployment) string {
	if containers := d.Spec.Template.Spec.Containers; len(containers) > 0 {
		return containers[0].Image
	}
	return ""
}

// pickersServe reports whether all replicas of a Deployment are available, whichever template they are of.
func pickersServe(d *appsv1.Deployment) bool {
	return d.Status.AvailableReplicas > 0 && d.Status.AvailableReplicas >= ptr.Deref(d.Spec.Replicas, 1)
}

// pickersUpdated reports whether all replicas of a Deployment are of its template, and available.
func pickersUpdated(d *appsv1.Deployment) bool {
	s := &d.Status
	return s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == s.Replicas && pickersServe(d)
}

// provenUpdate is when pickers that are of their template and available have shown that it works; the zero time if it is not known since
// when they are.
func provenUpdate(d *appsv1.Deployment) time.Time {
	for i := range d.Status.Conditions {
		if c := &d.Status.Conditions[i]; c.Type == appsv1.DeploymentProgressing && !c.LastUpdateTime.IsZero() {
			return c.LastUpdateTime.Add(pickersProven)
		}
	}
	return time.Time{}
}

// pickersFail reports whether a Deployment has not become available in pickersWithin.
func pickersFail(d *appsv1.Deployment, now time.Time) bool {
	if d.Status.ObservedGeneration < d.Generation {
		return false
	}
	for i := range d.Status.Conditions {
		c := &d.Status.Conditions[i]
		if c.Status == corev1.ConditionFalse && (c.Type == appsv1.DeploymentProgressing ||
			c.Type == appsv1.DeploymentAvailable && now.Sub(c.LastTransitionTime.Time) > pickersWithin) {
			return true
		}
	}
	return false
}
