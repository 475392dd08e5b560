package cluster

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
)

// ownInformer watches a Kvasir kind without decoding it: an object that another version of the schema has admitted must not
// block the others.
func ownInformer(client dynamic.ResourceInterface) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			return client.Watch(ctx, o)
		},
	}, &unstructured.Unstructured{}, 0, cache.Indexers{})
}

// podInformer watches pods and keeps of them what matters here: some 1 KB of each.
func podInformer(client corev1client.PodInterface) cache.SharedIndexInformer {
	i := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			return client.Watch(ctx, o)
		},
	}, &corev1.Pod{}, 0, cache.Indexers{})
	if err := i.SetTransform(trim); err != nil {
		panic(err) // it has not begun
	}
	return i
}

// trim keeps of a pod what translation reads.
func trim(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	small := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			Labels: pod.Labels, DeletionTimestamp: pod.DeletionTimestamp,
		},
		Spec: corev1.PodSpec{ReadinessGates: pod.Spec.ReadinessGates, InitContainers: serving(pod)},
		Status: corev1.PodStatus{
			Phase: pod.Status.Phase, PodIP: pod.Status.PodIP,
			InitContainerStatuses: readiness(pod.Status.InitContainerStatuses), ContainerStatuses: readiness(pod.Status.ContainerStatuses),
		},
	}
	if rank, ok := pod.Annotations[v1alpha1.AnnotationStartRank]; ok {
		small.Annotations = map[string]string{v1alpha1.AnnotationStartRank: rank}
	}
	for _, c := range pod.Status.Conditions {
		gate := slices.ContainsFunc(pod.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool { return g.ConditionType == c.Type })
		if c.Type == corev1.PodReady || gate {
			small.Status.Conditions = append(small.Status.Conditions, corev1.PodCondition{Type: c.Type, Status: c.Status})
		}
	}
	return small, nil
}

// serving keeps of a pod's reporter that it serves the pool's port; nothing if it does not.
func serving(pod *corev1.Pod) []corev1.Container {
	if !config.ReporterServes(pod) {
		return nil
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name == v1alpha1.ReporterContainer {
			return []corev1.Container{{Name: c.Name, Args: config.ServeArgs(c.Args)}}
		}
	}
	return nil
}

// readiness keeps of containers which are ready.
func readiness(containers []corev1.ContainerStatus) []corev1.ContainerStatus {
	var small []corev1.ContainerStatus
	for i := range containers {
		small = append(small, corev1.ContainerStatus{Name: containers[i].Name, Ready: containers[i].Ready})
	}
	return small
}

// same reports whether an update changes nothing relevant: heartbeats do not count, and of the status only the fleet that serves a pool.
func same(old, now any) bool {
	switch now := now.(type) {
	case *corev1.Pod:
		before := *old.(*corev1.Pod)
		before.ResourceVersion = now.ResourceVersion
		return equality.Semantic.DeepEqual(&before, now)
	case *unstructured.Unstructured:
		before := old.(*unstructured.Unstructured)
		return before.GetUID() == now.GetUID() && before.GetGeneration() == now.GetGeneration() && servingFleet(before) == servingFleet(now)
	}
	return false
}

// reader makes typed objects of those of the API server, and keeps the last good one of each.
type reader struct {
	good  map[types.UID]*entry
	fresh map[types.UID]bool // what has been read since the last settle
	errs  []error
}

type entry struct {
	generation int64
	value      any
	failed     int64 // generation that could not be read and was logged
}

// servingFleet is the fleet that serves a pool, by its status; empty for none.
func servingFleet(pool *unstructured.Unstructured) string {
	name, _, _ := unstructured.NestedString(pool.Object, "status", "picker", "fleetName") // of another type is none
	return name
}

// pools are those of the store, with the fleet that serves each now, which is not of its generation.
func (r *reader) pools(store cache.Store) []*v1alpha1.InferencePool {
	return readAll(r, store, crdadmission.Pool,
		func(pool *v1alpha1.InferencePool, raw *unstructured.Unstructured) *v1alpha1.InferencePool {
			fleet := servingFleet(raw)
			if pool.Status.Picker.FleetName == fleet {
				return pool
			}
			changed := *pool // others have the one before
			changed.Status.Picker.FleetName = fleet
			return &changed
		})
}

func (r *reader) policies(store cache.Store) []*v1alpha1.RoutingPolicy {
	return readAll(r, store, crdadmission.Policy, nil)
}

// readAll converts the objects of a store. update, if it is not nil, returns a read object as it is now.
func readAll[T any](r *reader, store cache.Store, convert func(*unstructured.Unstructured) (T, error),
	update func(T, *unstructured.Unstructured) T) (all []T) {
	for _, o := range store.List() {
		raw := o.(*unstructured.Unstructured)
		value, ok := r.read(raw, func() (any, error) { return convert(raw) })
		if !ok {
			continue
		}
		if update != nil {
			value = update(value.(T), raw)
			r.good[raw.GetUID()].value = value
		}
		all = append(all, value.(T))
	}
	return all
}

// read returns the object of this generation, or the last one that could be read.
func (r *reader) read(raw *unstructured.Unstructured, convert func() (any, error)) (value any, ok bool) {
	if r.fresh == nil {
		r.fresh = map[types.UID]bool{}
	}
	uid := raw.GetUID()
	r.fresh[uid] = true
	e := r.good[uid]
	if e == nil {
		e = &entry{}
		r.good[uid] = e
	}
	if e.value == nil || e.generation != raw.GetGeneration() {
		made, err := convert()
		switch {
		case err == nil:
			e.value, e.generation = made, raw.GetGeneration()
		case e.failed != raw.GetGeneration():
			e.failed = raw.GetGeneration()
			r.errs = append(r.errs, fmt.Errorf("%s %s/%s: %w", raw.GetKind(), raw.GetNamespace(), raw.GetName(), err))
		}
	}
	return e.value, e.value != nil
}

// settle forgets deleted objects, and returns the errors since the last call.
func (r *reader) settle() []error {
	for uid := range r.good {
		if !r.fresh[uid] {
			delete(r.good, uid)
		}
	}
	errs := r.errs
	r.fresh, r.errs = nil, nil
	return errs
}
