package picker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// asked is a renderer that counts, and makes other ids of each body.
type asked struct {
	n   int
	err error
}

func (a *asked) Tokens(_ context.Context, _ *endpoint.Endpoint, _ *openai.Request, body []byte, _ string) (Rendered, error) {
	a.n++
	ids := make([]uint32, 64)
	for i := range ids {
		ids[i] = uint32(body[i%len(body)])
	}
	return Rendered{IDs: ids}, a.err
}

// TestAPromptIsRenderedOnce: within minutes, for one pool, model and salt, whatever its sampling is.
func TestAPromptIsRenderedOnce(t *testing.T) {
	t.Parallel()
	clock, engine := newClock(), &asked{}
	p := New(Options{Now: clock.Now, Renderer: engine, RenderedBytes: 1 << 20})
	s := testSpec(t, 2)
	if err := p.Apply([]Spec{s}); err != nil {
		t.Fatal(err)
	}
	pick := func(body string) *Decision {
		t.Helper()
		d, err := p.Pick(t.Context(), &Request{Route: openai.ChatCompletions, Body: []byte(body)})
		if err != nil {
			t.Fatal(err)
		}
		d.End(Completed)
		return d
	}
	chat := func(fields string) string {
		return `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("words ", 40) + `"}]` + fields + `}`
	}
	first := pick(chat(""))
	if first.Tokens != TokensEngine || engine.n != 1 {
		t.Fatalf("%s, asked %d times", first.Tokens, engine.n)
	}
	for _, fields := range []string{"", `,"temperature":0.3,"seed":4`, ` , "stream":true , "stream_options":{"include_usage":true}`, `,"n":3,"stop":"x"`, `,"user":"u"`} {
		d := pick(chat(fields))
		if engine.n != 1 || d.Tokens != TokensEngine || d.PromptTokens != first.PromptTokens || !slices.Equal(d.keys, first.keys) {
			t.Errorf("%s: asked %d times, %s, %d tokens", fields, engine.n, d.Tokens, d.PromptTokens)
			engine.n = 1
		}
	}
	if n := p.Stats()[0].TokensReused; n != 5 {
		t.Errorf("%d prompts are counted as used again", n)
	}
	for _, fields := range []string{`,"tools":[]`, `,"max_tokens":5`, `,"chat_template_kwargs":{"a":1}`, `,"cache_salt":"s"`, `,"unknown":1`, `,"add_generation_prompt":false`} {
		before := engine.n
		if pick(chat(fields)); engine.n != before+1 {
			t.Errorf("%s: it is taken for the same prompt", fields)
		}
	}
	before := engine.n
	if pick(strings.Replace(chat(""), `"words`, `"Words`, 1)); engine.n != before+1 {
		t.Error("another prompt is taken for the same")
	}
	clock.advance(renderedLife)
	before = engine.n
	if pick(chat("")); engine.n != before+1 {
		t.Error("it is used after its time")
	}
}

// TestIDsOfAnEngineThatIsGoneAreNotUsed, nor those of one that makes other ids than the others, nor a failure.
func TestIDsOfAnEngineThatIsGoneAreNotUsed(t *testing.T) {
	t.Parallel()
	clock, engine := newClock(), &asked{}
	p := New(Options{Now: clock.Now, Renderer: engine, RenderedBytes: 1 << 20})
	s := testSpec(t, 2)
	apply := func(s Spec) {
		t.Helper()
		if err := p.Apply([]Spec{s}); err != nil {
			t.Fatal(err)
		}
	}
	apply(s)
	now := func() *view { return p.current.Load().pools[0] }
	ask := func(v *view) (by *member, err error) {
		r := &openai.Request{}
		body := []byte(`{"model":"m","messages":[{"role":"user","content":"words"}]}`)
		if err := openai.Parse(openai.ChatCompletions, body, r); err != nil {
			t.Fatal(err)
		}
		_, by, err = p.engineIDs(t.Context(), v, r, body, 1)
		return by, err
	}
	engine.err = errors.New("not now")
	if _, err := ask(now()); err == nil {
		t.Fatal("a failure is no failure")
	}
	engine.err, engine.n = nil, 0
	by, err := ask(now())
	if err != nil || engine.n != 1 {
		t.Fatalf("asked %d times: %v", engine.n, err)
	}
	if again, _ := ask(now()); again != by || engine.n != 1 {
		t.Fatalf("asked %d times", engine.n)
	}
	gone := slices.Index(now().members, by)
	left := s
	left.Endpoints = slices.Delete(slices.Clone(s.Endpoints), gone, gone+1)
	apply(left)
	if other, err := ask(now()); err != nil || other == by || engine.n != 2 {
		t.Errorf("the ids of an engine that is gone are used: asked %d times, %v", engine.n, err)
	}
	checks := &now().checks
	checks.endpoints.known = map[class]*comparisons{{}: {of: map[*member]*comparison{now().members[0]: {differs: true}}}}
	checks.endpoints.count()
	if _, err := ask(now()); err != nil || engine.n != 3 {
		t.Errorf("the ids of an engine that differs are used: asked %d times, %v", engine.n, err)
	}
}

// TestRenderedPromptsAreBounded: in bytes, what was used least recently gives way; and a huge prompt is not kept.
func TestRenderedPromptsAreBounded(t *testing.T) {
	t.Parallel()
	clock := newClock()
	const limit = 64 << 10
	c := newRenderedPrompts(limit)
	v := &view{pool: &pool{}, members: []*member{{}}}
	put := func(i, ids int) {
		c.put(clock.Now(), renderedKey{byte(i), byte(i >> 8)}, &Rendered{IDs: make([]uint32, ids), More: [][]uint32{make([]uint32, ids)}}, v.members[0])
	}
	has := func(i int) bool {
		_, _, ok := c.get(clock.Now(), renderedKey{byte(i), byte(i >> 8)}, v)
		return ok
	}
	put(0, 10)
	for i := 1; i < 500; i++ {
		if put(i, i%200); !has(i) || !has(0) {
			t.Fatalf("after %d: %v %v", i, has(i), has(0))
		}
		if held := sizes(c); held != c.held || held > limit || len(c.all) != c.used.Len() {
			t.Fatalf("%d bytes held, counted %d; %d and %d prompts", held, c.held, len(c.all), c.used.Len())
		}
	}
	if has(1) {
		t.Error("the oldest is still there")
	}
	if put(1000, limit); has(1000) {
		t.Error("a huge prompt is kept")
	}
	if newRenderedPrompts(0) != nil {
		t.Error("without memory there is a cache")
	}
	clock.advance(renderedLife - time.Second)
	if !has(0) {
		t.Error(fmt.Sprint("a prompt is not kept for ", renderedLife))
	}
}

func sizes(c *renderedPrompts) (n int64) {
	for _, place := range c.all {
		n += place.Value.(*renderedPrompt).size
	}
	return n
}
