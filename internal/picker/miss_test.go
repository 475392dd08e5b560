package picker

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/decisionlog"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// records keeps the decision log.
type records struct{ all []decisionlog.Record }

func (r *records) Salt() decisionlog.Salt        { return 1 }
func (r *records) Write(one *decisionlog.Record) { r.all = append(r.all, *one) }

// story is a request that finds nothing of what was predicted.
type story struct {
	t    *testing.T
	c    *clock
	p    *Picker
	feed Feed // of the first endpoint
	keys []kvblock.Key
	d    *Decision
}

// askAt sends a text to an endpoint.
func (s *story) askAt(i int) *Decision {
	s.t.Helper()
	return pickFor(s.t, s.p, &Request{Route: openai.Completions, Body: []byte(textBody),
		Allow: func(ep *endpoint.Endpoint) bool { return ep.Pod == testEndpoint(i).Pod }})
}

// longTurn is longer than a chunk.
var longTurn = `{"role":"user","content":"` + strings.Repeat("and so on ", 80) + `"}`

func TestAPredictedHitThatIsMissedIsExplained(t *testing.T) {
	const usage = 200
	stories := map[Miss]struct {
		fields    string
		endpoints int                      // 1 unless it says so
		ask       func(s *story) *Decision // instead of the prompt with fields
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
		MissRetried:    {endpoints: 2, meanwhile: func(s *story) { s.d.Begin(1) }},
		MissUnreported: {cached: -1},
		MissTokens:     {prompt: usage + 3},
		MissCleared:    {meanwhile: func(s *story) { s.feed.Writer.Clear() }},
		MissEvicted:    {meanwhile: func(s *story) { s.feed.Writer.Drop(kvblock.GPU, 0, []kvevent.Hash{kvevent.Hash(s.keys[0])}) }},
		MissLate:       {meanwhile: func(s *story) { s.feed.Doubt(true) }},
		MissSeveral:    {fields: `"prompt":[[` + idList(usage) + `],[1,2,3,4,5,6,7,8]]`},
		MissFields:     {fields: `"brand_new_field":1`},
		MissApproximate: {
			before: func(s *story) { pickFor(s.t, s.p, asksFor("m", longTurn, "")).End(Completed) },
			ask:    func(s *story) *Decision { return pickFor(s.t, s.p, asksFor("m", longTurn, "")) },
		},
		// The endpoint counts other tokens for texts than both others.
		MissDiffers: {
			endpoints: 3,
			before: func(s *story) {
				s.p.SetExact("default", "m", &Exact{Texts: fakePrompter{tokens: usage}})
				hold(s.feed, kvblock.AppendKeys(nil, testSeed(s.t).Root("m", ""), make([]uint32, usage), 16)...)
				for i := range 4 * doubtEnough {
					at, counted := i%3, usage
					if at == 0 {
						counted++
					}
					s.askAt(at).Usage(counted, 0)
					s.c.advance(3 * time.Second)
				}
			},
			ask: func(s *story) *Decision { return s.askAt(0) },
		},
		MissSpeculative: {before: func(s *story) {
			s.feed.Writer.Clear()
			s.c.advance(time.Second)
			pick(s.t, s.p, completion("m", 0, usage, true)) // under way
		}},
	}
	for _, cause := range declaredMisses(t) {
		if _, ok := stories[cause]; !ok {
			t.Errorf("the cause %q is not tried", cause)
		}
	}
	for want, tc := range stories {
		t.Run(string(want), func(t *testing.T) {
			log := &records{}
			s := &story{t: t, c: newClock(), keys: keysOf(t, "m", 0, usage)}
			spec := testSpec(t, max(1, tc.endpoints))
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
			if tc.ask == nil {
				tc.ask = func(s *story) *Decision { return pick(t, s.p, body) }
			}
			s.d = tc.ask(s)
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

// TestAMissWithoutEventsIsOfWhatWasRouted: nothing was assumed until an event announces it, because none will.
func TestAMissWithoutEventsIsOfWhatWasRouted(t *testing.T) {
	log := &records{}
	spec := testSpec(t, 1)
	spec.NoEvents, spec.Policy.LogPercent = true, 100
	p := New(Options{Now: newClock().Now, Decisions: log})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d := pick(t, p, completion("m", 0, 200, true))
		d.Usage(200, 0)
		d.End(Completed)
	}
	if got := log.all; len(got) != 2 || got[0].Miss != "" || Miss(got[1].Miss) != MissApproximate {
		t.Errorf("causes %q and %q", got[0].Miss, got[1].Miss)
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

// declaredMisses are the causes in the source.
func declaredMisses(t *testing.T) (list []Miss) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "miss.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		if of, ok := spec.Type.(*ast.Ident); !ok || of.Name != "Miss" {
			return true
		}
		text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, Miss(text))
		return true
	})
	if len(list) < 10 {
		t.Fatalf("only %d causes are found: %q", len(list), list)
	}
	return list
}

// TestEveryCauseIsDocumented, in the table of the decision log's fields.
func TestEveryCauseIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/routing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, row, _ := strings.Cut(string(page), "\n| `miss` |")
	row, _, _ = strings.Cut(row, "\n")
	for _, cause := range declaredMisses(t) {
		if cause != MissNone && !strings.Contains(row, "`"+string(cause)+"`") {
			t.Errorf("docs/routing.md does not explain %q", cause)
		}
	}
}

// idList is n ids from 0 on, with commas.
func idList(n int) string {
	body := string(completion("m", 0, n, true))
	from := len(`{"model":"m","prompt":[`)
	return body[from : len(body)-len(`],"stream":true}`)]
}
