package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// Owners finds the pools of many pods: as PoolOf, but in a time that does not grow with the number of pools.
type Owners struct {
	// byLabel has each pool at one of the labels that it selects by: a pod of the pool has that label, too.
	byLabel map[[3]string][]candidate // namespace, key, value
}

// candidate is a pool with the labels that it selects by.
type candidate struct {
	pool *v1alpha1.InferencePool
	set  labels.Set
}

// NewOwners returns the owners among pools.
func NewOwners(pools []*v1alpha1.InferencePool) *Owners {
	o := &Owners{byLabel: make(map[[3]string][]candidate, len(pools))}
	// Labels that several pools select by are worse to look up than those of one.
	uses := map[[3]string]int{}
	sets := make([]labels.Set, len(pools))
	for i, p := range pools {
		sets[i] = PodLabels(p)
		for key, value := range sets[i] {
			uses[[3]string{p.Namespace, key, value}]++
		}
	}
	for i, p := range pools {
		var at [3]string
		for _, key := range slices.Sorted(maps.Keys(sets[i])) {
			if one := [3]string{p.Namespace, key, sets[i][key]}; uses[at] == 0 || uses[one] < uses[at] {
				at = one
			}
		}
		o.byLabel[at] = append(o.byLabel[at], candidate{p, sets[i]})
	}
	return o
}

// PoolOf returns the pool of a pod; nil for none, and for the workers of a group.
func (o *Owners) PoolOf(pod *corev1.Pod) *v1alpha1.InferencePool {
	if Worker(pod) {
		return nil
	}
	var of *v1alpha1.InferencePool
	for key, value := range pod.Labels {
		for _, c := range o.byLabel[[3]string{pod.Namespace, key, value}] {
			if HasLabels(pod, c.set) && (of == nil || Older(c.pool, of)) {
				of = c.pool
			}
		}
	}
	return of
}

// FleetOf returns the name of the PickerFleet, in the pool's namespace, to which a pool leaves its pickers; empty for none.
func FleetOf(p *v1alpha1.InferencePool) string { return p.Spec.Picker.FleetName() }

// OtherPickers says which pickers serve a pool, where those that were expected do not.
func OtherPickers(p *v1alpha1.InferencePool) string {
	if fleet := FleetOf(p); fleet != "" {
		return "InferencePool " + nameOf(p).String() + " is of the PickerFleet " + fleet
	}
	return fmt.Sprintf("InferencePool %s is of no PickerFleet: its picker.mode is %s", nameOf(p), cmp.Or(p.Spec.Picker.Mode, v1alpha1.PickerManaged))
}

// HasName reports whether requests can use a name for a model of the pool, as far as its object shows: with discovery, engines can list
// any.
func HasName(p *v1alpha1.InferencePool, name v1alpha1.ModelName) bool {
	m := &p.Spec.Model
	return name == m.Name || slices.Contains(m.Aliases, name) || slices.Contains(m.Adapters.Names, name) ||
		m.Adapters.Discovery != v1alpha1.Disabled
}
