package picker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

func TestARequestFindsItsCache(t *testing.T) {
	p := newPicker(t, newClock(), testSpec(t, 4))
	f := feed(t, p, "pod-2")
	hold(f, keysOf(t, "m", 0, 160)...)
	for _, model := range []string{"m", "alias"} {
		d := pick(t, p, completion(model, 0, 200, true))
		if got := d.Targets[0]; got.Endpoint.Pod != "pod-2" || got.Predicted != 160 || got.Confirmed != 160 {
			t.Errorf("model %s: %s with %d tokens (%d confirmed), want pod-2 with 160", model, got.Endpoint.Pod, got.Predicted, got.Confirmed)
		}
		d.End(Completed)
		expectEvents(p)
	}
	assertIdle(t, p)
}

func TestAFullHitStillComputesOneToken(t *testing.T) {
	p := newPicker(t, newClock(), testSpec(t, 1))
	f := feed(t, p, "pod-0")
	hold(f, keysOf(t, "m", 0, 64)...)
	d := pick(t, p, completion("m", 0, 64, true))
	defer d.End(Completed)
	if got := d.Targets[0].Predicted; got != 48 {
		t.Errorf("predicted %d cached tokens of 64, want 48: the engine computes at least one token", got)
	}
}

func TestModelsAndAdaptersDoNotShareBlocks(t *testing.T) {
	spec := testSpec(t, 2)
	spec.Adapters = []string{"sql"}
	p := newPicker(t, newClock(), spec)
	f := feed(t, p, "pod-1")
	hold(f, keysOf(t, "sql", 0, 160)...)
	d := pick(t, p, completion("sql", 0, 200, true))
	if d.Targets[0].Predicted != 160 {
		t.Errorf("the adapter's own blocks are not found")
	}
	d.End(Completed)
	d = pick(t, p, completion("m", 0, 200, true))
	if d.Targets[0].Predicted != 0 {
		t.Errorf("the base model is credited for an adapter's blocks")
	}
	d.End(Completed)
}

func TestBurstsOfANewPrefixStayTogetherBySpeculation(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, testSpec(t, 4))
	first := pick(t, p, completion("m", 0, 200, true))
	second := pick(t, p, completion("m", 0, 200, true))
	if got := second.Targets[0]; got.Endpoint != first.Targets[0].Endpoint || got.Predicted != 192 || got.Confirmed != 0 {
		t.Errorf("the second request went to %s with %d predicted, %d confirmed", got.Endpoint.Pod, got.Predicted, got.Confirmed)
	}
	first.End(Failed)
	second.End(Failed)
	third := pick(t, p, completion("m", 0, 200, true))
	if got := third.Targets[0].Predicted; got != 0 {
		t.Errorf("failed requests leave %d speculative tokens behind", got)
	}
	third.End(Completed)
	assertIdle(t, p)
}

func TestSpeculationEnds(t *testing.T) {
	keys := keysOf(t, "m", 0, 200)
	for name, tc := range map[string]struct {
		streamed bool
		act      func(c *clock, p *Picker, d *Decision)
		remains  bool
	}{
		"not before the first token":     {true, func(*clock, *Picker, *Decision) {}, true},
		"soon after the first token":     {true, func(c *clock, _ *Picker, d *Decision) { d.FirstToken(); c.advance(eventGrace + 1) }, false},
		"not at once with the first one": {true, func(_ *clock, _ *Picker, d *Decision) { d.FirstToken() }, true},
		"when the last block is announced": {true, func(_ *clock, p *Picker, d *Decision) {
			f := feed(t, p, d.Targets[0].Endpoint.Pod)
			p.Confirm(&f, keys)
		}, false},
		"not when only an earlier block is": {true, func(_ *clock, p *Picker, d *Decision) {
			f := feed(t, p, d.Targets[0].Endpoint.Pod)
			p.Confirm(&f, keys[:len(keys)-1])
		}, true},
		"not when another endpoint announces it": {true, func(_ *clock, p *Picker, d *Decision) {
			f := feed(t, p, d.Targets[1].Endpoint.Pod)
			p.Confirm(&f, keys)
		}, true},
		"with the request":                   {true, func(_ *clock, _ *Picker, d *Decision) { d.End(ClientGone) }, false},
		"with a request that failed":         {true, func(_ *clock, _ *Picker, d *Decision) { d.End(Failed) }, false},
		"not at once with a complete answer": {true, func(_ *clock, _ *Picker, d *Decision) { d.End(Completed) }, true},
		"not before a slow engine's events":  {true, func(c *clock, _ *Picker, d *Decision) { d.End(Completed); c.advance(eventGrace / 2) }, true},
		"soon after a complete answer":       {true, func(c *clock, _ *Picker, d *Decision) { d.End(Completed); c.advance(eventGrace + 1) }, false},
		"no later for its first token": {true, func(c *clock, _ *Picker, d *Decision) {
			d.FirstToken()
			c.advance(eventGrace / 2)
			d.End(Completed)
			c.advance(eventGrace/2 + 1)
		}, false},
		"when the last block is announced after a complete answer": {true, func(_ *clock, p *Picker, d *Decision) {
			d.End(Completed)
			f := feed(t, p, d.Targets[0].Endpoint.Pod)
			p.Confirm(&f, keys)
		}, false},
		"with an answer about another prompt": {true, func(_ *clock, _ *Picker, d *Decision) { d.Usage(300, 0); d.End(Completed) }, false},
		"at the predicted end of the prefill when the answer is not streamed": {false,
			func(c *clock, _ *Picker, _ *Decision) { c.advance(2 * time.Second) }, false},
		"at the upper bound": {true, func(c *clock, _ *Picker, _ *Decision) { c.advance(301 * time.Second) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			p := newPicker(t, c, testSpec(t, 3))
			d := pick(t, p, completion("m", 0, 200, tc.streamed))
			tc.act(c, p, d)
			probe := pick(t, p, completion("m", 5000, 200, true)) // deadlines are looked at when someone picks
			probe.End(Failed)
			if remains := p.Stats()[0].Speculative > 0; remains != tc.remains {
				t.Errorf("speculation remains: %v, want %v", remains, tc.remains)
			}
			d.End(Completed)
			assertIdle(t, p)
		})
	}
}

func TestAFallbackTakesTheAccountOver(t *testing.T) {
	p := newPicker(t, newClock(), testSpec(t, 3))
	d := pick(t, p, completion("m", 0, 200, true))
	if len(d.Targets) != 3 {
		t.Fatalf("%d targets, want 3", len(d.Targets))
	}
	d.Fail()
	d.Begin(1)
	stats := map[string]EndpointStats{}
	for _, e := range p.Stats()[0].Endpoints {
		stats[e.Pod] = e
	}
	if got := stats[d.Targets[0].Endpoint.Pod]; got.Load.InFlight != 0 || got.Failures != 1 {
		t.Errorf("the failed endpoint keeps %+v", got)
	}
	if got := stats[d.Targets[1].Endpoint.Pod]; got.Load.InFlight != 1 {
		t.Errorf("the fallback has %+v", got)
	}
	again := pick(t, p, completion("m", 0, 200, true))
	if again.Targets[0].Endpoint != d.Targets[1].Endpoint {
		t.Error("speculation did not move to the fallback")
	}
	again.End(Completed)
	d.Usage(200, 192)
	d.End(Completed)
	if got := p.Stats()[0].Hits.Answers; got != 0 {
		t.Errorf("%d retried answers are compared with the prediction", got)
	}
	assertIdle(t, p)
}

func TestFailingEndpointsAreLeftAloneAndTriedAgain(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, testSpec(t, 2))
	first := ""
	for range 2 { // the circuit opens at the second failure in a row
		d := pick(t, p, completion("m", 0, 200, true))
		if first == "" {
			first = d.Targets[0].Endpoint.Pod
		}
		if d.Targets[0].Endpoint.Pod != first {
			t.Fatalf("the circuit opened after one failure")
		}
		d.Fail()
		d.End(Failed)
	}
	d := pick(t, p, completion("m", 0, 200, true))
	if d.Targets[0].Endpoint.Pod == first || len(d.Targets) != 1 {
		t.Errorf("an endpoint with an open circuit was picked")
	}
	d.End(Completed)
	c.advance(11 * time.Second)
	probe := pick(t, p, completion("m", 0, 200, true))
	if probe.Targets[0].Endpoint.Pod != first {
		t.Fatalf("the endpoint was not tried again")
	}
	other := pick(t, p, completion("m", 9000, 200, true))
	if other.Targets[0].Endpoint.Pod == first {
		t.Error("half open, a second request was let through")
	}
	other.End(Completed)
	probe.End(Completed)
	d = pick(t, p, completion("m", 0, 200, true))
	if d.Targets[0].Endpoint.Pod != first {
		t.Error("the circuit did not close after a success")
	}
	d.End(Completed)
}

func TestDrainingEndpointsGetNothingAndKeepTheirRequests(t *testing.T) {
	p := newPicker(t, newClock(), testSpec(t, 2))
	d := pick(t, p, completion("m", 0, 200, true))
	spec := testSpec(t, 2)
	for i := range spec.Endpoints {
		if spec.Endpoints[i].Pod == d.Targets[0].Endpoint.Pod {
			spec.Endpoints[i].Terminating, spec.Endpoints[i].Ready = true, false
		}
	}
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		other := pick(t, p, completion("m", 0, 200, true))
		if other.Targets[0].Endpoint.Pod == d.Targets[0].Endpoint.Pod || len(other.Targets) != 1 {
			t.Fatal("a draining endpoint was picked")
		}
		other.End(Completed)
	}
	inFlight := 0
	for _, e := range p.Stats()[0].Endpoints {
		inFlight += e.Load.InFlight
	}
	if inFlight != 1 {
		t.Errorf("%d requests in flight, want the one on the draining endpoint", inFlight)
	}
	d.End(Completed)
	assertIdle(t, p)
}

func TestANewLifeOfAnEndpointStartsEmpty(t *testing.T) {
	p := newPicker(t, newClock(), testSpec(t, 2))
	old := feed(t, p, "pod-1")
	hold(old, keysOf(t, "m", 0, 160)...)
	spec := testSpec(t, 2)
	spec.Endpoints[1].Address = "127.0.0.1:9999" // same pod, new address
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	if got := feed(t, p, "pod-1"); got.Holder == old.Holder {
		t.Error("the new life has the old holder")
	}
	hold(old, keysOf(t, "m", 0, 16)[0]) // a late event
	d := pick(t, p, completion("m", 0, 200, true))
	defer d.End(Completed)
	if d.Targets[0].Predicted != 0 {
		t.Error("blocks of the old life are credited")
	}
}

func TestApplyKeepsTheLastGoodState(t *testing.T) {
	p := newPicker(t, newClock(), testSpec(t, 2))
	bad := testSpec(t, 1)
	bad.Policy.Strategy.Type = "NoSuch"
	twin := testSpec(t, 1)
	twin.Name = "twin"
	other := testSpec(t, 1)
	other.Name, other.Model, other.Aliases = "other", "other", nil
	if err := p.Apply([]Spec{bad, twin, other}); err == nil || !strings.Contains(err.Error(), "NoSuch") || !strings.Contains(err.Error(), "served by pool m") {
		t.Errorf("error %v names not both faults", err)
	}
	if n := len(p.Feeds()); n != 3 {
		t.Errorf("%d endpoints, want the 2 of the last good state and the 1 of the other pool", n)
	}
	pick(t, p, completion("other", 0, 20, false)).End(Completed)
	if err := p.Apply(nil); err != nil {
		t.Fatal(err)
	}
	_, err := p.Pick(context.Background(), &Request{Body: completion("m", 0, 20, false)})
	var e *Error
	if !errors.As(err, &e) || e.Status != 404 {
		t.Errorf("after the pool is gone: %v", err)
	}
}

func TestErrorsSayWhoseFaultItIs(t *testing.T) {
	empty := testSpec(t, 0)
	empty.Name, empty.Model, empty.Aliases = "empty", "empty", nil
	small := testSpec(t, 1)
	small.Name, small.Model, small.Aliases, small.MaxRequestBody = "small", "small", nil, 64
	p := newPicker(t, newClock(), testSpec(t, 1), empty, small)
	for name, tc := range map[string]struct {
		body string
		want int
	}{
		"broken JSON":      {`{"model": "m", "prompt": [1, 2`, 400},
		"no model":         {`{"prompt": "x"}`, 400},
		"unknown model":    {`{"model": "x", "prompt": "x"}`, 404},
		"a very long name": {`{"model": "` + strings.Repeat("x", 10_000) + `", "prompt": "x"}`, 404},
		"an empty pool":    {`{"model": "empty", "prompt": "x"}`, 503},
		"too large":        {`{"model": "small", "prompt": "` + strings.Repeat("x", 64) + `"}`, 413},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := p.Pick(context.Background(), &Request{Body: []byte(tc.body)})
			var e *Error
			if !errors.As(err, &e) || e.Status != tc.want || len(e.Message) > 1000 {
				t.Errorf("%v, want status %d", err, tc.want)
			}
		})
	}
	pick(t, p, completion("m", 0, 20, false)).End(Completed)
}

// TestOneHugePromptLeavesNothingBehind: buffers that it made huge are not kept.
func TestOneHugePromptLeavesNothingBehind(t *testing.T) {
	p := newPicker(t, newClock(), testSpec(t, 1))
	d := pick(t, p, completion("m", 0, 3<<20, true))
	if len(d.keys) > maxKeyed/16 {
		t.Errorf("%d keys for a prompt longer than any engine serves", len(d.keys))
	}
	d.End(Completed)
	s := p.scratch.Get().(*scratch)
	if cap(s.keys) > keepKeys {
		t.Errorf("a buffer of %d keys is kept", cap(s.keys))
	}
}

// compared is h without what is counted of all picks.
func compared(h Hits) Hits {
	h.Picks, h.PickedPrompt, h.PickedPredicted = 0, 0, 0
	return h
}

func TestPredictedAndDeliveredAreCompared(t *testing.T) {
	p := newPicker(t, newClock(), testSpec(t, 1))
	d := pick(t, p, completion("m", 0, 200, true))
	d.Usage(200, 0)
	d.Usage(200, 100) // only the first counts
	d.End(Completed)
	expectEvents(p)
	f := feed(t, p, "pod-0")
	hold(f, keysOf(t, "m", 0, 160)...)
	d = pick(t, p, completion("m", 0, 200, true))
	d.Usage(200, 144)
	d.End(Completed)
	want := Hits{
		Answers: 2, PromptTokens: 400, Predicted: 160, Confirmed: 160, Delivered: 144, Deviation: 16,
		Picks: 2, PickedPrompt: 400, PickedPredicted: 160,
	}
	if got := p.Stats()[0].Hits; got != want {
		t.Errorf("hits %+v, want %+v", got, want)
	}
	for name, body := range map[string]string{
		"several prompts": `{"model":"m","prompt":["a","b"]}`,
		"prompt logprobs": `{"model":"m","prompt":[1,2,3],"prompt_logprobs":1}`,
	} {
		d := pick(t, p, []byte(body))
		d.Usage(10, 10)
		d.End(Completed)
		if got := p.Stats()[0].Hits; compared(got) != compared(want) {
			t.Errorf("%s are compared", name)
		}
	}
}

// TestNothingIsLeftAfterChaos lets requests begin, fail, move, end and never report in any order while endpoints are added
// and removed, and expects every counter back at zero.
func TestNothingIsLeftAfterChaos(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, testSpec(t, 5))
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), 1))
			for range 300 {
				d, err := p.Pick(context.Background(), &Request{Body: completion("m", rng.IntN(5)*1000, 20+rng.IntN(200), rng.IntN(2) == 0)})
				if err != nil {
					continue // no endpoint at this moment
				}
				for range rng.IntN(5) {
					switch rng.IntN(6) {
					case 0:
						d.FirstToken()
					case 1:
						d.Fail()
						d.Begin(rng.IntN(4))
					case 2:
						d.Usage(100, 50)
					case 3:
						d.End(Outcome(rng.IntN(numOutcomes)))
					case 4:
						f := p.Feeds()
						if len(f) > 0 {
							f := f[rng.IntN(len(f))]
							p.Confirm(&f, keysOf(t, "m", rng.IntN(5)*1000, 200))
						}
					case 5:
						c.advance(time.Duration(rng.IntN(3000)) * time.Millisecond)
					}
				}
				d.End(Outcome(rng.IntN(numOutcomes)))
			}
		})
	}
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(99, 1))
		for range 100 {
			spec := testSpec(t, 1+rng.IntN(5))
			for i := range spec.Endpoints {
				spec.Endpoints[i].Ready = rng.IntN(4) > 0
			}
			if err := p.Apply([]Spec{spec}); err != nil {
				t.Error(err)
			}
			p.Observe(spec.Endpoints[0].ID, c.Now(), load.Report{KVUsage: rng.Float64()})
			p.Stats()
		}
	})
	wg.Wait()
	if err := p.Apply([]Spec{testSpec(t, 5)}); err != nil {
		t.Fatal(err)
	}
	assertIdle(t, p)
	total := int64(0)
	for _, n := range p.Stats()[0].Outcomes {
		total += n
	}
	if tokens := p.Stats()[0].Tokens[TokensGiven]; total != tokens {
		t.Errorf("%d requests ended, %d were picked", total, tokens)
	}
}

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{1024, 12_000} {
		b.Run(fmt.Sprintf("tokens=%d/endpoints=8", n), func(b *testing.B) {
			spec := testSpec(b, 8)
			spec.Policy.Strategy = policy.Config{Type: policy.MarginalCost, MarginalCost: policy.MarginalCostConfig{DecodeHarm: 1}}
			p := New(Options{})
			if err := p.Apply([]Spec{spec}); err != nil {
				b.Fatal(err)
			}
			f := p.Feeds()[3]
			hold(f, keysOf(b, "m", 0, n)...)
			body := completion("m", 0, n, true)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				pick(b, p, body).End(Completed)
			}
		})
	}
}

// TestApproximateMatchesMayBeLookedUpAgain: what waits for room is matched again when it has some.
func TestApproximateMatchesMayBeLookedUpAgain(t *testing.T) {
	spec := testSpec(t, 2)
	spec.Policy.EngineTokens = "Never"
	p := newPicker(t, newClock(), spec)
	v := p.current.Load().pools[0]
	s := new(scratch)
	body := []byte(`{"model":"m","prompt":"` + strings.Repeat("what is it about? ", 30) + `"}`)
	if err := openai.Parse(openai.Completions, body, &s.request); err != nil {
		t.Fatal(err)
	}
	s.candidates = v.eligible(p.now(), &place{v: v}, nil, s)
	asked := prompt{err: errNoSource}
	v.match(s, &asked, true)
	v.histories[fallback].memories[s.index[0]].Record(s.chunks[fallback])
	for range 2 {
		v.match(s, &asked, true)
		if asked.source != TokensApproximate || asked.tokens != 540/bytesPerToken || len(s.chunks[fallback]) != 540/64 || s.candidates[0].Match.Blocks() != len(s.chunks[fallback]) {
			t.Errorf("%s, %d tokens, %d chunks, match %+v", asked.source, asked.tokens, len(s.chunks[fallback]), s.candidates[0].Match)
		}
	}
}
