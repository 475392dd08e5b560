package picker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// withFields adds fields to a body.
func withFields(body []byte, fields string) []byte {
	return []byte(strings.TrimSuffix(string(body), "}") + "," + fields + "}")
}

// noRead are fields of completions with which vLLM looks nothing up in its cache.
var noRead = []string{`"prompt_logprobs":0`, `"prompt_logprobs":3`, `"echo":true,"logprobs":0`, `"echo":"on","logprobs":2`}

func TestARequestThatReadsNoCacheIsPredictedAndBookedWithoutOne(t *testing.T) {
	for _, fields := range noRead {
		t.Run(fields, func(t *testing.T) {
			b := newBeliever(t)
			plain := b.ask(12, nil)
			before := b.p.Stats()[0].Hits
			d := pick(t, b.p, withFields(completion("m", 0, 200, true), fields))
			target := d.Targets[0]
			if !d.NoCacheRead || target.Match.Blocks() != 0 || target.Predicted != 0 || target.Confirmed != 0 || target.Found.Blocks() != 12 {
				t.Errorf("target %+v, without the fields %+v", target, plain.Targets[0])
			}
			if pending := b.p.Stats()[0].Endpoints[0].Load.PendingTokens; pending != 200 {
				t.Errorf("%v tokens are to be prefilled, want 200", pending)
			}
			var reason string
			d.Explain(0, func(name, value string) {
				if name == "x-kvasir-reason" {
					reason = value
				}
			})
			if !strings.HasPrefix(reason, "match=0/12 ") || !strings.HasSuffix(reason, " found=12 no-cache-read") {
				t.Errorf("reason %q", reason)
			}
			d.Usage(200, 0)
			d.End(Completed)
			if after := b.p.Stats()[0].Hits; compared(after) != compared(before) {
				t.Errorf("the answer was compared with a prediction: %+v, before %+v", after, before)
			}
		})
	}
}

func TestRequestsThatReadNoCacheTakeMatchingFromNobody(t *testing.T) {
	b := newBeliever(t)
	for i := range 10 * trustWindow {
		d := pick(t, b.p, withFields(completion("m", 0, 200, i%2 == 0), noRead[i%len(noRead)]))
		b.c.advance(time.Second)
		d.Usage(200, 0)
		d.End(Completed)
		b.c.advance(3 * time.Second)
	}
	if got := b.trust(); got.Lost || got.Judged != 0 {
		t.Errorf("trust %+v", got)
	}
	if d := b.ask(12, nil); d.Distrusted || d.Targets[0].Predicted != 192 {
		t.Errorf("a request that reads the cache: %+v", d.Targets[0])
	}
}

// What such a request computes is stored, so that those behind it find it there.
func TestARequestThatReadsNoCacheIsSpeculatedOn(t *testing.T) {
	p := newPicker(t, newClock(), testSpec(t, 4))
	first := pick(t, p, withFields(completion("m", 0, 200, true), noRead[0]))
	defer first.End(Completed)
	second := pick(t, p, completion("m", 0, 200, true))
	defer second.End(Completed)
	if target := second.Targets[0]; target.Endpoint.Pod != first.Targets[0].Endpoint.Pod || target.Predicted != 192 {
		t.Errorf("the second request went to %s, predicted %d; the first one is at %s", target.Endpoint.Pod, target.Predicted, first.Targets[0].Endpoint.Pod)
	}
}

func TestARequestThatReadsNoCacheGoesByLoadUnderEveryStrategyByMatch(t *testing.T) {
	for _, strategy := range []policy.Type{policy.MarginalCost, policy.LMetric, policy.ApproximatePrefix} {
		t.Run(string(strategy), func(t *testing.T) {
			c := newClock()
			spec := testSpec(t, 2)
			spec.Policy.Strategy.Type = strategy
			spec.Policy.Strategy.ApproximatePrefix = policy.ApproximatePrefixConfig{ChunkBytes: 64, MaxChunks: 256, ChunksPerEndpoint: 1000}
			p := newPicker(t, c, spec)
			full := feed(t, p, "pod-0")
			hold(full, keysOf(t, "m", 0, 4096)...)
			for i := range 2 {
				p.Observe(testEndpoint(i).ID, c.Now(), load.Report{Running: 8 * (1 - i)})
			}
			for _, body := range []string{
				`"echo":true`, `"echo":1,"top_logprobs":2`, `"prompt_logprobs":0`,
			} {
				in := &Request{Route: openai.ChatCompletions, Body: fmt.Appendf(nil, `{"model":"m","messages":[{"role":"user","content":%q}],%s}`, text(1, 2000), body)}
				d := pickFor(t, p, in)
				d.End(Completed)
				again := pickFor(t, p, in)
				if !again.NoCacheRead || again.Targets[0].Predicted != 0 || again.Targets[0].Routed != 0 {
					t.Errorf("%s: %+v", body, again.Targets[0])
				}
				again.End(Completed)
			}
			d := pick(t, p, withFields(completion("m", 0, 4096, true), noRead[0]))
			defer d.End(Completed)
			if target := d.Targets[0]; target.Predicted != 0 || target.uncached != 4096 {
				t.Errorf("%+v", target)
			}
		})
	}
}
