package picker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// TestPromptsWithImagesAreKeyedByTheBlocksOfTheEngines: what an engine says of a prompt's images goes into the keys of the engine's
// blocks. Where these are not known, differ, or say nothing of images, and where no engine can be asked, the prompt is matched
// approximately.
func TestPromptsWithImagesAreKeyedByTheBlocksOfTheEngines(t *testing.T) {
	ids := make([]uint32, 100)
	items := []kvblock.Item{{Key: "cat", Offset: 20, Length: 30}}
	fine := fakeRenderer{ids: ids, items: items}
	inProcess := &Exact{Texts: fakePrompter{tokens: 70}, Chats: fakePrompter{tokens: 80}}
	for name, tc := range map[string]struct {
		blocks       []int // of the engines, in tokens
		announced    int   // keys in a block of the first engine's events; 0 for none yet
		exact        *Exact
		engineTokens string
		body         string
		renderer     Renderer
		engine       int // size of blocks for the keys
		missing      string
	}{
		"blocks of ours":                  {[]int{16, 16}, 0, inProcess, "WhenNoTokenizer", imageBody, fine, 16, ""},
		"larger blocks":                   {[]int{32, 32}, 0, nil, "WhenNoTokenizer", imageBody, fine, 32, ""},
		"one that is not known yet":       {[]int{0, 32}, 0, nil, "WhenNoTokenizer", imageBody, fine, 32, ""},
		"events with these blocks":        {[]int{32, 32}, 2, nil, "WhenNoTokenizer", imageBody, fine, 32, ""},
		"events with other blocks":        {[]int{32, 32}, 1, nil, "WhenNoTokenizer", imageBody, fine, 0, "content"},
		"blocks of two sizes":             {[]int{16, 32}, 0, nil, "WhenNoTokenizer", imageBody, fine, 0, "content"},
		"blocks that are not known":       {[]int{0, 0}, 0, inProcess, "WhenNoTokenizer", imageBody, fine, 0, "content"},
		"smaller blocks":                  {[]int{8, 8}, 0, nil, "WhenNoTokenizer", imageBody, fine, 0, "content"},
		"events that do not tell":         {[]int{16, 16}, 0, &Exact{ItemsUnreported: true}, "WhenNoTokenizer", imageBody, fine, 0, "content"},
		"no engine may be asked":          {[]int{16, 16}, 0, inProcess, "Never", imageBody, fine, 0, "content"},
		"no engine knows":                 {[]int{16, 16}, 0, inProcess, "WhenNoTokenizer", imageBody, fakeRenderer{err: ErrUnrenderable}, 0, "content"},
		"no room":                         {[]int{16, 16}, 0, nil, "WhenNoTokenizer", imageBody, fakeRenderer{err: fmt.Errorf("%w: %w", ErrUnrenderable, ErrNoRoom)}, 0, "memory"},
		"a text beside it":                {[]int{16, 32}, 0, nil, "WhenNoTokenizer", chatBody, fakeRenderer{ids: ids}, -1, ""},
		"a salt that events do not tell":  {[]int{16, 16}, 0, &Exact{SaltsUnreported: true}, "WhenNoTokenizer", imageBody[:len(imageBody)-1] + `,"cache_salt":"s"}`, fine, 0, "identity"},
		"a salt beside what they do tell": {[]int{16, 16}, 0, nil, "WhenNoTokenizer", imageBody[:len(imageBody)-1] + `,"cache_salt":"s"}`, fine, 16, ""},
		"a short prompt":                  {[]int{16, 16}, 0, nil, "WhenNoTokenizer", imageBody, fakeRenderer{ids: ids[:3], items: items[:0]}, 16, ""},
	} {
		t.Run(name, func(t *testing.T) {
			spec := testSpec(t, 2)
			spec.Policy.EngineTokens = tc.engineTokens
			clock := newClock()
			p := New(Options{Now: clock.Now, Renderer: tc.renderer})
			p.SetExact("default", "m", tc.exact)
			if err := p.Apply([]Spec{spec}); err != nil {
				t.Fatal(err)
			}
			for i, size := range tc.blocks {
				p.Observe(spec.Endpoints[i].ID, clock.Now(), load.Report{BlockTokens: size})
			}
			v, s := p.current.Load().pools[0], &scratch{}
			if tc.announced > 0 {
				v.members[0].grain.announce(tc.announced)
			}
			if err := openai.Parse(openai.ChatCompletions, []byte(tc.body), &s.request); err != nil {
				t.Fatal(err)
			}
			got := p.promptOf(t.Context(), v, s, []byte(tc.body))
			if reason := reasonOf(got.err); reason != tc.missing {
				t.Fatalf("no keys for the reason %q, want %q", reason, tc.missing)
			}
			if tc.engine <= 0 {
				return
			}
			answer := tc.renderer.(fakeRenderer)
			want := kvblock.AppendItemKeys(nil, v.root(&s.request), answer.ids, 16, tc.engine, answer.items)
			if !slices.Equal(got.keys, want) || got.tokens != len(answer.ids) || got.source != TokensEngine {
				t.Errorf("%d tokens of %s with keys %x, want %x", got.tokens, got.source, got.keys, want)
			}
			if len(answer.items) > 0 && got.ids != nil {
				t.Error("the ids are kept, which are another prompt without the image")
			}
		})
	}
}

// picky renders texts, and fails at images.
type picky struct{ with error }

func (e picky) Tokens(_ context.Context, _ *endpoint.Endpoint, r *openai.Request, _ []byte, _ string) (Rendered, error) {
	if r.Multimodal {
		return Rendered{}, e.with
	}
	return Rendered{IDs: make([]uint32, 40)}, nil
}

// TestImagesThatCannotBeLoadedHarmNoOthers: a client that names images which engines cannot load, or not in time, neither keeps the
// engines from being asked about texts nor makes a condition say that they do not answer. An engine without a connection is noticed.
func TestImagesThatCannotBeLoadedHarmNoOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		with     error
		concerns bool
	}{
		"too slow":    {context.DeadlineExceeded, false},
		"refused":     {ErrUnrenderable, false},
		"failed":      {errors.New("the engine answered with status 500"), false},
		"unreachable": {fmt.Errorf("%w: refused", ErrUnreachable), true},
	} {
		t.Run(name, func(t *testing.T) {
			clock := newClock()
			spec := testSpec(t, 2)
			p := New(Options{Now: clock.Now, Renderer: picky{tc.with}})
			if err := p.Apply([]Spec{spec}); err != nil {
				t.Fatal(err)
			}
			v := p.current.Load().pools[0]
			for i := range spec.Endpoints {
				p.Observe(spec.Endpoints[i].ID, clock.Now(), load.Report{BlockTokens: 16})
			}
			for range 10 {
				d, err := p.Pick(t.Context(), &Request{Route: openai.ChatCompletions, Body: []byte(imageBody)})
				if err != nil {
					t.Fatal(err)
				}
				d.End(Completed)
			}
			paused := 0
			for _, m := range v.members {
				if m.renderFrom.Load() != 0 {
					paused++
				}
			}
			if failures := p.Stats()[0].Rendering.Failures; (failures > 0) != tc.concerns || (paused > 0) != tc.concerns {
				t.Errorf("%d failures, %d engines are not asked", failures, paused)
			}
		})
	}
}

// ownImages makes ids and items as it says, or fails.
type ownImages struct {
	ids   []uint32
	items []kvblock.Item
	err   error
}

func (o ownImages) AppendItems(ctx context.Context, dst []uint32, _ []byte, _ *openai.Request) ([]uint32, []kvblock.Item, error) {
	if o.err != nil {
		return dst, nil, o.err
	}
	return append(dst, o.ids...), o.items, ctx.Err()
}

// TestImagesAreMadeInProcessWhereTheyAreProven: otherwise, and if they cannot be made here, an engine is asked, as for a pool without files.
func TestImagesAreMadeInProcessWhereTheyAreProven(t *testing.T) {
	ids, theirs := make([]uint32, 100), make([]uint32, 50)
	items := []kvblock.Item{{Key: "cat", Offset: 20, Length: 30}}
	own := ownImages{ids: ids, items: items}
	chats := openai.KindsOf(openai.KindChat)
	asked := fakeRenderer{ids: theirs, items: []kvblock.Item{{Key: "dog", Offset: 3, Length: 4}}}
	for name, tc := range map[string]struct {
		exact   Exact
		blocks  []int
		budget  time.Duration
		ask     string
		source  TokenSource
		missing string
	}{
		"proven":                           {exact: Exact{Images: own, ImageRoutes: chats}, source: TokensExact},
		"proven, and no engine is asked":   {exact: Exact{Images: own, ImageRoutes: chats}, ask: "Never", source: TokensExact},
		"proven for another route":         {exact: Exact{Images: own, ImageRoutes: openai.KindsOf(openai.KindMessages)}, source: TokensEngine},
		"not proven":                       {exact: Exact{ImageRoutes: chats}, source: TokensEngine},
		"doubted":                          {exact: Exact{Images: own, ImageRoutes: chats, Unproven: openai.KindsOf(openai.KindContent)}, source: TokensEngine},
		"not possible":                     {exact: Exact{Images: ownImages{err: errors.New("a link")}, ImageRoutes: chats}, source: TokensEngine},
		"not possible, no engine is asked": {exact: Exact{Images: ownImages{err: errors.New("a link")}, ImageRoutes: chats}, ask: "Never", missing: "content"},
		"too late":                         {exact: Exact{Images: own, ImageRoutes: chats}, budget: time.Nanosecond, source: TokensEngine},
		"events that do not tell":          {exact: Exact{Images: own, ImageRoutes: chats, ItemsUnreported: true}, missing: "content"},
		"blocks of two sizes":              {exact: Exact{Images: own, ImageRoutes: chats}, blocks: []int{16, 32}, missing: "content"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := testSpec(t, 2)
			if tc.ask != "" {
				spec.Policy.EngineTokens = tc.ask
			}
			if tc.budget != 0 {
				spec.Policy.TokenBudget = tc.budget
			}
			clock := newClock()
			p := New(Options{Now: clock.Now, Renderer: asked})
			p.SetExact("default", "m", &tc.exact)
			if err := p.Apply([]Spec{spec}); err != nil {
				t.Fatal(err)
			}
			if tc.blocks == nil {
				tc.blocks = []int{32, 32}
			}
			for i, size := range tc.blocks {
				p.Observe(spec.Endpoints[i].ID, clock.Now(), load.Report{BlockTokens: size})
			}
			v, s := p.current.Load().pools[0], &scratch{}
			if err := openai.Parse(openai.ChatCompletions, []byte(imageBody), &s.request); err != nil {
				t.Fatal(err)
			}
			got := p.promptOf(t.Context(), v, s, []byte(imageBody))
			if reason := reasonOf(got.err); reason != tc.missing {
				t.Fatalf("no keys for the reason %q, want %q", reason, tc.missing)
			}
			if tc.missing != "" {
				return
			}
			want, n := kvblock.AppendItemKeys(nil, v.root(&s.request), ids, 16, 32, items), len(ids)
			if tc.source == TokensEngine {
				want, n = kvblock.AppendItemKeys(nil, v.root(&s.request), theirs, 16, 32, asked.items), len(theirs)
			}
			if got.source != tc.source || !slices.Equal(got.keys, want) || got.tokens != n || got.ids != nil {
				t.Errorf("%d tokens of %s, %d ids; want %d of %s", got.tokens, got.source, len(got.ids), n, tc.source)
			}
		})
	}
}

// TestWhatAnEngineHasServedShowsHowItNamesImages: the blocks of a prompt are in the index by the names that the engine has for its images.
func TestWhatAnEngineHasServedShowsHowItNamesImages(t *testing.T) {
	ids := make([]uint32, 110)
	items := []kvblock.Item{{Key: "cat", Offset: 20, Length: 30}}
	spec := testSpec(t, 3)
	spec.Endpoints[1].Address = spec.Endpoints[0].Address // another rank of the same server
	spec.Endpoints[1].ID.Rank = 1
	clock := newClock()
	p := newPicker(t, clock, spec)
	holds := func(of int, ids []uint32, items []kvblock.Item) [2]bool {
		h, c := p.Holds("default", "m", &spec.Endpoints[of], ids, items)
		return [2]bool{h, c}
	}
	if got := holds(0, ids, items); got != [2]bool{} {
		t.Errorf("blocks of unknown sizes: %v", got)
	}
	for i := range spec.Endpoints {
		p.Observe(spec.Endpoints[i].ID, clock.Now(), load.Report{BlockTokens: 16})
	}
	if got := holds(0, ids, items); got != [2]bool{false, true} {
		t.Errorf("nothing is announced: %v", got)
	}
	v := p.current.Load().pools[0]
	keys := kvblock.AppendItemKeys(nil, v.spec.Seed.Root("m", ""), ids, 16, 16, items)
	hold(feed(t, p, "pod-1"), keys[:6]...)
	for name, tc := range map[string]struct {
		of    int
		ids   []uint32
		items []kvblock.Item
		want  [2]bool
	}{
		"as announced":               {0, ids, items, [2]bool{true, true}},
		"by the rank itself":         {1, ids, items, [2]bool{true, true}},
		"another engine":             {2, ids, items, [2]bool{false, true}},
		"another name":               {0, ids, []kvblock.Item{{Key: "dog", Offset: 20, Length: 30}}, [2]bool{false, true}},
		"another place":              {0, ids, []kvblock.Item{{Key: "cat", Offset: 21, Length: 30}}, [2]bool{false, true}},
		"no images":                  {0, ids, nil, [2]bool{}},
		"an image behind the blocks": {0, ids, []kvblock.Item{{Key: "cat", Offset: 97, Length: 9}}, [2]bool{}},
		"a prompt of less":           {0, ids[:15], []kvblock.Item{{Key: "cat", Offset: 2, Length: 9}}, [2]bool{}},
	} {
		if got := holds(tc.of, tc.ids, tc.items); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	if h, c := p.Holds("default", "other", &spec.Endpoints[0], ids, items); h || c {
		t.Error("another pool")
	}
}
