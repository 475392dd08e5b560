package picker

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/replicas"
	"github.com/kvasir-dev/kvasir/internal/routinghistory"
)

// fleet is several pickers before the same engines in virtual time. An engine prefills one request after the other.
type fleet struct {
	t       testing.TB
	clock   *clock
	pending happenings
	n       int
	pickers []*Picker
	free    []time.Time // by endpoint: when the engine has done all it was given
	waits   []float64   // of the requests, seconds to the first token
	depth   []int       // by endpoint
}

type happening struct {
	at time.Time
	n  int
	do func()
}

type happenings []happening

func (q happenings) Len() int { return len(q) }
func (q happenings) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at.Equal(q[j].at) && q[i].n < q[j].n
}
func (q happenings) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *happenings) Push(x any)   { *q = append(*q, x.(happening)) }
func (q *happenings) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}

func (f *fleet) after(d time.Duration, do func()) {
	f.n++
	heap.Push(&f.pending, happening{f.clock.Now().Add(d), f.n, do})
}

// run lets everything happen that is to happen in a time.
func (f *fleet) run(d time.Duration) {
	end := f.clock.Now().Add(d)
	for len(f.pending) > 0 && !f.pending[0].at.After(end) {
		h := heap.Pop(&f.pending).(happening)
		f.clock.advance(h.at.Sub(f.clock.Now()))
		h.do()
	}
	f.clock.advance(end.Sub(f.clock.Now()))
}

// prefillRate of the fleet's engines, tokens/s.
const prefillRate = 5000.0

// newFleet makes pickers of a pool of n endpoints, which send each other updates over links that take linkDelay; 0 for
// pickers that send none.
func newFleet(t testing.TB, pickers, n int, strategy policy.Type, linkDelay time.Duration) *fleet {
	t.Helper()
	f := &fleet{t: t, clock: newClock(), free: make([]time.Time, n), depth: make([]int, n)}
	var outboxes []*replicas.Outbox
	for i := range pickers {
		spec := testSpec(t, n)
		spec.Policy.Strategy = policy.Default(strategy)
		spec.Policy.SessionKeys, spec.Policy.SessionIdle = []SessionKey{{Type: "Header", Name: "x-session-id"}}, time.Hour
		o := replicas.NewOutbox(uint64(i + 1))
		p := New(Options{Now: f.clock.Now, Log: logr.Discard(), Peers: o})
		if err := p.Apply([]Spec{spec}); err != nil {
			t.Fatal(err)
		}
		f.pickers, outboxes = append(f.pickers, p), append(outboxes, o)
	}
	if linkDelay == 0 {
		return f
	}
	for to, p := range f.pickers {
		inbox := replicas.NewInbox(p, outboxes[to].Incarnation())
		inbox.Meter(p)
		inbox.UpdatePlaceOf(outboxes[to])
		for from, o := range outboxes {
			if from != to {
				sender := replicas.NewSender(o, f.pickers[from].Loads)
				sender.SendMeters(f.pickers[from].Meters)
				sender.SendHomes(f.pickers[from].Homes)
				f.link(sender, inbox, linkDelay)
			}
		}
	}
	return f
}

// link carries what a sender has to say. It looks every half millisecond.
func (f *fleet) link(s *replicas.Sender, to *replicas.Inbox, delay time.Duration) {
	var receiver *replicas.Receiver
	var look func()
	look = func() {
		for m, _ := s.Next(f.clock.Now()); m != nil; m, _ = s.Next(f.clock.Now()) {
			f.after(delay, func() {
				var err error
				if receiver == nil {
					receiver, err = to.Open(f.clock.Now(), m)
				} else {
					err = receiver.Handle(f.clock.Now(), m)
				}
				if err != nil {
					f.t.Fatal(err)
				}
			})
		}
		f.after(500*time.Microsecond, look)
	}
	look()
}

// ask lets a picker choose for a request of so many tokens, and the engine serve it.
func (f *fleet) ask(p *Picker, first, tokens int) {
	d := pick(f.t, p, completion("m", first, tokens, true))
	now, at := f.clock.Now(), 0
	for i := range f.free {
		if testEndpoint(i).ID == d.Targets[0].Endpoint.ID {
			at = i
		}
	}
	begin := f.free[at]
	if begin.Before(now) {
		begin = now
	}
	f.free[at] = begin.Add(time.Duration(float64(tokens) / prefillRate * float64(time.Second)))
	f.depth[at]++
	wait := f.free[at].Sub(now)
	f.waits = append(f.waits, wait.Seconds())
	f.after(wait, d.FirstToken)
	f.after(wait+100*time.Millisecond, func() {
		f.depth[at]--
		d.End(Completed)
	})
}

func (f *fleet) mean() float64 {
	sum := 0.0
	for _, w := range f.waits {
		sum += w
	}
	return sum / float64(len(f.waits))
}

// play sends requests of very different lengths to random pickers, as many as the engines can just about serve, and returns
// the fleet.
func play(t testing.TB, seed uint64, pickers int, strategy policy.Type, linkDelay time.Duration) *fleet {
	t.Helper()
	const endpoints, requests = 8, 600
	rng := rand.New(rand.NewPCG(seed, 9))
	f := newFleet(t, pickers, endpoints, strategy, linkDelay)
	for i := range requests {
		tokens := 50 + int(950*rng.Float64()*rng.Float64()*rng.Float64()*rng.Float64()*5)
		f.ask(f.pickers[rng.IntN(len(f.pickers))], i*100_000, tokens)
		f.run(time.Duration(rng.ExpFloat64() * 462 / prefillRate / endpoints * float64(time.Second)))
	}
	return f
}

// TestPickersThatTellDoNotFillOnePod: with the exchange, two pickers wait hardly longer than one that sees everything;
// without it much longer, because each fills the pods that only look free to it.
func TestPickersThatTellDoNotFillOnePod(t *testing.T) {
	for _, strategy := range []policy.Type{policy.LeastPendingWork, policy.MarginalCost} {
		var one, on, off float64
		for seed := range uint64(3) {
			one += play(t, seed, 1, strategy, 0).mean()
			on += play(t, seed, 2, strategy, time.Millisecond).mean()
			off += play(t, seed, 2, strategy, 0).mean()
		}
		t.Logf("%s: mean time to first token, ms: one picker %.1f, two that tell %.1f, two that do not %.1f",
			strategy, one/3*1000, on/3*1000, off/3*1000)
		if on > 1.1*one {
			t.Errorf("%s: two pickers that tell each other wait %.0f%% longer than one", strategy, 100*(on/one-1))
		}
		if off < 1.2*on {
			t.Errorf("%s: two pickers that do not tell wait only %.0f%% longer than two that do: the exchange shows no use", strategy, 100*(off/on-1))
		}
	}
}

// TestPickersTakeTurnsApart: with RoundRobin, two and four pickers that get requests by turns send an endpoint its next request when
// all others but one have had theirs.
func TestPickersTakeTurnsApart(t *testing.T) {
	for _, pickers := range []int{1, 2, 4} {
		const endpoints = 8
		f := newFleet(t, pickers, endpoints, policy.RoundRobin, time.Millisecond)
		f.run(100 * time.Millisecond)
		last := map[endpoint.ID]int{}
		for i := range 10 * endpoints {
			d := pick(t, f.pickers[i%pickers], completion("m", i*1000, 50, true))
			at := d.Targets[0].Endpoint.ID
			if before, again := last[at]; again && i-before < endpoints-1 {
				t.Errorf("%d pickers: %s gets requests %d and %d", pickers, at.Pod, before, i)
			}
			last[at] = i
			f.run(10 * time.Millisecond)
			d.End(Completed)
		}
	}
}

// TestPickersInTurns: again and again two pickers in turns get four requests each, 7 ms apart, for eight pods that are all
// idle at first. With the exchange every request gets a pod of its own.
func TestPickersInTurns(t *testing.T) {
	const endpoints, rounds = 8, 40
	piled := func(linkDelay time.Duration) (sum int) {
		f := newFleet(t, 2, endpoints, policy.LeastLoad, linkDelay)
		for n := range rounds * endpoints {
			if n%endpoints == 0 {
				f.run(time.Second)
			}
			f.ask(f.pickers[n%2], n*10_000, 500) // a tenth of a second each
			f.run(7 * time.Millisecond)
			if n%endpoints == endpoints-1 {
				for _, depth := range f.depth {
					sum += max(0, depth-1)
				}
			}
		}
		return sum
	}
	on, off := piled(time.Millisecond), piled(0)
	t.Logf("of %d requests for idle pods went to one that had been taken: %d with the exchange, %d without", rounds*endpoints, on, off)
	if on > 0 {
		t.Errorf("with the exchange %d of %d requests went to a pod that had been taken", on, rounds*endpoints)
	}
	if off < rounds*endpoints/10 {
		t.Errorf("without the exchange only %d requests went to a pod that had been taken: this shows no use", off)
	}
}

// TestASessionStaysWhicheverReplicaItMeets: under Sticky all turns of a session go to one endpoint, though each comes to a replica
// that a load balancer has chosen. Without the exchange they do not.
func TestASessionStaysWhicheverReplicaItMeets(t *testing.T) {
	const endpoints, sessions, turns = 8, 40, 10
	moved := func(pickers int, linkDelay time.Duration) (n int) {
		f := newFleet(t, pickers, endpoints, policy.Sticky, linkDelay)
		rng := rand.New(rand.NewPCG(1, 3))
		at := map[int]endpoint.ID{}
		for i := range sessions * turns {
			session := i % sessions
			d, err := f.pickers[rng.IntN(pickers)].Pick(t.Context(), &Request{
				Route: openai.Completions, Body: completion("m", 1000*session, 100, true),
				Header: func(name string) string {
					if name == "x-session-id" {
						return fmt.Sprint("session-", session)
					}
					return ""
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			now := d.Targets[0].Endpoint.ID
			if before, ok := at[session]; ok && before != now {
				n++
			}
			at[session] = now
			f.run(5 * time.Millisecond)
			d.FirstToken()
			f.after(time.Duration(rng.IntN(200))*time.Millisecond, func() { d.End(Completed) })
			f.run(20 * time.Millisecond)
		}
		return n
	}
	for _, pickers := range []int{1, 2, 4} {
		if n := moved(pickers, time.Millisecond); n > 0 {
			t.Errorf("%d replicas: %d turns of %d went to another endpoint than the turn before", pickers, n, sessions*turns)
		}
	}
	if n := moved(2, 0); n < sessions {
		t.Errorf("without the exchange only %d turns of %d went elsewhere: this shows no use", n, sessions*turns)
	}
}

// TestWhatAPeerHasRoutedIsKnown: under ApproximatePrefix a text that one replica has routed is found there by another one, which
// has the same root; and not by one with another.
func TestWhatAPeerHasRoutedIsKnown(t *testing.T) {
	const endpoints, texts = 8, 20
	f := newFleet(t, 2, endpoints, policy.ApproximatePrefix, time.Millisecond)
	ask := func(p *Picker, text string) endpoint.ID {
		d, err := p.Pick(t.Context(), &Request{Route: openai.Completions, Body: fmt.Appendf(nil, `{"model":"m","prompt":%q}`, text)})
		if err != nil {
			t.Fatal(err)
		}
		d.End(Completed)
		f.run(20 * time.Millisecond)
		return d.Targets[0].Endpoint.ID
	}
	followed := 0
	for i := range texts {
		text := strings.Repeat(fmt.Sprintf("text %d of many; ", i), 100)
		if first := ask(f.pickers[i%2], text); ask(f.pickers[1-i%2], text) == first {
			followed++
		}
	}
	if followed < texts {
		t.Errorf("%d texts of %d went where the other replica had sent them", followed, texts)
	}

	p := f.pickers[0]
	chunks := []routinghistory.Chunk{1, 2, 3}
	memory := func() int { return p.named("default/m").histories[0].memories[0].Match(chunks, 0) }
	cut := p.named("default/m").histories[0].chunking
	record := func(change func(r *replicas.Routed)) {
		r := &replicas.Routed{
			Pool: "default/m", Endpoint: testEndpoint(0).ID, KeyID: testSeed(t).ID(), ChunkBytes: cut.bytes, MostChunks: cut.most, Chunks: chunks,
		}
		change(r)
		p.Routed(r)
	}
	for name, change := range map[string]func(r *replicas.Routed){
		"another root":     func(r *replicas.Routed) { r.KeyID = "other" },
		"cut otherwise":    func(r *replicas.Routed) { r.ChunkBytes++ },
		"unknown endpoint": func(r *replicas.Routed) { r.Endpoint.Pod = "other" },
		"unknown pool":     func(r *replicas.Routed) { r.Pool = "default/x" },
	} {
		if record(change); memory() != 0 {
			t.Errorf("%s: recorded", name)
		}
	}
	record(func(*replicas.Routed) {})
	if memory() != len(chunks) {
		t.Error("not recorded")
	}
}

// TestAPickerThatStartsRecallsWhatOthersRemember: a text goes to the endpoint that it was sent to before the picker started, under the
// same root; and what is lent is bounded.
func TestAPickerThatStartsRecallsWhatOthersRemember(t *testing.T) {
	const endpoints, texts = 8, 30
	f := newFleet(t, 2, endpoints, policy.ApproximatePrefix, 0)
	ask := func(p *Picker, i int) endpoint.ID {
		text := strings.Repeat(fmt.Sprintf("text %d of many; ", i), 100)
		d, err := p.Pick(t.Context(), &Request{Route: openai.Completions, Body: fmt.Appendf(nil, `{"model":"m","prompt":%q}`, text)})
		if err != nil {
			t.Fatal(err)
		}
		d.End(Completed)
		return d.Targets[0].Endpoint.ID
	}
	at := make([]endpoint.ID, texts)
	for i := range texts {
		at[i] = ask(f.pickers[0], i)
	}
	f.pickers[0].Remembered(1<<20, func(r *replicas.Routed) bool {
		other := *r
		other.KeyID = "other"
		f.pickers[1].Recalled(&other)
		return true
	})
	if n := remembered(f.pickers[1]); n != 0 {
		t.Errorf("%d chunks of another root are recalled", n)
	}
	f.pickers[0].Remembered(1<<20, func(r *replicas.Routed) bool { f.pickers[1].Recalled(r); return true })
	if got, want := remembered(f.pickers[1]), remembered(f.pickers[0]); got != want || want == 0 {
		t.Errorf("%d chunks of %d are recalled", got, want)
	}
	for i := range texts {
		if got := ask(f.pickers[1], i); got != at[i] {
			t.Errorf("text %d goes to %v, was sent to %v", i, got, at[i])
		}
	}
	few, calls := 0, 0
	f.pickers[0].Remembered(100, func(r *replicas.Routed) bool { few += len(r.Chunks); calls++; return calls < 3 })
	if few > 100 || calls != 3 {
		t.Errorf("%d chunks in %d calls, want at most 100 in 3", few, calls)
	}
}

// remembered is how many chunks a picker remembers.
func remembered(p *Picker) (n int) {
	p.Remembered(1<<30, func(r *replicas.Routed) bool { n += len(r.Chunks); return true })
	return n
}

// Reports about an endpoint that a picker does not have are passed over, and accepted once it has the endpoint.
func TestPeersMaySeeEndpointsEarlier(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, testSpec(t, 2))
	if p.Tracker("default/m", endpoint.ID{Pod: "pod-2"}) != nil || p.Tracker("default/other", endpoint.ID{Pod: "pod-0"}) != nil {
		t.Error("a tracker of nothing")
	}
	for want, a := range map[replicas.Refusal]*replicas.Assumption{
		replicas.Unknown:   {Pool: "default/m", Endpoint: endpoint.ID{Pod: "pod-2"}},
		replicas.OtherKeys: {Pool: "default/m", Endpoint: endpoint.ID{Pod: "pod-0"}, KeyID: testSeed(t).ID(), BlockTokens: 32},
		replicas.Taken:     {Pool: "default/m", Endpoint: endpoint.ID{Pod: "pod-0"}, KeyID: testSeed(t).ID(), BlockTokens: 16, Until: c.Now().Add(24 * time.Hour)},
	} {
		if _, got := p.Assume(a); got != want {
			t.Errorf("%+v: %v, want %v", a, got, want)
		}
		if want == replicas.Taken && a.Until.After(c.Now().Add(testSpec(t, 1).Policy.SpeculationMax)) {
			t.Errorf("it is assumed until %v", a.Until)
		}
	}
	spec := testSpec(t, 3)
	spec.Policy.SpeculationOff = true
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	if p.Tracker("default/m", endpoint.ID{Pod: "pod-2"}) == nil {
		t.Error("no tracker of an endpoint that has come")
	}
	if _, got := p.Assume(&replicas.Assumption{Pool: "default/m", Endpoint: endpoint.ID{Pod: "pod-0"}, KeyID: testSeed(t).ID(), BlockTokens: 16}); got != replicas.Off {
		t.Errorf("where speculation is off: %v", got)
	}
}

// Peers are notified of blocks that a pod has not announced, and only of those.
func TestPeersAreToldWhatIsAssumed(t *testing.T) {
	c := newClock()
	o := replicas.NewOutbox(1)
	p := New(Options{Now: c.Now, Log: logr.Discard(), Peers: o})
	if err := p.Apply([]Spec{testSpec(t, 1)}); err != nil {
		t.Fatal(err)
	}
	s := replicas.NewSender(o, p.Loads)
	defer s.Close()
	next := func() (assumed, withdrawn int) {
		for {
			m, _ := s.Next(c.Now())
			c.advance(replicas.Gather)
			if m == nil {
				return assumed, withdrawn
			}
			for _, a := range m.GetUpdate().GetAssumptions() {
				assumed += len(a.GetKeys())
			}
			withdrawn += len(m.GetUpdate().GetWithdrawn())
		}
	}
	next()
	d := pick(t, p, completion("m", 0, 64, true))
	if assumed, _ := next(); assumed != 4 {
		t.Errorf("peers are notified of %d blocks, want 4", assumed)
	}
	d.End(Completed)
	if _, withdrawn := next(); withdrawn != 0 {
		t.Errorf("%d assumptions are withdrawn before the events should have come", withdrawn)
	}
	expectEvents(p)
	if _, withdrawn := next(); withdrawn != 1 {
		t.Errorf("%d assumptions are withdrawn, want 1", withdrawn)
	}
	f := feed(t, p, "pod-0")
	hold(f, keysOf(t, "m", 0, 64)...)
	d = pick(t, p, completion("m", 0, 64, true))
	if assumed, _ := next(); assumed != 0 {
		t.Errorf("peers are notified of %d blocks that the pod has announced", assumed)
	}
	d.End(Completed)
	if _, withdrawn := next(); withdrawn != 0 {
		t.Errorf("%d assumptions are withdrawn that were not made", withdrawn)
	}
}
