package picker

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker/circuit"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/replicas"
	"github.com/kvasir-dev/kvasir/internal/respcache"
	"github.com/kvasir-dev/kvasir/internal/routinghistory"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// member is what the picker keeps of one life of an endpoint.
//
// It has many fields because each part of the picker keeps what it knows of the endpoint here.
type member struct {
	holder kvindex.Holder
	writer kvindex.Writer // of the source of the endpoint's events
	// removals are those through writer; doubted reports that the index can differ from what the endpoint holds.
	removals removals
	grain    grain
	tail     tail
	blocks   atomic.Int64  // physical blocks of the engine's GPU tier, 0 while that is not known
	stored   atomic.Uint64 // keys announced
	followed atomic.Bool   // its event stream has begun
	doubted  atomic.Bool
	// incomplete: the endpoint holds blocks that no event will announce again; left: it is no longer of the pool.
	incomplete, left atomic.Bool
	load             load.Tracker
	circuit          circuit.Circuit
	ceiling          ceiling
	hash             uint64 // of the endpoint's ID
	revision         string // of the engine's template; empty if it is not known
	stats            endpointStats
	worth            worth
	work             atomic.Int64 // nanoseconds that the prefills placed here should take
	trust            trust
	usage            streamUsage
	sleep            sleep
	stalled          atomic.Bool // as logged last
	claims           claims
	reloads          reloads
	tally            *tally // of the pool
	routed           memories
	// renderFrom is when the engine can be asked for tokens again, of the monotonic clock; 0 while it answers.
	renderFrom atomic.Int64
	// coming is the number of requests that other endpoints prefill for this one. gives and receives are what is known of it as
	// the endpoint that prefills, and as the one that loads the blocks.
	coming          atomic.Int64
	gives, receives partners
	leases          leases
}

// pool is what the picker keeps of a pool across changes of its Spec.
type pool struct {
	log        logr.Logger
	index      kvindex.Book
	stats      poolStats
	tally      tally
	hot        hot
	pending    pending
	admission  admissionQueue
	meters     tenant.Meters
	tenants    tenantCounters
	retries    retries
	logged     sampler
	doubts     distrusts
	exact      *atomic.Pointer[Exact]
	checks     checks
	proofs     proofs
	doubt      func(openai.Kinds) // about tokens made in process
	nextEngine atomic.Uint64      // of the engines that are asked for tokens
	peers      *replicas.Outbox   // nil without peers

	gateways gatewayTallies
	handoffs handoffs
	// responses counts what the response caches of the pool's views do.
	responses respcache.Counters

	mu     sync.Mutex
	listed map[endpoint.ID][]ListedModel // as the engines list them
}

// view is one pool as requests see it: immutable except for the counters behind its pointers.
type view struct {
	*pool
	spec *Spec
	// name is namespace/name, keyID the id of the keys' root.
	name, keyID string

	strategy policy.Policy
	shadows  []*shadow
	island   string           // of this picker; empty without one
	hooks    *poolHooks       // nil without steps
	cache    *respcache.Cache // of responses; nil without one
	store    respcache.Store  // of the cache; nil without one
	// sessionKeys are tried in order; homes is where the sessions' last requests went.
	sessionKeys []SessionKey
	homes       *routinghistory.Sessions
	rotation    *rotation // nil while there is but one root of keys
	// members and holders belong to spec.Endpoints, in its order.
	members []*member
	holders []kvindex.Holder
	// histories are what was routed to them; history is the place of what the strategy matches, shadowHistories those of
	// the shadows.
	histories       []history
	history         int
	shadowHistories []int
	// sockets: some endpoint is behind a unix socket. roles: some endpoint only prefills, or only decodes.
	sockets, roles bool
	// fresh are the endpoints that gateways might not know yet, each until then. It has none of those that were there when the
	// picker learned of the pool.
	fresh map[endpoint.ID]time.Time
	// freshUntil is when the last of them is known.
	freshUntil time.Time
	// picking is the number of picks under way by this view; see admissionQueue.pin.
	picking atomic.Int64
}

// build makes the next view of a pool: members of endpoints that stay are kept, the others join or leave. Nothing changes
// if it fails.
func (p *Picker) build(spec *Spec, old *view, next *snapshot) (*view, error) {
	if err := next.taken(spec); err != nil {
		return nil, err
	}
	v := &view{spec: spec, name: spec.Namespace + "/" + spec.Name, keyID: spec.Seed.ID(), island: p.options.Island}
	known := map[string]*member{}
	if old == nil {
		v.pool = &pool{
			log: p.options.Log, index: p.options.NewIndex(), peers: p.options.Peers, admission: admissionQueue{now: p.now},
			listed: map[endpoint.ID][]ListedModel{},
			exact:  p.exactOf(spec.Namespace + "/" + spec.Name), doubt: p.doubts(spec.Namespace, spec.Name),
		}
	} else {
		if old.spec.BlockTokens != spec.BlockTokens || old.spec.Model != spec.Model {
			return nil, fmt.Errorf("pool %s: model and block size cannot change while it runs", spec.Name)
		}
		v.pool, v.rotation = old.pool, old.next(spec)
		for i, m := range old.members {
			known[old.spec.Endpoints[i].Epoch()] = m
		}
	}
	var err error
	if old != nil && old.spec.Policy.Strategy == spec.Policy.Strategy {
		v.strategy = old.strategy
	} else if v.strategy, err = p.options.NewStrategy(spec.Policy.Strategy); err != nil {
		return nil, fmt.Errorf("pool %s: %w", spec.Name, err)
	}
	if v.hooks, err = compileHooks(spec, old, p.options.HookServices); err != nil {
		return nil, err
	}
	v.sessionKeys = sessionKeys(&spec.Policy)
	if old != nil && old.spec.Policy.SessionIdle == spec.Policy.SessionIdle {
		v.homes = old.homes
	} else {
		v.homes = routinghistory.NewSessions(maxSessions, spec.Policy.SessionIdle)
	}
	if v.shadows, err = shadows(spec, old); err != nil {
		return nil, fmt.Errorf("pool %s: %w", spec.Name, err)
	}
	v.cache = p.responseCache(v, old) // nothing fails from here on, so what it opens is closed by leave
	for i := range spec.Endpoints {
		ep := &spec.Endpoints[i]
		m, ok := known[ep.Epoch()]
		if ok {
			delete(known, ep.Epoch())
		} else {
			m = &member{holder: v.index.Join(), hash: ep.ID.Hash(), revision: ep.Revision, tally: &v.tally}
			m.removals.since = p.now()
			m.writer = newWatchedWriter(v.index.Writer(m.holder), m, p.now)
		}
		v.roles = v.roles || ep.Role == endpoint.Prefill || ep.Role == endpoint.Decode
		v.sockets = v.sockets || ep.Socket != ""
		v.members = append(v.members, m)
		v.holders = append(v.holders, m.holder)
	}
	if index, ok := v.index.(*kvindex.Index); ok { // the plain one, of tests, takes what it wants
		index.SetBudget(spec.IndexMemory)
	}
	v.remember()
	if old != nil {
		v.refresh(old, p.now())
	}
	return v, nil
}

// refresh finds out which endpoints serve only since now, or since a moment ago. Pools that hold no requests make no
// difference between endpoints.
func (v *view) refresh(old *view, now time.Time) {
	a := &v.spec.Policy.Admission
	if !a.Queue || a.Limits.Hold <= 0 || a.GatewayLag <= 0 {
		return
	}
	served := map[string]bool{}
	for i := range old.spec.Endpoints {
		if ep := &old.spec.Endpoints[i]; ep.Pickable() {
			served[ep.Epoch()] = true
		}
	}
	for i := range v.spec.Endpoints {
		ep := &v.spec.Endpoints[i]
		until := old.fresh[ep.ID]
		switch {
		case !ep.Pickable():
			continue
		case !served[ep.Epoch()]:
			until = now.Add(a.GatewayLag)
		case !now.Before(until):
			continue
		}
		if v.fresh == nil {
			v.fresh = map[endpoint.ID]time.Time{}
		}
		v.fresh[ep.ID] = until
		if until.After(v.freshUntil) {
			v.freshUntil = until
		}
	}
}

// isFresh reports whether gateways might not know an endpoint yet. Those that know the pods send what is picked for it to any other.
func (v *view) isFresh(ep *endpoint.Endpoint, now time.Time) bool {
	until, ok := v.fresh[ep.ID]
	return ok && now.Before(until)
}

// someFresh reports whether there are such endpoints.
func (v *view) someFresh(now time.Time) bool { return now.Before(v.freshUntil) }

// newToGateways reports whether gateways might know none of the endpoints yet. Envoy then refuses what is picked for them: "no
// healthy upstream".
func (v *view) newToGateways(now time.Time) bool {
	return v.someFresh(now) && !slices.ContainsFunc(v.spec.Endpoints, func(ep endpoint.Endpoint) bool {
		return ep.Pickable() && !v.isFresh(&ep, now)
	})
}

// doubts is how a pool reports doubts about tokens made in process.
func (p *Picker) doubts(namespace, pool string) func(openai.Kinds) {
	return func(kinds openai.Kinds) {
		logging.Warn(p.options.Log, "Token ids differ from the engines', repeating the proof", "pool", pool, "kind", kinds.Main())
		if p.options.Doubt != nil {
			p.options.Doubt(namespace, pool, kinds)
		}
	}
}

// exactOf is the place of SetExact's argument for a pool. p.applyMu is held.
func (p *Picker) exactOf(name string) *atomic.Pointer[Exact] {
	e := p.exact[name]
	if e == nil {
		e = new(atomic.Pointer[Exact])
		p.exact[name] = e
	}
	return e
}

// leave clears what the old view had and the new one has not.
func leave(old, next *view) {
	if next == nil || next.cache != old.cache {
		old.cache.Close()
		if old.store != nil {
			old.store.Close()
		}
	}
	stays, ids := map[*member]bool{}, map[endpoint.ID]bool{}
	if next != nil {
		for i, m := range next.members {
			stays[m], ids[next.spec.Endpoints[i].ID] = true, true
		}
	}
	for _, m := range old.members {
		if !stays[m] {
			m.left.Store(true)
			old.index.Leave(m.holder)
		}
	}
	old.mu.Lock()
	defer old.mu.Unlock()
	for id := range old.listed {
		if !ids[id] {
			delete(old.listed, id)
		}
	}
}

// identity is the name that roots the keys of a requested model: the canonical name of the base model, or the
// adapter's own.
func (v *view) identity(model string) string {
	if model == v.spec.Model {
		return model
	}
	for _, alias := range v.spec.Aliases {
		if model == alias {
			return v.spec.Model
		}
	}
	return model
}

// adapts reports whether a name is that of an adapter of the pool.
func (v *view) adapts(name string) bool {
	return name != "" && v.identity(name) != v.spec.Model &&
		(slices.Contains(v.spec.Adapters, name) || v.spec.DiscoverAdapters && v.discovered(name))
}

// discovered reports whether an engine has loaded an adapter of that name.
func (v *view) discovered(model string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, models := range v.listed {
		if hasAdapter(models, model) {
			return true
		}
	}
	return false
}

// find returns the member of an endpoint.
func (v *view) find(id endpoint.ID) (*member, bool) {
	for i := range v.spec.Endpoints {
		if v.spec.Endpoints[i].ID == id {
			return v.members[i], true
		}
	}
	return nil, false
}

// timeNow is the clock of everything in the package.
type timeNow func() time.Time
