package operatorfeed

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var start = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

func say(picker string, draining bool) State {
	return State{Picker: picker, Incarnation: 1, Ready: true, Pods: map[string]PodState{"u": {Draining: draining}}}
}

func TestMarkIsAcknowledgedByAllThatMayPick(t *testing.T) {
	type heard struct {
		after time.Duration
		state State
	}
	other := say("b", true)
	other.Incarnation = 2
	for name, tc := range map[string]struct {
		heard    []heard
		expected []Expected
		at       time.Duration
		want     bool
		since    time.Duration
	}{
		"no replica picks": {want: true, since: -1},
		"one has said so": {
			heard: []heard{{0, say("a", false)}, {time.Second, say("a", true)}}, expected: []Expected{{"a", true}},
			at: 2 * time.Second, want: true, since: time.Second,
		},
		"the later of two counts": {
			heard:    []heard{{0, say("a", true)}, {time.Second, say("b", true)}, {2 * time.Second, say("a", true)}},
			expected: []Expected{{"a", true}, {"b", true}}, at: 2 * time.Second, want: true, since: time.Second,
		},
		"one of two has not": {
			heard:    []heard{{0, say("a", true)}, {0, say("b", false)}},
			expected: []Expected{{"a", true}, {"b", true}},
		},
		"one has taken it back": {
			heard: []heard{{0, say("a", true)}, {time.Second, say("a", false)}}, expected: []Expected{{"a", true}}, at: time.Second,
		},
		"one that does not know the pod has not": {
			heard:    []heard{{0, say("a", true)}, {0, State{Picker: "b"}}},
			expected: []Expected{{"a", true}, {"b", true}},
		},
		"a ready one that has never reported blocks": {
			heard: []heard{{0, say("a", true)}}, expected: []Expected{{"a", true}, {"b", true}},
		},
		"a ready one that has fallen silent blocks": {
			heard:    []heard{{0, say("b", true)}, {6 * time.Second, say("a", true)}},
			expected: []Expected{{"a", true}, {"b", true}}, at: 6 * time.Second,
		},
		"one that reports blocks, ready or not": {
			heard:    []heard{{0, say("a", true)}, {0, say("b", false)}},
			expected: []Expected{{"a", true}, {"b", false}},
		},
		"one that is neither ready nor heard does not pick": {
			heard: []heard{{0, say("a", true)}}, expected: []Expected{{"a", true}, {"b", false}}, want: true,
		},
		"one whose pod is gone does not pick": {
			heard:    []heard{{0, say("a", true)}, {0, say("b", false)}},
			expected: []Expected{{"a", true}}, want: true,
		},
		"a restarted one has said so since it restarted": {
			heard:    []heard{{0, say("b", true)}, {time.Second, other}},
			expected: []Expected{{"b", true}}, at: time.Second, want: true, since: time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var p Pool
			for _, h := range tc.heard {
				p.Receive(start.Add(h.after), h.state)
			}
			v := p.View(start.Add(tc.at), tc.expected)
			since, ok := v.Acknowledged("u")
			if ok != tc.want {
				t.Fatalf("acknowledged: %v, want %v", ok, tc.want)
			}
			want := time.Time{}
			if tc.want && tc.since >= 0 {
				want = start.Add(tc.since)
			}
			if !since.Equal(want) {
				t.Errorf("since %v, want %v", since, want)
			}
		})
	}
}

// TestAcknowledgedMeansEverybodySaidSo plays random replicas against the sentence itself.
func TestAcknowledgedMeansEverybodySaidSo(t *testing.T) {
	acknowledged := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7))
		var p Pool
		now := start
		type said struct {
			at    time.Time
			state State
		}
		last := map[string]said{}
		for range 60 {
			now = now.Add(time.Duration(r.IntN(3000)) * time.Millisecond)
			picker := string(rune('a' + r.IntN(3)))
			s := State{Picker: picker, Incarnation: uint64(r.IntN(8) / 7), Pods: map[string]PodState{}}
			for _, uid := range []string{"u", "v"} {
				if r.IntN(8) > 0 {
					s.Pods[uid] = PodState{Draining: r.IntN(3) > 0}
				}
			}
			p.Receive(now, s)
			last[picker] = said{now, s}
			now = now.Add(time.Duration(r.IntN(3000)) * time.Millisecond)
			var expected []Expected
			for _, name := range []string{"a", "b", "c"} {
				if r.IntN(3) > 0 {
					expected = append(expected, Expected{name, r.IntN(2) > 0})
				} else {
					delete(last, name)
				}
			}
			v := p.View(now, expected)
			for _, uid := range []string{"u", "v"} {
				want := true
				for _, e := range expected {
					heard, ok := last[e.Picker]
					fresh := ok && now.Sub(heard.at) <= Fresh
					if fresh && !heard.state.Pods[uid].Draining || !fresh && e.Ready {
						want = false
					}
				}
				at, got := v.Acknowledged(uid)
				if got != want {
					t.Fatalf("seed %d: acknowledged %v, want %v", seed, got, want)
				}
				if at.After(now) {
					t.Fatalf("seed %d: acknowledged in the future", seed)
				}
				if got {
					acknowledged++
				}
			}
		}
	}
	if acknowledged < 1000 {
		t.Errorf("only %d marks were acknowledged: the test shows little", acknowledged)
	}
}

func TestEachRequestIsCountedOnce(t *testing.T) {
	var p Pool
	pod := func(n int, synced bool, reason string) map[string]PodState {
		return map[string]PodState{"u": {InFlight: n, UncachedTokens: int64(10 * n), Value: float64(n) / 2, Synced: synced, Reason: reason}}
	}
	p.Receive(start, State{Picker: "a", Pods: pod(1, true, ""), Totals: Totals{Waiting: 2, LastRequest: start}})
	p.Receive(start, State{Picker: "b", Pods: pod(4, false, "Lagging"), Totals: Totals{Waiting: 3}})
	v := p.View(start, []Expected{{"a", true}, {"b", true}})
	got, _ := v.Pod("u")
	if want := (PodState{InFlight: 5, UncachedTokens: 50, Value: 2.5, Reason: "Lagging"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if v.Totals.Waiting != 5 || !v.Totals.LastRequest.Equal(start) {
		t.Errorf("gauges: %+v", v.Totals)
	}
	if v.Synced("u") {
		t.Error("one replica does not know what the pod holds")
	}
	p.Receive(start, State{Picker: "b", Pods: pod(4, true, "")})
	if v = p.View(start, []Expected{{"a", true}, {"b", true}}); !v.Synced("u") {
		t.Error("both replicas know what the pod holds")
	}
	if v = p.View(start, []Expected{{"a", true}, {"b", true}, {"c", true}}); v.Synced("u") {
		t.Error("synced although the third replica has not reported")
	}
}

// TestTotalsSurviveRestarts counts requests of processes that begin, restart and go, against what they did while they
// were listened to.
func TestTotalsSurviveRestarts(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 3))
		var p Pool
		type process struct {
			state State
			heard bool
		}
		processes := map[string]*process{}
		expected := func() (all []Expected) {
			for name, one := range processes {
				if one.heard {
					all = append(all, Expected{name, true})
				}
			}
			return all
		}
		var want int64
		for step := range 200 {
			now := start.Add(time.Duration(step) * time.Second)
			name := string(rune('a' + r.IntN(4)))
			one := processes[name]
			if one == nil {
				one = &process{state: State{Picker: name, Incarnation: r.Uint64()}}
				one.state.Totals.Requests = int64(r.IntN(100)) // before anybody listened
				processes[name] = one
			}
			more := int64(r.IntN(10))
			switch {
			case r.IntN(10) == 0 && one.heard: // it restarts
				one.state.Incarnation, one.state.Totals = r.Uint64(), Totals{Requests: more}
			case r.IntN(10) == 0: // it goes
				delete(processes, name)
				p.View(now, expected())
				continue
			default:
				one.state.Totals.Requests += more
			}
			one.state.Totals.Waiting = 7
			p.Receive(now, one.state)
			if one.heard {
				want += more
			}
			one.heard = true
			if v := p.View(now, expected()); v.Totals.Requests != want {
				t.Fatalf("seed %d, step %d: %d requests, want %d", seed, step, v.Totals.Requests, want)
			}
		}
	}
}

func TestProgrammedCountsReplicasOfThisGeneration(t *testing.T) {
	var p Pool
	for i, s := range []State{
		{PolicyName: "chat", PolicyGeneration: 3}, {PolicyName: "chat", PolicyGeneration: 2}, {PolicyName: "other", PolicyGeneration: 9}, {},
	} {
		s.Picker = fmt.Sprint(i)
		p.Receive(start, s)
	}
	v := p.View(start, []Expected{{"0", true}, {"1", true}, {"2", true}, {"3", true}, {"4", true}})
	if n, of := v.Programmed("chat", 3); n != 1 || of != 5 {
		t.Errorf("%d of %d, want 1 of 5", n, of)
	}
	if n, _ := v.Programmed("chat", 2); n != 2 {
		t.Errorf("%d, want 2", n)
	}
}

func TestFindingsOfAllReplicas(t *testing.T) {
	finding := func(v Verdict) Finding { return Finding{Verdict: v, Reason: fmt.Sprint(v)} }
	for name, tc := range map[string]struct {
		said                []Verdict // of each replica
		tokens, predictions Verdict
	}{
		"no replica reports":                   {},
		"no replica has a verdict":             {said: []Verdict{NoVerdict, NoVerdict}},
		"one without a verdict does not count": {said: []Verdict{NoVerdict, Good}, tokens: Good, predictions: Good},
		"one bad makes all bad":                {said: []Verdict{Good, Bad, Unclear}, tokens: Bad, predictions: Bad},
		"few answers there, enough here":       {said: []Verdict{Unclear, Good}, tokens: Unclear, predictions: Good},
		"few answers everywhere":               {said: []Verdict{Unclear, NoVerdict, Unclear}, tokens: Unclear, predictions: Unclear},
	} {
		t.Run(name, func(t *testing.T) {
			var p Pool
			var expected []Expected
			for i, v := range tc.said {
				p.Receive(start, State{Picker: fmt.Sprint(i), Tokens: finding(v), Predictions: finding(v)})
				expected = append(expected, Expected{fmt.Sprint(i), true})
			}
			v := p.View(start, expected)
			tokens, known := v.Tokens()
			predictions, also := v.Predictions()
			if tokens.Verdict != tc.tokens || predictions.Verdict != tc.predictions || known != (tc.tokens != NoVerdict) || also != known {
				t.Errorf("tokens %v, predictions %v, known %v and %v", tokens, predictions, known, also)
			}
		})
	}
}

// TestAReplicaThatRefusesThePoolCountsAsNone: it picks nothing, and what it counts is not the pool's load; but while it is ready,
// requests can still run that it had sent before.
func TestAReplicaThatRefusesThePoolCountsAsNone(t *testing.T) {
	refusing := func(picker string) State {
		return State{Picker: picker, Unserved: true, Accepted: Finding{Verdict: Bad, Reason: "Invalid"}, AcceptedGeneration: 2}
	}
	var p Pool
	p.Receive(start, say("a", true))
	p.Receive(start, refusing("b"))
	v := p.View(start, []Expected{{"a", true}, {"b", false}})
	if _, acknowledged := v.Acknowledged("u"); len(v.Replicas) != 1 || len(v.Refusing) != 1 || !acknowledged || v.Live() != 1 {
		t.Errorf("one of two replicas refuses the pool: %d report, %d refuse, the mark is acknowledged: %t", len(v.Replicas), len(v.Refusing), acknowledged)
	}
	v = p.View(start, []Expected{{"a", true}, {"b", true}})
	if _, acknowledged := v.Acknowledged("u"); acknowledged {
		t.Error("a ready replica that refuses the pool can have requests at the pod, and its silence is taken for none")
	}
	if f, refused := v.Refused(2); !refused || f.Reason != "Invalid" {
		t.Errorf("refused: %t, %v", refused, f)
	}
	if _, refused := v.Refused(3); refused {
		t.Error("what was said of one generation counts for the next")
	}
}

// A replica that refuses a pool for a while counts nothing of it meanwhile, and nothing is taken back.
func TestCountersOutliveARefusal(t *testing.T) {
	var p Pool
	for i, tc := range []struct {
		state State
		want  int64
	}{
		{State{Picker: "a", Totals: Totals{Requests: 10}}, 0}, // the first state is where counting begins
		{State{Picker: "a", Unserved: true}, 0},
		{State{Picker: "a", Unserved: true}, 0},
		{State{Picker: "a", Totals: Totals{Requests: 2}}, 2}, // it served the pool again, from zero, between two states
		{State{Picker: "a", Totals: Totals{Requests: 2}}, 2},
		{State{Picker: "a", Unserved: true}, 2},
		{State{Picker: "a"}, 2},
		{State{Picker: "a", Totals: Totals{Requests: 11}}, 13},
	} {
		p.Receive(start, State{Picker: "b"})
		p.Receive(start, tc.state)
		v := p.View(start, []Expected{{"a", true}, {"b", true}})
		if v.Totals.Requests != tc.want {
			t.Errorf("state %d: %d requests, want %d", i, v.Totals.Requests, tc.want)
		}
	}
}

func TestKeyIDIsThatOfAll(t *testing.T) {
	var p Pool
	p.Receive(start, State{Picker: "a", KeyID: "1"})
	p.Receive(start, State{Picker: "b", KeyID: "2"})
	for name, tc := range map[string]struct {
		expected []Expected
		want     string
	}{
		"one":                  {[]Expected{{"a", true}}, "1"},
		"two that differ":      {[]Expected{{"a", true}, {"b", true}}, ""},
		"one has not reported": {[]Expected{{"a", true}, {"c", true}}, ""},
		"none":                 {nil, ""},
	} {
		q := p
		v := q.View(start, tc.expected)
		if got := v.KeyID(); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
		p.Receive(start, State{Picker: "a", KeyID: "1"})
		p.Receive(start, State{Picker: "b", KeyID: "2"})
	}
}

func TestQuantileIsNearTheTruth(t *testing.T) {
	if !slices.IsSorted(TTFTBounds[:]) {
		t.Fatal("the bounds do not ascend")
	}
	r := rand.New(rand.NewPCG(1, 1))
	for _, q := range []float64{0.5, 0.9, 0.99} {
		var h Histogram
		var all []float64
		for range 5000 {
			v := math.Exp(r.NormFloat64())
			all = append(all, v)
			h.Add(v)
		}
		slices.Sort(all)
		want := all[int(q*float64(len(all)))-1]
		if got := h.Quantile(q); got < want/1.2 || got > want*1.2 {
			t.Errorf("q %v: %v, want about %v", q, got, want)
		}
	}
	var h Histogram
	if got := h.Quantile(0.99); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
	h.Add(1000)
	if got := h.Quantile(0.99); got != TTFTBounds[len(TTFTBounds)-1] {
		t.Errorf("above all bounds: %v", got)
	}
}
