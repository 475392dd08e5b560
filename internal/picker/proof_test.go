package picker

import (
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/load"
)

// answered sends a prompt of n tokens through a picker, lets the engine find some of them, and returns the prediction.
func answered(t *testing.T, p *Picker, n, cached int) *Target {
	t.Helper()
	d := pick(t, p, completion("m", 0, n, false))
	d.Usage(n, cached)
	d.End(Completed)
	expectEvents(p)
	return &d.Targets[0]
}

// TestAnswersProveWhatEventsDoNotTell: after a lost history the engine still holds prefixes that no event has announced.
func TestAnswersProveWhatEventsDoNotTell(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, testSpec(t, 1))
	if got := answered(t, p, 200, 160); got.Predicted != 0 {
		t.Fatalf("%d tokens are predicted of an engine that told nothing", got.Predicted)
	}
	if got := answered(t, p, 200, 192); got.Predicted != 160 || got.Confirmed != 0 {
		t.Errorf("predicted %d, confirmed %d after an answer that found 160", got.Predicted, got.Confirmed)
	}
	if got := answered(t, p, 200, 192); got.Predicted != 192 {
		t.Errorf("%d tokens are predicted after an answer that found 192", got.Predicted)
	}
	c.advance(proofLife / 2)
	answered(t, p, 200, 192)
	c.advance(proofLife/2 + time.Second)
	if got := answered(t, p, 200, 32); got.Predicted != 192 {
		t.Errorf("%d tokens are predicted within the life of the last proof", got.Predicted)
	}
	if got := answered(t, p, 200, 32); got.Predicted != 32 {
		t.Errorf("%d tokens are predicted after an answer that found 32", got.Predicted)
	}
	c.advance(proofLife + time.Second)
	if got := answered(t, p, 200, 0); got.Predicted != 0 {
		t.Errorf("%d tokens are predicted after the proofs' time", got.Predicted)
	}
	if _, _, speculative := p.current.Load().pools[0].index.Size(); speculative != 0 {
		t.Errorf("%d blocks are assumed in the end", speculative)
	}
}

// TestProofsAddNothingWhereEventsTell: neither where the events of the request have arrived by its end, nor where the
// blocks were evicted since.
func TestProofsAddNothingWhereEventsTell(t *testing.T) {
	p := newPicker(t, newClock(), testSpec(t, 1))
	f := feed(t, p, "pod-0")
	keys := keysOf(t, "m", 0, 192)
	d := pick(t, p, completion("m", 0, 200, false))
	hold(f, keys...)
	d.Usage(200, 192)
	d.End(Completed)
	expectEvents(p)
	d = pick(t, p, completion("m", 0, 200, false))
	for _, key := range keys {
		f.Writer.Drop(kvblock.GPU, 0, []kvevent.Hash{kvevent.Hash(key)})
	}
	d.Usage(200, 192)
	d.End(Completed)
	expectEvents(p)
	if got := answered(t, p, 200, 0); got.Predicted != 0 {
		t.Errorf("%d tokens are predicted of blocks that were evicted", got.Predicted)
	}
	if n := p.current.Load().pools[0].proofs.n.Load(); n != 0 {
		t.Errorf("%d proofs are kept", n)
	}
}

// TestAProofEndsWhenItsBlocksAreAnnounced: an answer can arrive before the events of what it has found. Once they have arrived, the
// blocks are evicted as others are.
func TestAProofEndsWhenItsBlocksAreAnnounced(t *testing.T) {
	p := newPicker(t, newClock(), testSpec(t, 1))
	f := feed(t, p, "pod-0")
	keys := keysOf(t, "m", 0, 192)
	answered(t, p, 200, 192)
	if got := answered(t, p, 200, 192); got.Predicted != 192 {
		t.Errorf("%d tokens are predicted after an answer that found 192", got.Predicted)
	}
	hold(f, keys...)
	p.Confirm(&f, keys)
	evicted := keys[len(keys)/2:]
	for _, key := range evicted {
		f.Writer.Drop(kvblock.GPU, 0, []kvevent.Hash{kvevent.Hash(key)})
	}
	if got := answered(t, p, 200, 96); got.Predicted != 96 {
		t.Errorf("%d tokens are predicted of 96 that are left", got.Predicted)
	}
	if n := p.current.Load().pools[0].proofs.blocks.Load(); n != 0 {
		t.Errorf("%d blocks are proved by answers", n)
	}
}

// TestProofsEndWithoutRequests: what is assumed ends in time, also while no request comes.
func TestProofsEndWithoutRequests(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, testSpec(t, 1))
	answered(t, p, 200, 192)
	if n := p.Stats()[0].Speculative; n == 0 {
		t.Fatal("nothing is assumed after an answer that found 192")
	}
	c.advance(proofLife + time.Second)
	if n := p.Stats()[0].Speculative; n != 0 {
		t.Errorf("%d blocks are assumed after the proof's time", n)
	}
}

// TestProofsAreBounded by their number, and go with the endpoint's life.
func TestProofsAreBounded(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, testSpec(t, 1))
	for i := range maxProofs + 10 {
		d := pick(t, p, completion("m", 1000*i, 40, false))
		d.Usage(40, 32)
		d.End(Completed)
	}
	v := p.current.Load().pools[0]
	if n := v.proofs.n.Load(); n != maxProofs || len(v.proofs.byEnd) != maxProofs {
		t.Errorf("%d proofs, of %d blocks, are kept", n, len(v.proofs.byEnd))
	}
	feed(t, p, "pod-0").Writer.Clear()
	if got := answered(t, p, 200, 0); got.Predicted != 0 {
		t.Errorf("%d tokens are predicted of an engine that has begun another life", got.Predicted)
	}
}

// TestTheLastBlockOfAHitIsDroppedWhereEnginesDo: speculative decoding of the EAGLE kind, which shows only in answers. The rule is that
// of vLLM's source (v1/core/kv_cache_coordinator.py); no test has run such an engine.
func TestTheLastBlockOfAHitIsDroppedWhereEnginesDo(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, testSpec(t, 1))
	f := feed(t, p, "pod-0")
	holdIn(f, 2, keysOf(t, "m", 0, 1024))
	for i, step := range []struct {
		speculates           bool
		predicted, delivered int
	}{
		{false, 192, 192},
		{true, 160, 160}, // taken to drop a block
		{true, 160, 192}, // it does not: some other kind
		{true, 192, 192},
		{true, 192, 160}, // it does
		{true, 160, 160},
		{false, 192, 192},
	} {
		p.Observe(f.Endpoint.ID, c.Now(), load.Report{Speculates: step.speculates})
		if got := answered(t, p, 200, step.delivered); got.Predicted != step.predicted {
			t.Errorf("step %d: %d tokens are predicted, not %d", i, got.Predicted, step.predicted)
		}
	}
	p.Observe(f.Endpoint.ID, c.Now(), load.Report{Speculates: true})
	if got := answered(t, p, 40, 0); got.Predicted != 0 {
		t.Errorf("%d of 40 tokens are predicted", got.Predicted)
	}
}

// TestLookaheadHashesNeverPredictTooMuch: where hashes cover the tokens that follow, an engine finds the last block of a
// prompt that repeats, and lacks it where the prompt goes on differently. Both keep alternating.
func TestLookaheadHashesNeverPredictTooMuch(t *testing.T) {
	for _, speculates := range []bool{true, false} {
		c := newClock()
		p := newPicker(t, c, testSpec(t, 1))
		f := feed(t, p, "pod-0")
		holdIn(f, 2, keysOf(t, "m", 0, 1024))
		f.Lookahead()
		p.Observe(f.Endpoint.ID, c.Now(), load.Report{Speculates: speculates})
		for i, delivered := range []int{192, 192, 160, 192, 160, 160, 192} {
			if got := answered(t, p, 200, delivered); got.Predicted != 160 {
				t.Errorf("answer %d: %d tokens are predicted, not 160", i, got.Predicted)
			}
		}
		if e := p.Stats()[0].Endpoints[0]; !e.DropsLast || !e.Lookahead {
			t.Errorf("shown as %v, %v", e.DropsLast, e.Lookahead)
		}
		f.Writer.Clear() // another life of the engine, without it
		holdIn(f, 2, keysOf(t, "m", 0, 1024))
		p.Observe(f.Endpoint.ID, c.Now(), load.Report{})
		if got := answered(t, p, 200, 192); got.Predicted != 192 {
			t.Errorf("%d tokens are predicted in the next life", got.Predicted)
		}
	}
}

// TestAnEvictedLastBlockIsNotADroppedOne: an engine that speculates in another way lacks a block because it was evicted.
func TestAnEvictedLastBlockIsNotADroppedOne(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, testSpec(t, 1))
	f, keys := feed(t, p, "pod-0"), keysOf(t, "m", 0, 192)
	holdIn(f, 2, keys)
	p.Observe(f.Endpoint.ID, c.Now(), load.Report{Speculates: true})
	answered(t, p, 200, 192) // it finds the last block
	d := pick(t, p, completion("m", 0, 200, false))
	if d.Targets[0].Predicted != 192 {
		t.Fatalf("%d tokens are predicted", d.Targets[0].Predicted)
	}
	f.Writer.Drop(kvblock.GPU, 0, []kvevent.Hash{kvevent.Hash(keys[len(keys)-1])})
	d.Usage(200, 160)
	d.End(Completed)
	expectEvents(p)
	if got := answered(t, p, 200, 160); got.Predicted != 160 {
		t.Errorf("%d tokens are predicted after an eviction", got.Predicted)
	}
}

// TestProofsLastWhileEventsAreLost: a conversation with long pauses is known at each turn, until an answer refutes it, the
// engine's cache is discarded, or events are complete again.
func TestProofsLastWhileEventsAreLost(t *testing.T) {
	for name, tc := range map[string]struct {
		incomplete bool
		end        func(p *Picker, f Feed)
		want       int
	}{
		"events are lost":     {true, func(*Picker, Feed) {}, 160},
		"no event is lost":    {false, func(*Picker, Feed) {}, 0},
		"refuted":             {true, func(p *Picker, _ Feed) { answered(t, p, 200, 0) }, 0},
		"cleared":             {true, func(_ *Picker, f Feed) { f.Writer.Clear() }, 0},
		"events are complete": {true, func(_ *Picker, f Feed) { f.Incomplete(false) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			p := newPicker(t, c, testSpec(t, 1))
			f := feed(t, p, "pod-0")
			f.Incomplete(tc.incomplete)
			answered(t, p, 200, 160)
			for range 3 {
				c.advance(10 * time.Minute)
				p.current.Load().pools[0].proofs.expire(c.Now())
			}
			tc.end(p, f)
			c.advance(10 * time.Minute)
			if got := answered(t, p, 200, tc.want); got.Predicted != tc.want {
				t.Errorf("%d tokens are predicted, not %d", got.Predicted, tc.want)
			}
			if n := len(p.current.Load().pools[0].proofs.byEnd); n > 1 {
				t.Errorf("%d proofs are kept of one prefix", n)
			}
		})
	}
}

// TestProofsOfAnEndpointThatLeftEnd: whatever the state of its events was.
func TestProofsOfAnEndpointThatLeftEnd(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, testSpec(t, 1))
	f := feed(t, p, "pod-0")
	f.Incomplete(true)
	answered(t, p, 200, 160)
	spec := testSpec(t, 1)
	spec.Endpoints = nil
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	f.Incomplete(true) // by a caller that has an older list of endpoints
	c.advance(10 * time.Minute)
	v := p.current.Load().pools[0]
	if v.proofs.expire(c.Now()); v.proofs.n.Load() != 0 {
		t.Errorf("%d proofs are kept", v.proofs.n.Load())
	}
}
