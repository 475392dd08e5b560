// Package picker chooses the endpoint that will serve a request soonest.
//
// The path of a request is one straight line, in pick.go. What happens to it afterwards is reported to the Decision
// that Pick returns. Every replica of the picker picks; none is a leader.
package picker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/hooks"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/overload"
	"github.com/kvasir-dev/kvasir/internal/picker/circuit"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/replicas"
	"github.com/kvasir-dev/kvasir/internal/respcache"
)

// Renderer requests the token ids of a request from an engine. Errors that are the request's fault, or the renderer's own,
// wrap ErrUnrenderable; others count as the engine's, and wrap ErrUnreachable if there was no connection. With either,
// Rendered.Lacking can be set.
type Renderer interface {
	Tokens(ctx context.Context, ep *endpoint.Endpoint, r *openai.Request, body []byte, apiKey string) (Rendered, error)
}

// Rendered is what an engine returns about the prompts of a request.
type Rendered struct {
	// IDs of the first prompt.
	IDs []uint32
	// More are the ids of further prompts.
	More [][]uint32
	// Items of the first prompt, in the order of their offsets; there are some if the request is multimodal.
	Items []kvblock.Item
	// Tokenized: they are from /tokenize, because the engine has no render route open.
	Tokenized bool
	// Lacking is the reason why the engine has no render route open, and the cure; empty where it has one.
	Lacking string
	// Release gives back the memory of the ids; nil for nothing.
	Release func()
}

// Options are what a Picker is made of.
type Options struct {
	// Now is the clock; time.Now when nil.
	Now func() time.Time
	// Renderer asks engines for tokens; nil never asks.
	Renderer Renderer
	// RenderedBytes is how much of what engines have rendered is kept for the same prompts; 0 keeps nothing.
	RenderedBytes int64
	// Doubt is called when what engines report does not match the tokens made in process for some kinds of requests to a
	// pool. It must not call the Picker, nor wait for it.
	Doubt func(namespace, pool string, kinds openai.Kinds)
	// NewIndex makes the index of a pool; the fast one when nil.
	NewIndex func() kvindex.Book
	// NewStrategy makes the strategy of a pool; policy.New when nil.
	NewStrategy func(policy.Config) (policy.Policy, error)
	// Draw is the chance by which routes spread requests without a session; rand.Uint64 when nil.
	Draw func() uint64
	// Peers receives what other replicas should know; nil for no peers.
	Peers *replicas.Outbox
	// Island of this picker; empty: its distance to all islands is the one that the pools set.
	Island string
	// Release is the release of vLLM that an engine reports, empty until it is known; nil knows none.
	Release func(id endpoint.ID) string
	// Decisions receives a record of as many requests as policies set; nil logs none.
	Decisions DecisionLog
	// Recorder gets decisions to show to people; nil gets none.
	Recorder Recorder
	// HookServices calls the services of policies' steps; nil where steps call none.
	HookServices hooks.Caller
	// Embeddings makes the vectors of response caches that answer similar requests; nil where none do.
	Embeddings Embedder
	// OpenStore opens the store that a response cache shares with other replicas; root is the secret of the pool's keys. nil where none do.
	OpenStore func(r *respcache.Redis, root [kvblock.SecretBytes]byte, counters *respcache.Counters) (respcache.Store, error)
	// Overload refuses requests of low priority while resources are short; nil for never.
	Overload *overload.Manager
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

	suspects *circuit.Suspects
	renders  *renderedPrompts // nil keeps nothing
}

// snapshot is all pools at one moment, immutable.
type snapshot struct {
	pools  []*view          // by namespace and name
	models map[string]*view // by every name a request can use
	// routes are by the names of models that clients use; nil without any. named are the pools by namespace/name.
	routes    map[string]*compiledRoute
	routeList []*compiledRoute // in the order of Apply
	named     map[string]*view
}

// New returns a picker without pools.
func New(options Options) *Picker {
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.Draw == nil {
		options.Draw = rand.Uint64
	}
	if options.NewIndex == nil {
		options.NewIndex = func() kvindex.Book { return kvindex.NewIndex(kvindex.Options{}) }
	}
	if options.NewStrategy == nil {
		options.NewStrategy = policy.New
	}
	p := &Picker{options: options, now: options.Now, exact: map[string]*atomic.Pointer[Exact]{}, suspects: circuit.NewSuspects()}
	p.renders = newRenderedPrompts(options.RenderedBytes)
	p.scratch.New = func() any { return new(scratch) }
	p.current.Store(&snapshot{models: map[string]*view{}})
	return p
}

// Apply applies the pools that specs describe, and removes all others; it keeps specs. Running requests are not disturbed,
// and an endpoint that stays keeps its cache entries and counters. When Apply returns, no pick uses the previous
// configuration any more: no request is sent to an endpoint that is not Pickable now, except for those that are already on
// their way.
//
// A pool that cannot be applied (its model's name belongs to another pool) keeps its last good state, and the returned
// error says why; the other pools are still applied. The error joins a *PoolError for each.
//
// Requests for a model of one of the routes go where it says, also where a pool has a model of that name.
func (p *Picker) Apply(specs []Spec, routes ...modelroute.Route) error {
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
		v.admission.view.Store(v)
	}
	next.compile(routes, before)
	p.current.Store(next)
	var replaced []*view
	for _, v := range next.pools {
		v.admission.recount(v)
		v.admission.look()
	}
	for _, old := range before.pools {
		now := kept[old.pool]
		if now == nil {
			old.admission.close(old.spec.Name)
		}
		if now != old {
			replaced = append(replaced, old)
		}
	}
	await(replaced)
	for _, old := range before.pools {
		leave(old, kept[old.pool])
	}
	next.keepServices(p.options.HookServices)
	return errors.Join(errs...)
}

func less(a, b *Spec) bool {
	if a.Namespace != b.Namespace {
		return a.Namespace < b.Namespace
	}
	return a.Name < b.Name
}

// taken reports whether another pool has one of the names of a pool.
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
	// Writer updates the index with what the endpoint holds. It is for one goroutine at a time.
	Writer kvindex.Writer

	pending *pending
	proofs  *proofs
	member  *member
}

// Doubt sets whether the endpoint's blocks in the index might differ from those that it holds: events are missing, or no
// source reports changes. Meanwhile its blocks count half.
func (f *Feed) Doubt(doubted bool) { f.member.doubted.Store(doubted) }

// Incomplete sets whether the endpoint can hold blocks that its events have announced and that are lost. Meanwhile what
// answers prove is kept.
func (f *Feed) Incomplete(incomplete bool) { f.member.incomplete.Store(incomplete) }

// Capacity is the number of blocks of the engine's GPU tier by its metrics, 0 while it is not known.
func (f *Feed) Capacity() int { return int(f.member.blocks.Load()) }

// Lookahead records that hashes of the endpoint's blocks cover tokens that follow the block, until its engine's life ends.
func (f *Feed) Lookahead() { f.member.tail.lookahead.Store(true) }

// Feeds are the endpoints of all pools as last applied, for the sources of events and reports.
func (p *Picker) Feeds() []Feed {
	var feeds []Feed
	for _, v := range p.current.Load().pools {
		for i, ep := range v.spec.Endpoints {
			feeds = append(feeds, Feed{Endpoint: ep, Spec: v.spec, Holder: v.holders[i], Writer: v.members[i].writer, pending: &v.pending,
				proofs: &v.proofs, member: v.members[i]})
		}
	}
	return feeds
}

// Observe takes an engine's report of itself.
func (p *Picker) Observe(id endpoint.ID, at time.Time, r load.Report) {
	for _, v := range p.current.Load().pools {
		if m, ok := v.find(id); ok {
			m.load.Observe(at, r)
			v.watchStall(at, id, m)
			v.judgeClaims(at, m, r.Generated, r.CountsGenerated)
			m.grain.report(r.BlockTokens, v.spec.BlockTokens)
			m.blocks.Store(int64(r.Blocks))
			m.tail.speculates.Store(r.Speculates)
		}
	}
}

// Confirm takes the keys that an endpoint has just announced: requests whose last full prompt block is among them have
// been prefilled, and what answers have proved of them is in the index now.
func (p *Picker) Confirm(f *Feed, keys []kvblock.Key) {
	if len(keys) > 0 {
		f.pending.confirm(p.now(), f.Holder, keys)
		f.proofs.endAt(f.Holder, keys)
	}
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
