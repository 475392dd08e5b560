package picker

import (
	"testing"
	"time"
)

// TestAFallbackThatFailsSinceThePickIsPassedOver while a later one does not; when all of them do the next is tried all the
// same, and half open it is tried by one request.
func TestAFallbackThatFailsSinceThePickIsPassedOver(t *testing.T) {
	clock := newClock()
	spec := testSpec(t, 4)
	spec.Policy.Attempts = 4
	p := newPicker(t, clock, spec)
	d := pick(t, p, completion("m", 0, 3200, true))
	late := pick(t, p, completion("m", 0, 3200, true))
	fail := func(at int) {
		t.Helper()
		m := d.Targets[at].member
		for range spec.Policy.CircuitFailures {
			m.circuit.Fail(clock.Now(), spec.Policy.CircuitFailures, spec.Policy.CircuitOpen, false)
		}
	}
	fail(1)
	d.Fail()
	if d.Begin(1) {
		t.Error("a fallback whose circuit is open was tried, and the next one works")
	}
	if d.Index() != 0 {
		t.Errorf("the request has moved to %d", d.Index())
	}
	if !d.Begin(2) || d.Index() != 2 {
		t.Error("the next one was not tried")
	}
	fail(2)
	fail(3)
	if !d.Begin(3) {
		t.Error("when all have failed no endpoint is tried")
	}
	d.End(Failed)

	clock.advance(spec.Policy.CircuitOpen + time.Second)
	if !late.Begin(1) || !late.probe {
		t.Error("half open, it was not tried by a fallback")
	}
	other := pick(t, p, completion("m", 70_000, 3200, true))
	for i := range other.Targets {
		if other.Targets[i].member == late.Targets[1].member {
			t.Error("half open, it is chosen beside the request that tries it")
		}
	}
	late.End(Completed)
	other.End(Completed)
	assertIdle(t, p)
}
