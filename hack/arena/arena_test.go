//go:build unix

package main

import (
	"bytes"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

func TestArrivalsHaveTheRateAndDependOnTheSeedAlone(t *testing.T) {
	draw := func(name string, seed uint64) []time.Duration {
		w, err := drawWorkload(name, 400, seed)
		if err != nil {
			t.Fatal(err)
		}
		at, err := arrivals(w.First(400), seed, 20)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	for _, name := range []string{"prefixes", "agentic", "trace"} {
		at := draw(name, 3)
		if got, want := at[len(at)-1].Seconds(), 399.0/20; math.Abs(got-want) > 1e-6 || at[0] != 0 {
			t.Errorf("%s: 400 requests arrive from %s to %.6f s; want 0 to %.6f s", name, at[0], got, want)
		}
		if !slices.Equal(at, draw(name, 3)) {
			t.Errorf("%s: the same seed gives other arrivals", name)
		}
		if slices.Equal(at, draw(name, 4)) {
			t.Errorf("%s: another seed gives the same arrivals", name)
		}
	}
	if _, err := drawWorkload("none", 1, 1); err == nil {
		t.Error("an unknown workload is accepted")
	}
}

func TestPromptsShareTextAsFarAsTheyShareTokens(t *testing.T) {
	words, err := vocabulary(vllmsim.Words{})
	if err != nil {
		t.Fatal(err)
	}
	a, b := body([]uint32{1000, 1001, 1002}, 5, words), body([]uint32{1000, 1001, 1003}, 5, words)
	shared := 0
	for shared < len(a) && a[shared] == b[shared] {
		shared++
	}
	if text := string(a[:shared]); !strings.Contains(text, words[1000]+words[1001]) {
		t.Errorf("the shared part is %q", text)
	}
	if bytes.Equal(a, b) {
		t.Error("different prompts are equal")
	}
}

func TestSummaryCountsFailuresWithTheLimit(t *testing.T) {
	list := []outcome{{first: time.Second}, {first: 2 * time.Second}, {first: 9 * time.Second}, {first: time.Second, failure: "cut"}}
	got, goodput, failures := summarize(list, 3*time.Second, 60*time.Second)
	if diff := cmp.Diff(latencies{Mean: 18, P50: 2, P90: 60, P99: 60}, got); diff != "" {
		t.Error(diff)
	}
	if goodput != 0.5 {
		t.Errorf("goodput %g, want 0.5", goodput)
	}
	if diff := cmp.Diff(map[string]int{"cut": 1}, failures); diff != "" {
		t.Error(diff)
	}
}

func TestTheIntervalIsStudents(t *testing.T) {
	for name, tc := range map[string]struct {
		differences  []float64
		middle, half float64
	}{
		"one pair has none":   {[]float64{2}, 2, math.Inf(1)},
		"equal pairs":         {[]float64{2, 2, 2}, 2, 0},
		"three pairs":         {[]float64{1, 2, 3}, 2, 4.303 / math.Sqrt(3)},
		"more pairs than ten": {slices.Repeat([]float64{-1, 1}, 8), 0, 2.228 * math.Sqrt(16.0/15/16)},
	} {
		if middle, half := interval(tc.differences); math.Abs(middle-tc.middle) > 1e-9 || half != tc.half && math.Abs(half-tc.half) > 1e-9 {
			t.Errorf("%s: %g ± %g, want %g ± %g", name, middle, half, tc.middle, tc.half)
		}
	}
}

func TestTheTablePairsSeedsAndNamesWhatDidNotRun(t *testing.T) {
	c := cell{Workload: "prefixes", Rate: 15}
	of := func(router string, seed uint64, first float64) result {
		f := figures{Requests: 100, First: latencies{Mean: first}, Failures: map[string]int{"cut": 1}}
		return result{Router: router, Cell: c, Seed: seed, Figures: f}
	}
	got := tables([]result{
		of("other", 1, 3), of("kvasir", 1, 2), of("kvasir", 2, 1), of("other", 2, 4), of("other", 3, 100),
		{Router: "absent", Cell: c, Seed: 1, Missing: "no package"},
	}, "kvasir")
	for _, want := range []string{
		"**prefixes, 15/s**", "| kvasir | 2 | 0.000 | 1.50 |", "| other | 3 | 0.000 | 35.67 |", "| 3: 3 cut | 0.00 | 0 | +2.00 ± 12.71 |",
		"| absent | NOT RUN: no package |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	kvasir, other, absent := strings.Index(got, "| kvasir |"), strings.Index(got, "| other |"), strings.Index(got, "| absent |")
	if kvasir > other || other > absent {
		t.Errorf("the rows are not in the order of their first token:\n%s", got)
	}
}

func TestRotatedRunsEachFirstOnce(t *testing.T) {
	list := []string{"a", "b", "c"}
	var first []string
	for seed := range 3 {
		order := rotated(list, seed)
		first = append(first, order[0])
		if slices.Sort(order); !slices.Equal(order, list) {
			t.Errorf("seed %d: %v", seed, order)
		}
	}
	if diff := cmp.Diff(list, first); diff != "" {
		t.Error(diff)
	}
}

func TestTheClientMeasuresTheFirstTextAndNamesFailures(t *testing.T) {
	const (
		role = `data: {"choices":[{"delta":{"role":"assistant","content":""}}]}` + "\n\n"
		text = `data: {"choices":[{"delta":{"content":"x"},"finish_reason":null}]}` + "\n\n"
		end  = `data: {"choices":[{"delta":{},"finish_reason":"length"}]}` + "\n\ndata: [DONE]\n\n"
	)
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("X-Session-Id") {
		case "whole":
			_, _ = io.WriteString(w, role)
			_ = http.NewResponseController(w).Flush()
			<-release
			_, _ = io.WriteString(w, text+end)
		case "cut":
			_, _ = io.WriteString(w, text)
		case "cut, with an end mark":
			_, _ = io.WriteString(w, text+"data: [DONE]\n\n")
		case "refused":
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	var freed time.Duration
	hooks := map[time.Duration]func(){20 * time.Millisecond: func() {
		freed = 20 * time.Millisecond
		close(release)
	}}
	list := []request{{session: "whole"}, {session: "cut"}, {session: "cut, with an end mark"}, {session: "refused"}}
	got := newClient(server.URL, 10*time.Second).load(t.Context(), list, hooks)
	var failures []string
	for _, o := range got {
		failures = append(failures, o.failure)
	}
	if diff := cmp.Diff([]string{"", "cut", "cut", "status 503"}, failures); diff != "" {
		t.Error(diff)
	}
	if got[0].first < freed || got[0].total < got[0].first {
		t.Errorf("first %s, total %s: the role without text counts as the first token", got[0].first, got[0].total)
	}
}

func TestEngineCountersAreSummed(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "# HELP x\n"+`vllm:prefix_cache_queries_total{model_name="m"} 100
vllm:prefix_cache_hits_total{model_name="m"} 3e1
other{a="b"} 5
`)
	}))
	defer server.Close()
	got := readCounters(t.Context(), []string{server.URL, server.URL})
	if got != (counters{queries: 200, hits: 60}) {
		t.Errorf("%+v", got)
	}
}

func TestFlagsThatCannotBeAreRefused(t *testing.T) {
	for want, args := range map[string][]string{
		`unknown router "envoy"`: {"--routers", "kvasir,envoy"},
		"--rates":                {"--rates", "12,0"},
		"--kill":                 {"--kill", "client"},
		"--seeds":                {"--seeds", "0"},
		`"now"`:                  {"now"},
	} {
		if _, err := parse(args, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}
