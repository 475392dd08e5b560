package picker

import (
	"testing"
)

func TestAnAnswerThatDoesNotTellWhatWasCachedCountsOnlyFromThoseThatTell(t *testing.T) {
	p := newPicker(t, newClock(), testSpec(t, 1))
	answers := func(cached int) int64 {
		d := pick(t, p, completion("m", 0, 200, true))
		d.Usage(200, cached)
		d.End(Completed)
		return p.Stats()[0].Hits.Answers
	}
	if n := answers(-1); n != 0 {
		t.Errorf("%d answers of an endpoint that never tells are compared", n)
	}
	if n := answers(64); n != 1 {
		t.Errorf("%d answers, want 1", n)
	}
	if n := answers(-1); n != 2 {
		t.Errorf("%d answers, want 2: this one had nothing cached", n)
	}
	if got := p.Stats()[0].Hits; got.Delivered != 64 || got.PromptTokens != 400 {
		t.Errorf("hits %+v", got)
	}
	assertIdle(t, p)
}

func TestAnAnswerThatSaysNothingIsNoZeroWhereZerosAreSaid(t *testing.T) {
	p := newPicker(t, newClock(), testSpec(t, 1))
	answers := func(cached int, fields string) int64 {
		d := pick(t, p, withFields(completion("m", 0, 200, true), fields))
		d.Usage(200, cached)
		d.End(Completed)
		return p.Stats()[0].Hits.Answers
	}
	answers(64, `"n":1`)
	if n := answers(-1, `"use_beam_search":true`); n != 1 {
		t.Errorf("%d answers, want 1: a search with beams says nothing in any release", n)
	}
	if n := answers(0, `"n":1`); n != 2 {
		t.Errorf("%d answers, want 2", n)
	}
	if n := answers(-1, `"n":1`); n != 2 {
		t.Errorf("%d answers, want 2: this engine says 0 when it finds nothing", n)
	}
}

func TestRequestsWithoutExactTokensAreToldOf(t *testing.T) {
	var x inexactness
	for range 1000 {
		x.count("")
	}
	if s := x.read(); s.Share != 0 {
		t.Errorf("none: %+v", s)
	}
	for range 1000 {
		x.count("budget")
	}
	if s := x.read(); s.Share < 0.99 || s.Share > 1 || s.Last != "budget" {
		t.Errorf("all: %+v", s)
	}
	for range 1000 {
		x.count("")
	}
	if s := x.read(); s.Share > 0.01 {
		t.Errorf("none any more: %+v", s)
	}
}

// TestPicksCountWhateverAnswersReport: predicted hits are of all picks, and answers that report nothing are counted apart.
func TestPicksCountWhateverAnswersReport(t *testing.T) {
	p := newPicker(t, newClock(), testSpec(t, 1))
	silent := pick(t, p, completion("m", 0, 200, true))
	silent.End(Completed)
	uncached := pick(t, p, completion("m", 0, 200, true))
	uncached.Usage(200, -1)
	uncached.End(Completed)
	gone := pick(t, p, completion("m", 0, 200, true))
	gone.End(ClientGone)
	got := p.Stats()[0]
	for _, h := range []Hits{got.Hits, got.Endpoints[0].Hits} {
		if h.Picks != 3 || h.PickedPrompt != 600 || h.PickedPredicted != 384 ||
			h.Silent != 1 || h.Uncached != 1 || h.Answers != 0 {
			t.Errorf("%+v", h)
		}
	}
}
