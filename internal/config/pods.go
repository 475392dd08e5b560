package config

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

const kindPod = "Pod"

// Pod is a pod of a pool, with an address or without.
type Pod struct {
	// UID, and what people call it.
	UID, Namespace, Name string
	// Pool that it is of: its name, the namespace is the pod's.
	Pool string
	// Leaving pods carry the drain mark or are being deleted: their endpoints are not picked.
	Leaving bool
}

// Labels of the pods of a LeaderWorkerSet: its name, the number of the group, and the pod's own in it; the leader is 0.
const (
	LabelSet    = "leaderworkerset.sigs.k8s.io/name"
	LabelGroup  = "leaderworkerset.sigs.k8s.io/group-index"
	LabelMember = "leaderworkerset.sigs.k8s.io/worker-index"
)

// Worker reports whether a pod is one of a group whose leader answers for it: it takes no requests of its own.
func Worker(pod *corev1.Pod) bool {
	member, ok := pod.Labels[LabelMember]
	return ok && member != "0"
}

// PoolOf returns the pool, in the pod's namespace, that a pod belongs to: that of its label for pools with a template, else
// one whose selector matches. If several match, it is the oldest, then the first by name. It is nil for none, and for the
// workers of a group.
func PoolOf(pod *corev1.Pod, pools []*v1alpha1.InferencePool) *v1alpha1.InferencePool {
	if Worker(pod) {
		return nil
	}
	return OldestOf(pod, pools)
}

// OldestOf is PoolOf, and returns the pool of the workers of a group as well.
func OldestOf(pod *corev1.Pod, pools []*v1alpha1.InferencePool) *v1alpha1.InferencePool {
	var of *v1alpha1.InferencePool
	for _, p := range pools {
		if p.Namespace == pod.Namespace && Selects(p, pod) && (of == nil || Older(p, of)) {
			of = p
		}
	}
	return of
}

// Older reports whether pool a is older than b. If they are of the same age, the name decides.
func Older(a, b *v1alpha1.InferencePool) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

// PodLabels returns the labels by which a pool selects its pods: those of its selector, or the one that the operator gives
// to the pods that it makes from the pool's template. A pod of the same namespace that has all of them belongs to the pool,
// unless an older pool selects it, too.
func PodLabels(p *v1alpha1.InferencePool) labels.Set {
	if len(p.Spec.Selector.MatchLabels) == 0 {
		return labels.Set{v1alpha1.LabelPool: p.Name}
	}
	set := labels.Set{}
	for key, value := range p.Spec.Selector.MatchLabels {
		set[key] = string(value)
	}
	return set
}

// Selects reports whether a pool selects a pod of its namespace.
func Selects(p *v1alpha1.InferencePool, pod *corev1.Pod) bool { return HasLabels(pod, PodLabels(p)) }

// HasLabels reports whether a pod has all labels of a set.
func HasLabels(pod *corev1.Pod, set labels.Set) bool {
	for key, value := range set {
		if got, ok := pod.Labels[key]; !ok || got != value {
			return false
		}
	}
	return true
}

// Leaving reports whether a pod gets no more requests: it has a drain mark, or is being deleted.
func Leaving(pod *corev1.Pod) bool {
	_, marked := pod.Labels[v1alpha1.LabelDrain]
	return marked || pod.DeletionTimestamp != nil
}

// podSlice puts a pod of a pool into the words of a slice: one endpoint, with the pod's own labels and annotations. A
// pod that has no address yet, or has ended, is none. Ports are the pool's, unless rankPorts has one for each rank.
func podSlice(pool string, pod *corev1.Pod, rankPorts []int32) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{Kind: kindPod},
		ObjectMeta:  metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Labels: map[string]string{}, Annotations: map[string]string{}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for key, value := range pod.Labels {
		s.Labels[key] = value
	}
	s.Labels[v1alpha1.LabelPool] = pool
	if rank, ok := pod.Annotations[v1alpha1.AnnotationStartRank]; ok {
		s.Annotations[v1alpha1.AnnotationStartRank] = rank
	}
	if pod.Status.PodIP == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return s
	}
	ready := PodServes(pod)
	s.Endpoints = []discoveryv1.Endpoint{{
		Addresses:  []string{pod.Status.PodIP},
		Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(ready), Serving: ptr.To(ready), Terminating: ptr.To(Leaving(pod))},
		TargetRef:  &corev1.ObjectReference{Kind: kindPod, Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
	}}
	for r, port := range rankPorts {
		name := portHTTP
		if r > 0 {
			name += "-" + strconv.Itoa(r)
		}
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: ptr.To(name), Port: ptr.To(port)})
	}
	return s
}

// PodReady reports whether a pod has the condition Ready.
func PodReady(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// PodServes reports whether the engine of a pod takes requests: the pod is ready, or would be if its reporter were. An engine answers
// without it, so that a reporter that is replaced, cannot be pulled or crashes takes no engine out of use, unless requests pass through it.
func PodServes(pod *corev1.Pod) bool {
	if PodReady(pod) {
		return true
	}
	if ReporterServes(pod) {
		return false
	}
	containers := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	alone := slices.ContainsFunc(containers, func(s corev1.ContainerStatus) bool { return s.Name == v1alpha1.ReporterContainer && !s.Ready })
	if !alone || len(pod.Status.ContainerStatuses) == 0 {
		return false // such as that of a node that is not ready
	}
	for i := range containers {
		if s := &containers[i]; s.Name != v1alpha1.ReporterContainer && !s.Ready {
			return false
		}
	}
	for _, gate := range pod.Spec.ReadinessGates {
		if !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == gate.ConditionType && c.Status == corev1.ConditionTrue
		}) {
			return false
		}
	}
	return true
}

// ReporterServes reports whether requests to a pod's engine pass through its reporter, which serves the pool's port.
func ReporterServes(pod *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool {
		return c.Name == v1alpha1.ReporterContainer && len(ServeArgs(c.Args)) > 0
	})
}

// ServeArgs are those of a reporter's arguments by which it serves the pool's port; none if it does not.
func ServeArgs(args []string) []string {
	for _, arg := range args {
		if name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "="); name == "serve-address" && strings.HasPrefix(arg, "-") {
			return []string{arg}
		}
	}
	return nil
}

// slices are the slices of the files, and one for each pod of a pool.
func (n *translation) slices(o *Objects) []*discoveryv1.EndpointSlice {
	all, owners := byName(o.Slices), NewOwners(o.Pools)
	for _, pod := range byName(o.Pods) {
		pool := owners.PoolOf(pod)
		if pool == nil {
			continue
		}
		n.state.Pods = append(n.state.Pods, Pod{
			UID: string(pod.UID), Namespace: pod.Namespace, Name: pod.Name, Pool: pool.Name, Leaving: Leaving(pod),
		})
		if pod.Annotations[v1alpha1.AnnotationHTTPSocket] != "" {
			n.problem(kindPod, pod, field.Forbidden(field.NewPath("metadata", "annotations").Key(v1alpha1.AnnotationHTTPSocket),
				"a socket in a pod cannot be reached from another: the engine is called at its port"), false)
		}
		all = append(all, podSlice(pool.Name, pod, o.RankPorts[types.NamespacedName{Namespace: pool.Namespace, Name: pool.Name}]))
	}
	return all
}
