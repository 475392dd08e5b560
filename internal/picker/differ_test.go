package picker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// troupe is a pool of endpoints whose engines make the tokens of a text, each by a rule of its own.
type troupe struct {
	t       *testing.T
	c       *clock
	p       *Picker
	spec    Spec
	log     []string
	records records
	doubts  int
	served  int
	// tokens is what the engine of an endpoint makes of a text: 70 ids of that value. counts is how many it counts then.
	tokens func(i int) uint32
	counts func(i int) int
}

// newTroupe makes the tokens in process, or has an engine render them.
func newTroupe(t *testing.T, endpoints int, inProcess bool) *troupe {
	t.Helper()
	o := &troupe{t: t, c: newClock(), spec: testSpec(t, endpoints)}
	o.tokens, o.counts = func(int) uint32 { return 0 }, func(int) int { return 70 }
	o.spec.Policy.SpeculationOff = true
	o.spec.Policy.LogPercent = 100
	o.spec.Adapters = []string{"adapter"}
	options := Options{Now: o.c.Now, Decisions: &o.records, Doubt: func(string, string, openai.Kinds) { o.doubts++ },
		Log: funcr.New(func(_, args string) { o.log = append(o.log, args) }, funcr.Options{})}
	if !inProcess {
		options.Renderer = troupeRenderer{o}
	}
	o.p = New(options)
	if err := o.p.Apply([]Spec{o.spec}); err != nil {
		t.Fatal(err)
	}
	if inProcess {
		o.p.SetExact("default", "m", &Exact{Texts: fakePrompter{tokens: 70}})
	}
	return o
}

type troupeRenderer struct{ *troupe }

func (r troupeRenderer) Tokens(_ context.Context, ep *endpoint.Endpoint, _ *openai.Request, _ []byte, _ string) (Rendered, error) {
	i := slices.IndexFunc(r.spec.Endpoints, func(e endpoint.Endpoint) bool { return e.ID == ep.ID })
	return Rendered{IDs: slices.Repeat([]uint32{r.tokens(i)}, r.counts(i))}, nil
}

// serve sends a text to an endpoint, which announces its blocks and counts its tokens.
func (o *troupe) serve(i int, body string) *Decision {
	o.t.Helper()
	in := &Request{Route: openai.Completions, Body: []byte(body), Allow: func(ep *endpoint.Endpoint) bool { return ep.ID == o.spec.Endpoints[i].ID }}
	f := feed(o.t, o.p, o.spec.Endpoints[i].Pod)
	f.Writer.Clear()
	o.c.advance(time.Second)
	d := pickFor(o.t, o.p, in)
	root := o.spec.Seed.Root("m", "")
	if strings.Contains(body, "adapter") {
		root = o.spec.Seed.Root("adapter", "")
	}
	hold(f, kvblock.AppendKeys(nil, root, slices.Repeat([]uint32{o.tokens(i)}, 70), 16)...)
	d.Usage(o.counts(i), 0)
	d.End(Completed)
	o.c.advance(checkGrace)
	o.served++
	return d
}

func (o *troupe) doubtsNow() []Doubt { return o.p.Stats()[0].Doubts }

const adapterText = `{"model":"adapter","prompt":"abc"}`

// TestAnEndpointThatDiffersIsInDoubtAlone: one engine of three counts or announces other tokens. They are made in process or by
// engines.
func TestAnEndpointThatDiffersIsInDoubtAlone(t *testing.T) {
	const liar = 1
	counts := func(o *troupe) {
		o.counts = func(i int) int { return 70 + i%2 }
	}
	announces := func(o *troupe) {
		o.tokens = func(i int) uint32 { return uint32(i % 2) }
	}
	for name, tc := range map[string]struct {
		inProcess bool
		body      string
		change    func(*troupe)
	}{
		"counts, tokens of the picker":           {true, textBody, counts},
		"announces, tokens of the picker":        {true, textBody, announces},
		"counts, tokens of engines":              {false, textBody, counts},
		"announces, tokens of engines":           {false, textBody, announces},
		"counts for an adapter, tokens of files": {true, adapterText, counts},
	} {
		t.Run(name, func(t *testing.T) {
			o := newTroupe(t, 3, tc.inProcess)
			tc.change(o)
			for range 40 {
				for i := range 3 {
					o.serve(i, tc.body)
				}
			}
			want := Doubt{Endpoint: "pod-1/0", Tokens: TokensEngine}
			if tc.inProcess {
				want.Tokens = TokensExact
			}
			if tc.body == adapterText {
				want.Traits = TraitAdapter
			}
			got := o.doubtsNow()
			for i := range got {
				got[i].Misfits, got[i].Answers = 0, 0
			}
			if !slices.Equal(got, []Doubt{want}) {
				t.Errorf("doubts %+v, want %+v", got, want)
			}
			if o.doubts != 0 {
				t.Errorf("the tokens were doubted %d times", o.doubts)
			}
			lines := slices.DeleteFunc(slices.Clone(o.log), func(line string) bool {
				return !strings.Contains(line, "differ") && !strings.Contains(line, "other endpoints")
			})
			if len(lines) != 1 || !strings.Contains(lines[0], `"endpoint"="pod-1/0"`) || !strings.Contains(lines[0], "Endpoint counts or announces other tokens") {
				t.Errorf("logs %q", lines)
			}
			for i := range 3 {
				d := o.serve(i, tc.body)
				if d.Tokens != want.Tokens || d.Targets[0].Distrusted {
					t.Errorf("endpoint %d: tokens %v, distrusted %v", i, d.Tokens, d.Targets[0].Distrusted)
				}
				if d.Targets[0].Differs != (i == liar) {
					t.Errorf("endpoint %d differs: %v", i, d.Targets[0].Differs)
				}
				reason := ""
				d.Explain(0, func(name, value string) {
					if name == "x-kvasir-reason" {
						reason = value
					}
				})
				if strings.Contains(reason, " endpoint-differs") != (i == liar) {
					t.Errorf("endpoint %d: reason %q", i, reason)
				}
			}
			o.counts, o.tokens = func(int) int { return 70 }, func(int) uint32 { return 0 } // it was restarted with the right template
			for range doubtWindow {
				for i := range 3 {
					o.serve(i, tc.body)
				}
			}
			if got := o.doubtsNow(); len(got) != 0 {
				t.Errorf("it no longer differs, and yet %+v", got)
			}
		})
	}
}

// TestEnginesThatDifferAreNotAskedForTokens as long as others are left.
func TestEnginesThatDifferAreNotAskedForTokens(t *testing.T) {
	o := newTroupe(t, 3, false)
	o.tokens = func(i int) uint32 { return uint32(i % 2) }
	for len(o.doubtsNow()) == 0 && o.served < 300 {
		o.serve(o.served%3, textBody)
	}
	v := o.p.current.Load().pools[0]
	for range 9 {
		if i := v.nextRenderer(o.c.Now()); i == 1 {
			t.Error("the engine that differs is asked")
		}
	}
	o.spec.Endpoints = o.spec.Endpoints[1:2]
	if err := o.p.Apply([]Spec{o.spec}); err != nil {
		t.Fatal(err)
	}
	if i := o.p.current.Load().pools[0].nextRenderer(o.c.Now()); i != 0 {
		t.Errorf("the only engine left is not asked: %d", i)
	}
}

// TestNoEndpointDiffersFromFewOrFromAsManyAsAgree: with two endpoints nothing says which is wrong, and where half of them do not
// fit, the tokens are in doubt.
func TestNoEndpointDiffersFromFewOrFromAsManyAsAgree(t *testing.T) {
	for name, tc := range map[string]struct {
		endpoints int
		wrong     func(i int) bool
		tokens    bool // are in doubt
	}{
		"one of one":    {1, func(int) bool { return true }, true},
		"one of two":    {2, func(i int) bool { return i == 1 }, true},
		"two of four":   {4, func(i int) bool { return i < 2 }, true},
		"three of four": {4, func(i int) bool { return i > 0 }, true},
		"all of five":   {5, func(int) bool { return true }, true},
		"none":          {3, func(int) bool { return false }, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := newTroupe(t, tc.endpoints, true)
			o.counts = func(i int) int {
				if tc.wrong(i) {
					return 71
				}
				return 70
			}
			for range 40 {
				for i := range tc.endpoints {
					o.serve(i, textBody)
				}
			}
			for _, d := range o.doubtsNow() {
				t.Errorf("in doubt: %+v", d)
			}
			if (o.doubts > 0) != tc.tokens {
				t.Errorf("%d doubts about the tokens", o.doubts)
			}
		})
	}
}

// TestOneTenantPutsNoEndpointInDoubt: its answers do not fit at one endpoint, while those of others do.
func TestOneTenantPutsNoEndpointInDoubt(t *testing.T) {
	var d differing
	of, members := class{source: TokensExact, kind: openai.KindChat}, [3]*member{{}, {}, {}}
	now := time.Unix(0, 0)
	for i := range 600 {
		m := members[i%3]
		tenant := uint64(min(i%10, 1)) // nine of ten requests
		if changed := d.enter(now, of, asker{tenant, m, nil}, m != members[0] || tenant == 0); len(changed) != 0 {
			t.Fatalf("answer %d: %+v", i, changed)
		}
	}
}

// TestADifferenceEndsWithTheEndpointAndWithTime: nothing is kept of endpoints that are gone, nor for longer than an hour.
func TestADifferenceEndsWithTheEndpointAndWithTime(t *testing.T) {
	differs := func() *troupe {
		o := newTroupe(t, 3, true)
		o.counts = func(i int) int { return 70 + i%2 }
		for range 20 {
			for i := range 3 {
				o.serve(i, textBody)
			}
		}
		if len(o.doubtsNow()) != 1 {
			t.Fatalf("doubts %+v", o.doubtsNow())
		}
		return o
	}
	for name, end := range map[string]func(o *troupe){
		"an hour": func(o *troupe) { o.c.advance(trustAge + time.Minute) },
		"another life": func(o *troupe) {
			o.spec.Endpoints = slices.Clone(o.spec.Endpoints)
			o.spec.Endpoints[1].ID.Pod = "another"
			if err := o.p.Apply([]Spec{o.spec}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		o := differs()
		end(o)
		if got := o.doubtsNow(); len(got) != 0 {
			t.Errorf("%s: %+v", name, got)
		}
		if o.p.current.Load().pools[0].checks.endpoints.some.Load() {
			t.Errorf("%s: some endpoint differs", name)
		}
	}
}

// TestComparisonsAreCountedRight: the counts that are kept are those of all answers that are kept.
func TestComparisonsAreCountedRight(t *testing.T) {
	var d differing
	members := []*member{{}, {}, {}, {}, {}}
	now := time.Unix(0, 0)
	changes := 0
	for i := range 5000 {
		x := uint64(i) * 0x9e3779b97f4a7c15
		of := class{source: TokensEngine, kind: openai.Kind(x >> 60 & 1)}
		by := asker{x >> 50 & 3, members[x>>40%5], members[x>>30%5]}
		worst := members[i/500%5]
		changes += len(d.enter(now, of, by, by.endpoint != worst && by.rendered != worst || x>>20&7 == 0))
		now = now.Add(time.Duration(x >> 10 % 60e9))
		if i%97 == 0 {
			d.expire(now)
		}
		for of, all := range d.known {
			suspects := 0
			for _, c := range all.of {
				if different(c.answers) && misfitsOf(c.answers) > 0 {
					suspects++
				}
				if c.differs && (!all.few || !c.suspect || c.misfits < doubtEnough) {
					t.Fatalf("answer %d: %+v differs without a reason", i, c)
				}
				if len(c.answers) > doubtWindow {
					t.Fatalf("%d answers are kept", len(c.answers))
				}
			}
			if suspects != all.suspects || all.few != (len(all.of) > 2 && 2*suspects < len(all.of)) {
				t.Fatalf("answer %d of %+v: %d suspects of %d, counted %d", i, of, suspects, len(all.of), all.suspects)
			}
		}
	}
	if changes < 4 {
		t.Errorf("%d changes show nothing", changes)
	}
}

// TestTokensThatAreSwitchedOffAreLogged with the class, the reason and the time, and listed until they are used again.
func TestTokensThatAreSwitchedOffAreLogged(t *testing.T) {
	o := newTroupe(t, 1, true)
	o.counts = func(int) int { return 71 }
	const odd = `{"model":"m","prompt":"abc","brand_new_field":1}`
	began := time.Time{}
	for range doubtEnough {
		began = o.c.Now().Add(time.Second)
		o.serve(0, odd)
	}
	want := `"Token ids of a class of requests differ from the engines', not using them" "severity"="warning" "pool"="m" "tokens"="exact" "kind"="text" "traits"="fields" "for"="1h0m0s" "reason"="engines count`
	if lines := strings.Join(o.log, "\n"); strings.Count(lines, want) != 1 {
		t.Errorf("logs:\n%s", lines)
	}
	doubt := Doubt{Tokens: TokensExact, Kind: openai.KindText, Traits: TraitFields, Until: began.Add(distrustFor), Misfits: doubtEnough, Answers: doubtEnough}
	if got := o.doubtsNow(); !slices.Equal(got, []Doubt{doubt}) {
		t.Errorf("doubts %+v, want %+v", got, doubt)
	}
	o.c.advance(distrustFor)
	if got := o.doubtsNow(); len(got) != 0 {
		t.Errorf("after an hour %+v", got)
	}
}

// TestNoTraitTakesTokensOrMatchesFromAnother: requests with adapters, cache salts and unknown fields, and with several of them.
func TestNoTraitTakesTokensOrMatchesFromAnother(t *testing.T) {
	bodies := map[Traits]string{}
	for traits := range Traits(numTraits) {
		model, fields := "m", ""
		if traits&TraitAdapter != 0 {
			model = "adapter"
		}
		if traits&TraitSalt != 0 {
			fields += `,"cache_salt":"s"`
		}
		if traits&TraitFields != 0 {
			fields += `,"brand_new_field":1`
		}
		bodies[traits] = fmt.Sprintf(`{"model":%q,"prompt":"abc"%s}`, model, fields)
	}
	for hostile, body := range bodies {
		if hostile == 0 {
			continue // see TestDoubtsAboutAKindHoldForRequestsWithTraits
		}
		t.Run(hostile.String(), func(t *testing.T) {
			c := newCourt(t, 1)
			request := func(body string) *Request { return &Request{Route: openai.Completions, Body: []byte(body)} }
			for range 3 * trustEnough {
				c.serve(request(body), 0) // finds nothing
				c.c.advance(3 * time.Second)
			}
			for range doubtWindow {
				d := pickFor(t, c.p, request(body))
				d.Usage(courtTokens+1, 0) // is counted otherwise
				d.End(Completed)
				c.c.advance(3 * time.Second)
			}
			for traits, other := range bodies {
				d := pickFor(t, c.p, request(other))
				d.End(Completed)
				suffers := d.Tokens != TokensExact || d.Targets[0].Predicted != courtHit
				if suffers != (traits == hostile) {
					t.Errorf("a request %s has tokens %v, is predicted %d", traits, d.Tokens, d.Targets[0].Predicted)
				}
			}
		})
	}
}
