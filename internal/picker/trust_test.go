package picker

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// believer is a pool of one endpoint that holds a prompt of 12 full blocks.
type believer struct {
	t    *testing.T
	c    *clock
	p    *Picker
	feed Feed
	keys []kvblock.Key
	logs []string
}

func newBeliever(t *testing.T) *believer {
	b := &believer{t: t, c: newClock(), keys: keysOf(t, "m", 0, 200)}
	spec := testSpec(t, 1)
	spec.Policy.SpeculationOff = true
	b.p = New(Options{Now: b.c.Now, Log: funcr.New(func(_, args string) { b.logs = append(b.logs, args) }, funcr.Options{})})
	if err := b.p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	b.feed = feed(t, b.p, "pod-0")
	hold(b.feed, b.keys...)
	return b
}

// ask sends the prompt, lets something happen while it waits, and answers that so many of its blocks were cached.
func (b *believer) ask(blocks int, meanwhile func()) *Decision {
	b.t.Helper()
	d := pick(b.t, b.p, completion("m", 0, 200, true))
	b.c.advance(time.Second)
	if meanwhile != nil {
		meanwhile()
	}
	b.c.advance(time.Second)
	d.Usage(200, blocks*16)
	d.End(Completed)
	b.c.advance(3 * time.Second)
	return d
}

func (b *believer) drop(at int) {
	b.feed.Writer.Drop(kvblock.GPU, 0, []kvevent.Hash{kvevent.Hash(b.keys[at])})
}

func (b *believer) store(at int) {
	parent := kvindex.Parent{Hash: kvevent.Hash(b.keys[max(0, at-1)]), OK: at > 0}
	b.feed.Writer.Store(kvblock.GPU, 0, parent, []kvevent.Hash{kvevent.Hash(b.keys[at])}, b.keys[at:at+1])
}

func (b *believer) trust() Trust { return b.p.Stats()[0].Trust }

func TestMatchesThatEnginesDoNotFindAreIgnoredUntilTheyDo(t *testing.T) {
	b := newBeliever(t)
	n := 0
	for ; !b.trust().Lost && n < 100; n++ {
		if d := b.ask(0, nil); d.Distrusted || d.Targets[0].Predicted != 192 || d.Targets[0].Confirmed != 192 {
			t.Fatalf("answer %d: %+v", n, d.Targets[0])
		}
	}
	if n != trustEnough+1 { // a verdict falls with the next answer
		t.Errorf("trust is lost after %d answers, want %d", n, trustEnough+1)
	}
	if len(b.logs) != 1 || !strings.Contains(b.logs[0], `"endpoint"="pod-0/0" "tokens"="given" "kind"="ids" "traits"="plain" "announcedTokens"=3072 "foundTokens"=0`) {
		t.Errorf("logs %q", b.logs)
	}
	probes := 0
	for range 160 {
		d := b.ask(0, nil)
		target := d.Targets[0]
		if !d.Distrusted {
			probes++
		} else if target.Match.Confirmed() != 0 || target.Confirmed != 0 || target.Found.Confirmed() != 12 {
			t.Fatalf("distrusted, and yet %+v", target)
		}
	}
	if probes != 160/trustProbe {
		t.Errorf("%d probes of 160 picks, want one in %d", probes, trustProbe)
	}
	if got := b.trust(); !got.Lost || got.Losses != 1 || got.Ignored != 150 {
		t.Errorf("trust %+v", got)
	}
	for n = 0; b.trust().Lost && n < 1000; n++ {
		b.ask(12, nil)
	}
	if n < trustEnough || n > trustWindow {
		t.Errorf("trust is won after %d answers", n)
	}
	if d := b.ask(12, nil); d.Distrusted || d.Targets[0].Predicted != 192 {
		t.Errorf("after all, %+v", d.Targets[0])
	}
	if len(b.logs) != 2 || !strings.Contains(b.logs[1], "believed") {
		t.Errorf("logs %q", b.logs)
	}
}

func TestHalfOfWhatWasAnnouncedIsEnough(t *testing.T) {
	b := newBeliever(t)
	for range 300 {
		b.ask(6, nil)
	}
	if got := b.trust(); got.Lost || got.Judged != 300 || got.Announced != 192*trustWindow || got.Found != 96*trustWindow {
		t.Errorf("trust %+v", got)
	}
}

// Whatever is removed while a request waits, no endpoint loses trust for what is not found then.
func TestEvictionWhileARequestWaitsIsNobodysMistake(t *testing.T) {
	gone := func(b *believer, at int) {
		b.drop(at)
		b.store(at) // the prefill computes it again, and announces that
	}
	for name, meanwhile := range map[string]func(b *believer){
		"the first block": func(b *believer) { gone(b, 0) },
		"all, from the last": func(b *believer) {
			for i := range 12 {
				gone(b, 11-i)
			}
		},
		"everything is cleared": func(b *believer) { b.feed.Writer.Clear(); hold(b.feed, b.keys...) },
		"a tier is cleared":     func(b *believer) { b.feed.Writer.ClearTier(kvblock.GPU); hold(b.feed, b.keys...) },
		"everything is replaced": func(b *believer) {
			w := b.feed.Writer.Shadow()
			f := b.feed
			f.Writer = w
			hold(f, b.keys...)
			w.Commit()
		},
		"the events turn out to have holes": func(b *believer) { b.feed.Doubt(true); b.c.advance(time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBeliever(t)
			for range 4 * trustEnough {
				b.feed.Doubt(false)
				b.ask(0, func() { meanwhile(b) })
			}
			if got := b.trust(); got.Lost || got.Judged != 0 {
				t.Errorf("trust %+v", got)
			}
		})
	}
}

func TestARemovalThatComesAfterTheAnswerIsHeard(t *testing.T) {
	b := newBeliever(t)
	for range 2 * trustEnough {
		d := pick(t, b.p, completion("m", 0, 200, true))
		d.Usage(200, 0)
		d.End(Completed)
		b.c.advance(trustGrace / 2)
		b.drop(0)
		b.c.advance(trustGrace)
		b.store(0)
		b.c.advance(removalTick)
	}
	if got := b.trust(); got.Lost || got.Judged != 0 {
		t.Errorf("trust %+v", got)
	}
}

func TestRemovalsOfOtherBlocksExcuseNothing(t *testing.T) {
	b := newBeliever(t)
	others := keysOf(t, "m", 5000, 160)
	for i := range 2 * trustEnough {
		b.ask(3, func() {
			hold(b.feed, others...)
			for j := range others {
				if uint64(others[j])%removalSlots != uint64(b.keys[3])%removalSlots {
					b.feed.Writer.Drop(kvblock.GPU, 0, []kvevent.Hash{kvevent.Hash(others[j])})
				}
			}
			if i%2 == 0 { // one that was found
				b.drop(2)
				b.store(2)
			}
		})
	}
	if got := b.trust(); !got.Lost {
		t.Errorf("trust %+v", got)
	}
}

// An engine's block of four of ours is named by the last of them.
func TestARemovedBlockOfSeveralKeysIsFound(t *testing.T) {
	b := newBeliever(t)
	b.feed.Writer.Clear()
	hashes := []kvevent.Hash{1, 2, 3}
	store := func() { b.feed.Writer.Store(kvblock.GPU, 0, kvindex.Parent{}, hashes, b.keys) }
	store()
	b.c.advance(time.Second)
	for range 2 * trustEnough {
		b.ask(4, func() { b.feed.Writer.Drop(kvblock.GPU, 0, hashes); store() })
	}
	if got := b.trust(); got.Lost || got.Judged != 0 {
		t.Errorf("trust %+v", got)
	}
	for range 2 * trustEnough {
		b.ask(4, nil)
	}
	if !b.trust().Lost {
		t.Error("nothing was removed, and yet it is trusted")
	}
}

func TestWhatIsDoubtedCountsHalfAndIsNoEvidence(t *testing.T) {
	b := newBeliever(t)
	b.feed.Doubt(true)
	for range 2 * trustEnough {
		d := b.ask(0, nil)
		target := d.Targets[0]
		if !target.Doubted || target.Match.Confirmed() != 6 || target.Found.Confirmed() != 12 || target.Predicted != 96 || target.Confirmed != 96 {
			t.Fatalf("target %+v", target)
		}
		var reason string
		d.Explain(0, func(name, value string) {
			if name == "x-kvasir-reason" {
				reason = value
			}
		})
		if !strings.HasPrefix(reason, "match=6/12 ") || !strings.HasSuffix(reason, " found=12 doubted") {
			t.Fatalf("reason %q", reason)
		}
	}
	if got := b.p.Stats()[0]; got.Trust.Judged != 0 || got.Trust.Lost || !got.Endpoints[0].Doubted {
		t.Errorf("trust %+v, endpoint %+v", got.Trust, got.Endpoints[0])
	}
	b.feed.Doubt(false)
	if d := b.ask(12, nil); d.Targets[0].Predicted != 192 || d.Targets[0].Doubted {
		t.Errorf("target %+v", d.Targets[0])
	}
}

// Of two endpoints that hold the same, the one that is sure to does.
func TestAnEndpointThatIsNotDoubtedIsPreferred(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, testSpec(t, 8))
	keys := keysOf(t, "m", 0, 64)
	for _, f := range p.Feeds() {
		hold(f, keys...)
		f.Doubt(f.Endpoint.Pod != "pod-5")
	}
	for range 20 {
		d := pick(t, p, completion("m", 0, 100, true))
		if got := d.Targets[0].Endpoint.Pod; got != "pod-5" {
			t.Errorf("picked %s", got)
		}
		d.End(Completed)
	}
}

func TestWhatIsAssumedIsNoEvidence(t *testing.T) {
	c := newClock()
	p := newPicker(t, c, testSpec(t, 1))
	hold(feed(t, p, "pod-0"), keysOf(t, "m", 0, 64)...)
	for range 2 * trustEnough {
		first := pick(t, p, completion("m", 0, 200, true))
		second := pick(t, p, completion("m", 0, 200, true))
		second.Usage(200, 0)
		second.End(Completed)
		first.End(Completed)
		c.advance(5 * time.Second)
	}
	if got := p.Stats()[0].Trust; got.Judged != 0 {
		t.Errorf("trust %+v", got)
	}
}

// slowRecord is the obvious record: it keeps every verdict, and goes through all of them at each.
type slowRecord struct {
	lost bool
	all  []verdict
}

func (r *slowRecord) judge(now time.Time, v verdict) (changed bool) {
	v.at = now.Unix()
	kept := r.all
	r.all = nil
	for _, old := range kept {
		if now.Sub(time.Unix(old.at, 0)) <= trustAge {
			r.all = append(r.all, old)
		}
	}
	if len(r.all) == trustWindow { // the tenant with most of them gives one up
		count := map[uint64]int{}
		for _, v := range r.all {
			count[v.tenant]++
		}
		most := 0
		for _, n := range count {
			most = max(most, n)
		}
		for i, v := range r.all {
			if count[v.tenant] == most {
				r.all = append(r.all[:i:i], r.all[i+1:]...)
				break
			}
		}
	}
	r.all = append(r.all, v)
	announced, found := map[uint64]float64{}, map[uint64]float64{}
	for _, v := range r.all {
		announced[v.tenant] += float64(v.announced)
		found[v.tenant] += float64(v.found)
	}
	mean := 0.
	for tenant := range announced {
		mean += found[tenant] / announced[tenant] / float64(len(announced))
	}
	if len(r.all) < trustEnough || !r.lost && mean >= distrustPart || r.lost && mean < regainPart {
		return false
	}
	r.lost, r.all = !r.lost, nil
	return true
}

func TestARecordIsAsTheObviousOne(t *testing.T) {
	changes := 0
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var r record
		var slow slowRecord
		now := time.Unix(1e9, 0)
		tenants := 1 + rng.IntN(100)
		for i := range 800 {
			v := verdict{announced: 16 * (1 + rng.IntN(64)), tenant: uint64(rng.IntN(tenants))}
			if rng.IntN(2) == 0 {
				v.tenant = 0
			}
			if rng.IntN(8) > int(v.tenant+seed+uint64(i/200))%8 {
				v.found = v.announced
			}
			now = now.Add(time.Duration(rng.IntN(100)) * time.Second)
			changed, sum := r.judge(now, v)
			if want := slow.judge(now, v); changed != want || r.lost.Load() != slow.lost || len(r.verdicts) != len(slow.all) {
				t.Fatalf("seed %d, verdict %d: changed %v to %v with %d verdicts, want %v to %v with %d", seed, i,
					changed, r.lost.Load(), len(r.verdicts), want, slow.lost, len(slow.all))
			}
			if changed {
				changes++
			} else if sum != (verdict{}) {
				t.Fatalf("seed %d, verdict %d: a sum without a change: %+v", seed, i, sum)
			}
		}
	}
	if changes < 50 {
		t.Errorf("trust changed %d times only", changes)
	}
}

func TestEachClassHasARecordOfItsOwn(t *testing.T) {
	seen := map[class]bool{}
	for i := range numClasses {
		c := classAt(i)
		if c.index() != i || !c.matched() || seen[c] {
			t.Errorf("class %+v at %d has index %d", c, i, c.index())
		}
		seen[c] = true
	}
	for _, source := range []TokenSource{TokensNone, TokensApproximate} {
		if (class{source: source}).matched() {
			t.Errorf("%v has matches to believe", source)
		}
	}
}

func TestRemovalsAreNeverMissed(t *testing.T) {
	start := time.Unix(1000, 0)
	r := removals{since: start}
	if r.happened(7, start) {
		t.Error("something is removed that never was there")
	}
	r.note(7, r.tick(start.Add(10*time.Second)))
	for _, tc := range []struct {
		key  kvblock.Key
		from time.Duration
		want bool
	}{
		{7, 0, true}, {7, 10 * time.Second, true}, {7, 10*time.Second + removalTick - 1, true}, {7, 10*time.Second + removalTick, false},
		{8, 0, false}, {7 + removalSlots, 0, true}, // shares its slot
	} {
		t.Run(fmt.Sprint(uint64(tc.key), tc.from), func(t *testing.T) {
			if got := r.happened(tc.key, start.Add(tc.from)); got != tc.want {
				t.Errorf("happened is %v", got)
			}
		})
	}
}
