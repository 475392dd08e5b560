package server

import (
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/callout"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/dashboard"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/engines/render"
	"github.com/kvasir-dev/kvasir/internal/engines/scrape"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/gateway/httpproxy"
	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/metrics"
	"github.com/kvasir-dev/kvasir/internal/overload"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/replicas"
	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokencheck"
	"github.com/kvasir-dev/kvasir/internal/tracing"
	"github.com/kvasir-dev/kvasir/internal/vllm"
	"github.com/kvasir-dev/kvasir/internal/zmtp"
)

// app is all parts of the picker, wired. Each group of parts is beside the code that runs it; a group is embedded, because the
// parts of one need those of others.
type app struct {
	log logr.Logger
	// onePool: the picker serves one pool of a cluster, and without it is not ready.
	inCluster, onePool bool
	name               string // that the operator knows the picker by
	picker             *picker.Picker

	configuration // apply.go: what the objects say, and what of it is in force
	serving       // run.go: requests of clients and gateways, and the limits for them
	engines       // tokens.go: what engines are asked
	asking        // tokens.go: what services are asked
	eventPlane    // sources.go: what endpoints hold, by their events
	syncing       // reports.go: the connections with reporters, other replicas and the operator
	observing     // http.go: what people and their tools see
}

func newApp(log logr.Logger, o *options, kept records, tracer *tracing.Tracer) *app {
	a := &app{log: log, inCluster: o.source.inCluster(), onePool: o.source.onePool(), name: o.operator.replica}
	a.records, a.tracer = kept, tracer
	a.refused, a.applied, a.board = map[types.NamespacedName]config.Refusal{}, map[types.NamespacedName]picker.Spec{}, config.NewBoard()
	a.started, a.ring, a.recent = time.Now(), dashboard.NewRing(), new(dashboard.Recent)
	a.plan = ownPlan()
	if o.source.fleet.Name != "" {
		a.plan.ofFleet()
	}
	a.plan.withIndex(o.source.indexMemory)
	a.budget, a.mirrors, a.overload = budget.New(a.plan.clients, time.Now), budget.New(a.plan.mirrors, time.Now), new(overload.Manager)
	log.Info("Memory divided", "limit", a.plan.limit, "clients", a.plan.clients, "index", a.plan.index, "tokens", a.plan.tokens,
		"responses", a.plan.responses, "peers", a.plan.peers, "events", a.plan.events, "connections", a.plan.connections,
		"requests", a.plan.requests, "mirrors", a.plan.mirrors, "copies", a.plan.copies)
	a.ready = &readiness{now: time.Now, states: a.streamStates, peersReceived: a.peersHeard, full: a.budget.Full}
	a.informed, a.restless = make(chan struct{}), make(bell, 1)
	a.inform = sync.OnceFunc(func() { close(a.informed) })
	room := budget.NewRoom(a.plan.events)
	a.renderer = render.New(render.Options{Room: room})
	a.peers.outbox = replicas.NewOutbox(incarnation())
	a.services = callout.NewServices(time.Now, log.WithName("services"))
	choosing := picker.Options{
		Renderer: renderer{a.renderer, &a.releases}, RenderedBytes: a.plan.tokens / renderedShare,
		Peers: a.peers.outbox, Doubt: a.doubtTokens, Release: a.releases.of,
		Island: o.island, Recorder: a.ring, Overload: a.overload, HookServices: a.services, Embeddings: a.services,
		OpenStore: a.openStore, Log: log.WithName("picker"),
	}
	if a.decisions != nil {
		choosing.Decisions = a.decisions
	}
	a.picker = picker.New(choosing)
	a.dialIn = newDialIn(o.eventsAddress, room, log.WithName("events"))
	a.streams = events.New(events.Config{Source: zmtp.EventSource{Config: zmtp.Config{Room: room}}, Reception: a.dialIn.reception,
		Join: cachesync.Join, Room: room, Changed: a.restless.ring, Log: log.WithName("events")})
	a.library = a.newLibrary()
	a.hub = a.newHub(&o.hub)
	a.tokens = tokencheck.New(tokencheck.Config{
		Engine: prober{a.renderer, &a.releases}, Publish: a.picker.SetExact, Holds: a.picker.Holds,
		Handed: a.handed, Proved: a.proved, Want: a.want, Fetched: a.fetched,
		CacheBytes: a.plan.tokens - a.plan.tokens/renderedShare, Log: log.WithName("tokens"),
	})
	a.sources = newEventSources(log.WithName("events"))
	var answered func(scrape.Target, error)
	if !a.inCluster {
		a.reach = newReach(a.picker.Pieces, log.WithName("scrape"))
		answered = a.reach.recordResult
	}
	a.scraper = scrape.New(scrape.Options{
		Answered:    answered,
		Pauses:      true,
		EventSource: a.sources.report,
		Observe: func(id endpoint.ID, m vllm.Metrics, at time.Time) {
			a.picker.Observe(id, at, loadReport(m))
			a.picker.ObserveSleep(id, at, picker.Sleep{Asleep: m.Asleep, Paused: m.Paused, Discarded: m.Discarded})
		},
		Models: func(id endpoint.ID, models []scrape.Model) {
			listed := make([]picker.ListedModel, len(models))
			for i, m := range models {
				listed[i] = picker.ListedModel(m)
			}
			a.picker.ObserveModels(id, listed)
		},
		Room: room, Log: log.WithName("scrape"),
	})
	a.requests = metrics.NewRequests(request.ProxyReasons, request.GatewayReasons)
	observer := request.Observer(a.requests)
	if o.gateways.compat {
		a.compat = metrics.NewCompat(a.picker.Stats)
		observer = a.compat.Watch(observer)
	}
	a.proxy = httpproxy.New(a.proxyOptions(observer, tracer))
	return a
}

// proxyOptions are those of the proxy. The plan bounds its descriptors.
func (a *app) proxyOptions(observer request.Observer, tracer *tracing.Tracer) httpproxy.Options {
	return httpproxy.Options{
		Picker: a.picker, Budget: a.budget, Ready: a.isReady, Observer: observer, Spans: tracer, Usage: a.usageLog(), Unreachable: a.unreachable,
		Overload: a.overload, MaxRequests: a.plan.requests, MaxIdle: a.plan.idle, Log: a.log.WithName("proxy"),
		Mirroring: httpproxy.Mirroring{Most: a.plan.copies, Budget: a.mirrors},
	}
}

// close ends everything that runs by itself. It must not be called while a request is in progress.
func (a *app) close() {
	a.proxy.Close()
	if a.server != nil {
		a.server.Close()
	}
	a.streams.Close()
	a.dialIn.close()
	a.scraper.Close()
	a.tokens.Set(nil)
	a.renderer.Close()
	a.services.Close()
	if a.hub != nil {
		a.hub.Close()
	}
}

// loadReport puts an engine's metrics into the words of the load.
func loadReport(m vllm.Metrics) load.Report {
	return load.Report{
		Running: m.Running, Waiting: m.Waiting, KVUsage: m.KVUsage, KVTokens: m.CacheTokens, BlockTokens: m.BlockSize, Blocks: m.NumBlocks,
		Speculates:  m.Speculates,
		MaxAdapters: m.MaxAdapters, Adapters: m.Adapters, Rejections: m.Rejections, Generated: m.Generated,
		CountsGenerated: m.CountsGenerated,
	}
}

// feed passes the present endpoints to streams and scraper.
func (a *app) feed() {
	feeds, reported := map[string][]events.Feed{}, map[string][]rpc.Target{}
	for _, pool := range a.pools() {
		feeds[pool], reported[pool] = nil, nil
	}
	var targets []scrape.Target
	ranks := map[int]bool{}
	held := a.picker.Feeds()
	for _, f := range held {
		name := f.Spec.Namespace + "/" + f.Spec.Name
		feeds[name] = append(feeds[name], events.Feed{
			Endpoint:    f.Endpoint,
			Engine:      f.Spec.Engine,
			Keys:        events.Keys{Model: f.Spec.Model, Seed: f.Spec.Seed, BlockTokens: f.Spec.BlockTokens, Media: f.Spec.Media},
			Writer:      f.Writer,
			Capacity:    f.Capacity,
			OnLookahead: f.Lookahead,
			OnStored:    func(keys []kvblock.Key) { a.picker.Confirm(&f, keys) },
		})
		if f.Endpoint.DialsIn {
			ranks[f.Endpoint.EventRank] = true
		}
		if f.Spec.Reports {
			reported[name] = append(reported[name], a.target(&f))
		}
		targets = append(targets, scrape.Target{
			ID: f.Endpoint.ID, Address: f.Endpoint.Address, Socket: f.Endpoint.Socket, Wire: f.Endpoint.Wire,
			// Without a header there is one rank behind the address, whatever it calls itself.
			Rank: f.Endpoint.RankHeader, APIKey: f.Spec.EngineAPIKey, EventRank: askedRank(&f.Endpoint),
		})
	}
	if a.reports != nil {
		for pool, list := range reported {
			a.reports.Set(pool, list)
		}
	}
	a.sources.keep(held)
	a.feeding.Lock()
	a.feeds, a.held = feeds, held
	a.feeding.Unlock()
	a.feedStreams()
	for pool := range feeds {
		a.moved(pool)
	}
	a.dialIn.set(ranks)
	a.scraper.Set(targets)
}
