package metrics

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/engines/scrape"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/hooks"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/overload"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/replicas"
	"github.com/kvasir-dev/kvasir/internal/reportpb"
	"github.com/kvasir-dev/kvasir/internal/respcache"
	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokencheck"
)

var update = flag.Bool("update", false, "write the table of docs/metrics.md")

var _ request.Observer = (*Requests)(nil)

func endpointStats(uid, pod string, rank int) picker.EndpointStats {
	return picker.EndpointStats{
		ID: endpoint.ID{Pod: uid, Rank: rank}, Pod: pod, Pickable: true, CircuitClosed: true, Picks: 7, Failures: 1,
		Hits: picker.Hits{Answers: 5, PromptTokens: 100, Predicted: 60, Confirmed: 50, Delivered: 58, Deviation: 4},
		Load: load.View{InFlight: 2, Decoding: 1, PendingTokens: 12.5, Rate: 8000, Overhead: 0.02, KVUsage: 0.5, KVTokens: 4096, Waiting: 3,
			Peers: load.PeerView{InFlight: 1, PendingTokens: 2.5}},
		Held: 9,
	}
}

// sources are a small fleet in which everything happens that could name two things alike.
func sources() Sources {
	pool := picker.PoolStats{
		Namespace: "a", Pool: "chat", Model: "m", Strategy: "MarginalCost",
		Outcomes: map[picker.Outcome]int64{picker.Completed: 3, picker.Failed: 1},
		Tokens:   map[picker.TokenSource]int64{picker.TokensExact: 4},
		Tenants:  map[string]picker.TenantStats{"acme": {Requests: 1, Refused: [...]int64{0, 1, 2, 3, 4, 5}}},
		Shadows:  []picker.ShadowStats{{Name: "sticky", Compared: 1}},
		Gateways: []picker.GatewayStats{{Gateway: "10.0.0.9", Reported: 5, Retried: 1, Unfollowed: 2, Streams: 4, Buffered: 3}},
		Inexact:  map[string]int64{"budget": 2},
		Handoffs: map[picker.HandoffOutcome]int64{picker.HandoffNoMemory: 3},
		Plans:    map[picker.PlanChoice]int64{picker.PlanHandoff: 2, picker.PlanCheaper: 1},
		Refused:  2, Retries: 1, Blocks: 10, Held: 9, Speculative: 1, Speculating: 1,
		Endpoints: []picker.EndpointStats{
			endpointStats("uid-1", "pod", 0), endpointStats("uid-1", "pod", 1),
			endpointStats("uid-2", "pod", 0),         // replaces the first one, which still drains
			endpointStats("uid-2", "pod", 0),         // never, but it must not take the scrape down
			endpointStats("uid-3", "bad\xffname", 0), // neither must this
		},
	}
	other := pool
	other.Namespace = "b"
	at := time.Unix(1_700_000_000, 500_000_000)
	return Sources{
		Pools: func() []picker.PoolStats { return []picker.PoolStats{pool, other} },
		Hooks: func() []picker.HookStats {
			return []picker.HookStats{{Namespace: "default", Pool: "llama", Step: "free", Outcomes: [hooks.NumOutcomes]int64{hooks.Applied: 3}}}
		},
		Responses: func() []picker.ResponseStats {
			return []picker.ResponseStats{{Namespace: "a", Pool: "chat", Compares: true, Shares: true, Stats: respcache.Stats{
				Storages:   [respcache.NumStorages]int64{respcache.StoreInvalid: 7},
				Embeddings: [respcache.NumEmbeddings]int64{respcache.Embedded: 3, respcache.EmbeddingFailed: 2}, Models: 1, Vectors: 6,
				Similarity: respcache.Similarities{Counts: [len(respcache.SimilarityBounds) + 1]int64{0: 1, 12: 1, 13: 2}, Sum: 3.1},
				Results:    [respcache.NumResults]int64{respcache.Hit: 3, respcache.Miss: 5, respcache.Declined: 1},
				Storings:   [respcache.NumStorings]int64{respcache.Stored: 4, respcache.TooLarge: 1},
				Evicted:    2, Expired: 1, Bytes: 1000, Limit: 2000, Entries: 1,
			}}}
		},
		Routes: func() []picker.RouteStats {
			return []picker.RouteStats{{
				Namespace: "a", Name: "route", Requests: map[string]int64{"a/chat": 5},
				Fallbacks: map[string][modelroute.NumCauses]int64{"a/chat": {1, 0, 2}},
				Limited:   true, Refused: [2]int64{3, 4},
				Mirrors: map[string]picker.MirrorStats{"a/copy": {Sent: 9, Dropped: [picker.NumDrops]int64{picker.DropFull: 6}, Ended: [4]int64{5, 1, 2, 0}}},
			}}
		},
		Events: func() []Stream {
			at := func(uid string) endpoint.Endpoint { return endpoint.Endpoint{ID: endpoint.ID{Pod: uid}, Pod: "pod"} }
			var stats events.Stats
			stats.Batches.Store(4)
			stats.Resyncs[events.FellBack].Store(2)
			stats.Misaligned.Store(3)
			stats.Orphans.Store(6)
			return []Stream{
				{"a", "chat", events.Status{Endpoint: at("uid-1"), State: events.Synced, Stats: &stats}},
				{"a", "chat", events.Status{Endpoint: at("uid-2"), State: events.Syncing, Stats: new(events.Stats)}},
				{"b", "chat", events.Status{Endpoint: at("uid-1"), State: events.Degraded, Stats: new(events.Stats)}},
				{"b", "new", events.Status{Endpoint: at("uid-1"), State: events.Disconnected, Stats: new(events.Stats)}},
			}
		},
		RefusedReports: func() rpc.Refused { return rpc.Refused{NotTheirOwn: 2} },
		Strangers:      func() [events.NumStrangers]uint64 { return [events.NumStrangers]uint64{events.NoTopic: 2} },
		Reports: func() []Report {
			at := func(uid string) endpoint.Endpoint { return endpoint.Endpoint{ID: endpoint.ID{Pod: uid}, Pod: "pod"} }
			return []Report{
				{"a", "chat", at("uid-1"), cachesync.Status{Connected: true, Owned: true, Proven: true, State: reportpb.State_STATE_SYNCED, Reported: 5, Held: 4}},
				{"a", "chat", at("uid-2"), cachesync.Status{Connected: true, State: reportpb.State_STATE_UNVERIFIED}},
				{"b", "chat", at("uid-1"), cachesync.Status{}},
			}
		},
		Tokens: func() []tokencheck.Status {
			return []tokencheck.Status{{Namespace: "a", Pool: "chat", State: tokencheck.Exact, Texts: true, Chats: true, Probes: 2}, {Namespace: "b", Pool: "chat", State: tokencheck.Failed, Mismatches: 1, Doubts: 1, Unproven: openai.KindsOf(openai.KindDeveloper)}}
		},
		Scrapes: func() []scrape.Stats {
			return []scrape.Stats{
				{Address: "10.0.0.1:8000", Scrapes: 8, Failures: 2, ModelFailures: 1, LastSuccess: at, Interval: 200 * time.Millisecond},
				{Address: "10.0.0.1:8000"}, // with another key
			}
		},
		Peers: func() *Peers {
			return &Peers{
				Sent:          rpc.MeshStats{Connected: 2, Messages: 30, Bytes: 4000},
				Received:      replicas.Stats{Fresh: 2, Staleness: 30 * time.Millisecond, Messages: 20, PassedOver: 1, Expired: 1, Guesses: 3},
				ReceivedBytes: 3000, Refused: 1,
			}
		},
		Overload: func() overload.State {
			return overload.State{Pressure: [overload.NumResources]float64{0.9}, Active: [overload.NumActions]bool{true}, Refused: [overload.NumActions]uint64{3},
				Ports: []overload.PortState{{Name: "gateways", Shed: 5, TurnedAway: 2, Full: true}}}
		},
		TLS: func() TLS {
			return TLS{Handshakes: 9, FailedHandshakes: 4, NotAfter: time.Unix(1700000000, 0), Failures: 1, Failing: true}
		},
		Decisions:    func() *Records { return &Records{Written: 40, Dropped: 2} },
		Usage:        func() *Records { return &Records{Written: 70, Dropped: 3} },
		UsageExports: func() *Exports { return &Exports{Sent: 60, Lost: 4} },
		EventRoom:    budget.NewRoom(1 << 20),
		Memory: func() budget.Stats {
			s := budget.Stats{Limit: 1 << 30, Held: 3000, Owners: 2, Most: 2000}
			s.Parts, s.Refused, s.Shed = [budget.NumParts]int64{2000, 0, 1000, 0}, [budget.NumParts]uint64{4, 0, 5}, [budget.NumParts]uint64{6, 0, 7}
			return s
		},
	}
}

// collectors are all of ours, with something of each series.
func ours() []prometheus.Collector {
	r := NewRequests([]string{"path", "method"}, []string{"shed"})
	d := &picker.Decision{Namespace: "a", Pool: "chat", Model: "m", Duration: 300 * time.Microsecond}
	r.Refused("path")
	r.Picked(d)
	r.FirstToken(d, 80*time.Millisecond)
	r.Ended(d, picker.Completed, 2*time.Second)
	return []prometheus.Collector{NewCollector(sources()), r}
}

func TestMetricsAreWellFormed(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	for _, c := range ours() {
		if err := registry.Register(c); err != nil {
			t.Fatal(err)
		}
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	n, err := testutil.GatherAndCount(registry)
	if err != nil || n == 0 {
		t.Errorf("%d series, %v", n, err)
	}
}

func TestValuesComeFromTheSources(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	for _, c := range ours() {
		if err := registry.Register(c); err != nil {
			t.Fatal(err)
		}
	}
	server := httptest.NewServer(Handler(registry))
	defer server.Close()
	r, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`kvasir_requests_total{namespace="a",outcome="completed",pool="chat"} 3`,
		`kvasir_requests_total{namespace="b",outcome="failed",pool="chat"} 1`,
		`kvasir_tokenized_requests_total{namespace="a",pool="chat",source="exact"} 4`,
		`kvasir_response_cache_requests_total{namespace="a",pool="chat",result="hit"} 3`,
		`kvasir_response_cache_answers_total{namespace="a",pool="chat",result="too_large"} 1`,
		`kvasir_response_cache_removed_total{namespace="a",pool="chat",reason="room"} 2`,
		`kvasir_response_cache_bytes{namespace="a",pool="chat"} 1000`,
		`kvasir_response_cache_store_total{namespace="a",pool="chat",result="invalid"} 7`,
		`kvasir_response_cache_vectors{namespace="a",pool="chat"} 6`,
		`kvasir_response_cache_embeddings_total{namespace="a",pool="chat",result="failed"} 2`,
		`kvasir_response_cache_embedding_model_changes_total{namespace="a",pool="chat"} 1`,
		`kvasir_response_cache_similarity_bucket{namespace="a",pool="chat",le="0.99"} 1`,
		`kvasir_response_cache_similarity_bucket{namespace="a",pool="chat",le="0.995"} 2`,
		`kvasir_response_cache_similarity_sum{namespace="a",pool="chat"} 3.1`,
		`kvasir_response_cache_similarity_count{namespace="a",pool="chat"} 4`,
		`kvasir_pool_info{model="m",namespace="a",pool="chat",strategy="MarginalCost"} 1`,
		`kvasir_picks_total{endpoint="pod/0",namespace="a",pool="chat"} 7`,
		`kvasir_picks_total{endpoint="pod/1",namespace="a",pool="chat"} 7`,
		`kvasir_picks_total{endpoint="uid-2/0",namespace="a",pool="chat"} 7`,
		`kvasir_picks_total{endpoint="pod/0#2",namespace="a",pool="chat"} 7`,
		`kvasir_picks_total{endpoint="bad?name/0",namespace="a",pool="chat"} 7`,
		`kvasir_prompt_tokens_total{endpoint="pod/0",namespace="a",pool="chat"} 100`,
		`kvasir_predicted_hit_tokens_total{endpoint="pod/0",namespace="a",pool="chat"} 60`,
		`kvasir_confirmed_hit_tokens_total{endpoint="pod/0",namespace="a",pool="chat"} 50`,
		`kvasir_delivered_hit_tokens_total{endpoint="pod/0",namespace="a",pool="chat"} 58`,
		`kvasir_hit_deviation_tokens_total{endpoint="pod/0",namespace="a",pool="chat"} 4`,
		`kvasir_endpoint_inflight_requests{endpoint="pod/0",namespace="a",pool="chat"} 1`,
		`kvasir_endpoint_peer_inflight_requests{endpoint="pod/0",namespace="a",pool="chat"} 1`,
		`kvasir_endpoint_pending_tokens{endpoint="pod/0",namespace="a",pool="chat"} 10`,
		`kvasir_endpoint_peer_pending_tokens{endpoint="pod/0",namespace="a",pool="chat"} 2.5`,
		`kvasir_peers_told 2`,
		`kvasir_peer_staleness_seconds 0.03`,
		`kvasir_peer_received_bytes_total 3000`,
		`kvasir_peer_assumptions_total{outcome="other_keys"} 0`,
		`kvasir_endpoint_prefill_rate{endpoint="pod/0",namespace="a",pool="chat"} 8000`,
		`kvasir_endpoint_circuit_closed{endpoint="pod/0",namespace="a",pool="chat"} 1`,
		`kvasir_index_held_blocks{endpoint="pod/0",namespace="a",pool="chat"} 9`,
		`kvasir_events_state{endpoint="pod/0",namespace="a",pool="chat",state="Synced"} 1`,
		`kvasir_events_state{endpoint="uid-2/0",namespace="a",pool="chat",state="Syncing"} 1`,
		`kvasir_events_state{endpoint="pod/0",namespace="b",pool="chat",state="Degraded"} 1`,
		`kvasir_events_state{endpoint="pod/0",namespace="b",pool="new",state="Disconnected"} 1`,
		`kvasir_events_batches_total{endpoint="pod/0",namespace="a",pool="chat"} 4`,
		`kvasir_events_resyncs_total{endpoint="pod/0",namespace="a",pool="chat",reason="FellBack"} 2`,
		`kvasir_events_unindexed_blocks_total{endpoint="pod/0",namespace="a",pool="chat",reason="misaligned"} 3`,
		`kvasir_events_orphan_blocks{endpoint="pod/0",namespace="a",pool="chat"} 6`,
		`kvasir_events_lag_seconds{endpoint="pod/0",namespace="a",pool="chat"} 0`,
		`kvasir_scrape_last_success_timestamp_seconds{address="10.0.0.1:8000"} 1.7000000005e+09`,
		`kvasir_scrape_last_success_timestamp_seconds{address="10.0.0.1:8000#2"} 0`,
		`kvasir_report_refused_streams_total{reason="not_their_own"} 2`,
		`kvasir_report_refused_streams_total{reason="malformed"} 0`,
		`kvasir_index_resyncs_total{endpoint="pod/0",namespace="a",pool="chat",reason="Diverged"} 0`,
		`kvasir_report_last_proof_timestamp_seconds{endpoint="pod/0",namespace="a",pool="chat"} 0`,
		`kvasir_scrape_failures_total{address="10.0.0.1:8000"} 2`,
		`kvasir_scrape_failures_total{address="10.0.0.1:8000#2"} 0`,
		`kvasir_proxy_refused_total{reason="path"} 1`,
		`kvasir_proxy_refused_total{reason="method"} 0`,
		`kvasir_pick_duration_seconds_bucket{namespace="a",pool="chat",le="0.0005"} 1`,
		`kvasir_time_to_first_token_seconds_sum{model="m",namespace="a",pool="chat"} 0.08`,
		`kvasir_request_duration_seconds_count{model="m",namespace="a",outcome="completed",pool="chat"} 1`,
	} {
		if !bytes.Contains(text, []byte("\n"+want+"\n")) {
			t.Errorf("missing: %s", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", text)
	}
}

// A divergence of 0 is a promise. Where it is not known how far an index is off, there is no such series.
func TestDivergenceIsAbsentUnlessKnown(t *testing.T) {
	for name, tc := range map[string]struct {
		status cachesync.Status
		want   string // empty for none
	}{
		"equality was shown":           {cachesync.Status{Connected: true, Proven: true, State: reportpb.State_STATE_SYNCED}, "0"},
		"a difference is known":        {cachesync.Status{Connected: true, Divergent: 3, State: reportpb.State_STATE_SYNCED}, "3"},
		"and the reporter in doubt":    {cachesync.Status{Connected: true, Divergent: 3, State: reportpb.State_STATE_DEGRADED}, "3"},
		"there is no reporter":         {cachesync.Status{}, ""},
		"no digest has come":           {cachesync.Status{Connected: true, Owned: true, State: reportpb.State_STATE_SYNCED}, ""},
		"the reporter missed a part":   {cachesync.Status{Connected: true, Owned: true, State: reportpb.State_STATE_DEGRADED}, ""},
		"it was shown once, not since": {cachesync.Status{Connected: true, Owned: true, LastProof: time.Unix(1, 0), State: reportpb.State_STATE_SYNCED}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ep := endpoint.Endpoint{ID: endpoint.ID{Pod: "uid-1"}, Pod: "pod"}
			c := NewCollector(Sources{Reports: func() []Report { return []Report{{"a", "chat", ep, tc.status}} }})
			want := ""
			if tc.want != "" {
				want = "# HELP kvasir_index_divergent_blocks " + divergentHelp + "\n# TYPE kvasir_index_divergent_blocks gauge\n" +
					`kvasir_index_divergent_blocks{endpoint="pod/0",namespace="a",pool="chat"} ` + tc.want + "\n"
			}
			if err := testutil.CollectAndCompare(c, strings.NewReader(want), "kvasir_index_divergent_blocks"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSourcesMayBeMissing(t *testing.T) {
	n := testutil.CollectAndCount(NewCollector(Sources{}))
	if n != 0 {
		t.Errorf("%d series without a source", n)
	}
}

func TestARegistryTakesEverythingTogether(t *testing.T) {
	registry, err := NewRegistry(ours()...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := registry.Gather(); err != nil {
		t.Error(err)
	}
	if _, err := NewRegistry(append(ours(), NewRequests(nil, nil))...); err == nil {
		t.Error("the same metrics were taken twice")
	}
}

const (
	docs  = "../../docs/metrics.md"
	begin = "<!-- table: begin -->\n"
	end   = "<!-- table: end -->\n"
)

// table is what the documentation must say, from what is described and gathered.
func table(t *testing.T) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	described := make(chan *prometheus.Desc, 1000)
	for _, c := range append(ours(), BuildInfo()) {
		if err := registry.Register(c); err != nil {
			t.Fatal(err)
		}
		c.Describe(described)
	}
	close(described)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	gathered := map[string]bool{}
	var rows []string
	for _, f := range families {
		gathered[f.GetName()] = true
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()),
			strings.Join(labels, ", "), f.GetHelp()))
	}
	name := regexp.MustCompile(`fqName: "([^"]*)"`)
	for d := range described {
		if m := name.FindStringSubmatch(d.String()); m == nil || !gathered[m[1]] {
			t.Errorf("described but not collected: %s", d)
		}
	}
	slices.Sort(rows)
	return "| metric | type | labels | meaning |\n|---|---|---|---|\n" + strings.Join(rows, "")
}

func TestDocumentationListsAllMetrics(t *testing.T) {
	text, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), begin)
	got, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no table between its marks", docs)
	}
	want := table(t)
	if *update {
		if err := os.WriteFile(docs, []byte(head+begin+want+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, reason := range request.ProxyReasons {
		if !strings.Contains(head, "`"+reason+"`") {
			t.Errorf("the reason %s is not listed", reason)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("run go test ./internal/metrics -update (-want +got):\n%s", diff)
	}
}
