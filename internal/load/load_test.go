package load

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }

func TestNothingRemainsHoweverRequestsEnd(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		var tracker Tracker
		var open []*Booking
		clock := 0.0
		for range 300 {
			clock += rng.Float64()
			switch op := rng.IntN(5); {
			case op < 2:
				open = append(open, tracker.Book(at(clock), WorkOf(rng.IntN(5000), rng.IntN(2)*1000), rng.IntN(2) == 0))
				open[len(open)-1].SetSequences(1 + rng.IntN(3))
			case len(open) == 0:
			case op == 2:
				open[rng.IntN(len(open))].FirstToken(at(clock))
			case op == 3:
				open[rng.IntN(len(open))].EndPrefill(at(clock))
			default:
				b := open[rng.IntN(len(open))] // some are released twice, or get a token after their end
				b.Release(at(clock))
			}
			v := tracker.View(at(clock))
			sequences := 0
			for _, b := range open {
				if !b.released {
					sequences += 1 + b.more
				}
			}
			if v.PendingTokens < 0 || v.Decoding < 0 || v.InFlight < v.Decoding || v.Sequences != sequences {
				t.Fatalf("impossible load %+v, with %d sequences", v, sequences)
			}
		}
		for _, b := range open {
			b.Release(at(clock))
		}
		if v := tracker.View(at(clock)); v.InFlight != 0 || v.Sequences != 0 || v.PendingTokens != 0 || v.Decoding != 0 || tracker.pending != (Work{}) || tracker.decoding != 0 {
			t.Fatalf("after all requests ended the load is %+v, pending %v", v, tracker.pending)
		}
	}
}

func TestARequestCountsFromThePick(t *testing.T) {
	var tracker Tracker
	b := tracker.Book(start, WorkOf(1000, 0), true)
	if v := tracker.View(start); v.InFlight != 1 || v.Decoding != 0 || v.PendingTokens != 1000 {
		t.Errorf("after the pick: %+v", v)
	}
	b.FirstToken(at(1))
	if v := tracker.View(at(1)); v.InFlight != 1 || v.Decoding != 1 || v.PendingTokens != 0 {
		t.Errorf("after the first token: %+v", v)
	}
	b.Release(at(2))
	if v := tracker.View(at(2)); v.InFlight != 0 || v.Decoding != 0 {
		t.Errorf("after the end: %+v", v)
	}
}

// TestTheRateOfAnEngineIsLearned plays an engine that prefills in order of arrival at a fixed rate with a fixed
// overhead, and expects both to be found, with noise, from requests that also queue behind one another.
func TestTheRateOfAnEngineIsLearned(t *testing.T) {
	const rate, overhead = 20_000.0, 0.05
	rng := rand.New(rand.NewPCG(2, 2))
	var tracker Tracker
	clock, free := 0.0, 0.0
	type job struct {
		b    *Booking
		done float64
	}
	var jobs []job
	for range 600 {
		clock += rng.ExpFloat64() * 0.4
		for len(jobs) > 0 && jobs[0].done <= clock {
			jobs[0].b.FirstToken(at(jobs[0].done))
			jobs[0].b.Release(at(jobs[0].done + 0.01))
			jobs = jobs[1:]
		}
		tokens := 200 + rng.IntN(10_000)
		b := tracker.Book(at(clock), WorkOf(tokens, 0), true)
		free = math.Max(free, clock) + float64(tokens)/rate*(0.95+0.1*rng.Float64())
		jobs = append(jobs, job{b, free + overhead})
	}
	v := tracker.View(at(clock))
	if v.Rate < rate*0.8 || v.Rate > rate*1.25 {
		t.Errorf("learned %.0f tokens/s, the engine does %.0f", v.Rate, rate)
	}
	if v.Overhead < 0 || v.Overhead > 4*overhead {
		t.Errorf("learned an overhead of %.3f s, it is %.3f s", v.Overhead, overhead)
	}
}

func TestAnswersThatAreNotStreamedTeachNothingAndEndByPrediction(t *testing.T) {
	var tracker Tracker
	b := tracker.Book(start, WorkOf(unknownRate, 0), false) // one second at the assumed rate
	b.FirstToken(at(0.5))
	if v := tracker.View(at(0.5)); v.Rate != 0 {
		t.Errorf("learned %v tokens/s from an answer that was not streamed", v.Rate)
	}
	b.Release(at(0.5))
	tracker.Book(at(1), WorkOf(unknownRate, 0), false)
	if v := tracker.View(at(1.5)); v.Decoding != 0 {
		t.Errorf("halfway through the predicted prefill: %+v", v)
	}
	if v := tracker.View(at(2.1)); v.Decoding != 1 || v.PendingTokens != 0 {
		t.Errorf("after the predicted prefill: %+v", v)
	}
}

// What an engine reports of itself changes nothing of what it was given.
func TestReportsLeaveTheCountAlone(t *testing.T) {
	var tracker Tracker
	first, second := tracker.Book(start, WorkOf(1000, 0), true), tracker.Book(start, WorkOf(500, 0), true)
	tracker.Observe(start, Report{})
	if v := tracker.View(start); v.InFlight != 2 || v.PendingTokens != 1500 {
		t.Errorf("after a report: %+v, want 2 in flight with 1500 tokens", v)
	}
	first.Release(at(1))
	second.Release(at(1))
	if v := tracker.View(at(1)); v.InFlight != 0 || v.PendingTokens != 0 {
		t.Errorf("in the end: %+v", v)
	}
}

func TestReportsGoStale(t *testing.T) {
	var tracker Tracker
	tracker.Observe(start, Report{KVUsage: 0.9, Waiting: 3, KVTokens: 100})
	tracker.Observe(at(-1), Report{KVUsage: 0.1}) // late
	if v := tracker.View(at(1)); v.KVUsage != 0.9 || v.Waiting != 3 {
		t.Errorf("a fresh report is not used: %+v", v)
	}
	if v := tracker.View(at(3)); v.KVUsage != 0 || v.Waiting != 0 || v.KVTokens != 100 {
		t.Errorf("after 3 s: %+v", v)
	}
}

func TestNonsenseTeachesNothing(t *testing.T) {
	var e estimator
	for range 10 {
		e.learn(start, Work{Tokens: math.NaN()}, 0, 1, 0)
		e.learn(start, WorkOf(100, 0), 0, 0, 0)
		e.learn(start, WorkOf(100, 0), 0, -1, 0)
		e.learn(start, Work{Tokens: math.Inf(1)}, 0, 1, 0)
	}
	if speed, trust := e.learned(start); speed != (Speed{}) || trust != 0 {
		t.Errorf("learned %+v from nonsense", speed)
	}
}

func TestPrefillsOfOneSizeDoNotChangeTheRate(t *testing.T) {
	var e estimator
	for i := range 50 {
		tokens := float64(500 + 400*(i%5))
		e.learn(start, Work{Tokens: tokens}, 0, 0.02+tokens/20_000, 0)
	}
	before, _ := e.learned(start)
	for range 500 { // nearly all of the prompt is cached: what is left is overhead
		e.learn(start, WorkOf(16, 0), 0, 0.03, 0)
	}
	if after, _ := e.learned(start); after.PerToken > before.PerToken/0.8 {
		t.Errorf("small prefills took the speed from %+v to %+v", before, after)
	}
}

func TestWhatIsNotRenewedFades(t *testing.T) {
	var e estimator
	for i := range 20 {
		e.learn(at(float64(i)), Work{Tokens: float64(500 + 100*i)}, 0, 1+float64(i), 0) // very slow
	}
	_, fresh := e.learned(at(19))
	_, old := e.learned(at(19 + 5*fade.Seconds()))
	if fresh < 0.9 || old > 0.05 {
		t.Errorf("believed %.2f at once and %.2f after %v; want 1 and nearly nothing", fresh, old, 5*fade)
	}
	for i := range 6 { // new samples count much more than old ones
		tokens := float64(500 + 700*i)
		e.learn(at(19+5*fade.Seconds()+float64(i)), Work{Tokens: tokens}, 0, tokens/20_000, 0)
	}
	if speed, _ := e.learned(at(300)); speed.PerToken > 1.0/10_000 {
		t.Errorf("after new samples the speed is %+v, the engine does 20,000 tokens/s", speed)
	}
}

// known is an estimator that has learned a rate in tokens/s, and nothing else.
func known(rate float64) estimator {
	e := estimator{begun: true, c: [terms]float64{0, unit[1] / rate, 0, 0}}
	e.claim()
	return e
}

// TestTheTermsOfAnEngineAreToldApart plays an engine in the form of the model: what every prefill takes, tokens, pairs
// and the context that is decoded. All four are found from first-token times, though requests queue and end together.
func TestTheTermsOfAnEngineAreToldApart(t *testing.T) {
	want := Speed{Overhead: 0.01, PerToken: 22e-6, PerPair: 1.2e-9, PerContext: 0.05e-6}
	rng := rand.New(rand.NewPCG(4, 4))
	var e estimator
	for i := range 2000 {
		w := WorkOf(int(math.Exp(4+7*rng.Float64())), rng.IntN(20_000))
		decoding := 1e6 * rng.Float64()
		seconds := want.Overhead + want.Seconds(w) + want.PerContext*decoding*Steps(w.Tokens)
		e.learn(at(float64(i)/4), w, decoding, seconds*(0.9+0.2*rng.Float64()), 0)
	}
	got, trust := e.learned(at(500))
	near := func(got, want float64) bool { return got > want*0.7 && got < want*1.4 }
	if !near(got.PerToken, want.PerToken) || !near(got.PerPair, want.PerPair) || !near(got.PerContext, want.PerContext) || trust < 0.8 {
		t.Errorf("learned %+v with trust %.2f, the engine is %+v", got, trust, want)
	}
}

// TestSamplesThatAreAlikeDoNotBlurTheTerms: an agent's turns are short behind long contexts, all of them. They show how
// long such turns take, and leave what is known of other prompts unchanged.
func TestSamplesThatAreAlikeDoNotBlurTheTerms(t *testing.T) {
	engine := Speed{Overhead: 0.01, PerToken: 22e-6, PerPair: 1.2e-9, PerContext: 0.05e-6}
	rng := rand.New(rand.NewPCG(7, 7))
	var e estimator
	clock := 0.0
	learn := func(w Work, decoding float64) {
		clock += rng.ExpFloat64() / 2
		seconds := engine.Overhead + engine.Seconds(w) + engine.PerContext*decoding*Steps(w.Tokens)
		e.learn(at(clock), w, decoding, seconds*(0.7+0.6*rng.Float64())+0.02*rng.ExpFloat64(), 0) // the step before ends first
	}
	for range 300 {
		learn(WorkOf(int(math.Exp(4+7*rng.Float64())), rng.IntN(20_000)), 1e6*rng.Float64())
	}
	cold := WorkOf(60_000, 0)
	for i := range 3000 {
		learn(WorkOf(800+rng.IntN(400), 30_000+rng.IntN(4000)), 1.5e6)
		speed, _ := e.learned(at(clock))
		if got, want := speed.Seconds(cold), engine.Seconds(cold); got < want/2 || got > 2*want {
			t.Fatalf("after %d turns alike a prompt of 60,000 tokens is thought to take %.2f s, it takes %.2f s: %+v", i+1, got, want, speed)
		}
	}
}

// TestAStarvedEngineTeachesNothing: prefills that waited for KV blocks say nothing of its speed.
func TestAStarvedEngineTeachesNothing(t *testing.T) {
	var tracker Tracker
	tracker.rate = known(20_000)
	before := tracker.View(start).Rate
	clock := 0.0
	for range 50 {
		tracker.Observe(at(clock), Report{KVUsage: 0.99, Running: 1})
		b := tracker.Book(at(clock), WorkOf(1000, 0), true)
		clock += 2
		tracker.Observe(at(clock-0.1), Report{KVUsage: 0.99, Running: 1})
		b.FirstToken(at(clock))
		b.Release(at(clock))
	}
	if after := tracker.View(at(clock)).Rate; after != before {
		t.Errorf("the rate went from %.0f to %.0f tokens/s", before, after)
	}
}

// TestTheQueueIsAMeanOverTime: half of the time with two waiting is a mean of one.
func TestTheQueueIsAMeanOverTime(t *testing.T) {
	var s standing
	for i := range 1000 {
		s.set(at(float64(i)*0.1), 2*(i%2))
	}
	if got := s.at(at(100)); math.Abs(got-1) > 0.1 {
		t.Errorf("mean %.2f, want 1", got)
	}
}

// TestAClockThatIsSetTeachesNothing: whichever way it jumps, and whatever was under way, no time that is learned is longer
// than an engine could take.
func TestAClockThatIsSetTeachesNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 11))
	for _, jump := range []float64{1e9, -1e9, 86_400, -86_400} {
		var tracker Tracker
		clock := 0.0
		for i := range 300 {
			b := tracker.Book(at(clock), WorkOf(500+rng.IntN(5000), 0), true)
			if i%20 == 0 {
				clock += jump
			}
			clock += 0.01 + float64(b.work.Tokens)/20_000
			b.FirstToken(at(clock))
			b.Release(at(clock))
			v := tracker.View(at(clock))
			if v.Overhead > 1 || v.Rate != 0 && (v.Rate < 5_000 || v.Rate > 80_000) {
				t.Fatalf("the clock jumps by %g s: after %d requests the overhead is %.3g s and the rate %.0f tokens/s, the engine does 20,000", jump, i+1, v.Overhead, v.Rate)
			}
		}
	}
}

// TestAnEngineThatLetsWaitTeachesNothing: what waits while nothing is prefilled waits for KV blocks or for a place, even
// where few blocks are in use.
func TestAnEngineThatLetsWaitTeachesNothing(t *testing.T) {
	var tracker Tracker
	tracker.rate = known(20_000)
	running := tracker.Book(start, WorkOf(1000, 0), true)
	running.EndPrefill(start)
	before := tracker.View(start).Rate
	clock := 0.0
	for range 50 {
		b := tracker.Book(at(clock), WorkOf(1000, 0), true)
		clock += 2
		tracker.Observe(at(clock-0.5), Report{KVUsage: 0.5, Running: 1, Waiting: 1})
		tracker.Observe(at(clock-0.04), Report{KVUsage: 0.5, Running: 2})
		b.FirstToken(at(clock))
		b.Release(at(clock))
	}
	if after := tracker.View(at(clock)).Rate; after != before {
		t.Errorf("the rate went from %.0f to %.0f tokens/s", before, after)
	}
}

// TestWhatHasWaitedTeachesLess: a prompt can be cached by the time that it is computed, which makes no engine faster.
func TestWhatHasWaitedTeachesLess(t *testing.T) {
	var fresh, old estimator
	for i := range 50 {
		w := WorkOf(1000+200*(i%7), 0)
		fresh.learn(at(float64(i)), w, 0, 0.02+w.Tokens/20_000, 0)
	}
	old = fresh
	for i := range 20 {
		w := WorkOf(1000+200*(i%7), 0)
		fresh.learn(at(50+float64(i)), w, 0, 0.02, 0)
		old.learn(at(50+float64(i)), w, 0, 0.02, 60)
	}
	quick, _ := fresh.learned(at(70))
	slow, _ := old.learned(at(70))
	w := WorkOf(5000, 0)
	if got := slow.Seconds(w); got < 0.2 || got < 1.5*quick.Seconds(w) {
		t.Errorf("5,000 tokens are thought to take %.3f s after samples that had waited, %.3f s after samples that had not; they took 0.25 s before", got, quick.Seconds(w))
	}
}

// TestReuseIsWhatCachesHeldOfLate: reuse is the part of the prompts that was not computed. Prompts sent long ago count next
// to nothing; without requests it stays.
func TestReuseIsWhatCachesHeldOfLate(t *testing.T) {
	var tr Tracker
	now := time.Unix(1000, 0)
	reuse := func() float64 {
		v := tr.View(now)
		return 1 - v.Computed/v.Prompted
	}
	if v := tr.View(now); v.Prompted != 0 || v.Computed != 0 {
		t.Errorf("before the first request: %+v", v)
	}
	for range 10 {
		tr.Book(now, WorkOf(2000, 6000), true).Release(now)
		now = now.Add(time.Second)
	}
	if got := reuse(); math.Abs(got-0.75) > 1e-9 {
		t.Errorf("of 8000 tokens 2000 are computed: reuse %v", got)
	}
	now = now.Add(time.Hour)
	if got := reuse(); math.Abs(got-0.75) > 1e-9 {
		t.Errorf("an hour later: reuse %v", got)
	}
	tr.Book(now, WorkOf(1000, 0), true).Release(now)
	if got := reuse(); math.Abs(got) > 1e-9 {
		t.Errorf("after an hour and a prompt that no cache held: reuse %v", got)
	}
}

// TestTheEarliestDueThatIsStillToComeCounts: of the prefills that are pending, until they have ended.
func TestTheEarliestDueThatIsStillToComeCounts(t *testing.T) {
	var tr Tracker
	due := func(now, want float64) {
		t.Helper()
		v := tr.View(at(now))
		if got := v.Due.Seconds(); math.Abs(got-want) > 1e-9 {
			t.Errorf("at %v s due in %v s, want %v", now, got, want)
		}
	}
	var all []*Booking
	for _, s := range []float64{9, 3, 5, 0} {
		b := tr.Book(at(0), WorkOf(100, 0), true)
		if s > 0 {
			b.SetDue(at(s))
		}
		all = append(all, b)
	}
	due(0, 3)
	due(4, 1) // the one of 3 s is late
	all[2].FirstToken(at(4))
	due(4, 5)
	all[0].Release(at(5))
	all[0].SetDue(at(20)) // it has ended
	due(5, 0)
	for _, b := range all {
		b.Release(at(6))
	}
	due(6, 0)
	if tr.dues != 0 {
		t.Errorf("%d are left", tr.dues)
	}
}
