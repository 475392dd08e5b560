package picker

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/decisionlog"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// logging is a picker that logs all decisions about a pool.
func loggingSpec(t *testing.T, now func() time.Time, spec Spec) (*Picker, *memory) {
	t.Helper()
	log := &memory{}
	spec.Policy.LogPercent = 100
	p := New(Options{Now: now, Decisions: log, Log: logr.Discard()})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	return p, log
}

// sharedIDs is how many leading ids two records share.
func sharedIDs(a, b *decisionlog.Record) (n int) {
	for n < min(len(a.Blocks), len(b.Blocks)) && a.Blocks[n] == b.Blocks[n] {
		n++
	}
	return n
}

// TestIDsOfTextsTellTheirPrefixesApart: where tokens are not known ids stand for so much text, and say the same as others
// would: equal beginnings have equal ids, others do not.
func TestIDsOfTextsTellTheirPrefixesApart(t *testing.T) {
	spec := testSpec(t, 2)
	spec.Policy.EngineTokens, spec.Adapters = "Never", []string{"sql"}
	p, log := loggingSpec(t, newClock().Now, spec)
	system := text(1, 3*4*decisionlog.BlockTokens) // three ids
	prompts := []*Request{
		chat("m", "", system+text(2, 9000)),
		chat("m", "", system+text(3, 9000)),
		chat("m", "", text(4, 15_000)),
		chat("sql", "", system+text(2, 9000)),
		chat("m", "", "short"),
		chat("m", "", "other"),
		chat("m", "", system+text(2, 400_000)), // its chunks end before it does
	}
	for _, r := range prompts {
		pickFor(t, p, r).End(Completed)
	}
	for i, r := range log.records {
		if r.Tokens != "approximate" {
			t.Fatalf("the tokens of prompt %d are %s", i, r.Tokens)
		}
		if want := (r.Input + decisionlog.BlockTokens - 1) / decisionlog.BlockTokens; len(r.Blocks) != want && len(r.Blocks) != 0 {
			t.Errorf("prompt %d of %d tokens has %d ids", i, r.Input, len(r.Blocks))
		}
	}
	of := log.records
	if n := sharedIDs(of[0], of[1]); n != 2 && n != 3 { // the role before the text shifts it a little
		t.Errorf("two prompts with 1536 tokens in common share %d ids of %d and %d", n, len(of[0].Blocks), len(of[1].Blocks))
	}
	for i, other := range of[2:4] {
		if n := sharedIDs(of[0], other); n > 0 {
			t.Errorf("prompt %d shares %d ids with another", i+2, n)
		}
	}
	for i, other := range of[4:] {
		if len(other.Blocks) > 0 {
			t.Errorf("prompt %d of %d tokens has ids, and nothing tells it from others", i+4, other.Input)
		}
	}
	if again := decisionlog.Trace([]decisionlog.Record{*of[4], *of[5]}); slices.Equal(again[0].Blocks, again[1].Blocks) {
		t.Error("two short prompts are played as one")
	}
}

// TestTheLogHasWhatTheChoiceWasMadeOf: of the best eight endpoints, though fewer can be tried, their work, how full and how
// fast they were, the way there, and when the first token should have arrived.
func TestTheLogHasWhatTheChoiceWasMadeOf(t *testing.T) {
	c := newClock()
	spec := testSpec(t, 12)
	spec.Policy.Strategy, spec.Policy.Attempts = marginal(), 2
	spec.Islands = map[string]time.Duration{"away": 30 * time.Millisecond}
	for i := range spec.Endpoints[:6] {
		spec.Endpoints[i].Island = "away"
	}
	p, log := loggingSpec(t, c.Now, spec)
	for i := range spec.Endpoints {
		p.Observe(spec.Endpoints[i].ID, c.Now(), load.Report{Running: 3, Waiting: i, KVUsage: float64(i) / 30})
	}
	d := pick(t, p, completion("m", 0, 2000, true))
	c.advance(110 * time.Millisecond)
	d.FirstToken()
	served := d.Target().Endpoint
	costs := map[string]float64{}
	for _, target := range d.Targets {
		costs[nameOf(target.Endpoint)] = target.Cost.First
	}
	next := pick(t, p, completion("m", 9000, 2000, true))
	next.Served(spec.Endpoints[0].Address, 2, 0) // a gateway has taken one that is not among the two
	next.End(Completed)
	d.End(Completed)

	moved, r := log.records[0], log.records[1]
	if r.Endpoint != nameOf(served) || r.Attempt != 0 || r.Scored != 12 || len(r.Candidates) != decisionlog.MaxCandidates {
		t.Fatalf("%+v", r)
	}
	if r.Candidates[0].Endpoint != r.Endpoint {
		t.Errorf("%s served, and the best was %s", r.Endpoint, r.Candidates[0].Endpoint)
	}
	last := math.Inf(-1)
	for _, got := range r.Candidates {
		i := slices.IndexFunc(spec.Endpoints, func(e endpoint.Endpoint) bool { return nameOf(&e) == got.Endpoint })
		want := 0.0
		if i < 6 {
			want = 30
		}
		if math.Abs(got.KVUsage-float64(i)/30) > 0.001 || got.Waiting != i || got.Delay != want {
			t.Errorf("%+v", got)
		}
		if at := 1000*2000.0/load.AssumedRate + want; math.Abs(got.Predicted-at) > 1 {
			t.Errorf("%s should have sent its first token after %v ms, want %v", got.Endpoint, got.Predicted, at)
		}
		if cost, tried := costs[got.Endpoint]; tried && cost != got.Cost || got.Cost < last {
			t.Errorf("%s costs %v, after %v", got.Endpoint, got.Cost, last)
		}
		last = got.Cost
	}
	if moved.Endpoint != "pod-0/0" || !strings.HasPrefix(moved.Candidates[0].Endpoint, "pod-") {
		t.Errorf("the gateway's choice is logged as %s", moved.Endpoint)
	}
	var learned *decisionlog.Candidate
	for i := range moved.Candidates {
		if moved.Candidates[i].Endpoint == r.Endpoint {
			learned = &moved.Candidates[i]
		}
	}
	if learned != nil && (learned.Decoding != 1 || learned.InFlight != 1) {
		t.Errorf("the one that decodes: %+v", learned)
	}
	line, err := json.Marshal(r)
	if err != nil || len(line) > 2500 {
		t.Errorf("a line has %d bytes: %s, %v", len(line), line, err)
	}
}

// TestWhatALogHasOfTheRate that an endpoint has shown.
func TestWhatALogHasOfTheRate(t *testing.T) {
	c := newClock()
	p, log := loggingSpec(t, c.Now, testSpec(t, 1))
	for i := range 40 { // of several lengths at 10,000 tokens/s
		tokens := 1000 + 500*(i%7)
		d := pick(t, p, completion("m", 100_000*i, tokens, true))
		c.advance(time.Duration(tokens) * 100 * time.Microsecond)
		d.FirstToken()
		c.advance(time.Second)
		d.End(Completed)
	}
	if got := log.records[0].Candidates[0].Rate; got != 0 {
		t.Errorf("before it has shown any its rate is %v", got)
	}
	last := log.records[39]
	got := last.Candidates[0]
	if got.Rate < 7000 || got.Rate > 14_000 || math.Abs(got.Predicted-last.FirstToken) > 0.3*last.FirstToken {
		t.Errorf("rate %v, first token predicted after %v ms, came after %v", got.Rate, got.Predicted, last.FirstToken)
	}
}

// TestWhoIsRefusedIsInTheLog: refused requests are logged with the reason, and so are those that gave up waiting.
func TestWhoIsRefusedIsInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := queueing(t, 1)
		spec.Policy.EngineTokens = "Never"
		spec.Policy.Admission.Limits.Requests = 1
		p, log := loggingSpec(t, time.Now, spec)
		busy := fill(t, p)
		ctx, leave := context.WithCancel(t.Context())
		patient := asking(ctx, p, 0, 1024, nil)
		waits(t, patient, "the first")
		if got := now(t, asking(t.Context(), p, 50_000, 2048, nil), "the second"); got.err == nil {
			t.Fatal("it is let through")
		}
		if _, err := p.Pick(t.Context(), chat("m", "", text(1, 9000))); err == nil {
			t.Fatal("it is let through")
		}
		_, w, err := p.PickKeyed(&Keyed{Model: "m", Prompt: idsOf(7, 600), Keys: keysOf(t, "m", 7, 600)})
		if err != nil {
			t.Fatal(err)
		}
		if _, over, err := w.Poll(); !over || err == nil {
			t.Fatal("it is let through")
		}
		time.Sleep(2 * time.Second)
		leave()
		now(t, patient, "the first, gone")
		busy.End(Completed)

		want := []struct {
			outcome, reason string
			input, blocks   int
		}{{"refused", "queue_full", 2048, 4}, {"refused", "queue_full", 0, 0}, {"refused", "queue_full", 600, 2}, {"client_gone", "", 1024, 2}, {"completed", "", 40_000, 79}}
		if len(log.records) != len(want) {
			t.Fatalf("%d records", len(log.records))
		}
		for i, w := range want {
			r := log.records[i]
			if w.input == 0 { // a text
				w.input, w.blocks = r.Input, (r.Input+decisionlog.BlockTokens-1)/decisionlog.BlockTokens
			}
			if r.Outcome != w.outcome || r.Reason != w.reason || r.Input != w.input || len(r.Blocks) != w.blocks || (len(r.Candidates) > 0) != (w.outcome == "completed") {
				t.Errorf("record %d: %+v, want %+v", i, r, w)
			}
		}
		if gone := log.records[3]; gone.Waited != 2000 || gone.Duration != 2000 {
			t.Errorf("the request that left after two seconds: %+v", gone)
		}
		var list []decisionlog.Record
		for _, r := range log.records {
			list = append(list, *r)
		}
		if again := decisionlog.Trace(list); len(again) != 2 {
			t.Errorf("%d requests are played again, want the one that was served and the one that left", len(again))
		}
		// Strangers to the queue leave nothing: a request without a prompt, and what cannot be read.
		if _, err := p.Pick(t.Context(), &Request{Route: openai.Completions, Body: []byte("{")}); err == nil || len(log.records) != len(want) {
			t.Errorf("%v, %d records", err, len(log.records))
		}
	})
}
