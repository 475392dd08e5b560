package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestTurnsAlternate(t *testing.T) {
	if diff := cmp.Diff([]int{0, 1, 1, 0, 0, 1}, Order(3)); diff != "" {
		t.Error(diff)
	}
}

func TestFiguresOfATurn(t *testing.T) {
	second := time.Second
	engines := []EngineDelta{{PromptTokens: 60, CachedTokens: 30, GeneratedTokens: 8}, {PromptTokens: 40, CachedTokens: 10, Preemptions: 1}}
	turn := &Turn{Seconds: 2, Engines: engines,
		samples: []Sample{
			{TTFT: second, Total: 5 * second, Prompt: 50, Output: 5, gaps: []time.Duration{second}},
			{TTFT: 3 * second, Total: 3 * second, Prompt: 40, Output: 1},
			{TTFT: second, Total: 9 * second, Prompt: 10, Output: 5},
			{Err: "refused"}, {Err: "later"},
		}}
	want := Figures{
		Requests: 5, Failed: 2, Error: "refused", HitRatio: .4, PromptTokens: 100, UsagePromptTokens: 100,
		TTFT: Spread{1, 3, 3}, PerToken: Spread{1, 2, 2},
		Gap: Spread{1, 1, 1}, Total: Spread{5, 9, 9}, Goodput: .5, GoodRatio: .2, TokenRate: 4, Preemptions: 1,
	}
	if diff := cmp.Diff(want, figuresOf(turn, &Goals{TTFT: second, PerToken: second})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(Figures{}, figuresOf(&Turn{}, &Goals{})); diff != "" {
		t.Error(diff)
	}
}

// report is one of two pairs of turns, in which the engines' hits are as given.
func report(hits ...float64) *Report {
	r := &Report{Before: "RoundRobin", After: "Kvasir", Took: time.Unix(0, 0), Setup: [][2]string{{"Model", "<m>"}}}
	for i, which := range Order(len(hits) / 2) {
		r.Turns = append(r.Turns, Turn{
			Way: []string{"RoundRobin", "Kvasir"}[which], Engines: []EngineDelta{{Engine: "a:1", PromptTokens: 100, CachedTokens: 100 * hits[i]}},
			Figures: Figures{Requests: 10, HitRatio: hits[i], PromptTokens: 100, UsagePromptTokens: 100, TTFT: Spread{P50: 1 - hits[i]}},
			samples: make([]Sample, 1),
		})
	}
	return r
}

func TestAVerdictNeedsEveryTurn(t *testing.T) {
	for name, tc := range map[string]struct {
		hits []float64
		want int
	}{
		"better in every turn": {[]float64{.1, .5, .6, .2}, 1},
		"worse in every turn":  {[]float64{.5, .1, .2, .6}, -1},
		"overlapping turns":    {[]float64{.1, .5, .3, .4}, 0},
		"the same":             {[]float64{.5, .5, .5, .5}, 0},
	} {
		rows := report(tc.hits...).Rows()
		hits := rows[0]
		ttft := rows[slices.IndexFunc(rows, func(r Row) bool { return r.Name == "First token, median" })]
		if hits.Better != tc.want || ttft.Better != tc.want {
			t.Errorf("%s: hits %d, first token %d, want %d", name, hits.Better, ttft.Better, tc.want)
		}
	}
}

func TestWarnings(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(*Report)
		want  string
	}{
		"nothing":             {func(*Report) {}, ""},
		"failed requests":     {func(r *Report) { r.Turns[1].Figures.Failed, r.Turns[1].Figures.Error = 3, "boom" }, "3 of 10 requests failed, the first with: boom"},
		"others' requests":    {func(r *Report) { r.Turns[0].Figures.PromptTokens = 106 }, "others use the engines"},
		"a restart":           {func(r *Report) { r.Turns[2].Engines[0].Restarted = true }, "restarted"},
		"no prefix caching":   {func(r *Report) { r.Turns[3].Figures.PromptTokens = 0 }, "Is prefix caching off"},
		"an idle engine":      {func(r *Report) { r.Turns[3].Engines[0].PromptTokens = 0 }, "a:1 got no request"},
		"a busy machine":      {func(r *Report) { r.CPU = .95 }, "95 % busy"},
		"caches of no use":    {func(r *Report) { *r = *report(0, 0, 0, 0) }, "no effect"},
		"one turn of a way":   {func(r *Report) { *r = *report(.1, .5) }, "--pairs"},
		"a processor unknown": {func(r *Report) { r.CPU = -1 }, ""},
	} {
		r := report(.1, .5, .6, .2)
		tc.spoil(r)
		got := r.Warnings()
		if tc.want == "" && len(got) > 0 || tc.want != "" && (len(got) != 1 || !strings.Contains(got[0], tc.want)) {
			t.Errorf("%s: %q, want one with %q", name, got, tc.want)
		}
	}
}

func TestReportsAreWritten(t *testing.T) {
	r := report(.1, .5, .6, .2)
	r.Turns[0].Figures.Failed = 1
	var table, page, document, requests bytes.Buffer
	if err := errors.Join(r.WriteTable(&table), r.WriteHTML(&page), r.WriteJSON(&document), r.WriteRequests(&requests)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ROUNDROBIN",
		"15.0 % (10.0 % to 20.0 %)", "55.0 % (50.0 % to 60.0 %)", "+267 %", "better in every turn", "WARNING: Turn 1"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, table.String())
		}
	}
	for _, want := range []string{"&lt;m&gt;", "better in every turn", "1970-01-01", "100.0 %", "worth less"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	var back Report
	if err := json.Unmarshal(document.Bytes(), &back); err != nil || len(back.Turns) != 4 || len(back.Rows()) != len(r.Rows()) {
		t.Errorf("the document has %d turns, error %v", len(back.Turns), err)
	}
	if n := strings.Count(requests.String(), "\n"); n != 4 {
		t.Errorf("%d lines of requests, want 4", n)
	}
}

// A load of the user's own has no requests that are recorded: only what the engines count is compared.
func TestWithoutRequestsOnlyCountersAreCompared(t *testing.T) {
	r := report(.1, .5, .6, .2)
	for i := range r.Turns {
		r.Turns[i].samples, r.Turns[i].Figures.Requests, r.Turns[i].Figures.UsagePromptTokens = nil, 0, 0
	}
	var names []string
	for _, row := range r.Rows() {
		names = append(names, row.Name)
	}
	if diff := cmp.Diff([]string{"Prompt tokens from cache", "Output tokens per second"}, names); diff != "" {
		t.Error(diff)
	}
}

func TestAPlanStopsAtTheFirstError(t *testing.T) {
	boom := errors.New("boom")
	entered := 0
	way := func(name string) *Way {
		return &Way{Name: name, Enter: func(context.Context) error { entered++; return nil }}
	}
	p := &Plan{Before: way("a"), After: way("b"), Pairs: 2, Began: func(int, int, *Way) {}}
	p.Drive = func(_ context.Context, _ *Way, turn int) ([]Sample, error) {
		if turn == 3 {
			return nil, boom
		}
		return nil, nil
	}
	turns, err := p.Run(t.Context())
	if len(turns) != 2 || entered != 3 || !errors.Is(err, boom) || !strings.Contains(err.Error(), "turn 3, b") {
		t.Errorf("%d turns, %d entered, error %v", len(turns), entered, err)
	}
}

// TestNoChangeHasOneSign: a change that is rounded to nothing is no decline.
func TestNoChangeHasOneSign(t *testing.T) {
	for want, b := range map[string]float64{"+0 %": 997, "-1 %": 990, "+20 %": 1200} {
		if got := change(1000, b); got != want {
			t.Errorf("1000 to %v: %s, want %s", b, got, want)
		}
	}
	if got := change(0, 1); got != "-" {
		t.Errorf("from nothing: %s", got)
	}
}
