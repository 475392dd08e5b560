package picker

import "testing"

// TestErrorsThatRequestsCauseKeepAtMostHalfOut: endpoints that answer with errors are there, and must not all be kept out;
// those that do not answer are, however many they are.
func TestErrorsThatRequestsCauseKeepAtMostHalfOut(t *testing.T) {
	for name, tc := range map[string]struct {
		answered bool
		want     int
	}{"answers with errors": {true, 3}, "does not answer": {false, 1}} {
		t.Run(name, func(t *testing.T) {
			spec := testSpec(t, 6)
			p := newPicker(t, newClock(), spec)
			for i := range 5 {
				m := p.current.Load().pools[0].members[i]
				for range spec.Policy.CircuitFailures {
					m.circuit.Fail(p.now(), spec.Policy.CircuitFailures, spec.Policy.CircuitOpen, tc.answered)
				}
			}
			chosen := map[string]bool{}
			var all []*Decision
			for i := range 30 {
				d := pick(t, p, completion("m", 1000*i, 200, true))
				chosen[d.Targets[0].Endpoint.Pod] = true
				all = append(all, d)
			}
			for _, d := range all {
				d.End(ClientGone)
			}
			if len(chosen) != tc.want {
				t.Errorf("%d endpoints are chosen, want %d: %v", len(chosen), tc.want, chosen)
			}
			assertIdle(t, p)
		})
	}
}

// What fails at an address that is none of the pool's says nothing about the endpoint that was picked.
func TestFailuresElsewhereLeaveTheCircuitAsItIs(t *testing.T) {
	spec := testSpec(t, 1)
	p := newPicker(t, newClock(), spec)
	d := pick(t, p, completion("m", 0, 200, true))
	m := d.Targets[0].member
	m.circuit.Fail(p.now(), spec.Policy.CircuitFailures, spec.Policy.CircuitOpen, false)
	d.Served("192.0.2.1:8000", 1, 1)
	d.failed(errored)
	if m.circuit.Answers() || m.circuit.Failures() != 1 {
		t.Errorf("answers: %v, %d failures", m.circuit.Answers(), m.circuit.Failures())
	}
	d.End(Failed)
}

func TestTheRetryBudget(t *testing.T) {
	var r retries
	n := 0
	for r.take() {
		n++
	}
	if n != retryBurst {
		t.Errorf("%d retries at the start, want %d", n, retryBurst)
	}
	for range 1000 {
		r.recordArrival()
		if r.take() {
			n++
		}
	}
	if n != retryBurst+1000/retryParts {
		t.Errorf("%d retries of 1000 requests", n-retryBurst)
	}
}
