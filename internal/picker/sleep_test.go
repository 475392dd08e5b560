package picker

import (
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// sleeper is a pool of two endpoints. The first one holds a prompt.
type sleeper struct {
	t    *testing.T
	c    *clock
	p    *Picker
	feed Feed
	keys []kvblock.Key
}

func newSleeper(t *testing.T) *sleeper {
	s := &sleeper{t: t, c: newClock(), keys: keysOf(t, "m", 0, 200)}
	spec := testSpec(t, 2)
	spec.Policy.SpeculationOff = true
	s.p = newPicker(t, s.c, spec)
	s.feed = feed(t, s.p, "pod-0")
	hold(s.feed, s.keys...)
	return s
}

func (s *sleeper) observe(is Sleep) { s.p.ObserveSleep(testEndpoint(0).ID, s.c.Now(), is) }

// goes picks for the prompt.
func (s *sleeper) goes() (pod string, predicted int) {
	d := pick(s.t, s.p, completion("m", 0, 200, true))
	d.End(Completed)
	return d.Targets[0].Endpoint.Pod, d.Targets[0].Predicted
}

func (s *sleeper) want(what, pod string, predicted int) {
	s.t.Helper()
	if p, n := s.goes(); p != pod || n != predicted {
		s.t.Errorf("%s: the request goes to %s and is predicted %d tokens, want %s and %d", what, p, n, pod, predicted)
	}
}

func TestNoRequestGoesToAnEngineThatSleepsOrIsPaused(t *testing.T) {
	for name, is := range map[string]Sleep{"asleep": {Asleep: true}, "without cache": {Asleep: true, Discarded: true}, "paused": {Paused: true}} {
		t.Run(name, func(t *testing.T) {
			s := newSleeper(t)
			s.want("awake", "pod-0", 192)
			early := pick(t, s.p, completion("m", 0, 200, true))
			s.observe(is)
			s.want("asleep", "pod-1", 0)
			if e, err := s.p.Explain(t.Context(), &Request{Route: openai.Completions, Body: completion("m", 0, 200, true)}); err != nil ||
				len(e.LeftOut) != 1 || e.LeftOut[0].Reason != "asleep" {
				t.Errorf("explained as %+v (%v)", e, err)
			}
			if !early.Begin(1) || early.Begin(0) {
				t.Error("a retry is sent to the engine that sleeps")
			}
			early.End(Completed)
			if e := s.p.Stats()[0].Endpoints; !e[0].Asleep || e[1].Asleep {
				t.Errorf("endpoints %+v", e)
			}
			s.observe(Sleep{})
			if is.Discarded || is.Paused {
				hold(s.feed, s.keys...)
			}
			s.want("awake again", "pod-0", 192)
		})
	}
}

func TestAnEngineThatSaysNothingMoreIsNotTakenForAsleepForever(t *testing.T) {
	s := newSleeper(t)
	s.observe(Sleep{Asleep: true})
	s.c.advance(sleepLife - time.Millisecond)
	s.want("asleep", "pod-1", 0)
	s.c.advance(time.Millisecond)
	s.want("no reading for too long", "pod-0", 192)
}

func TestBlocksOfAnEngineThatDiscardedItsCacheAreGoneAtOnce(t *testing.T) {
	is := Sleep{Asleep: true, Discarded: true}
	for name, then := range map[string]func(s *sleeper){
		"nothing is said":             func(*sleeper) {},
		"a reading more":              func(s *sleeper) { s.observe(is); s.observe(Sleep{}) },
		"announced late, from before": func(s *sleeper) { s.observe(is); hold(s.feed, keysOf(s.t, "m", 5000, 32)...); s.observe(Sleep{}) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSleeper(t)
			s.observe(is)
			s.observe(Sleep{})
			then(s)
			if held := s.p.Stats()[0].Endpoints[0].Held; held != 0 {
				t.Errorf("%d blocks are held before the engine's first step", held)
			}
			if _, n := s.goes(); n != 0 {
				t.Errorf("awake again, %d tokens are predicted before the engine's first step", n)
			}
			s.feed.Writer.ClearTier(kvblock.GPU)
			hold(s.feed, s.keys[:4]...)
			s.want("after the first step", "pod-0", 64)
		})
	}
}

// A release that does not announce the clearing announces new blocks all the same.
func TestBlocksFromBeforeSleepAreClearedByTheFirstNewOne(t *testing.T) {
	s := newSleeper(t)
	s.observe(Sleep{Asleep: true, Discarded: true})
	s.observe(Sleep{})
	hold(s.feed, s.keys[:4]...)
	s.want("four blocks are new", "pod-0", 64)
	if n := s.p.Stats()[0].Held; n != 4 {
		t.Errorf("%d blocks are held, want 4", n)
	}
}

// vLLM drops its cache when it is paused, unless the request to pause says otherwise, and says so with its next step.
func TestBlocksOfAPausedEngineDoNotMatchUntilItsNextStep(t *testing.T) {
	for name, tc := range map[string]struct {
		then func(s *sleeper)
		want int // predicted tokens
		held int // blocks of the index that can match
	}{
		"nothing is said": {func(*sleeper) {}, 0, 0},
		"it dropped them": {func(s *sleeper) { s.feed.Writer.ClearTier(kvblock.GPU); hold(s.feed, s.keys[:4]...) }, 64, 4},
		"it kept them":    {func(s *sleeper) { hold(s.feed, keysOf(s.t, "m", 5000, 32)...) }, 192, 14},
		"announced late, from before": {func(s *sleeper) {
			s.observe(Sleep{Paused: true})
			hold(s.feed, keysOf(s.t, "m", 5000, 32)...)
			s.observe(Sleep{})
		}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSleeper(t)
			s.observe(Sleep{Paused: true})
			if held := s.p.Stats()[0].Endpoints[0].Held; held != 0 {
				t.Errorf("%d blocks of a paused engine are held", held)
			}
			s.observe(Sleep{})
			tc.then(s)
			if held := s.p.Stats()[0].Endpoints[0].Held; held != tc.held {
				t.Errorf("%d blocks are held, want %d", held, tc.held)
			}
			if _, n := s.goes(); n != tc.want {
				t.Errorf("%d tokens are predicted, want %d", n, tc.want)
			}
		})
	}
}

func TestSleepThatKeepsTheCacheKeepsTheBlocks(t *testing.T) {
	s := newSleeper(t)
	s.observe(Sleep{Asleep: true})
	s.observe(Sleep{})
	hold(s.feed, keysOf(t, "m", 5000, 32)...)
	s.want("awake again", "pod-0", 192)
}

func TestRequestsInFlightAreCountedForEachEndpoint(t *testing.T) {
	s := newSleeper(t)
	d := pick(t, s.p, completion("m", 0, 200, true))
	at, other := d.Targets[0].Endpoint.ID, testEndpoint(1).ID
	if s.p.InFlight(at) != 1 || s.p.InFlight(other) != 0 || s.p.InFlight(testEndpoint(9).ID) != 0 {
		t.Errorf("%d requests where one is, %d elsewhere", s.p.InFlight(at), s.p.InFlight(other))
	}
	d.End(Completed)
	if n := s.p.InFlight(at); n != 0 {
		t.Errorf("%d requests in the end", n)
	}
}
