package server

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// configuration is what the objects say, and what of it is in force.
type configuration struct {
	applying sync.Mutex // held while a state is applied: one at a time
	marks    marks
	cramped  bool // the indexes of the pools do not fit into the plan

	mu      sync.Mutex                              // guards what follows
	written config.State                            // as last read
	state   config.State                            // the same, with endpoints marked that are unreachable
	found   map[types.NamespacedName]findings       // what the last status said
	refused map[types.NamespacedName]config.Refusal // why the picker has not taken a pool's present Spec
	applied map[types.NamespacedName]picker.Spec    // what it has taken last
	board   *config.Board
	// filePods maps each pod whose reporter can have the model's files to its pool, and fileNames to its name.
	filePods, fileNames map[string]string
}

// apply applies a new state of the configuration.
func (a *app) apply(state config.State) {
	a.applying.Lock()
	defer a.applying.Unlock()
	a.mu.Lock()
	before := a.written
	a.written = state
	a.mu.Unlock()
	if a.reach != nil {
		state.Specs = a.reach.mark(state.Specs)
	}
	a.mu.Lock()
	a.state = state
	a.mu.Unlock()
	a.logProblems(before, state)

	var refused map[types.NamespacedName]config.Refusal
	a.marks.follow(state.Pods, func() { refused = a.applySpecs(state.Specs, state.RouteSpecs) })
	a.setTokens()
	a.feed()
	if a.operate != nil {
		a.operate.Changed()
	}
	if len(state.Specs) > 0 || !a.onePool {
		a.ready.apply()
	}
	if !a.inCluster {
		a.logUnready(&state, refused)
	}

	a.inform()

	endpoints := 0
	for i := range state.Specs {
		endpoints += len(state.Specs[i].Endpoints)
	}
	a.log.Info("Objects applied", "pools", len(state.Specs)-len(refused), "endpoints", endpoints,
		"policies", len(state.Policies), "routes", len(state.RouteSpecs), "problems", len(state.Problems)+len(refused))
}

// logUnready notes why no request can be served, if none can, and logs it when that changes.
func (a *app) logUnready(state *config.State, refused map[types.NamespacedName]config.Refusal) {
	why := cmp.Or(unserved(state, refused), unreached(state))
	if a.ready.serve(why) && why != "" {
		a.log.Error(nil, "No request can be served, so the picker is not ready", "reason", why)
	}
}

// keyOf is the key of a pool.
func keyOf(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// unserved is why no pool of a state is served; empty if one is. It names the first problem, because the others often follow
// from it.
func unserved(state *config.State, refused map[types.NamespacedName]config.Refusal) string {
	first := ""
	for i := range state.Problems {
		first = cmp.Or(first, state.Problems[i].Error())
	}
	for _, spec := range state.Specs {
		refusal, is := refused[keyOf(spec.Namespace, spec.Name)]
		if !is {
			return ""
		}
		first = cmp.Or(first, fmt.Sprintf("%s %s/%s: %v", v1alpha1.KindInferencePool, spec.Namespace, spec.Name, refusal.Err))
	}
	return "no pool is served: " + cmp.Or(first, state.Empty, "there is no InferencePool in the configuration")
}

// logProblems logs the problems that are new.
func (a *app) logProblems(before, now config.State) {
	known := map[string]bool{}
	for i := range before.Problems {
		known[before.Problems[i].Error()] = true
	}
	for i := range now.Problems {
		if p := &now.Problems[i]; !known[p.Error()] {
			a.log.Error(p, "Part of the configuration is invalid, not applied")
		}
	}
}

// applySpecs passes the pools and the routes to the picker. A pool that it refuses keeps its last good state, except for the endpoints,
// which are updated.
func (a *app) applySpecs(specs []picker.Spec, routes []modelroute.Route) map[types.NamespacedName]config.Refusal {
	refused := map[types.NamespacedName]config.Refusal{}
	specs = slices.Clone(specs)
	fits := a.plan.fit(specs)
	if !fits && !a.cramped {
		logging.Warn(a.log, "Index limited to its share of the container's memory", "index", a.plan.index, "limit", a.plan.limit)
	}
	a.cramped = !fits
	for _, e := range picker.PoolErrors(a.picker.Apply(specs, routes...)) {
		name := keyOf(e.Namespace, e.Pool)
		refused[name] = config.Refusal{Err: e.Err}
		a.log.Error(e, "The picker has refused a pool", "pool", name.String())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	next := map[types.NamespacedName]picker.Spec{}
	var again []picker.Spec
	for _, spec := range specs {
		name := keyOf(spec.Namespace, spec.Name)
		if _, is := refused[name]; is {
			last, known := a.applied[name]
			if !known {
				continue
			}
			last.Endpoints = spec.Endpoints
			spec = last
		}
		next[name] = spec
		again = append(again, spec)
	}
	if len(refused) > 0 {
		for _, e := range picker.PoolErrors(a.picker.Apply(again, routes...)) {
			delete(next, keyOf(e.Namespace, e.Pool))
		}
	}
	a.applied, a.refused = next, refused
	return refused
}
