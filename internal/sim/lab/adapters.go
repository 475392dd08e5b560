package lab

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// Adapters are the LoRA adapters of a fleet. Every pod can serve all of them, but only some at a time.
type Adapters struct {
	// PerPod is how many adapters a pod runs at a time.
	PerPod int
	// Load is how long a pod takes to bring an adapter in that it does not have.
	Load time.Duration
	// Unreported leaves the adapters out of what pods report, so that pickers do not know where they are.
	Unreported bool
}

// WithAdapters is the workload with each session under one of n adapters; some adapters are used more than others, by
// 1/rank.
func (w *Workload) WithAdapters(n int) *Workload {
	out := *w
	out.Requests = slices.Clone(w.Requests)
	out.more = nil
	if w.drawn != nil {
		out.drawn = func(seed uint64) (*Workload, error) {
			other, err := w.drawn(seed)
			if err != nil {
				return nil, err
			}
			return other.WithAdapters(n), nil
		}
	}
	total := 0.0
	for i := range n {
		total += 1 / float64(i+1)
	}
	for i := range out.Requests {
		r := &out.Requests[i]
		rng := rand.New(rand.NewPCG(uint64(r.Session), 0x61646170746572))
		x, chosen := rng.Float64()*total, 0
		for chosen < n-1 && x >= 1/float64(chosen+1) {
			x -= 1 / float64(chosen+1)
			chosen++
		}
		r.Adapter = adapterName(chosen)
	}
	return &out
}

func adapterName(i int) string { return fmt.Sprintf("adapter-%d", i) }

// adapters are those that a pod has, and the requests that wait for one.
type adapters struct {
	Adapters
	here    map[string]*adapter
	waiting []*sent // in order of arrival
	loads   int
}

type adapter struct {
	users int           // requests in the engine
	ready time.Duration // when it has been brought in
	used  time.Duration // last
}

// add passes requests to the engine whose adapters are loaded, and has others loaded: in a free place, or in that of the
// least recently used one. It returns when to call again, 0 for not before a request ends.
func (a *adapters) add(now time.Duration, e *enginemodel.Engine) (again time.Duration) {
	kept := a.waiting[:0]
	for _, x := range a.waiting {
		one := a.here[x.request.Adapter]
		if one == nil && a.room() {
			one = &adapter{ready: now + a.Load}
			a.here[x.request.Adapter] = one
			a.loads++
		}
		switch {
		case one == nil:
			kept = append(kept, x)
		case one.ready > now:
			kept = append(kept, x)
			if again == 0 || one.ready < again {
				again = one.ready
			}
		default:
			one.users++
			one.used = now
			e.Add(x.request, now)
		}
	}
	clear(a.waiting[len(kept):])
	a.waiting = kept
	return again
}

// room makes a place for an adapter, and reports whether there is one.
func (a *adapters) room() bool {
	if len(a.here) < a.PerPod {
		return true
	}
	oldest := ""
	for name, one := range a.here {
		if one.users > 0 || slices.ContainsFunc(a.waiting, func(x *sent) bool { return x.request.Adapter == name }) {
			continue
		}
		if before := a.here[oldest]; before == nil || one.used < before.used || one.used == before.used && name < oldest {
			oldest = name
		}
	}
	delete(a.here, oldest)
	return oldest != ""
}

// left says that a request with an adapter has ended.
func (a *adapters) left(now time.Duration, name string) {
	one := a.here[name]
	one.users--
	one.used = now
}

// names of those that run or that requests wait for, as engines report them.
func (a *adapters) names() string {
	var names []string
	for name, one := range a.here {
		if one.users > 0 || one.ready > 0 && slices.ContainsFunc(a.waiting, func(x *sent) bool { return x.request.Adapter == name }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// hand passes a request to its pod's engine, after its adapter has been loaded.
func (s *sim) hand(x *sent) {
	p := s.pods[x.pod]
	s.free(x) // what another pod has computed has arrived
	if x.request.Adapter == "" {
		p.engine.Add(x.request, s.now)
	} else {
		p.adapters.waiting = append(p.adapters.waiting, x)
		s.bringIn(x.pod)
	}
	if !p.busy {
		s.step(x.pod)
	}
}

// bringIn looks after the adapters of a pod.
func (s *sim) bringIn(i int) {
	if again := s.pods[i].adapters.add(s.now, s.pods[i].engine); again > 0 {
		s.agenda.add(again, broughtIn, i)
	}
}

// rootOf is the root of the keys of a model's prompts.
func (s *sim) rootOf(name string) kvblock.Key {
	root, ok := s.roots[name]
	if !ok {
		root = s.seed.Root(name, "")
		s.roots[name] = root
	}
	return root
}

// model is the name that the request asks for.
func (r *Request) model() string { return modelOf(r.Adapter) }

// modelOf is the name of an adapter, or of the base model without one.
func modelOf(adapter string) string {
	if adapter != "" {
		return adapter
	}
	return model
}
