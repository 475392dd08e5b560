package picker

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

// TestEveryClassHasARecordOfItsOwn makes sure that a new token source or kind of request finds its place.
func TestEveryClassHasARecordOfItsOwn(t *testing.T) {
	seen := map[int]class{}
	for source := range numTokenSources {
		for kind := range openai.NumKinds {
			for traits := range numTraits {
				c := class{source: TokenSource(source), kind: openai.Kind(kind), traits: Traits(traits)}
				if !c.matched() {
					continue
				}
				i := c.index()
				if i < 0 || i >= numClasses {
					t.Fatalf("%+v has record %d of %d", c, i, numClasses)
				}
				if other, taken := seen[i]; taken {
					t.Fatalf("%+v and %+v share a record", c, other)
				}
				if seen[i] = c; classAt(i) != c {
					t.Fatalf("record %d is of %+v, not of %+v", i, classAt(i), c)
				}
			}
		}
	}
	if len(seen) != numClasses {
		t.Errorf("%d records for %d classes", numClasses, len(seen))
	}
	for _, source := range []TokenSource{TokensGiven, TokensExact, TokensEngine, TokensTokenize} {
		if !(class{source: source}).matched() {
			t.Errorf("matches by %v are not judged", source)
		}
	}
}

// recorded lists the classes that have a record, and counts all records that have lost trust.
func (t *trust) recorded() (plain, odd []int, lost int) {
	for i := range t.records {
		r := t.records[i].Load()
		switch {
		case r == nil:
			continue
		case classAt(i).traits == 0:
			plain = append(plain, i)
		default:
			odd = append(odd, i)
		}
		if r.lost.Load() {
			lost++
		}
	}
	return plain, odd, lost
}

// TestRecordsOfAnEndpointAreBounded: clients send requests of all classes. Plain ones keep their records; of the others, those that
// were answered last have one, and one that has lost trust is forgotten only if all have.
func TestRecordsOfAnEndpointAreBounded(t *testing.T) {
	const bound = 400 << 10
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var tr trust
		now := time.Unix(1e9, 0)
		m := &member{}
		lies := func(i int) bool { return i%3 == int(seed%4) } // the engine finds nothing for these classes; with 3 for none
		for range 5000 {
			i := rng.IntN(numClasses)
			if rng.IntN(2) == 0 {
				i %= 2 * numTraits // these are frequent
			}
			now = now.Add(time.Duration(rng.IntN(100)) * time.Millisecond)
			s := suspect{verdict: verdict{announced: 160, found: 160, tenant: uint64(rng.IntN(3))}, picked: now, member: m}
			if lies(i) {
				s.found = 0
			}
			before, _, _ := tr.recorded()
			tr.answered(now, classAt(i), &s)
			plain, odd, lost := tr.recorded()
			if len(odd) > maxOdd || int(tr.lost.Load()) != lost || len(tr.odd) != len(odd) || !slices.Contains(append(plain, odd...), i) {
				t.Fatalf("seed %d: %d records of odd classes, %d listed; %d lost, %d counted", seed, len(odd), len(tr.odd), lost, tr.lost.Load())
			}
			for _, class := range before {
				if !slices.Contains(plain, class) {
					t.Fatalf("seed %d: the record of plain class %d was dropped", seed, class)
				}
			}
		}
	}
	records := numClasses/numTraits + maxOdd
	each := unsafe.Sizeof(record{}) + trustWindow*unsafe.Sizeof(verdict{}) + maxSuspects*unsafe.Sizeof(suspect{})
	if size := unsafe.Sizeof(trust{}) + uintptr(records)*each; size > bound {
		t.Errorf("the records of an endpoint can take %d bytes, %d are planned", size, bound)
	}
}

// TestALostRecordOutlivesOthers: an odd class whose trust was lost stays so while a client sends requests of all other classes.
func TestALostRecordOutlivesOthers(t *testing.T) {
	var tr trust
	now, m := time.Unix(1e9, 0), &member{}
	answer := func(c class, found int) {
		now = now.Add(trustGrace)
		tr.answered(now, c, &suspect{verdict: verdict{announced: 160, found: found}, picked: now, member: m})
	}
	adapter := class{source: TokensExact, kind: openai.KindChat, traits: TraitAdapter}
	for range 2 * trustEnough {
		answer(adapter, 0)
	}
	for range 3 {
		for i := range numClasses {
			if classAt(i) != adapter {
				answer(classAt(i), 160)
			}
		}
	}
	if tr.believes(adapter, false) {
		t.Error("the class is trusted again without an answer")
	}
}

// TestRecordsAreSafeForConcurrentUse: answers of all classes arrive while others are picked and counted.
func TestRecordsAreSafeForConcurrentUse(t *testing.T) {
	var tr trust
	var all sync.WaitGroup
	m := &member{}
	for worker := range 4 {
		all.Go(func() {
			now := time.Unix(1e9, 0)
			for i := range 2 * numClasses {
				c := classAt((i*7 + worker) % numClasses)
				now = now.Add(trustGrace)
				tr.answered(now, c, &suspect{verdict: verdict{announced: 160, found: 160 * (i % 2)}, picked: now, member: m})
				tr.believes(c, true)
				if i%100 == 0 {
					tr.addTo(&Trust{}, "pod-0/0")
				}
			}
		})
	}
	all.Wait()
	if _, odd, lost := tr.recorded(); len(odd) != maxOdd || int(tr.lost.Load()) != lost {
		t.Errorf("%d records of odd classes, %d lost, %d counted", len(odd), lost, tr.lost.Load())
	}
}
