package picker

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/decisionlog"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// memory is a decision log.
type memory struct{ records []*decisionlog.Record }

func (m *memory) Salt() decisionlog.Salt      { return 42 }
func (m *memory) Write(r *decisionlog.Record) { m.records = append(m.records, r) }

func TestDecisionsAreLoggedWithTheirOutcome(t *testing.T) {
	c, log := newClock(), &memory{}
	spec := testSpec(t, 2)
	spec.Policy.LogPercent = 100
	p := New(Options{Now: c.Now, Decisions: log})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	hold(feed(t, p, "pod-1"), keysOf(t, "m", 0, 1024)...)
	d := pick(t, p, completion("m", 0, 1040, true))
	c.advance(250 * time.Millisecond)
	d.FirstToken()
	c.advance(time.Second)
	d.Usage(1040, 1024)
	d.Generated(17)
	d.End(Completed)
	d.End(Failed) // counts no more
	pick(t, p, completion("m", 0, 1040, false)).Leave(Unreported)

	if len(log.records) != 2 {
		t.Fatalf("%d records", len(log.records))
	}
	got, second := log.records[0], log.records[1]
	if len(got.Blocks) != 3 || !cmp.Equal(got.Blocks, second.Blocks) || second.Outcome != "unreported" || second.Cached != -1 {
		t.Errorf("the same prompt twice: %v, %v", got, second)
	}
	got.Blocks = nil
	want := &decisionlog.Record{
		Timestamp: newClock().Now().UnixMilli(), Input: 1040, Output: 17, Pool: "m", Model: "m", Strategy: "StickyLeastLoaded",
		Tokens: "given", Scored: 2, Endpoint: "pod-1/0", Outcome: "completed", Cached: 1024, FirstToken: 250, Duration: 1250,
		Candidates: []decisionlog.Candidate{{Endpoint: "pod-1/0", Matched: 1024, Confirmed: 1024, Predicted: 0.8}, {Endpoint: "pod-0/0", Predicted: 52}},
	}
	for i := range got.Candidates {
		got.Candidates[i].Cost = 0
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOnlySomeDecisionsAreLogged(t *testing.T) {
	log := &memory{}
	spec := testSpec(t, 1)
	spec.Policy.LogPercent = 5
	p := New(Options{Decisions: log})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		pick(t, p, completion("m", 0, 10, true)).End(Completed)
	}
	if len(log.records) != 10 {
		t.Errorf("%d of 200 are logged, 5 %% are to be", len(log.records))
	}
}

func TestTheLogCarriesNoKeyAndNoSession(t *testing.T) {
	log := &memory{}
	spec := testSpec(t, 1)
	spec.Policy.LogPercent, spec.Policy.SessionKeys = 100, []SessionKey{{Type: "BodyField", Name: "user"}}
	p := New(Options{Decisions: log})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	body := strings.Replace(string(completion("m", 0, 512, true)), "{", `{"user":"somebody",`, 1)
	pick(t, p, []byte(body)).End(Completed)
	r := log.records[0]
	if r.Session == 0 || r.Session == endpoint.Hash("somebody") || len(r.Blocks) != 1 || r.Blocks[0] == uint64(keysOf(t, "m", 0, 512)[31]) {
		t.Errorf("%+v", r)
	}
}

func TestARequestWithKeysIsLoggedByThem(t *testing.T) {
	log := &memory{}
	spec := testSpec(t, 1)
	spec.Policy.LogPercent = 100
	p := New(Options{Decisions: log})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	pick(t, p, completion("m", 0, 1024, true)).End(Completed)
	d, _, err := p.PickKeyed(&Keyed{Model: "m", Prompt: idsOf(5, 1024), Keys: keysOf(t, "m", 5, 1024)})
	if err != nil {
		t.Fatal(err)
	}
	d.End(Completed)
	pick(t, p, completion("m", 5, 1024, true)).End(Completed)
	if a, b, c := log.records[0].Blocks, log.records[1].Blocks, log.records[2].Blocks; !cmp.Equal(b, c) || cmp.Equal(a, b) {
		t.Errorf("ids %v of one prompt, %v and %v of another", a, b, c)
	}
}
