// Package picker chooses the endpoint that will serve a request soonest.
//
// The path of a request is one straight line, in pick.go. What happens to it afterwards is told to the Decision that
// Pick returns. Every replica of the picker picks; none is a leader.
package picker

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/peer"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// Renderer asks an engine which token ids a request has. Errors that are the request's fault, or the renderer's own,
// wrap ErrUnrenderable; others are taken for the engine's.
type Renderer interface {
	Tokens(ctx context.Context, ep *endpoint.Endpoint, route openai.Route, body []byte, apiKey string) ([]uint32, error)
}

// Options are what a Picker is made of.
type Options struct {
	// Now is the clock; time.Now when nil.
	Now func() time.Time
	// Renderer asks engines for tokens; nil never asks.
	Renderer Renderer
	// Doubt is told when what engines tell does not fit the tokens of a pool that are made in process. It must not call
	// the Picker, nor wait for it.
	Doubt func(namespace, pool string)
	// NewIndex makes the index of a pool; the fast one when nil.
	NewIndex func() kvindex.Book
	// NewStrategy makes the strategy of a pool; policy.New when nil.
	NewStrategy func(policy.Config) (policy.Policy, error)
	// Peers is told what other replicas should know; nil tells nobody.
	Peers *peer.Outbox
	// Island that this picker lies in; empty: it is as far from all as the pools say.
	Island string
	// Decisions gets a record of as many requests as policies say; nil logs none.
	Decisions DecisionLog
	// Recorder gets decisions to show to people; nil gets none.
	Recorder Recorder
	// Log gets a line per request at V(1).
	Log logr.Logger
}

// Picker picks for any number of pools. It is safe for concurrent use.
type Picker struct {
	options Options
	now     timeNow
	applyMu sync.Mutex // serialises Apply, and guards exact
	exact   map[string]*atomic.Pointer[Exact]
	current atomic.Pointer[snapshot]
	scratch sync.Pool
}

// snapshot is all pools at one moment, immutable.
type snapshot struct {
	pools  []*view          // by namespace and name
	models map[string]*view // by every name a request may use
}

// New returns a picker without pools.
func New(options Options) *Picker {
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.NewIndex == nil {
		options.NewIndex = func() kvindex.Book { return kvindex.NewIndex(kvindex.Options{}) }
	}
	if options.NewStrategy == nil {
		options.NewStrategy = policy.New
	}
	p := &Picker{options: options, now: options.Now, exact: map[string]*atomic.Pointer[Exact]{}}
	p.scratch.New = func() any { return new(scratch) }
	p.current.Store(&snapshot{models: map[string]*view{}})
	return p
}

// Apply puts the pools in force that specs describe, and only them; it keeps specs. Requests under way are not
// disturbed, and an endpoint that stays keeps its cache entries and counters. When it returns no choice is made any more
// by what was in force before: no request is sent to an endpoint that is not Pickable now, but for those that are on
// their way.
//
// A pool that cannot be applied (its model's name is another pool's) keeps its last
// good state, and the error tells; the other pools are applied all the same. The error joins a *PoolError for each.
func (p *Picker) Apply(specs []Spec) error {
	p.applyMu.Lock()
	defer p.applyMu.Unlock()
	before := p.current.Load()
	previous := map[string]*view{}
	for _, v := range before.pools {
		previous[v.spec.Namespace+"/"+v.spec.Name] = v
	}
	next := &snapshot{models: map[string]*view{}}
	var errs []error
	for i := range specs {
		spec := &specs[i]
		name := spec.Namespace + "/" + spec.Name
		v, err := p.build(spec, previous[name], next)
		if err != nil {
			errs = append(errs, &PoolError{Namespace: spec.Namespace, Pool: spec.Name, Err: err})
			if v = previous[name]; v == nil || next.taken(v.spec) != nil {
				continue
			}
		}
		next.add(v)
	}
	sort.Slice(next.pools, func(i, j int) bool { return less(next.pools[i].spec, next.pools[j].spec) })
	kept := map[*pool]*view{}
	for _, v := range next.pools {
		kept[v.pool] = v
		v.gate.view.Store(v)
	}
	p.current.Store(next)
	var replaced []*view
	for _, v := range next.pools {
		v.gate.look()
	}
	for _, old := range before.pools {
		now := kept[old.pool]
		if now == nil {
			old.gate.close(old.spec.Name)
		}
		if now != old {
			replaced = append(replaced, old)
		}
	}
	await(replaced)
	for _, old := range before.pools {
		leave(old, kept[old.pool])
	}
	return errors.Join(errs...)
}

func less(a, b *Spec) bool {
	if a.Namespace != b.Namespace {
		return a.Namespace < b.Namespace
	}
	return a.Name < b.Name
}

// taken tells whether another pool has one of the names of a pool.
func (s *snapshot) taken(spec *Spec) error {
	for _, name := range spec.names() {
		if other := s.models[name]; other != nil {
			return fmt.Errorf("pool %s: model %q is served by pool %s already", spec.Name, name, other.spec.Name)
		}
	}
	return nil
}

// add enters a pool and its names, which must not be taken.
func (s *snapshot) add(v *view) {
	for _, name := range v.spec.names() {
		s.models[name] = v
	}
	s.pools = append(s.pools, v)
}

// pool finds the pool that serves a model.
func (s *snapshot) pool(model string) *view {
	if v := s.models[model]; v != nil {
		return v
	}
	for _, v := range s.pools {
		if v.spec.DiscoverAdapters && v.discovered(model) {
			return v
		}
	}
	return nil
}

// Feed is an endpoint whose events belong to a holder of the index.
type Feed struct {
	Endpoint endpoint.Endpoint
	Spec     *Spec
	Holder   kvindex.Holder
	// Writer is the way to tell the index what the endpoint holds. It is for one goroutine at a time.
	Writer kvindex.Writer

	pending *pending
	member  *member
}

// Doubt says whether what the index has of the endpoint may differ from what the endpoint holds: events are missing, or
// nobody tells what changes. Its blocks count half as long as that is so.
func (f *Feed) Doubt(doubted bool) { f.member.doubted.Store(doubted) }

// Feeds are the endpoints of all pools as last applied, for those who bring events and reports.
func (p *Picker) Feeds() []Feed {
	var feeds []Feed
	for _, v := range p.current.Load().pools {
		for i, ep := range v.spec.Endpoints {
			feeds = append(feeds, Feed{Endpoint: ep, Spec: v.spec, Holder: v.holders[i], Writer: v.members[i].writer, pending: &v.pending, member: v.members[i]})
		}
	}
	return feeds
}

// Observe takes an engine's report of itself.
func (p *Picker) Observe(id endpoint.ID, at time.Time, r load.Report) {
	for _, v := range p.current.Load().pools {
		if m, ok := v.find(id); ok {
			m.load.Observe(at, r)
		}
	}
}

// ObserveAdapters takes the names of the LoRA adapters that an engine has loaded.
func (p *Picker) ObserveAdapters(id endpoint.ID, names []string) {
	for _, v := range p.current.Load().pools {
		if _, ok := v.find(id); ok {
			v.mu.Lock()
			v.adapters[id] = names
			v.mu.Unlock()
		}
	}
}

// Confirm takes the keys that an endpoint has just announced: requests whose last full prompt block is among them have
// been prefilled.
func (p *Picker) Confirm(f *Feed, keys []kvblock.Key) {
	if len(keys) > 0 {
		f.pending.confirm(p.now(), f.Holder, keys)
	}
}

// Models lists the names that requests may use, in a stable order, with the pool's namespace and name.
func (p *Picker) Models() []Model {
	var models []Model
	for _, v := range p.current.Load().pools {
		seen := map[string]bool{}
		add := func(name, parent string) {
			if !seen[name] {
				seen[name] = true
				models = append(models, Model{Name: name, Parent: parent, Namespace: v.spec.Namespace, Pool: v.spec.Name})
			}
		}
		add(v.spec.Model, "")
		for _, name := range v.spec.Aliases {
			add(name, "")
		}
		adapters := append([]string(nil), v.spec.Adapters...)
		if v.spec.DiscoverAdapters {
			v.mu.Lock()
			for _, names := range v.adapters {
				adapters = append(adapters, names...)
			}
			v.mu.Unlock()
		}
		sort.Strings(adapters)
		for _, name := range adapters {
			add(name, v.spec.Model)
		}
	}
	return models
}

// Model is a name that requests may use.
type Model struct {
	Name string
	// Parent is the base model of an adapter, empty for base models.
	Parent string
	// Namespace and Pool that serves it.
	Namespace, Pool string
}

// MaxRequestBody is the largest body that any pool takes, in bytes; def when there is no pool.
func (p *Picker) MaxRequestBody(def int64) int64 {
	largest := int64(0)
	for _, v := range p.current.Load().pools {
		largest = max(largest, v.spec.MaxRequestBody)
	}
	if largest == 0 {
		return def
	}
	return largest
}
