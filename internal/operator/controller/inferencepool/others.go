package inferencepool

import (
	"context"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// othersEvery is how often the operator checks whether another installation still exists.
const othersEvery = 30 * time.Second

// Others finds pools that another installation of the operator manages. Two installations that watch one namespace would
// replace each other's objects without end. The first keeps a pool: its ServiceAccount is named by the pool's pickers. It has
// ceased to exist when that account is gone, and the pool is taken over then. Installations in one namespace share a Lease, so
// that only one of them acts. A pool with external pickers names no operator. It is safe for concurrent use.
type Others struct {
	// Reader reads the pickers' Deployments from a cache, Direct asks the API server.
	Reader, Direct client.Reader
	// Own is the ServiceAccount of this operator.
	Own   types.NamespacedName
	Clock clock.PassiveClock

	mu   sync.Mutex // guards seen
	seen map[types.NamespacedName]account
}

// account is what is known of another operator's ServiceAccount.
type account struct {
	there bool
	at    time.Time
}

// Manages reports whether another operator manages the pool of these pickers, and its account.
func (o *Others) Manages(ctx context.Context, pickers *appsv1.Deployment) (types.NamespacedName, bool, error) {
	if o == nil || pickers == nil {
		return types.NamespacedName{}, false, nil
	}
	of, ok := resources.OperatorOf(pickers)
	if !ok || of.Namespace == o.Own.Namespace {
		return of, false, nil
	}
	there, err := o.exists(ctx, of)
	return of, there, err
}

// ManagesPool reports whether another operator manages a pool.
func (o *Others) ManagesPool(ctx context.Context, pool types.NamespacedName) (bool, error) {
	pickers := &appsv1.Deployment{}
	name := types.NamespacedName{Namespace: pool.Namespace, Name: resources.PickerName(pool.Name)}
	if err := o.Reader.Get(ctx, name, pickers); err != nil {
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return false, fmt.Errorf("reading the pickers of pool %s: %w", pool, err)
	}
	_, yes, err := o.Manages(ctx, pickers)
	return yes, err
}

// exists reports whether a ServiceAccount exists. One that this operator is not allowed to read does, as far as it knows.
func (o *Others) exists(ctx context.Context, name types.NamespacedName) (bool, error) {
	now := o.Clock.Now()
	o.mu.Lock()
	known, ok := o.seen[name]
	o.mu.Unlock()
	if ok && now.Sub(known.at) < othersEvery {
		return known.there, nil
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ServiceAccount"))
	err := o.Direct.Get(ctx, name, object) // without the mutex: a slow answer delays this pool only
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return false, fmt.Errorf("reading the service account %s of another operator: %w", name, err)
	}
	there := !apierrors.IsNotFound(err)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen == nil {
		o.seen = map[types.NamespacedName]account{}
	}
	o.seen[name] = account{there, now}
	return there, nil
}

// yields reports whether the pool is another operator's, and says so: its status is the other's, too.
func (r *cluster) yields(ctx context.Context) (bool, error) {
	other, yes, err := r.Others.Manages(ctx, r.picker)
	if !yes || err != nil {
		return false, err
	}
	r.recordEvent(warning, "OtherOperator", nil, "the operator %s manages this pool, and this one (%s) leaves it alone. "+
		"Uninstall one of them, or limit both to different namespaces. The pool is taken over when the other's service account is gone",
		other, r.Others.Own)
	return true, nil
}
