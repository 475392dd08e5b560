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

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// othersEvery is how often the operator checks whether another installation still exists.
const othersEvery = 30 * time.Second

// Others finds pools that another installation of the operator manages. Two installations that watch one namespace would
// replace each other's objects without end. The first keeps a pool: its ServiceAccount is named by the pool's pickers. It has
// ceased to exist when that account is gone, and the pool is taken over then. An operator whose rights end at its namespaces cannot
// see that, so people can say which installation manages a pool, by v1alpha1.AnnotationOperator. Installations in one namespace
// share a Lease, so that only one of them acts. A pool with external pickers names no operator. It is safe for concurrent use.
type Others struct {
	// Reader reads the pickers' Deployments from a cache, Direct asks the API server.
	Reader, Direct client.Reader
	// Own is the ServiceAccount of this operator.
	Own   types.NamespacedName
	Clock clock.PassiveClock

	mu   sync.Mutex // guards seen
	seen map[types.NamespacedName]account
}

// account is what is known of another operator's ServiceAccount: whether it exists as far as this operator knows, and whether this
// operator is not allowed to read it.
type account struct {
	there, hidden bool
	at            time.Time
}

// Manager is another installation that manages a pool: the ServiceAccount that the pool's pickers name, or the namespace that the
// pool's annotation names.
type Manager struct {
	Account types.NamespacedName
	// Named is the value of the annotation, empty for none.
	Named string
	// Hidden is whether this operator is not allowed to read whether the account still exists.
	Hidden bool
}

// Manages reports whether another installation manages a pool or a fleet with these pickers, nil for none, and which.
func (o *Others) Manages(ctx context.Context, owner metav1.Object, pickers *appsv1.Deployment) (Manager, bool, error) {
	if o == nil {
		return Manager{}, false, nil
	}
	if named := owner.GetAnnotations()[v1alpha1.AnnotationOperator]; named != "" {
		return Manager{Named: named}, named != o.Own.Namespace, nil
	}
	if pickers == nil {
		return Manager{}, false, nil
	}
	of, ok := resources.OperatorOf(pickers)
	if !ok || of.Namespace == o.Own.Namespace {
		return Manager{}, false, nil
	}
	is, err := o.look(ctx, of)
	return Manager{Account: of, Hidden: is.hidden}, is.there, err
}

// ManagesPool reports whether another installation manages a pool.
func (o *Others) ManagesPool(ctx context.Context, key types.NamespacedName) (bool, error) {
	pool, pickers := &v1alpha1.InferencePool{}, &appsv1.Deployment{}
	switch err := o.Reader.Get(ctx, key, pool); {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading pool %s: %w", key, err)
	}
	name := types.NamespacedName{Namespace: key.Namespace, Name: resources.PickerName(key.Name)}
	switch err := o.Reader.Get(ctx, name, pickers); {
	case apierrors.IsNotFound(err):
		pickers = nil
	case err != nil:
		return false, fmt.Errorf("reading the pickers of pool %s: %w", key, err)
	}
	_, yes, err := o.Manages(ctx, pool, pickers)
	return yes, err
}

// look returns whether a ServiceAccount exists. One that this operator is not allowed to read does, as far as it knows.
func (o *Others) look(ctx context.Context, name types.NamespacedName) (account, error) {
	now := o.Clock.Now()
	o.mu.Lock()
	known, ok := o.seen[name]
	o.mu.Unlock()
	if ok && now.Sub(known.at) < othersEvery {
		return known, nil
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ServiceAccount"))
	err := o.Direct.Get(ctx, name, object) // without the mutex: a slow answer delays this pool only
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return account{}, fmt.Errorf("reading the service account %s of another operator: %w", name, err)
	}
	is := account{there: !apierrors.IsNotFound(err), hidden: apierrors.IsForbidden(err), at: now}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen == nil {
		o.seen = map[types.NamespacedName]account{}
	}
	o.seen[name] = is
	return is, nil
}

// yields reports whether the pool is another operator's, and says so, with what to do: its status is the other's, too.
func (r *cluster) yields(ctx context.Context) (bool, error) {
	other, yes, err := r.Others.Manages(ctx, r.pool, r.picker)
	if !yes || err != nil {
		return false, err
	}
	own := r.Others.Own
	take := fmt.Sprintf("kubectl annotate kvpool -n %s %s %s=%s --overwrite", r.key.Namespace, r.key.Name, v1alpha1.AnnotationOperator, own.Namespace)
	switch {
	case other.Named != "":
		r.recordEvent(warning, "OtherOperator", nil, "the pool's annotation %s names the operator in namespace %s, and this one (%s) leaves the pool alone. "+
			"To have this one manage it: %s", v1alpha1.AnnotationOperator, other.Named, own, take)
	case other.Hidden:
		r.recordEvent(warning, "OtherOperator", nil, "the operator %s manages this pool, and this one (%s) leaves it alone. This one is not "+
			"allowed to see whether the other is still there. If it is not, hand the pool over: %s", other.Account, own, take)
	default:
		r.recordEvent(warning, "OtherOperator", nil, "the operator %s manages this pool, and this one (%s) leaves it alone. "+
			"Uninstall one of them, or limit both to different namespaces. The pool is taken over when the other's service account is gone",
			other.Account, own)
	}
	return true, nil
}
