package main

import (
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"sigs.k8s.io/yaml"
)

const (
	// interval is between two scrapes, and between two evaluations: Prometheus Operator's default.
	interval = 30 * time.Second
	// end of what is looked at; a series of 120 values lasts until then.
	end = time.Hour

	// Pickers, pools and endpoints.
	one   = `namespace="llm", pod="picker-1", pool="chat"`
	other = `namespace="llm", pod="picker-2", pool="chat"`
	quiet = `namespace="llm", pod="picker-1", pool="quiet"`
	at    = `, endpoint="vllm-0/0"`
)

// testCase is an alert and the series that it looks at, each in Prometheus's own notation: "0+10x120" is a counter that
// grows by 10 in each interval, "0x9 1x20" something that begins to be 1 after ten values.
type testCase struct {
	alert  string
	series []string
	// fires lists the alerts, "AFTER SUMMARY": the first time, and the annotation. No other alert must fire.
	fires []string
}

var cases = map[string]testCase{
	"each request to a pool is refused": {
		alert: "KvasirPoolWithoutEndpoint",
		series: []string{
			"kvasir_refused_total{" + one + "} 0+10x120", "kvasir_refused_total{" + quiet + "} 7x120",
			"kvasir_admission_refused_total{" + one + `, reason="unserved"} 0x120`, "kvasir_admission_refused_total{" + quiet + `, reason="unserved"} 9x120`,
		},
		fires: []string{"2m30s Pool llm/chat has no endpoint for requests that come."},
	},
	"requests timed out waiting for an endpoint": {
		alert: "KvasirPoolWithoutEndpoint",
		series: []string{
			"kvasir_refused_total{" + one + "} 0x120", "kvasir_admission_refused_total{" + one + `, reason="unserved"} 0+1x120`,
		},
		fires: []string{"2m30s Pool llm/chat has no endpoint for requests that come."},
	},
	"a pool had no endpoint for a moment, and is full later": {
		alert: "KvasirPoolWithoutEndpoint",
		series: []string{
			"kvasir_refused_total{" + one + "} 0x20 30x100", "kvasir_admission_refused_total{" + one + `, reason="unserved"} 0x120`,
			"kvasir_admission_refused_total{" + one + `, reason="shed"} 0+10x120`, "kvasir_admission_refused_total{" + one + `, reason="late"} 0+10x120`,
		},
	},
	"two requests in a hundred fail": {
		alert: "KvasirRequestsFail",
		series: []string{
			"kvasir_requests_total{" + one + `, outcome="completed"} 0+98x120`, "kvasir_requests_total{" + other + `, outcome="failed"} 0+2x120`,
			"kvasir_requests_total{" + quiet + `, outcome="completed"} 5x120`, "kvasir_requests_total{" + quiet + `, outcome="failed"} 5x120`,
		},
		fires: []string{"10m30s 2% of the requests to pool llm/chat fail."},
	},
	"requests are refused by engines, and given up": {
		alert: "KvasirRequestsFail",
		series: []string{
			"kvasir_requests_total{" + one + `, outcome="completed"} 0+10x120`, "kvasir_requests_total{" + one + `, outcome="failed"} 0x120`,
			"kvasir_requests_total{" + one + `, outcome="rejected"} 0+10x120`, "kvasir_requests_total{" + one + `, outcome="client_gone"} 0+10x120`,
		},
	},
	"a full pool refuses requests": {
		alert: "KvasirRequestsShed",
		series: []string{
			"kvasir_admission_refused_total{" + one + `, reason="shed"} 0+30x120`, "kvasir_admission_refused_total{" + other + `, reason="late"} 0+30x120`,
			"kvasir_admission_refused_total{" + quiet + `, reason="shed"} 3x120`,
		},
		fires: []string{"5m30s Pool llm/chat is full, and refuses 2 requests a second."},
	},
	"a pool without endpoints is not a full one": {
		alert: "KvasirRequestsShed",
		series: []string{
			"kvasir_admission_refused_total{" + one + `, reason="unserved"} 0+30x120`, "kvasir_admission_refused_total{" + one + `, reason="client_gone"} 0+30x120`,
			"kvasir_admission_refused_total{" + one + `, reason="shed"} 0x20 1x100`,
		},
	},
	"requests wait all the time": {
		alert:  "KvasirRequestsWait",
		series: []string{"kvasir_admission_waiting_requests{" + one + "} 3x120", "kvasir_admission_waiting_requests{" + other + "} 2x120", "kvasir_admission_waiting_requests{" + quiet + "} 0x120"},
		fires:  []string{"15m0s 5 requests wait for pool llm/chat, which is full."},
	},
	"requests wait now and then": {
		alert:  "KvasirRequestsWait",
		series: []string{"kvasir_admission_waiting_requests{" + one + "} 3x20 0 3x20 0 3x20 0x59"},
	},
	"picks take half a second": {
		alert: "KvasirPicksSlow",
		series: []string{
			"kvasir_pick_duration_seconds_bucket{" + one + `, le="0.25"} 0+90x120`, "kvasir_pick_duration_seconds_bucket{" + one + `, le="1"} 0+100x120`,
			"kvasir_pick_duration_seconds_bucket{" + one + `, le="+Inf"} 0+100x120`,
			"kvasir_pick_duration_seconds_bucket{" + quiet + `, le="0.001"} 0+100x120`, "kvasir_pick_duration_seconds_bucket{" + quiet + `, le="+Inf"} 0+100x120`,
		},
		fires: []string{"15m30s One pick in 100 for pool llm/chat takes 925ms or more."},
	},
	"picks are quick": {
		alert:  "KvasirPicksSlow",
		series: []string{"kvasir_pick_duration_seconds_bucket{" + one + `, le="0.05"} 0+100x120`, "kvasir_pick_duration_seconds_bucket{" + one + `, le="+Inf"} 0+100x120`},
	},
	"the events of an endpoint are missing": {
		alert: "KvasirEventsMissing",
		series: []string{
			"kvasir_events_state{" + one + at + `, state="Degraded"} 1x120`, "kvasir_events_state{" + other + at + `, state="Synced"} 1x120`,
			"kvasir_events_state{" + quiet + at + `, state="Unverified"} 1x120`, "kvasir_events_state{" + quiet + at + `, state="Disconnected"} 1x15 0x105`,
		},
		fires: []string{"10m0s What endpoint vllm-0/0 of pool llm/chat caches is not known for sure."},
	},
	"events come again": {
		alert:  "KvasirEventsMissing",
		series: []string{"kvasir_events_state{" + one + at + `, state="Degraded"} 1x10 0x110`, "kvasir_events_state{" + one + at + `, state="Synced"} 0x10 1x110`},
	},
	"reporters are turned away": {
		alert:  "KvasirReportersRefused",
		series: []string{`kvasir_report_refused_streams_total{namespace="llm", pod="picker-1", reason="unauthenticated"} 0+1x120`, `kvasir_report_refused_streams_total{namespace="llm", pod="picker-2", reason="malformed"} 1x120`},
		fires:  []string{"10m30s Picker llm/picker-1 turns reporters away."},
	},
	"a reporter came before its pod was known": {
		alert:  "KvasirReportersRefused",
		series: []string{`kvasir_report_refused_streams_total{namespace="llm", pod="picker-1", reason="unknown_pod"} 0x20 3x100`},
	},
	"the index differs from an endpoint": {
		alert:  "KvasirIndexDiverges",
		series: []string{"kvasir_index_divergent_blocks{" + one + at + "} 12x120", "kvasir_index_divergent_blocks{" + quiet + at + "} 0x120"},
		fires:  []string{"10m0s The index differs from endpoint vllm-0/0 of pool llm/chat in 12 blocks, and is not repaired."},
	},
	"the index is repaired": {
		alert:  "KvasirIndexDiverges",
		series: []string{"kvasir_index_divergent_blocks{" + one + at + "} 12x15 0x105"},
	},
	"predictions are not believed": {
		alert:  "KvasirPredictionsDistrusted",
		series: []string{"kvasir_predictions_trusted{" + one + "} 1x120", "kvasir_predictions_trusted{" + other + "} 0x120", "kvasir_predictions_trusted{" + quiet + "} 1x120"},
		fires:  []string{"10m0s The engines of pool llm/chat do not find what they have announced; requests are routed by load."},
	},
	"predictions are believed": {
		alert:  "KvasirPredictionsDistrusted",
		series: []string{"kvasir_predictions_trusted{" + one + "} 1x120", "kvasir_predictions_trusted{" + other + "} 0x15 1x105"},
	},
	"a pool's tokens are not those of its engines": {
		alert: "KvasirTokensInexact",
		series: []string{
			"kvasir_tokens_state{" + one + `, state="Failed"} 1x120`, "kvasir_tokens_state{" + one + `, state="Exact"} 0x120`,
			"kvasir_tokens_state{" + quiet + `, state="NoFiles"} 1x120`,
		},
		fires: []string{"15m0s Pool llm/chat has no exact tokens (Failed)."},
	},
	"tokens are exact after the start": {
		alert:  "KvasirTokensInexact",
		series: []string{"kvasir_tokens_state{" + one + `, state="Starting"} 1x20 0x100`, "kvasir_tokens_state{" + one + `, state="Exact"} 0x20 1x100`},
	},
	"a picker does not hear another": {
		alert: "KvasirPeersSilent",
		series: []string{
			`kvasir_peers_told{namespace="llm", pod="picker-1", job="kvasir-picker"} 2x120`, `kvasir_peers_heard{namespace="llm", pod="picker-1", job="kvasir-picker"} 1x120`,
			`kvasir_peers_told{namespace="llm", pod="picker-2", job="kvasir-picker"} 2x120`, `kvasir_peers_heard{namespace="llm", pod="picker-2", job="kvasir-picker"} 2x120`,
		},
		fires: []string{"5m0s Picker llm/picker-1 does not hear all the others."},
	},
	"pickers hear each other": {
		alert:  "KvasirPeersSilent",
		series: []string{`kvasir_peers_told{namespace="llm", pod="picker-1"} 1x120`, `kvasir_peers_heard{namespace="llm", pod="picker-1"} 0x5 1x115`},
	},
	"all pickers keep an endpoint out": {
		alert:  "KvasirEndpointKeptOut",
		series: []string{"kvasir_endpoint_circuit_closed{" + one + at + "} 0x120", "kvasir_endpoint_circuit_closed{" + other + at + "} 0x120"},
		fires:  []string{"10m0s Endpoint vllm-0/0 of pool llm/chat fails, and is kept out by all pickers."},
	},
	"one picker keeps an endpoint out": {
		alert:  "KvasirEndpointKeptOut",
		series: []string{"kvasir_endpoint_circuit_closed{" + one + at + "} 0x120", "kvasir_endpoint_circuit_closed{" + other + at + "} 1x120"},
	},
	"an endpoint makes no progress": {
		alert:  "KvasirEndpointStalled",
		series: []string{"kvasir_endpoint_stalled{" + one + at + "} 1x120", "kvasir_endpoint_stalled{" + other + at + "} 0x120"},
		fires:  []string{"2m0s Endpoint vllm-0/0 of pool llm/chat has accepted requests and shows no progress."},
	},
	"an endpoint made no progress for a moment": {
		alert:  "KvasirEndpointStalled",
		series: []string{"kvasir_endpoint_stalled{" + one + at + "} 0 1 0x118"},
	},
	"a picker refuses connections": {
		alert:  "KvasirPickerOverloaded",
		series: []string{`kvasir_overload_active{namespace="llm", pod="picker-1", action="connections"} 1x120`, `kvasir_overload_active{namespace="llm", pod="picker-2", action="connections"} 0x120`},
		fires:  []string{"2m0s Picker llm/picker-1 runs short of a resource and refuses part of its load (connections)."},
	},
	"a picker ran short for a moment": {
		alert:  "KvasirPickerOverloaded",
		series: []string{`kvasir_overload_active{namespace="llm", pod="picker-1", action="connections"} 0 1 0x118`},
	},
	"a certificate cannot be read": {
		alert:  "KvasirCertificate",
		series: []string{`kvasir_tls_certificate_failing{namespace="llm", pod="picker-1"} 1x120`, `kvasir_tls_certificate_failing{namespace="llm", pod="picker-2"} 0x120`},
		fires:  []string{"15m0s The certificate that picker llm/picker-1 shows to clients cannot be read, or expires within 6 hours."},
	},
	"a certificate expires": { // the time of this test begins with 0
		alert: "KvasirCertificate",
		series: []string{`kvasir_tls_certificate_expiry_timestamp_seconds{namespace="llm", pod="picker-1"} 21000x120`,
			`kvasir_tls_certificate_expiry_timestamp_seconds{namespace="llm", pod="picker-2"} 90000x120`},
		fires: []string{"15m0s The certificate that picker llm/picker-1 shows to clients cannot be read, or expires within 6 hours."},
	},
	"a certificate is renewed in time, and another picker has none": {
		alert: "KvasirCertificate",
		series: []string{`kvasir_tls_certificate_expiry_timestamp_seconds{namespace="llm", pod="picker-1"} 22000x10 90000x109`,
			`kvasir_tls_certificate_expiry_timestamp_seconds{namespace="llm", pod="picker-2"} 0x120`,
			`kvasir_tls_certificate_failing{namespace="llm", pod="picker-1"} 0 1 0x118`},
	},
	"a picker cannot be asked": {
		alert:  "KvasirPickerDown",
		series: []string{`up{job="kvasir-picker", namespace="llm", pod="picker-1"} 0x120`, `up{job="kvasir-picker", namespace="llm", pod="picker-2"} 1x120`},
		fires:  []string{"5m0s Picker llm/picker-1 cannot be asked for its metrics."},
	},
	"something else cannot be asked": {
		alert:  "KvasirPickerDown",
		series: []string{`up{job="vllm", namespace="llm", pod="vllm-0"} 0x120`, `up{job="kvasir-picker", namespace="llm", pod="picker-1"} 0x5 1x115`},
	},
	"no replica of the operator answers": {
		alert:  "KvasirOperatorDown",
		series: []string{`up{job="kvasir-operator", pod="operator-1"} 0x120`, `up{job="kvasir-picker", pod="picker-1"} 1x120`},
		fires:  []string{"10m0s No replica of the operator runs. Pools serve on, and are not looked after."},
	},
	"one replica of the operator answers": {
		alert:  "KvasirOperatorDown",
		series: []string{`up{job="kvasir-operator", pod="operator-1"} 0x120`, `up{job="kvasir-operator", pod="operator-2"} 1x120`},
	},
	"a fifth of what the operator does fails": {
		alert: "KvasirOperatorFails",
		series: []string{
			`controller_runtime_reconcile_errors_total{job="kvasir-operator", controller="pool"} 0+2x120`, `controller_runtime_reconcile_total{job="kvasir-operator", controller="pool", result="error"} 0+2x120`,
			`controller_runtime_reconcile_total{job="kvasir-operator", controller="pool", result="success"} 0+8x120`,
			`controller_runtime_reconcile_errors_total{job="kvasir-operator", controller="picker"} 0x120`, `controller_runtime_reconcile_total{job="kvasir-operator", controller="picker", result="success"} 0+8x120`,
		},
		fires: []string{"15m30s 20% of what the operator does for pool fails; its log says why."},
	},
	"another operator fails": {
		alert:  "KvasirOperatorFails",
		series: []string{`controller_runtime_reconcile_errors_total{job="somebody", controller="pool"} 0+2x120`, `controller_runtime_reconcile_total{job="somebody", controller="pool", result="error"} 0+2x120`},
	},
}

// run gives what fires, and when.
func (c *testCase) run(t *testing.T, r *rule) (fired []string) {
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(r.Expr)
	if err != nil {
		t.Fatal(err)
	}
	hold, err := time.ParseDuration(r.For)
	if err != nil {
		t.Fatal(err)
	}
	store := promqltest.LoadedStorage(t, fmt.Sprintf("load %s\n  %s\n", interval, strings.Join(c.series, "\n  ")))
	defer store.Close() //nolint:errcheck // the test ends
	ask := rules.EngineQueryFunc(promqltest.NewTestEngine(t, false, 0, 1_000_000), store)
	alerting := rules.NewAlertingRule(c.alert, expr, hold, 0, labels.FromMap(r.Labels), labels.FromMap(r.Annotations), labels.EmptyLabels(), "", true, nil)
	seen := map[uint64]bool{}
	for after := time.Duration(0); after < end; after += interval {
		if _, err := alerting.Eval(t.Context(), 0, time.Unix(0, 0).Add(after), ask, &url.URL{}, 0); err != nil {
			t.Fatal(err)
		}
		for _, a := range alerting.ActiveAlerts() {
			if a.State == rules.StateFiring && !seen[a.Labels.Hash()] {
				seen[a.Labels.Hash()] = true
				fired = append(fired, after.String()+" "+a.Annotations.Get("summary"))
			}
		}
	}
	slices.Sort(fired)
	return fired
}

// rule is one alert of the PrometheusRule.
type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

// Prometheus's own engine evaluates the rules over an hour: each fires for what it is there for, and not for what is near.
func TestAlerts(t *testing.T) {
	text, err := os.ReadFile("../../config/monitoring/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Spec struct{ Groups []struct{ Rules []rule } }
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	all := map[string]*rule{}
	for _, g := range file.Spec.Groups {
		for i := range g.Rules {
			all[g.Rules[i].Alert] = &g.Rules[i]
		}
	}
	firing, silent := map[string]bool{}, map[string]bool{}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := all[tc.alert]
			if r == nil {
				t.Fatalf("there is no alert %s", tc.alert)
			}
			if got := tc.run(t, r); !slices.Equal(got, tc.fires) {
				t.Errorf("%s: %q fires, want %q", tc.alert, got, tc.fires)
			}
			if len(tc.fires) > 0 {
				firing[tc.alert] = true
			} else {
				silent[tc.alert] = true
			}
		})
	}
	for name := range all {
		if !firing[name] || !silent[name] {
			t.Errorf("%s is tried where it fires: %t, and where it must not: %t", name, firing[name], silent[name])
		}
	}
}
