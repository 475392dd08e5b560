package server

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/dashboard"
	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/gateway/extproc"
	"github.com/kvasir-dev/kvasir/internal/metrics"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokencheck"
	"github.com/kvasir-dev/kvasir/internal/tracing"
)

// supportGrace is how long answers about health and metrics can take at the end.
const supportGrace = time.Second

// supportConnections is how many connections each of the ports for health and metrics takes. Probes begin at once and end with their
// answer, so that connections to the port of health can be idle for healthIdle, and take as long for a header.
const (
	supportConnections = 128
	healthIdle         = 1500 * time.Millisecond // no usual period of probes: a kept connection would be closed as the next one is sent
)

// supportStreams is how many requests each of these connections carries at once, and healthStreams those for health, where a
// prober needs one: calls of gRPC cost enough that a flood of them would delay picks. healthRequests and pageRequests are how many
// all connections of a port do: most of the former are watches, and the latter can be large.
const healthStreams, supportStreams, healthRequests, pageRequests = 4, 32, 512, 64

// supportStall is how long a client can take nothing of an answer, and healthStall of the few bytes of health: net/http keeps a
// stream that has ended for so long. supportHeader is the largest header in bytes, and supportMemory what connections and headers
// of a port take, in bytes: what other clients hold does not count there.
const (
	supportStall, healthStall    = 30 * time.Second, 5 * time.Second
	supportHeader, supportMemory = 16 << 10, 12 << 20
)

// statusEvery is how exact the times in a status are, liveEvery how old what is shown live can be.
const statusEvery, liveEvery = 5 * time.Second, 500 * time.Millisecond

// observing is what people and their tools see of the picker.
type observing struct {
	requests *metrics.Requests
	compat   *metrics.Compat // nil without other names for metrics
	tracer   *tracing.Tracer // nil without tracing
	records
	started time.Time
	ring    *dashboard.Ring
	recent  *dashboard.Recent

	// rendering is held while a status becomes YAML: one at a time, as that takes a hundred times the text's memory.
	rendering sync.Mutex

	lately   sync.Mutex // guards what follows
	lastLive api.Live
}

// healthHandler serves /healthz, which is fine as long as the process answers, /readyz, and gRPC's health checks.
func (a *app) healthHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, "") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, a.ready.status()) })
	return withHealthChecks(extproc.NewHealthServer(extproc.Health{Ready: a.isReady}), mux)
}

// answer sends ok, or the reason.
func answer(w http.ResponseWriter, why string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if why == "" {
		why = "ok"
	} else {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write([]byte(why + "\n")) // a client that has gone misses the answer
}

// metricsHandler serves /metrics, and diagnostics: /status, /decisions, /decision-log, /usage-log, /prefixes, /history and /explain; and
// /debug/pprof to some clients.
func (a *app) metricsHandler(registry *prometheus.Registry, profiles profiles) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Handler(registry))
	mux.HandleFunc("GET /status", a.serveStatus)
	dashboard.Register(mux, dashboard.Data{Ring: a.ring, Prefixes: a.picker.Prefixes, Explain: a.picker.Explain, History: a.recent.History})
	mux.HandleFunc("GET /decision-log", a.serveDecisionLog)
	mux.HandleFunc("GET /usage-log", a.serveUsageLog)
	serveProfiles(mux, profiles)
	return mux
}

// serveProfiles serves /debug/pprof to some clients.
func serveProfiles(mux *http.ServeMux, to profiles) {
	switch to {
	case profilesOff:
	case profilesLocal:
		mux.Handle("GET /debug/pprof/", localOnly(profileHandler()))
	case profilesGuarded:
		mux.Handle("GET /debug/pprof/", profileHandler())
	}
}

// profiles defines which clients get profiles of the process.
type profiles int

const (
	profilesOff     profiles = iota
	profilesLocal            // clients of this machine: those of others are not authenticated
	profilesGuarded          // all that the guard of the metrics admits
)

// profiles returns which clients get profiles, if the metrics have this guard; nil for none.
func (o *options) profiles(g *guard) profiles {
	switch {
	case !o.pprof:
		return profilesOff
	case g == nil:
		return profilesLocal
	}
	return profilesGuarded
}

func profileHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// localOnly answers 403 to clients of other machines.
func localOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if from, err := netip.ParseAddrPort(r.RemoteAddr); err != nil || !from.Addr().Unmap().IsLoopback() {
			http.Error(w, "without authentication, profiles are only for clients on the picker's machine", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// objects are what exists, with its status, and what this replica knows besides.
type objects struct {
	*config.List `json:",inline"`
	Live         api.Live `json:"live"`
}

// serveStatus answers with all pools and policies, their status filled in, as a list in YAML; in JSON
// on request. What the replica knows of its pools at the moment is beside them.
func (a *app) serveStatus(w http.ResponseWriter, r *http.Request) {
	list := a.status()
	all := objects{List: list, Live: a.live(list)}
	w.Header().Set("Cache-Control", "no-store")
	var body []byte
	var err error
	if strings.Contains(r.Header.Get("Accept"), "json") || r.URL.Query().Get("output") == "json" {
		w.Header().Set("Content-Type", "application/json")
		body, err = json.Marshal(all)
	} else {
		w.Header().Set("Content-Type", "application/yaml")
		a.rendering.Lock()
		body, err = yaml.Marshal(all)
		a.rendering.Unlock()
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(body) // a client that has gone misses the answer
}

// keepStatus computes the status periodically, so that its transition times are right without requests for it, and counters of
// a minute ago are known.
func (a *app) keepStatus(ctx context.Context) {
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			a.status()
			a.recent.Observe(now, a.facts(nil))
		}
	}
}

func (a *app) status() *config.List {
	streams := map[types.NamespacedName][]events.Status{}
	for _, pool := range a.pools() {
		streams[config.ParseKey(pool)] = a.knowledge(pool)
	}
	stats := a.picker.Stats()
	tokens := map[types.NamespacedName]tokencheck.Status{}
	for _, s := range a.tokens.All() {
		tokens[keyOf(s.Namespace, s.Pool)] = s
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.board.Update(time.Now(), a.state, config.Live{
		Pools: stats, Streams: streams, Refused: a.refused, DialIn: a.dialIn.status(), Tokens: tokens,
		Overload: a.overload.State(),
	})
	a.found = findingsOf(list)
	return list
}

// live is what this replica knows. The index is visited at most twice a second, however many ask.
func (a *app) live(list *config.List) api.Live {
	a.lately.Lock()
	defer a.lately.Unlock()
	now := time.Now()
	if now.Sub(a.lastLive.Time) < liveEvery {
		return a.lastLive
	}
	facts := a.facts(list)
	for i := range facts {
		facts[i].Shares = a.picker.Sharing(facts[i].Stats.Namespace + "/" + facts[i].Stats.Pool)
	}
	problems := slices.Concat(a.proxyTLS.problems(), a.issuers.Problems(), list.Problems)
	a.lastLive = dashboard.Live(a.name, now, a.started, a.ready.status(), problems, dashboard.Pools(facts, a.recent))
	a.lastLive.Routes = dashboard.Routes(a.picker.Routes())
	return a.lastLive
}

// facts gathers what is known of each pool. list is the picker's list of pools; nil if no client requested it.
func (a *app) facts(list *config.List) []dashboard.Facts {
	judged := map[types.NamespacedName][]metav1.Condition{}
	if list != nil {
		for _, item := range list.Items {
			if p, ok := item.(*v1alpha1.InferencePool); ok {
				judged[keyOf(p.Namespace, p.Name)] = p.Status.Conditions
			}
		}
	}
	var all []dashboard.Facts
	responses, hooks := a.picker.ResponseStats(), a.picker.HookStats()
	for _, s := range a.picker.Stats() {
		key := keyOf(s.Namespace, s.Pool)
		name := key.String()
		f := dashboard.Facts{Stats: s, Streams: a.knowledge(name), Judged: judged[key], Leaving: map[string]bool{}}
		if known, ok := a.picker.Operate(name); ok {
			f.Totals = known.Totals
		}
		for i := range responses {
			if responses[i].Namespace == s.Namespace && responses[i].Pool == s.Pool {
				f.Responses = &responses[i]
			}
		}
		for i := range hooks {
			if hooks[i].Namespace == s.Namespace && hooks[i].Pool == s.Pool {
				f.Hooks = append(f.Hooks, hooks[i])
			}
		}
		all = append(all, f)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range all {
		f := &all[i]
		f.Spec = a.applied[keyOf(f.Stats.Namespace, f.Stats.Pool)]
		for j := range a.state.Pools {
			if p := a.state.Pools[j].Object; p.Namespace == f.Stats.Namespace && p.Name == f.Stats.Pool {
				f.Written = p
			}
		}
		for _, p := range a.marks.of(keyOf(f.Stats.Namespace, f.Stats.Pool)) {
			if p.Leaving {
				f.Leaving[p.UID] = true
			}
		}
	}
	return all
}

// collectors of the metrics.
func (a *app) collectors() []prometheus.Collector {
	all := []prometheus.Collector{a.requests, metrics.NewCollector(metrics.Sources{
		Pools: a.picker.Stats, Routes: a.picker.Routes, Hooks: a.picker.HookStats, Responses: a.picker.ResponseStats,
		Events:  a.eventStreams,
		Reports: a.reported, RefusedReports: a.refusedReports,
		Scrapes: a.scraper.Stats, Strangers: a.dialIn.reception.Strangers, EventRoom: a.dialIn.room,
		Peers: a.peerStats, Tokens: a.tokens.All, Decisions: a.decisionStats, Usage: a.usageStats,
		UsageExports: a.exportStats, Memory: a.budget.Stats, Overload: a.overload.State, TLS: a.proxyTLS.metrics(),
	})}
	if a.compat != nil {
		all = append(all, a.compat)
	}
	return all
}

// eventStreams are the streams of all pools.
func (a *app) eventStreams() []metrics.Stream {
	var all []metrics.Stream
	for _, pool := range a.streams.Pools() {
		key := config.ParseKey(pool)
		for _, s := range a.streams.Status(pool) {
			all = append(all, metrics.Stream{Namespace: key.Namespace, Pool: key.Name, Status: s})
		}
	}
	return all
}

// streamStates are the states of the streams of all endpoints that can be picked. Other pods, such as those that still
// load, have none.
func (a *app) streamStates() []events.State {
	pickable := map[endpoint.ID]bool{}
	for _, f := range a.picker.Feeds() {
		pickable[f.Endpoint.ID] = f.Endpoint.Pickable()
	}
	var all []events.State
	for _, pool := range a.pools() {
		for _, s := range a.knowledge(pool) {
			if pickable[s.Endpoint.ID] {
				all = append(all, s.State)
			}
		}
	}
	return all
}
