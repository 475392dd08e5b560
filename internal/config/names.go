package config

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// draft is a pool on its way into a state.
type draft struct {
	name   types.NamespacedName
	object *v1alpha1.InferencePool
	// spec without policy and endpoints; served reports whether it can be used. last is the previously applied spec, if
	// known.
	spec, last    picker.Spec
	served, known bool
	problems      []Problem
}

// named is a name that requests can use, and the field that sets it.
type named struct {
	name  string
	field *field.Path
}

// names of a pool, as far as they are known beforehand.
func modelNames(spec *picker.Spec) []named {
	path := field.NewPath("spec", "model")
	all := []named{{spec.Model, path.Child("name")}}
	for i, name := range spec.Aliases {
		all = append(all, named{name, path.Child("aliases").Index(i)})
	}
	for i, name := range spec.Adapters {
		all = append(all, named{name, path.Child("adapters", "names").Index(i)})
	}
	return all
}

// settleNames assigns every name that requests use to one pool: the oldest that wants it. Pools without an age were read from files:
// there the one that had it keeps it, and otherwise the first by name has it. So pickers of a cluster agree, whenever they started.
// A pool that wants a name of another pool keeps its last good state, which can in turn have a name that a third pool
// wants; each round refuses at least one pool, so there are no more rounds than pools.
func (n *translation) settleNames(drafts []*draft) {
	for {
		owners := map[string]*draft{}
		for _, d := range drafts {
			if !d.served {
				continue
			}
			for _, one := range modelNames(&d.spec) {
				if owner := owners[one.name]; owner == nil || precedes(d.object, owner.object, n.last.models[one.name]) {
					owners[one.name] = d
				}
			}
		}
		refused := false
		for _, d := range drafts {
			refused = n.refuseTaken(d, owners) || refused
		}
		if !refused {
			for name, d := range owners {
				n.next.models[name] = d.name
			}
			return
		}
	}
}

// refuseTaken puts a pool back to its last good state if it wants a name that another one has.
func (n *translation) refuseTaken(d *draft, owners map[string]*draft) bool {
	if !d.served {
		return false
	}
	taken := false
	for _, one := range modelNames(&d.spec) {
		if owner := owners[one.name]; owner != d {
			err := field.Duplicate(one.field, one.name+", a name of InferencePool "+owner.name.String())
			d.problems = append(d.problems, n.problem(v1alpha1.KindInferencePool, d.object, err, d.known))
			taken = true
		}
	}
	if taken {
		// A last state that is refused as well cannot be used any more.
		d.spec, d.served, d.known = d.last, d.known, false
	}
	return taken
}

// precedes reports whether the first of two pools has a name that both want. held is the pool that had it.
func precedes(a, b metav1.Object, held types.NamespacedName) bool {
	older, younger := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	switch {
	case !older.Equal(&younger):
		return older.Before(&younger)
	case older.IsZero() && (nameOf(a) == held || nameOf(b) == held):
		return nameOf(a) == held
	}
	return nameOf(a).String() < nameOf(b).String()
}
