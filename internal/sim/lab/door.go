package lab

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// Pool is one of several pools behind one door: one picker, which chooses the pool by the model of a request and the routes.
type Pool struct {
	// Name of the pool, and of its model.
	Name string
	Pods int
	// Profile of its engines; the run's if it has no name.
	Profile enginemodel.Profile
	// Start is how long its pods take to be ready after the pickers have seen the first request for it; 0: they are there from the
	// beginning.
	Start time.Duration
}

// doors is what a run with several pools keeps of them.
type doors struct {
	specs []picker.Spec       // in the order of Config.Pools
	pods  []endpoint.Endpoint // of all pools
	first []int               // the first pod of each pool
	woken []bool              // by pool: its pods are there, or on the way
}

// poolOf is the index of the pool that a pod is of.
func (c *Config) poolOf(pod int) int {
	for i := range c.Pools {
		if pod -= c.Pools[i].Pods; pod < 0 {
			return i
		}
	}
	return len(c.Pools) - 1
}

// profileOf is the time model of a pod.
func (s *sim) profileOf(pod int) enginemodel.Profile {
	if len(s.Pools) > 0 {
		if p := s.Pools[s.poolOf(pod)].Profile; p.Name != "" {
			return p
		}
	}
	return s.Profile
}

// asked is the name of the model that a request asks for.
func (s *sim) asked(r *Request) string {
	if r.Model != "" {
		return r.Model
	}
	return r.model()
}

// chance is what spreads requests without a session over backends: a function of the run's seed.
func (s *sim) chance() func() uint64 { return rand.New(rand.NewPCG(s.Seed, 0x726f757465)).Uint64 }

// openDoor applies the pools, which are all like spec, and the routes.
func (s *sim) openDoor(p *picker.Picker, spec *picker.Spec) error {
	s.doors = doors{pods: spec.Endpoints, woken: make([]bool, len(s.Pools))}
	n := 0
	for i := range s.Pools {
		of := *spec
		of.Name, of.Model, of.Endpoints = s.Pools[i].Name, s.Pools[i].Name, nil
		s.doors.first = append(s.doors.first, n)
		if s.Pools[i].Start == 0 {
			of.Endpoints, s.doors.woken[i] = s.doors.pods[n:n+s.Pools[i].Pods], true
		}
		of.FromZero = s.Pools[i].Start > 0
		n += s.Pools[i].Pods
		s.doors.specs = append(s.doors.specs, of)
	}
	return p.Apply(s.doors.specs, s.Routes...)
}

// feedsOf are the feeds of a picker by pod; zero for pods that are no endpoints yet.
func (s *sim) feedsOf(p *picker.Picker) []picker.Feed {
	feeds := make([]picker.Feed, s.Pods)
	for _, f := range p.Feeds() {
		feeds[s.out.pods[f.Endpoint.Pod]] = f
	}
	return feeds
}

// demand lets the pods of pools start for which the picker has seen a request, as the operator does by the same figure.
func (s *sim) demand() {
	for i := range s.doors.woken {
		if s.doors.woken[i] {
			continue
		}
		if known, ok := s.pickers[0].Operate(model + "/" + s.Pools[i].Name); ok && !known.Totals.LastRequest.IsZero() {
			s.doors.woken[i] = true
			s.agenda.add(s.now+s.Pools[i].Start, wakes, i)
		}
	}
}

// wake shows the picker the pods of a pool.
func (s *sim) wake(i int) {
	first := s.doors.first[i]
	s.doors.specs[i].Endpoints = s.doors.pods[first : first+s.Pools[i].Pods]
	if err := s.pickers[0].Apply(s.doors.specs, s.Routes...); err != nil {
		panic(fmt.Sprintf("lab: a pool that was valid without pods is not valid with them: %v", err))
	}
	s.feeds[0] = s.feedsOf(s.pickers[0])
	s.poll()
}

// fallBack sends a request that its pool has refused after a wait to the next fallback of its route, if there is one.
func (s *sim) fallBack(w waiting, refused error) bool {
	r := &s.Workload.Requests[w.i]
	prompt := r.Prompt()
	in := &picker.Keyed{
		Model: s.asked(r), Header: r.header, Prompt: prompt, Keys: s.keysOf(r, prompt), Streamed: true, Splits: true, Routing: w.routing,
	}
	if !s.pickers[w.picker].FallBackKeyed(in, refused) {
		return false
	}
	s.pick(w.i, in, w.arrived)
	return true
}
