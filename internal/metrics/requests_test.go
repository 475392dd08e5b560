package metrics

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// onePool is a picker with the pool a/chat, model m, and one endpoint.
func onePool(t testing.TB, now func() time.Time) *picker.Picker {
	t.Helper()
	p := picker.New(picker.Options{Now: now})
	if err := p.Apply([]picker.Spec{{
		Namespace: "a", Name: "chat", Model: "m", NoEvents: true, BlockTokens: 16,
		Policy:    picker.PolicySpec{Strategy: policy.Config{Type: policy.RoundRobin}, MaxKVUsage: 1, CircuitFailures: 1, Attempts: 1},
		Endpoints: []endpoint.Endpoint{{ID: endpoint.ID{Pod: "uid"}, Pod: "pod", Address: "10.0.0.1:8000", RankHeader: -1, Ready: true}},
	}}); err != nil {
		t.Fatal(err)
	}
	return p
}

// Throughput counts all answers: streams that report no usage (the default of the clients' libraries), and streams whose
// clients hang up, too.
func TestAllAnswersCountAsOutput(t *testing.T) {
	const usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":21}}\n\n"
	for name, tc := range map[string]struct {
		fields   string
		pieces   int
		tail     string
		outcome  picker.Outcome
		tokens   float64
		perToken time.Duration // 0 where none is observed
	}{
		"a stream without usage":      {`,"stream":true`, 11, "", picker.Completed, 11, 100 * time.Millisecond},
		"a stream with usage":         {`,"stream":true`, 11, usage, picker.Completed, 21, 50 * time.Millisecond},
		"two choices":                 {`,"stream":true,"n":2`, 12, "", picker.Completed, 12, 220 * time.Millisecond},
		"a client that hangs up":      {`,"stream":true`, 6, "", picker.ClientGone, 6, 100 * time.Millisecond},
		"a single token":              {`,"stream":true`, 1, "", picker.Completed, 1, 0},
		"an answer in one piece":      {"", 0, `{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":7}}`, picker.Completed, 7, 0},
		"an answer that is not shown": {`,"stream":true`, 4, "", picker.Unreported, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1e9, 0)
			p := onePool(t, func() time.Time { return now })
			r := NewRequests(nil, nil)
			d, err := p.Pick(t.Context(), &picker.Request{Route: openai.Completions, Body: []byte(`{"model":"m","prompt":[1,2,3]` + tc.fields + `}`)})
			if err != nil {
				t.Fatal(err)
			}
			r.Picked(d)
			var answer picker.Answer
			kind := "text/event-stream"
			if tc.fields == "" {
				kind = "application/json"
			}
			answer.Start(d, 200, kind, "")
			for i := range tc.pieces {
				if i > 0 {
					now = now.Add(100 * time.Millisecond)
				}
				answer.Write([]byte("data: {\"choices\":[{\"index\":0,\"text\":\" a\"}]}\n\n"))
			}
			answer.Write([]byte(tc.tail))
			if tc.outcome == picker.Completed {
				answer.Close()
			}
			d.End(tc.outcome)
			r.Ended(d, tc.outcome, time.Second)

			registry := prometheus.NewPedanticRegistry()
			registry.MustRegister(r)
			sums := map[string]float64{}
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				if h := f.GetMetric()[0].GetHistogram(); h != nil {
					sums[f.GetName()] = h.GetSampleSum()
				}
			}
			if got := sums["kvasir_request_output_tokens"]; got != tc.tokens {
				t.Errorf("%v output tokens, want %v", got, tc.tokens)
			}
			if got := sums["kvasir_request_prompt_tokens"]; got != 3 {
				t.Errorf("%v prompt tokens, want 3", got)
			}
			if got := sums["kvasir_inter_token_latency_seconds"]; got != tc.perToken.Seconds() {
				t.Errorf("%v s between tokens, want %v", got, tc.perToken.Seconds())
			}
		})
	}
}

func TestModelLabelsAreBounded(t *testing.T) {
	r := NewRequests(nil, nil)
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for i := range 3 * maxModels {
				d := &picker.Decision{Namespace: "a", Pool: "chat", Model: fmt.Sprint("model-", i)}
				r.Picked(d)
				r.FirstToken(d, time.Second)
			}
		})
	}
	wait.Wait()
	r.Picked(&picker.Decision{Namespace: "b", Pool: "chat"})
	if n := testutil.CollectAndCount(r, "kvasir_request_prompt_tokens"); n != maxModels+2 { // "other" of each pool
		t.Errorf("%d series, want %d", n, maxModels+2)
	}
}

// A reader of a dashboard sees one HELP, and neither this repository nor the metric beside it.
func TestHelpStandsAlone(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(append(ours(), NewCompat(func() []picker.PoolStats { return nil }))...)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	refers := regexp.MustCompile(`(?i)\b(these|those|them|picked for|as told)\b|^(it|they|their|of|the part|how (long|much)|the most)\b`)
	for _, f := range families {
		help := f.GetHelp()
		if m := refers.FindString(help); m != "" || len(strings.Fields(help)) < 4 || !strings.HasSuffix(help, ".") {
			t.Errorf("%s is not a sentence that stands alone (%q): %s", f.GetName(), m, help)
		}
	}
}

// BenchmarkObserver is what a streamed request costs the metrics.
func BenchmarkObserver(b *testing.B) {
	r := NewRequests(nil, nil)
	d := &picker.Decision{Namespace: "a", Pool: "chat", Model: "m", Duration: 300 * time.Microsecond, PromptTokens: 1000, Bytes: 4000}
	b.ReportAllocs()
	for b.Loop() {
		r.Picked(d)
		r.FirstToken(d, 80*time.Millisecond)
		r.Ended(d, picker.Completed, 2*time.Second)
	}
}
