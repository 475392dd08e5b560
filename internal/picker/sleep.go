package picker

import (
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/monotonic"
)

// Sleep is what an engine reports about its own pauses. Requests that are sent there meanwhile are accepted, and wait.
type Sleep struct {
	// Asleep engines are woken, Paused ones resumed, by the client that stopped them.
	Asleep, Paused bool
	// Discarded: the engine gave up its KV cache to sleep.
	Discarded bool
}

// sleepLife is how long an engine counts as asleep after it last said so. It is longer than other reports count, because
// a request that is sent to a sleeping engine hangs.
const sleepLife = 10 * time.Second

// sleep keeps the last report of an endpoint's engine. It is safe for concurrent use.
//
// An engine that discards its cache announces it by an event only with its next step, after it was woken. Until that event,
// the index has blocks that no longer exist: they do not match. vLLM discards its cache when it is paused, too, unless the
// request to pause prevents it, and nothing reports which it was before the next step: its events begin with the discarding
// if there was one.
//
//	     .--asleep, discarded--> gone ------ blocks announced when awake again: those before them are cleared --.
//	kept                                                                                                        |--> kept
//	     '--paused-------------> uncertain --blocks announced when awake again: those before them are there ----'
//	                             both -------the event------------------------------------------------------------> kept
type sleep struct {
	until  atomic.Int64 // of the monotonic clock; 0 while awake
	blocks atomic.Int32 // kept, gone or uncertain
	// said and paused are those of the last reading: discarded, paused.
	said, paused atomic.Bool
}

// What became of the blocks that the index has.
const (
	kept int32 = iota
	gone
	uncertain
)

func (s *sleep) asleep(now time.Time) bool {
	until := s.until.Load()
	return until != 0 && monotonic.Of(now) < until
}

// discarded reports whether the indexed blocks no longer exist, or might not.
func (s *sleep) discarded() bool { return s.blocks.Load() != kept }

// observe takes a reading. It reports whether the engine fell asleep or woke up.
func (s *sleep) observe(at time.Time, is Sleep) (changed bool) {
	until := int64(0)
	if is.Asleep || is.Paused {
		until = monotonic.Of(at.Add(sleepLife))
	}
	if !s.paused.Swap(is.Paused) && is.Paused {
		s.blocks.CompareAndSwap(kept, uncertain)
	}
	if !s.said.Swap(is.Discarded) && is.Discarded {
		s.blocks.Store(gone)
	}
	return (s.until.Swap(until) != 0) != (until != 0)
}

// cleared records that the engine announced an empty cache.
func (s *sleep) cleared() { s.blocks.Store(kept) }

// storing records that blocks were announced. It reports whether those before them have to be cleared first: the engine has
// discarded them, is awake again and has announced blocks, but not the discarding.
func (s *sleep) storing() (first bool) {
	if s.blocks.Load() == kept || s.until.Load() != 0 {
		return false
	}
	return s.blocks.Swap(kept) == gone
}

// held is how many blocks an endpoint holds that can match.
func (v *view) held(m *member) int {
	if m.sleep.discarded() {
		return 0
	}
	return v.index.Held(m.holder)
}

// ObserveSleep takes what an engine reports about its pauses.
func (p *Picker) ObserveSleep(id endpoint.ID, at time.Time, is Sleep) {
	for _, v := range p.current.Load().pools {
		m, ok := v.find(id)
		if !ok || !m.sleep.observe(at, is) {
			continue
		}
		message := "Engine awake: requests are sent there again"
		if is.Asleep || is.Paused {
			message = "Engine asleep or paused: no requests are sent there"
		}
		v.log.Info(message, "pool", v.spec.Name, "pod", id.Pod, "rank", id.Rank, "discarded", is.Discarded)
		v.admission.look()
	}
}
