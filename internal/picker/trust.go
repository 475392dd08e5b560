package picker

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/monotonic"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// trust decides which matches of an endpoint are used. Each answer that reports cached tokens is compared with what the
// endpoint had announced and not removed. If an endpoint repeatedly finds little of it (tokenizer, template, salts or block
// size do not fit, or the engine reports wrongly), its matches are ignored until predictions are correct again:
//
//	            of the last 64 answers, 16 or more, less than half was found
//	Trusted ---------------------------------------------------------------> Distrusted: one pick in 16 matches
//	   ^                                                                        |
//	   '------- of 16 or more answers since, three quarters were found ---------'
//
// There is one such record for each class of requests, so that one client's peculiar requests, or one engine that reports
// wrongly, do not disable matching for others. Within a record all tenants weigh the same, however many requests they send.
//
// An answer counts if all of its match was announced by an endpoint whose events are known to be complete. If less than
// half was found, it counts only two seconds later, and only if the first block that was not found has not been removed
// meanwhile: eviction while a request waits is no mistake.
//
// Classes of plain requests always have a record. Clients choose the traits of others, so that of those classes only the maxOdd that
// were answered last have one: an endpoint has at most 64 records of 6 KiB. A class whose record was dropped begins again, trusted.
type trust struct {
	lost    atomic.Int32 // records that are
	records [numClasses]atomic.Pointer[record]

	mu  sync.Mutex // guards all records, apart from what is atomic
	odd []int      // guarded by mu; the indexes of the records of requests with traits, in the order of their last answers
}

// class is a set of requests whose predictions are right or wrong together.
type class struct {
	source TokenSource
	kind   openai.Kind
	traits Traits
}

// The sources between TokensNone and TokensApproximate have matches that can be trusted.
const (
	firstMatched = TokensNone + 1
	lastMatched  = TokensApproximate - 1
	numMatched   = int(lastMatched-firstMatched) + 1
	numClasses   = numTraits * numMatched * openai.NumKinds
)

func (c class) index() int {
	return numTraits*(int(c.source-firstMatched)*openai.NumKinds+int(c.kind)) + int(c.traits)
}

func classAt(i int) class {
	return class{
		source: firstMatched + TokenSource(i/numTraits/openai.NumKinds), kind: openai.Kind(i / numTraits % openai.NumKinds),
		traits: Traits(i % numTraits),
	}
}

// matched reports whether requests of the class have keys to match.
func (c class) matched() bool { return firstMatched <= c.source && c.source <= lastMatched }

// record is what the answers to requests of one class show about one endpoint.
type record struct {
	lost  atomic.Bool
	picks atomic.Uint64

	verdicts []verdict // the last ones since trust was lost or won, in the order of time
	judged   int       // since then
	suspects []suspect // in the order of time
	why      verdict   // the sum by which trust was lost
}

const (
	trustWindow  = 64
	trustEnough  = 16
	trustAge     = time.Hour
	trustProbe   = 16
	trustGrace   = 2 * time.Second
	maxSuspects  = 32
	distrustPart = 0.5
	regainPart   = 0.75
	// maxOdd is the most classes of requests with traits that have a record.
	maxOdd = 16
)

// verdict is how many prompt tokens were announced, and how many of them were found, for which tenant and when.
type verdict struct {
	announced, found int
	tenant           uint64
	at               int64 // seconds of the monotonic clock
}

// suspect is an answer that has found little, until it is clear that no removal explains it.
type suspect struct {
	verdict
	due    time.Time
	picked time.Time
	member *member
	block  kvblock.Key // the first that was not found
}

// believes reports whether the next pick uses the matches of requests of a class. A pick that only explains is no probe.
func (t *trust) believes(c class, probing bool) bool {
	if t.lost.Load() == 0 || !c.matched() {
		return true
	}
	r := t.records[c.index()].Load()
	return r == nil || !r.lost.Load() || probing && r.picks.Add(1)%trustProbe == 0
}

// answered enters an answer to a request of a class. It returns whether trust is lost, whether that changed by it, and by
// what.
func (t *trust) answered(now time.Time, c class, s *suspect) (lost, changed bool, why verdict) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.record(c)
	before := r.lost.Load()
	why = r.answered(now, s)
	lost = r.lost.Load()
	switch {
	case lost && !before:
		t.lost.Add(1)
	case before && !lost:
		t.lost.Add(-1)
	}
	return lost, lost != before, why
}

// record is that of a class, which is made if need be. mu is held.
func (t *trust) record(c class) *record {
	at := c.index()
	r := t.records[at].Load()
	if r == nil {
		r = new(record)
		t.records[at].Store(r)
	}
	if c.traits != 0 {
		t.odd = append(slices.DeleteFunc(t.odd, func(other int) bool { return other == at }), at)
		if len(t.odd) > maxOdd {
			t.drop()
		}
	}
	return r
}

// drop forgets the record of requests with traits that was answered longest ago; one that has lost trust only if all have, apart from
// the one that was answered last. mu is held.
func (t *trust) drop() {
	old := t.odd[:len(t.odd)-1]
	i := max(0, slices.IndexFunc(old, func(at int) bool { return !t.records[at].Load().lost.Load() }))
	if r := t.records[old[i]].Swap(nil); r.lost.Load() {
		t.lost.Add(-1)
	}
	t.odd = slices.Delete(t.odd, i, i+1)
}

// answered is trust's. The trust's mu is held.
func (r *record) answered(now time.Time, s *suspect) (why verdict) {
	why = r.settle(now)
	switch {
	case float64(s.found) >= distrustPart*float64(s.announced):
		if changed, w := r.judge(now, s.verdict); changed {
			why = w
		}
	case len(r.suspects) < maxSuspects:
		s.due = now.Add(trustGrace)
		r.suspects = append(r.suspects, *s)
	}
	return why
}

// settle judges the suspects that are due. The trust's mu is held.
func (r *record) settle(now time.Time) (why verdict) {
	n := 0
	for n < len(r.suspects) && !now.Before(r.suspects[n].due) {
		s := &r.suspects[n]
		n++
		if s.member.doubted.Load() || s.member.removals.happened(s.block, s.picked) {
			continue
		}
		if changed, w := r.judge(now, s.verdict); changed {
			why = w
		}
	}
	if r.suspects = slices.Delete(r.suspects, 0, n); len(r.suspects) == 0 {
		r.suspects = nil
	}
	return why
}

// judge enters a verdict. It returns whether trust was lost or won by it, and the sum of the verdicts. The trust's mu is
// held.
func (r *record) judge(now time.Time, v verdict) (changed bool, sum verdict) {
	v.at = monotonic.Of(now) / int64(time.Second)
	r.verdicts = slices.DeleteFunc(r.verdicts, func(old verdict) bool { return v.at-old.at > int64(trustAge/time.Second) })
	if len(r.verdicts) == trustWindow {
		r.verdicts = slices.Delete(r.verdicts, oldest(r.verdicts), oldest(r.verdicts)+1)
	}
	r.verdicts = append(r.verdicts, v)
	r.judged++
	if len(r.verdicts) < trustEnough {
		return false, verdict{}
	}
	part, lost := partFound(r.verdicts), r.lost.Load()
	if !lost && part >= distrustPart || lost && part < regainPart {
		return false, verdict{}
	}
	sum = total(r.verdicts)
	r.lost.Store(!lost)
	r.why = sum
	r.judged, r.verdicts = 0, nil
	return true, sum
}

// oldest is the place of the verdict to give up for another one: the oldest of the tenant that has most of them, so that
// a flood displaces only itself.
func oldest(verdicts []verdict) int {
	at, most := 0, 0
	for i, v := range verdicts {
		n := 0
		for _, other := range verdicts[i:] {
			if other.tenant == v.tenant {
				n++
			}
		}
		if n > most {
			at, most = i, n
		}
	}
	return at
}

// partFound is the part that was found of what had been announced, 0 to 1: the mean over tenants.
func partFound(verdicts []verdict) float64 {
	sum, tenants := 0., 0
	for i, v := range verdicts {
		own := verdict{}
		for j, other := range verdicts {
			if other.tenant != v.tenant {
				continue
			}
			if j < i {
				own = verdict{} // counted already
				break
			}
			own.announced += other.announced
			own.found += other.found
		}
		if own.announced > 0 {
			sum += float64(own.found) / float64(own.announced)
			tenants++
		}
	}
	return sum / float64(max(1, tenants))
}

func total(verdicts []verdict) (sum verdict) {
	for _, v := range verdicts {
		sum.announced += v.announced
		sum.found += v.found
	}
	return sum
}

// distrusts counts, over a pool, how often trust was lost and how many picks were made without some matches.
type distrusts struct{ losses, ignored atomic.Int64 }

// Trust reports which of a pool's matches are trusted.
type Trust struct {
	// Lost: some are ignored, except in one pick in 16.
	Lost bool
	// Losses is how often that began, Ignored how many picks were made without some of them.
	Losses, Ignored int64
	// Judged answers since trust was lost or won; over the last of them, prompt tokens that the endpoints had announced
	// and not removed, and those of them that the engines found.
	Judged           int
	Announced, Found int
	// Distrusted are the matches that are ignored.
	Distrusted []Distrust
}

// Distrust is one endpoint's matches for one class of requests, which are ignored.
type Distrust struct {
	// Endpoint is pod/rank.
	Endpoint string
	Tokens   TokenSource
	Kind     openai.Kind
	Traits   Traits
	// Announced and Found prompt tokens, of the answers by which trust was lost.
	Announced, Found int
}

// addTo adds up what is known of one endpoint.
func (t *trust) addTo(sum *Trust, endpoint string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.records {
		r := t.records[i].Load()
		if r == nil {
			continue
		}
		recent := total(r.verdicts)
		sum.Judged += r.judged
		sum.Announced += recent.announced
		sum.Found += recent.found
		if r.lost.Load() {
			sum.Lost = true
			c := classAt(i)
			sum.Distrusted = append(sum.Distrusted, Distrust{
				Endpoint: endpoint, Tokens: c.source, Kind: c.kind, Traits: c.traits, Announced: r.why.announced, Found: r.why.found,
			})
		}
	}
}
