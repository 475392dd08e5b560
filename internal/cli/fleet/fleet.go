// Package fleet is what the API server knows of pools and their pods, and what people change there: drain marks and
// rollouts. It reads and patches objects, and does not connect to pickers.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
)

// NewClient is a client that knows the types of Kubernetes and Kvasir.
func NewClient(access *rest.Config) (client.Client, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	c, err := client.New(access, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connecting to the API server: %w", err)
	}
	return c, nil
}

// Refused is something that is not done, for a reason that the user can do something about.
type Refused struct{ why string }

func (r *Refused) Error() string { return r.why }

func refuse(format string, args ...any) error { return &Refused{fmt.Sprintf(format, args...)} }

// explained rewrites errors of the API server so that users can read them.
func explained(err error) error {
	var noGroup *meta.NoKindMatchError
	if meta.IsNoMatchError(err) || errors.As(err, &noGroup) {
		return refuse("the cluster has no InferencePools of kvasir.dev: is Kvasir installed there? (kubectl kvasir doctor)")
	}
	return err
}

// Pools lists the pools of a namespace, of all namespaces if it is empty, by namespace and name.
func Pools(ctx context.Context, c client.Reader, namespace string) ([]v1alpha1.InferencePool, error) {
	var list v1alpha1.InferencePoolList
	if err := c.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, explained(err)
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.InferencePool) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return list.Items, nil
}

// Pool reads one pool.
func Pool(ctx context.Context, c client.Reader, name types.NamespacedName) (*v1alpha1.InferencePool, error) {
	pool := &v1alpha1.InferencePool{}
	switch err := c.Get(ctx, name, pool); {
	case apierrors.IsNotFound(err):
		return nil, refuse("there is no pool %s in the namespace %s", name.Name, name.Namespace)
	case err != nil:
		return nil, explained(err)
	}
	return pool, nil
}

// Pods of a pool, by name.
func Pods(ctx context.Context, c client.Reader, pool *v1alpha1.InferencePool) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := c.List(ctx, &list, client.InNamespace(pool.Namespace), client.MatchingLabels(config.PodLabels(pool))); err != nil {
		return nil, fmt.Errorf("listing the pods of pool %s: %w", pool.Name, err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	return list.Items, nil
}
