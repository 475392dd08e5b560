package picker

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvasir-dev/kvasir/internal/load"
)

// targeted is a pool of endpoints that have taught 20,000 tokens/s, with a target of twice the unloaded time.
func targeted(t *testing.T, endpoints int) *Picker {
	t.Helper()
	spec := queueing(t, endpoints)
	spec.Policy.Admission.Slowdown = 2
	spec.Policy.Admission.Limits.TTL = time.Minute
	p := started(t, spec)
	for i := range 200 {
		for _, m := range p.current.Load().pools[0].members {
			tokens := 1000 * (1 + i%40)
			b := m.load.Book(time.Now(), load.WorkOf(tokens, 0), true)
			time.Sleep(time.Duration(tokens) * time.Second / 20_000)
			b.FirstToken(time.Now())
			b.Release(time.Now())
			time.Sleep(10 * time.Millisecond)
		}
	}
	return p
}

// TestARequestThatCannotBeInTimeIsRefusedAtOnce: not after its time in the queue, and not at all if there is room in
// time.
func TestARequestThatCannotBeInTimeIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := targeted(t, 1)
		busy := pick(t, p, completion("m", 2e6, 20_000, true)) // a second
		defer busy.End(Completed)
		began := time.Now()
		short := asking(t.Context(), p, 3e6, 2000, nil)  // 0.1 s alone
		long := asking(t.Context(), p, 4e6, 40_000, nil) // 2 s alone
		waits(t, short, "while it may be in time")
		time.Sleep(300 * time.Millisecond)
		got := now(t, short, "when it cannot be in time any more")
		if s, code := status(got.err); s != 429 || code != "queue_timeout" || got.at.Sub(began) > 150*time.Millisecond {
			t.Errorf("after %v: %v", got.at.Sub(began), got.err)
		}
		waits(t, long, "with time left")
		time.Sleep(700 * time.Millisecond)
		busy.FirstToken()
		if got := now(t, long, "when the endpoint is free"); got.err != nil {
			t.Errorf("a request in time: %v", got.err)
		} else {
			got.d.End(Completed)
		}
	})
}

// TestAShortPromptIsLetIn: at once on an idle endpoint, and without delaying present requests beyond their targets.
func TestAShortPromptIsLetIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := targeted(t, 1)
		for _, tokens := range []int{50, 200, 1000} {
			got := now(t, asking(t.Context(), p, tokens*1e4, tokens, nil), "nothing is done")
			if got.err != nil {
				t.Fatalf("a prompt of %d tokens: %v", tokens, got.err)
			}
			got.d.FirstToken()
			got.d.End(Completed)
		}
		first := now(t, asking(t.Context(), p, 2e7, 600, nil), "nothing is done") // 30 ms, due after 54
		hold(feed(t, p, "pod-0"), keysOf(t, "m", 3e7, 1760)...)
		second := now(t, asking(t.Context(), p, 3e7, 2000, nil), "both are in time") // 12 ms more, due after 180
		waits(t, asking(t.Context(), p, 4e7, 20_000, nil), "those two would be late")
		for _, a := range []answer{first, second} {
			if a.err != nil {
				t.Fatal(a.err)
			}
			a.d.FirstToken()
			a.d.End(Completed)
		}
	})
}

// TestARequestWaitsForTheEndpointThatHoldsIt: from a free one that would have to compute all of it its first token would be
// late.
func TestARequestWaitsForTheEndpointThatHoldsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := targeted(t, 2)
		holder := pick(t, p, completion("m", 2e6, 80_000, true)) // 4 s: behind that it would be too late
		other := pick(t, p, completion("m", 3e6, 44_000, true))  // 2.2 s
		pod := holder.Targets[0].Endpoint.Pod
		hold(feed(t, p, pod), keysOf(t, "m", 0, 40_000)...)
		a := asking(t.Context(), p, 0, 40_000, nil) // 2 s where nothing of it is held
		waits(t, a, "both are busy")
		time.Sleep(2200 * time.Millisecond) // of four
		other.FirstToken()
		waits(t, a, "the free one would need two seconds")
		time.Sleep(500 * time.Millisecond)
		waits(t, a, "the free one would need two seconds")
		holder.FirstToken()
		got := now(t, a, "the one that holds it is free")
		if got.err != nil || got.d.Targets[0].Endpoint.Pod != pod {
			t.Errorf("%+v", got)
		}
	})
}

// TestTenantsShareByWhatTheyComputeEvenIfNobodyWaits: what goes through at once is charged too.
func TestTenantsShareByWhatTheyComputeEvenIfNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := targeted(t, 1)
		next := *p.current.Load().pools[0].spec
		next.Policy.Admission.Tenants = tenants(t, true)
		next.Policy.Admission.Tenants.Header, next.Policy.Admission.Tenants.Known = FairnessHeader, nil
		next.Policy.Admission.Tenants.Default.Models = nil
		if err := p.Apply([]Spec{next}); err != nil {
			t.Fatal(err)
		}
		as := func(tenant string, first int) <-chan answer {
			return asking(t.Context(), p, first, 20_000, map[string]string{FairnessHeader: tenant})
		}
		for i := range 5 { // the hog has had five
			got := now(t, as("hog", i*1e6), "no request waits")
			got.d.FirstToken()
			got.d.End(Completed)
		}
		busy := now(t, as("hog", 6e6), "no request waits")
		hog := as("hog", 7e6)
		waits(t, hog, "hog")
		late := as("small", 8e6)
		waits(t, late, "small")
		busy.d.FirstToken()
		if got := now(t, late, "the tenant that has had less is served before the other"); got.err != nil {
			t.Error(got.err)
		} else {
			waits(t, hog, "hog")
			got.d.End(Completed)
		}
		if got := now(t, hog, "afterwards"); got.err == nil {
			got.d.End(Completed)
		}
		busy.d.End(Completed)
	})
}
