package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/internal/conformance"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/extproc"
	"github.com/kvasir-dev/kvasir/internal/ingest"
	"github.com/kvasir-dev/kvasir/internal/metrics"
	"github.com/kvasir-dev/kvasir/internal/watch"
)

// supportGrace is how long answers about health and metrics may take at the end.
const supportGrace = time.Second

// statusEvery is how exact the times in a status are.
const statusEvery = 5 * time.Second

// healthHandler serves /healthz, which is fine as long as the process answers, /readyz, and gRPC's health checks.
func (a *app) healthHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, "") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, a.ready.status()) })
	return withHealthChecks(extproc.NewHealthServer(extproc.Health{Ready: a.isReady}), mux)
}

// answer says ok, or why not.
func answer(w http.ResponseWriter, why string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if why == "" {
		why = "ok"
	} else {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write([]byte(why + "\n")) // who does not want to know does not get to
}

// metricsHandler serves /metrics and /status, and /debug/pprof if asked to.
func (a *app) metricsHandler(registry *prometheus.Registry, profile bool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Handler(registry))
	mux.HandleFunc("GET /status", a.serveStatus)
	if profile {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// serveStatus answers with all pools and policies, their status filled in, as a list in YAML; in JSON for those who
// ask for it.
func (a *app) serveStatus(w http.ResponseWriter, r *http.Request) {
	list := a.status()
	var body []byte
	var err error
	if strings.Contains(r.Header.Get("Accept"), "json") || r.URL.Query().Get("output") == "json" {
		w.Header().Set("Content-Type", "application/json")
		body, err = json.Marshal(list)
	} else {
		w.Header().Set("Content-Type", "application/yaml")
		body, err = yaml.Marshal(list)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(body) // who does not want to know does not get to
}

// keepStatus looks at the status now and then, so that it tells since when something is so though nobody asks.
func (a *app) keepStatus(ctx context.Context) {
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			a.status()
		}
	}
}

func (a *app) status() *watch.List {
	streams := map[string][]ingest.Status{}
	for _, pool := range a.pools() {
		streams[pool] = a.knowledge(pool)
	}
	stats := a.picker.Stats()
	tokens := map[string]conformance.Status{}
	for _, s := range a.tokens.All() {
		tokens[s.Namespace+"/"+s.Pool] = s
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.board.Update(time.Now(), a.state, watch.Live{
		Pools: stats, Streams: streams, Refused: a.refused, DialIn: a.dialIn.status(), Tokens: tokens,
	})
	a.found = findingsOf(list)
	return list
}

// collectors of the metrics.
func (a *app) collectors() []prometheus.Collector {
	all := []prometheus.Collector{a.requests, metrics.NewCollector(metrics.Sources{
		Pools: a.picker.Stats, Events: a.eventStreams, Reports: a.reported, RefusedReports: a.refusedReports, Scrapes: a.scraper.Stats, Strangers: a.dialIn.reception.Strangers,
		Peers: a.peerStats, Tokens: a.tokens.All,
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
		namespace, name, _ := strings.Cut(pool, "/")
		for _, s := range a.streams.Status(pool) {
			all = append(all, metrics.Stream{Namespace: namespace, Pool: name, Status: s})
		}
	}
	return all
}

// streamStates are how far it is known what the endpoints of all pools hold that can be picked. Others, such as pods that
// still load, have nothing to tell.
func (a *app) streamStates() []ingest.State {
	pickable := map[endpoint.ID]bool{}
	for _, f := range a.picker.Feeds() {
		pickable[f.Endpoint.ID] = f.Endpoint.Pickable()
	}
	var all []ingest.State
	for _, pool := range a.pools() {
		for _, s := range a.knowledge(pool) {
			if pickable[s.Endpoint.ID] {
				all = append(all, s.State)
			}
		}
	}
	return all
}
