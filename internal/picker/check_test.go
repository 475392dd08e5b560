package picker

import (
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// doubter is a pool whose tokens are made in process; doubts are counted.
type doubter struct {
	p      *Picker
	c      *clock
	doubts int
	own    []kvblock.Key // of the prompt made here
	other  []kvblock.Key
}

func newDoubter(t *testing.T, change func(*Spec)) *doubter {
	t.Helper()
	d := &doubter{c: newClock()}
	d.p = New(Options{Now: d.c.Now, Doubt: func(namespace, pool string, kinds openai.Kinds) {
		if namespace != "default" || pool != "m" {
			t.Errorf("doubts about %s/%s", namespace, pool)
		}
		d.doubts++
	}})
	spec := testSpec(t, 1)
	change(&spec)
	if err := d.p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	d.p.SetExact("default", "m", &Exact{Texts: fakePrompter{tokens: 70}})
	d.own = kvblock.AppendKeys(nil, testSeed(t).Root("m", ""), make([]uint32, 70), 16)
	d.other = keysOf(t, "m", 1, 70)
	return d
}

// ask serves one request: what the endpoint announces of it, and what it counts.
func (d *doubter) ask(t *testing.T, announced []kvblock.Key, promptTokens int) {
	t.Helper()
	decision, err := d.p.Pick(t.Context(), &Request{Route: openai.Completions, Body: []byte(textBody)})
	if err != nil {
		t.Fatal(err)
	}
	if len(announced) > 0 {
		hold(feed(t, d.p, "pod-0"), announced...)
	}
	decision.Usage(promptTokens, 0)
	decision.End(Completed)
	expectEvents(d.p)
}

func TestWhatEnginesTellIsHeldAgainstTokensMadeHere(t *testing.T) {
	none := func(*Spec) {}
	for name, tc := range map[string]struct {
		change  func(*Spec)
		serve   func(t *testing.T, d *doubter, i int)
		doubts  int
		fit     int64
		misfits int64
	}{
		"all fits":                 {none, func(t *testing.T, d *doubter, _ int) { d.ask(t, d.own, 70) }, 0, 41, 0},
		"another number of tokens": {none, func(t *testing.T, d *doubter, _ int) { d.ask(t, nil, 71) }, 5, 0, 40},
		"other blocks":             {none, func(t *testing.T, d *doubter, i int) { d.ask(t, keysOf(t, "m", 100*i+1, 70), 70) }, 5, 40, 40},
		"no blocks at all":         {none, func(t *testing.T, d *doubter, _ int) { d.ask(t, nil, 70) }, 0, 40, 0},
		"no events":                {func(s *Spec) { s.NoEvents = true }, func(t *testing.T, d *doubter, i int) { d.ask(t, keysOf(t, "m", 100*i+1, 70), 70) }, 0, 40, 0},
		"one answer of three": {none, func(t *testing.T, d *doubter, i int) {
			n := 70
			if i%3 == 0 {
				n++
			}
			d.ask(t, nil, n)
		}, 1, 26, 14},
		"one answer of ten": {none, func(t *testing.T, d *doubter, i int) {
			n := 70
			if i%10 == 0 {
				n++
			}
			d.ask(t, nil, n)
		}, 0, 36, 4},
		"blocks that are removed": {none, func(t *testing.T, d *doubter, _ int) {
			d.ask(t, d.own, 70)
			feed(t, d.p, "pod-0").Writer.Clear()
		}, 0, 40, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDoubter(t, tc.change)
			for i := range 40 {
				tc.serve(t, d, i)
				d.c.advance(checkGrace)
			}
			got := d.p.Stats()[0].Checks
			if d.doubts != tc.doubts || got != (Checks{Fit: tc.fit, Misfit: tc.misfits}) {
				t.Errorf("%d doubts, %+v; want %d, %d, %d", d.doubts, got, tc.doubts, tc.fit, tc.misfits)
			}
		})
	}
}

// TestOnlyTokensMadeHereAreChecked: ids that were given, or that an engine has rendered, need no check.
func TestOnlyTokensMadeHereAreChecked(t *testing.T) {
	d := newDoubter(t, func(*Spec) {})
	for range 20 {
		decision := pick(t, d.p, completion("m", 0, 70, true))
		decision.Usage(99, 0)
		decision.End(Completed)
		d.c.advance(time.Minute)
	}
	if got := d.p.Stats()[0].Checks; got != (Checks{}) || d.doubts != 0 {
		t.Errorf("%+v, %d doubts", got, d.doubts)
	}
}

// TestChecksAreBounded: requests that wait for their events do not pile up.
func TestChecksAreBounded(t *testing.T) {
	d := newDoubter(t, func(*Spec) {})
	for range 2 * maxChecks {
		d.ask(t, nil, 70)
	}
	if n := len(d.p.current.Load().pools[0].checks.waiting); n != maxChecks {
		t.Errorf("%d requests wait, at most %d should", n, maxChecks)
	}
}
