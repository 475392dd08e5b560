package picker

import (
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

func TestTheLimitOfAQueueIsLearnedFromRefusals(t *testing.T) {
	start := time.Unix(1, 0)
	at := start.Add
	with := func(n int) *load.View { return &load.View{InFlight: n, Sequences: n} }
	var c ceiling
	if n := c.places(start, with(100)); n != unbounded {
		t.Errorf("%d places before any refusal", n)
	}
	for _, inFlight := range []int{9, 3, 7} { // sent together, refused in any order
		c.refused(start, openai.RequestLimit, with(inFlight), 1)
	}
	for inFlight, want := range map[int]int{0: 3, 2: 1, 3: 0, 9: 0} {
		if n := c.places(at(time.Second/2), with(inFlight)); n != want {
			t.Errorf("%d places beside %d requests, want %d", n, inFlight, want)
		}
	}
	for after, want := range map[time.Duration]int{time.Second: 1, 2 * time.Second: 3, 3 * time.Second: 7} {
		if n := c.places(at(after), with(3)); n != want {
			t.Errorf("after %v: %d places, want %d", after, n, want)
		}
	}
	c.refused(at(time.Second), openai.RequestLimit, with(3), 1) // the request more was refused
	if n := c.places(at(time.Second), with(3)); n != 0 {
		t.Errorf("%d places after another refusal", n)
	}
	if n := c.places(at(time.Hour), with(1000)); n != unbounded || c.known.Load() {
		t.Errorf("%d places, known %v: it is not forgotten", n, c.known.Load())
	}
}

func TestTheLimitOfWaitingTokensIsLearnedFromRefusals(t *testing.T) {
	start := time.Unix(1, 0)
	var c ceiling
	c.refused(start, openai.TokenLimit, &load.View{InFlight: 5, PendingContext: 4000}, 1)
	if n := c.places(start, &load.View{InFlight: 5, PendingContext: 4000}); n != 0 {
		t.Errorf("%d places beside as many waiting tokens", n)
	}
	if n := c.places(start, &load.View{InFlight: 50, PendingContext: 3000}); n != unbounded {
		t.Errorf("%d places beside requests that decode", n)
	}
	if n := c.places(start.Add(time.Second), &load.View{PendingContext: 4000 + tokenStep - 1}); n != unbounded {
		t.Errorf("%d places a second later", n)
	}
}

// TestHeavyRefusalsAreNoLimitForOthers: a request of more sequences than the limit is refused by an idle engine.
func TestHeavyRefusalsAreNoLimitForOthers(t *testing.T) {
	now := time.Unix(1, 0)
	var c ceiling
	for range 5 {
		c.refused(now, openai.RequestLimit, &load.View{}, 9) // by a limit of 8
	}
	if n := c.places(now, &load.View{}); n != 8 {
		t.Errorf("%d places in an idle endpoint, want 8", n)
	}
	c.refused(now, openai.RequestLimit, &load.View{InFlight: 2, Sequences: 5}, 4)
	if n := c.places(now, &load.View{InFlight: 2, Sequences: 5}); n != 3 {
		t.Errorf("%d places beside 5 sequences, want 3: there can be no more", n)
	}
	c.refused(now, openai.RequestLimit, &load.View{InFlight: 2, Sequences: 8}, 1)
	if n := c.places(now, &load.View{InFlight: 3, Sequences: 3}); n != 5 {
		t.Errorf("%d places beside 3 requests of one sequence, want 5", n)
	}
}
