package picker

import (
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/decisionlog"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// records keeps the decision log.
type records struct{ all []decisionlog.Record }

func (r *records) Salt() decisionlog.Salt        { return 1 }
func (r *records) Write(one *decisionlog.Record) { r.all = append(r.all, *one) }

func TestAPredictedHitThatIsMissedIsExplained(t *testing.T) {
	const usage = 200
	type story struct {
		t    *testing.T
		c    *clock
		p    *Picker
		feed Feed
		keys []kvblock.Key
		d    *Decision
	}
	for want, tc := range map[Miss]struct {
		fields    string
		before    func(s *story)
		meanwhile func(s *story)
		prompt    int
		cached    int
	}{
		MissNone:        {cached: 192},
		MissUnknown:     {},
		MissNoCacheRead: {fields: `"echo":true,"logprobs":1`},
		MissDistrusted: {before: func(s *story) {
			for range 2*trustEnough + 3 { // not at a probe
				d := pick(s.t, s.p, withFields(completion("m", 0, usage, true), `"n":1`))
				d.Usage(usage, 0)
				d.End(Completed)
				s.c.advance(3 * time.Second)
			}
		}},
		MissRetried:    {meanwhile: func(s *story) { s.d.Begin(1) }},
		MissUnreported: {cached: -1},
		MissTokens:     {prompt: usage + 3},
		MissCleared:    {meanwhile: func(s *story) { s.feed.Writer.Clear() }},
		MissEvicted:    {meanwhile: func(s *story) { s.feed.Writer.Drop(kvblock.GPU, 0, []kvevent.Hash{kvevent.Hash(s.keys[0])}) }},
		MissLate:       {meanwhile: func(s *story) { s.feed.Doubt(true) }},
		MissSeveral:    {fields: `"prompt":[[` + idList(usage) + `],[1,2,3,4,5,6,7,8]]`},
		MissSpeculative: {before: func(s *story) {
			s.feed.Writer.Clear()
			s.c.advance(time.Second)
			pick(s.t, s.p, completion("m", 0, usage, true)) // under way
		}},
	} {
		t.Run(string(want), func(t *testing.T) {
			log := &records{}
			s := &story{t: t, c: newClock(), keys: keysOf(t, "m", 0, usage)}
			spec := testSpec(t, 1)
			if want == MissRetried {
				spec = testSpec(t, 2)
			}
			spec.Policy.LogPercent = 100
			s.p = New(Options{Now: s.c.Now, Decisions: log})
			if err := s.p.Apply([]Spec{spec}); err != nil {
				t.Fatal(err)
			}
			s.feed = feed(t, s.p, "pod-0")
			hold(s.feed, s.keys...)
			s.c.advance(time.Second)
			if tc.before != nil {
				tc.before(s)
			}
			body := completion("m", 0, usage, true)
			if tc.fields != "" {
				body = withFields(body, tc.fields)
			}
			s.d = pick(t, s.p, body)
			s.c.advance(time.Second)
			if tc.meanwhile != nil {
				tc.meanwhile(s)
			}
			if tc.prompt == 0 {
				tc.prompt = usage
			}
			s.d.Usage(tc.prompt, tc.cached)
			s.d.End(Completed)
			if got := log.all[len(log.all)-1]; Miss(got.Miss) != want {
				t.Errorf("cause %q, want %q: predicted %d, cached %d", got.Miss, want, s.d.Targets[0].Predicted, got.Cached)
			}
		})
	}
}

func TestARequestThatDidNotCompleteMissesNothing(t *testing.T) {
	log := &records{}
	c := newClock()
	spec := testSpec(t, 1)
	spec.Policy.LogPercent = 100
	p := New(Options{Now: c.Now, Decisions: log})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	hold(feed(t, p, "pod-0"), keysOf(t, "m", 0, 200)...)
	for _, outcome := range []Outcome{ClientGone, Failed, Rejected} {
		pick(t, p, completion("m", 0, 200, true)).End(outcome)
	}
	pick(t, p, completion("m", 0, 200, true)).End(Unreported)
	for _, r := range log.all {
		if r.Miss != "" {
			t.Errorf("%s: missed because of %s", r.Outcome, r.Miss)
		}
	}
	if len(log.all) != 4 {
		t.Errorf("%d records", len(log.all))
	}
}

// idList is n ids from 0 on, with commas.
func idList(n int) string {
	body := string(completion("m", 0, n, true))
	from := len(`{"model":"m","prompt":[`)
	return body[from : len(body)-len(`],"stream":true}`)]
}
