package picker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/tokens/chatprompt"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

// fakeRenderer answers with fixed ids, or fails.
type fakeRenderer struct {
	ids     []uint32
	more    [][]uint32
	items   []kvblock.Item
	lacking string
	err     error
}

func (f fakeRenderer) Tokens(context.Context, *endpoint.Endpoint, *openai.Request, []byte, string) (Rendered, error) {
	return Rendered{IDs: f.ids, More: f.more, Items: f.items, Tokenized: f.lacking != "", Lacking: f.lacking}, f.err
}

// fakePrompter has as many tokens as it says, or fails.
type fakePrompter struct {
	tokens int
	err    error
}

func (f fakePrompter) AppendKeys(_ context.Context, dst []kvblock.Key, _ []byte, _ *openai.Request, chain tokenizer.Chain) ([]kvblock.Key, int, error) {
	return kvblock.AppendKeys(dst, chain.Root, make([]uint32, f.tokens), chain.BlockTokens), f.tokens, f.err
}

func (f fakePrompter) Others(_ context.Context, r *openai.Request, chain tokenizer.Chain, use func([]kvblock.Key, int)) error {
	for i := range r.Prompts[1:] {
		ids := slices.Repeat([]uint32{uint32(i + 1)}, f.tokens)
		use(kvblock.AppendKeys(nil, chain.Root, ids, chain.BlockTokens), f.tokens)
	}
	return f.err
}

const (
	textBody  = `{"model":"m","prompt":"abc"}`
	chatBody  = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
	imageBody = `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`
)

// endless is a prompter that goes on for as long as it can.
type endless struct{ fakePrompter }

func (endless) AppendKeys(ctx context.Context, _ []kvblock.Key, _ []byte, _ *openai.Request, _ tokenizer.Chain) ([]kvblock.Key, int, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		return nil, 1, nil
	}
	<-ctx.Done()
	return nil, 0, ctx.Err()
}

// TestTokensAreMadeWithinThePolicysBudget: a prompt that takes longer is matched by its text.
func TestTokensAreMadeWithinThePolicysBudget(t *testing.T) {
	for _, keys := range []string{"", `,"cache_salt":"s"`} {
		spec := testSpec(t, 2)
		spec.Policy.TokenBudget, spec.Policy.EngineTokens = time.Millisecond, "Never"
		p := newPicker(t, newClock(), spec)
		p.SetExact("default", "m", &Exact{Texts: endless{}, Chats: endless{}})
		d := pick(t, p, []byte(`{"model":"m","prompt":"abc"`+keys+`}`))
		if d.Tokens != TokensApproximate || d.TokensMissing != "budget" {
			t.Errorf("tokens from %q (%s)", d.Tokens, d.TokensMissing)
		}
		d.End(Completed)
	}
}

// TestFilesThatWereFoundMakeNothingLessExact: a pool that looks for its files by itself asks engines for all that they do not give.
func TestFilesThatWereFoundMakeNothingLessExact(t *testing.T) {
	for name, err := range map[string]error{
		"beyond the budget": context.DeadlineExceeded, "refused by the template": errors.New("raised"),
		"not supported": fmt.Errorf("%w: this", chatprompt.ErrUnsupported),
	} {
		t.Run(name, func(t *testing.T) {
			for kind, want := range map[string]TokenSource{"WhenNoTokenizer": TokensEngine, "Never": TokensApproximate} {
				spec := testSpec(t, 2)
				spec.Tokenizer.Type, spec.Policy.EngineTokens = "Auto", kind
				p := New(Options{Now: newClock().Now, Renderer: fakeRenderer{ids: make([]uint32, 40)}})
				p.SetExact("default", "m", &Exact{Texts: fakePrompter{err: err}, Chats: fakePrompter{err: err}})
				if err := p.Apply([]Spec{spec}); err != nil {
					t.Fatal(err)
				}
				d, err := p.Pick(t.Context(), &Request{Route: openai.ChatCompletions, Body: []byte(chatBody)})
				if err != nil {
					t.Fatal(err)
				}
				if d.Tokens != want {
					t.Errorf("%s: tokens from %q, want %q", kind, d.Tokens, want)
				}
				d.End(Completed)
			}
		})
	}
}

func TestTokensComeFromTheBestSource(t *testing.T) {
	ids := make([]uint32, 40)
	exact := &Exact{Texts: fakePrompter{tokens: 70}, Chats: fakePrompter{tokens: 80}}
	unproven := &Exact{Texts: exact.Texts, Chats: exact.Chats, Unproven: openai.KindsOf(openai.KindDeveloper)}
	const developerBody = `{"model":"m","messages":[{"role":"developer","content":"hi"}]}`
	failing := func(err error) *Exact {
		return &Exact{Texts: fakePrompter{err: err}, Chats: fakePrompter{err: err}}
	}
	unsupported := fmt.Errorf("%w: this", chatprompt.ErrUnsupported)
	rendered := fakeRenderer{ids: ids}
	failingAPIs := failing(unsupported)
	failingAPIs.APIs = openai.KindsOf(openai.KindMessages)
	provenAPIs := &Exact{Chats: exact.Chats, APIs: failingAPIs.APIs}
	for name, tc := range map[string]struct {
		exact        *Exact
		engineTokens string
		route        openai.Route
		body         string
		renderer     Renderer
		want         TokenSource
		tokens       int
		missing      string
	}{
		"ids are taken as they are":            {nil, "WhenNoTokenizer", openai.Completions, `{"model":"m","prompt":[1,2,3]}`, nil, TokensGiven, 3, ""},
		"and shortened as asked":               {nil, "Never", openai.Completions, `{"model":"m","prompt":[1,2,3],"truncate_prompt_tokens":2}`, nil, TokensGiven, 2, ""},
		"text is encoded in process":           {exact, "WhenNoTokenizer", openai.Completions, textBody, rendered, TokensExact, 70, ""},
		"so are chats":                         {exact, "Never", openai.ChatCompletions, chatBody, rendered, TokensExact, 80, ""},
		"and embeddings":                       {exact, "Never", openai.Embeddings, `{"model":"m","input":"abc"}`, rendered, TokensExact, 70, ""},
		"text goes to an engine else":          {nil, "WhenNoTokenizer", openai.Completions, textBody, rendered, TokensEngine, 40, ""},
		"chats that are not proven":            {&Exact{Texts: fakePrompter{}}, "WhenNoTokenizer", openai.ChatCompletions, chatBody, rendered, TokensEngine, 40, ""},
		"texts that are not proven":            {&Exact{Chats: fakePrompter{}}, "WhenNoTokenizer", openai.Completions, textBody, rendered, TokensEngine, 40, ""},
		"what cannot be made here":             {failing(unsupported), "WhenNoTokenizer", openai.ChatCompletions, chatBody, rendered, TokensEngine, 40, ""},
		"unless the policy forbids":            {nil, "Never", openai.ChatCompletions, chatBody, rendered, TokensApproximate, 7, "unavailable"},
		"even what cannot be made here":        {failing(unsupported), "Never", openai.ChatCompletions, chatBody, rendered, TokensApproximate, 7, "unsupported"},
		"beyond the budget no engine is asked": {failing(context.DeadlineExceeded), "WhenNoTokenizer", openai.ChatCompletions, chatBody, rendered, TokensApproximate, 7, "budget"},
		"but where the policy wants it":        {failing(context.DeadlineExceeded), "BeyondBudget", openai.ChatCompletions, chatBody, rendered, TokensEngine, 40, ""},
		"what the template refuses":            {failing(errors.New("raised")), "BeyondBudget", openai.ChatCompletions, chatBody, rendered, TokensApproximate, 7, "refused"},
		"an engine may fail":                   {nil, "WhenNoTokenizer", openai.Completions, textBody, fakeRenderer{err: errors.New("no")}, TokensApproximate, 1, "unavailable"},
		"an engine may refuse":                 {nil, "WhenNoTokenizer", openai.Completions, textBody, fakeRenderer{err: ErrUnrenderable}, TokensApproximate, 1, "unsupported"},
		"an engine may be too slow":            {nil, "WhenNoTokenizer", openai.Completions, textBody, fakeRenderer{err: context.DeadlineExceeded}, TokensApproximate, 1, "budget"},
		"several texts are for an engine, too": {nil, "WhenNoTokenizer", openai.Completions, `{"model":"m","prompt":["abc","d"]}`, rendered, TokensEngine, 40, ""},
		"an engine may tokenize only":          {nil, "WhenNoTokenizer", openai.Completions, textBody, fakeRenderer{ids: ids, lacking: "a flag"}, TokensTokenize, 40, ""},
		"responses are for an engine":          {exact, "WhenNoTokenizer", openai.Responses, `{"model":"m","input":"abc"}`, rendered, TokensEngine, 40, ""},
		"messages are for an engine":           {exact, "WhenNoTokenizer", openai.Messages, `{"model":"m","messages":[]}`, rendered, TokensEngine, 40, ""},
		"responses no engine renders":          {nil, "WhenNoTokenizer", openai.Responses, `{"model":"m","input":"abc"}`, fakeRenderer{err: ErrUnrenderable}, TokensApproximate, 1, "route"},
		"responses no engine may render":       {exact, "Never", openai.Responses, `{"model":"m","input":"abc"}`, rendered, TokensApproximate, 1, "route"},
		"messages that cannot be made":         {failingAPIs, "WhenNoTokenizer", openai.Messages, `{"model":"m","messages":[]}`, fakeRenderer{err: ErrUnrenderable}, TokensApproximate, 1, "unsupported"},
		"but an engine may make them":          {failingAPIs, "WhenNoTokenizer", openai.Messages, `{"model":"m","messages":[]}`, rendered, TokensEngine, 40, ""},
		"messages that cannot be made at all":  {failingAPIs, "Never", openai.Messages, `{"model":"m","messages":[]}`, rendered, TokensApproximate, 1, "unsupported"},
		"messages that are made":               {provenAPIs, "Never", openai.Messages, `{"model":"m","messages":[]}`, nil, TokensExact, 80, ""},
		"a kind that is not proven":            {unproven, "WhenNoTokenizer", openai.ChatCompletions, developerBody, rendered, TokensEngine, 40, ""},
		"a kind not proven, and no engine":     {unproven, "Never", openai.ChatCompletions, developerBody, rendered, TokensApproximate, 9, "unproven"},
		"other kinds stay exact":               {unproven, "Never", openai.ChatCompletions, chatBody, rendered, TokensExact, 80, ""},
		"embeddings are for an engine, too":    {nil, "WhenNoTokenizer", openai.Embeddings, `{"model":"m","input":"abc"}`, rendered, TokensEngine, 40, ""},
		"embeddings that are padded by name":   {exact, "Never", openai.Embeddings, `{"model":"m","input":"abc","padding":"do_not_pad"}`, nil, TokensExact, 70, ""},
		"embeddings that are padded":           {exact, "WhenNoTokenizer", openai.Embeddings, `{"model":"m","input":"abc","padding":"max_length"}`, rendered, TokensApproximate, 1, "content"},
		"ids for embeddings that are padded":   {exact, "WhenNoTokenizer", openai.Embeddings, `{"model":"m","input":[1,2],"padding":"max_length"}`, rendered, TokensApproximate, 2, "content"},
		"embeddings of messages":               {nil, "WhenNoTokenizer", openai.Embeddings, `{"model":"m","messages":[]}`, rendered, TokensApproximate, 1, "route"},
		"so are images":                        {exact, "WhenNoTokenizer", openai.ChatCompletions, imageBody, rendered, TokensApproximate, 18, "content"},
		"and the model's own length":           {nil, "Never", openai.Completions, `{"model":"m","prompt":[1,2,3],"truncate_prompt_tokens":-1}`, nil, TokensApproximate, 3, "content"},
		"and salts that events do not tell": {&Exact{SaltsUnreported: true, Texts: fakePrompter{}}, "WhenNoTokenizer", openai.Completions,
			`{"model":"m","prompt":"abc","cache_salt":"s"}`, rendered, TokensApproximate, 1, "identity"},
		"and adapters that events do not tell": {&Exact{AdaptersUnreported: true, Texts: fakePrompter{}}, "WhenNoTokenizer", openai.Completions,
			`{"model":"lora","prompt":"abc"}`, rendered, TokensApproximate, 1, "identity"},
		"but an alias is no adapter": {&Exact{AdaptersUnreported: true, Texts: fakePrompter{tokens: 5}}, "WhenNoTokenizer", openai.Completions,
			`{"model":"alias","prompt":"abc"}`, rendered, TokensExact, 5, ""},
		"embeds alone are nothing": {exact, "WhenNoTokenizer", openai.Completions, `{"model":"m","prompt_embeds":"AAAA"}`, rendered, TokensNone, 9, "content"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := testSpec(t, 2)
			spec.Adapters = []string{"lora"}
			spec.Policy.EngineTokens = tc.engineTokens
			p := New(Options{Now: newClock().Now, Renderer: tc.renderer})
			p.SetExact("default", "m", tc.exact)
			if err := p.Apply([]Spec{spec}); err != nil {
				t.Fatal(err)
			}
			d, err := p.Pick(context.Background(), &Request{Route: tc.route, Body: []byte(tc.body)})
			if err != nil {
				t.Fatal(err)
			}
			defer d.End(Completed)
			if d.Tokens != tc.want || d.TokensMissing != tc.missing {
				t.Errorf("tokens from %q (%s), want %q (%s)", d.Tokens, d.TokensMissing, tc.want, tc.missing)
			}
			if d.PromptTokens != tc.tokens {
				t.Errorf("%d tokens, want %d", d.PromptTokens, tc.tokens)
			}
			if s := p.Stats()[0]; s.Tokens[tc.want] != 1 || tc.missing != "" && s.Inexact[tc.missing] != 1 || tc.missing == "" && len(d.keys) != tc.tokens/16 {
				t.Errorf("counted as %v, %v; %d keys", s.Tokens, s.Inexact, len(d.keys))
			}
		})
	}
}

// TestARequestWithoutTokensFindsWhereItsBeginningWent: approximate matching, by chunks of text.
func TestARequestWithoutTokensFindsWhereItsBeginningWent(t *testing.T) {
	spec := testSpec(t, 5)
	spec.Adapters = []string{"lora"}
	spec.Policy.EngineTokens = "Never"
	spec.Policy.Strategy = policy.Config{Type: policy.LongestPrefix, LongestPrefix: policy.LongestPrefixConfig{Literal: true}}
	p := newPicker(t, newClock(), spec)
	turn := func(model string, n int) *Decision {
		t.Helper()
		messages := []map[string]string{}
		for i := range n {
			messages = append(messages, map[string]string{"role": "user", "content": fmt.Sprintf("turn %d ", i) + strings.Repeat("and so on ", 40)})
		}
		body, err := json.Marshal(map[string]any{"model": model, "messages": messages, "stream": true})
		if err != nil {
			t.Fatal(err)
		}
		d, err := p.Pick(context.Background(), &Request{Route: openai.ChatCompletions, Body: body})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	first := turn("m", 1)
	if first.Targets[0].Predicted != 0 || first.Tokens != TokensApproximate {
		t.Fatalf("a first turn: %d predicted, tokens %s", first.Targets[0].Predicted, first.Tokens)
	}
	home := first.Targets[0].Endpoint.Pod
	first.End(Completed)
	for n := 2; n < 6; n++ {
		d := turn("m", n)
		if got := d.Targets[0]; got.Endpoint.Pod != home || got.Predicted < 80*(n-1) || got.Predicted >= d.PromptTokens || got.Confirmed != 0 {
			t.Errorf("turn %d: %s of %s, %d tokens predicted, %d confirmed", n, got.Endpoint.Pod, home, got.Predicted, got.Confirmed)
		}
		d.Usage(d.PromptTokens, 0)
		d.End(Completed)
	}
	if other := turn("lora", 3); other.Targets[0].Predicted != 0 {
		t.Error("an adapter finds the base model's")
	}
	if hits := p.Stats()[0].Hits; hits.Answers != 0 {
		t.Errorf("guesses are compared with what is delivered: %+v", hits)
	}
	// A fallback that takes over is where the next turn goes.
	d := turn("m", 6)
	d.Fail()
	d.Begin(1)
	moved := d.Target().Endpoint.Pod
	d.End(Completed)
	targets := turn("m", 7).Targets
	for i := range targets {
		if targets[i].Endpoint.Pod == moved && targets[i].Match.Blocks() == targets[0].Match.Blocks() {
			return
		}
	}
	t.Errorf("moved to %s, which the next turn does not know", moved)
}

// TestWithoutEventsKeysAreMatchedWithWhatWasRouted: ids are known, and no event reports what engines hold.
func TestWithoutEventsKeysAreMatchedWithWhatWasRouted(t *testing.T) {
	spec := testSpec(t, 4)
	spec.NoEvents = true
	p := newPicker(t, newClock(), spec)
	d := pick(t, p, completion("m", 0, 200, true))
	home := d.Targets[0].Endpoint.Pod
	d.End(Completed)
	d = pick(t, p, completion("m", 0, 400, true))
	if got := d.Targets[0]; got.Endpoint.Pod != home || got.Predicted != 192 || got.Confirmed != 0 {
		t.Errorf("%s of %s, %d predicted, %d confirmed", got.Endpoint.Pod, home, got.Predicted, got.Confirmed)
	}
	d.End(Completed)
}

func TestEnginesThatDoNotRenderAreTold(t *testing.T) {
	c := newClock()
	fail := true
	p := New(Options{Now: c.Now, Renderer: engines{"pod-0": func(context.Context) error {
		if fail {
			return errors.New("no route")
		}
		return nil
	}}})
	if err := p.Apply([]Spec{testSpec(t, 1)}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		pick(t, p, []byte(textBody)).End(Completed)
	}
	if got := p.Stats()[0].Rendering; got.Failures != 3 || got.Last != "no route" {
		t.Errorf("%+v", got)
	}
	fail = false
	pick(t, p, []byte(textBody)).End(Completed)
	if got := p.Stats()[0].Rendering; got.Failures != 0 {
		t.Errorf("after an answer: %+v", got)
	}
}

// engines is a Renderer whose answers depend on the pod.
type engines map[string]func(ctx context.Context) error

func (e engines) Tokens(ctx context.Context, ep *endpoint.Endpoint, _ *openai.Request, _ []byte, _ string) (Rendered, error) {
	if fail := e[ep.Pod]; fail != nil {
		if err := fail(ctx); err != nil {
			return Rendered{}, err
		}
	}
	return Rendered{IDs: make([]uint32, 40)}, nil
}

// TestOneEngineThatDoesNotRenderCostsOneRequest: a frozen engine takes the budget of one request, a dead one of none.
func TestOneEngineThatDoesNotRenderCostsOneRequest(t *testing.T) {
	frozen := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	dead := func(context.Context) error { return errors.New("connection refused") }
	for name, tc := range map[string]struct {
		fail func(context.Context) error
		lost int
	}{"frozen": {frozen, 1}, "dead": {dead, 0}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // where an engine that answers at once is within every budget
				spec := testSpec(t, 3)
				spec.Policy.EngineTokenBudget = 20 * time.Millisecond
				p := New(Options{Now: newClock().Now, Renderer: engines{"pod-0": tc.fail}})
				if err := p.Apply([]Spec{spec}); err != nil {
					t.Fatal(err)
				}
				lost := 0
				for range 12 {
					d := pick(t, p, []byte(`{"model":"m","prompt":"text"}`))
					if d.Tokens != TokensEngine {
						lost++
					}
					d.End(Completed)
				}
				if lost != tc.lost {
					t.Errorf("%d of 12 requests have no tokens, want %d", lost, tc.lost)
				}
			})
		})
	}
}

func TestARequestThatCannotBeRenderedBlamesNoEngine(t *testing.T) {
	p := New(Options{Now: newClock().Now, Renderer: fakeRenderer{err: fmt.Errorf("%w: bad", ErrUnrenderable)}})
	if err := p.Apply([]Spec{testSpec(t, 1)}); err != nil {
		t.Fatal(err)
	}
	pick(t, p, []byte(`{"model":"m","prompt":"text"}`)).End(Completed)
	if from := p.current.Load().pools[0].members[0].renderFrom.Load(); from != 0 {
		t.Error("the engine is left alone for the request's fault")
	}
}

// refusing are engines. One refuses all requests.
type refusing struct {
	fakeRenderer
	pod   string
	asked map[string]int
	how   error // besides ErrUnrenderable
}

func (r refusing) Tokens(ctx context.Context, ep *endpoint.Endpoint, request *openai.Request, body []byte, key string) (Rendered, error) {
	if r.asked[ep.Pod]++; ep.Pod == r.pod || r.pod == "all" {
		return Rendered{}, fmt.Errorf("%w: %w", ErrUnrenderable, r.how)
	}
	return r.fakeRenderer.Tokens(ctx, ep, request, body, key)
}

// TestAnEngineThatRefusesAllRequestsLeavesMatchingByTokens: what it refuses is asked of another, and that soon of the other only.
func TestAnEngineThatRefusesAllRequestsLeavesMatchingByTokens(t *testing.T) {
	r := refusing{fakeRenderer{ids: make([]uint32, 40)}, "", map[string]int{}, errors.New("status 404")}
	spec := testSpec(t, 2)
	r.pod = spec.Endpoints[0].Pod
	p := New(Options{Now: newClock().Now, Renderer: r})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	for range 12 {
		d := pick(t, p, []byte(`{"model":"m","prompt":"text"}`))
		if d.Tokens != TokensEngine {
			t.Error("a request has no tokens")
		}
		d.End(Completed)
	}
	if n := r.asked[r.pod]; n != 1 {
		t.Errorf("the engine that refuses was asked %d times in no time, want 1", n)
	}
}

// TestAnEngineThatWasNotAskedIsNotLeftAlone: the picker had no connection for it.
func TestAnEngineThatWasNotAskedIsNotLeftAlone(t *testing.T) {
	r := refusing{fakeRenderer{ids: make([]uint32, 40)}, "", map[string]int{}, ErrNotAsked}
	spec := testSpec(t, 2)
	r.pod = spec.Endpoints[0].Pod
	p := New(Options{Now: newClock().Now, Renderer: r})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	for range 12 {
		if d := pick(t, p, []byte(`{"model":"m","prompt":"text"}`)); d.Tokens != TokensEngine {
			t.Error("a request has no tokens")
		}
	}
	if n := r.asked[r.pod]; n < 6 {
		t.Errorf("the engine was asked %d times for 12 requests: it was left alone", n)
	}
}

// TestWhatAllEnginesRefuseIsAskedTwice at most, and no engine is left alone for it.
func TestWhatAllEnginesRefuseIsAskedTwice(t *testing.T) {
	r := refusing{fakeRenderer{}, "all", map[string]int{}, errors.New("status 404")}
	p := New(Options{Now: newClock().Now, Renderer: r})
	if err := p.Apply([]Spec{testSpec(t, 3)}); err != nil {
		t.Fatal(err)
	}
	pick(t, p, []byte(`{"model":"m","prompt":"text"}`)).End(Completed)
	asked := 0
	for _, n := range r.asked {
		asked += n
	}
	if asked != renderAttempts {
		t.Errorf("engines were asked %d times, want %d", asked, renderAttempts)
	}
	for _, m := range p.current.Load().pools[0].members {
		if m.renderFrom.Load() != 0 {
			t.Error("an engine is left alone for the request's fault")
		}
	}
}

// TestWhatKeptAnEngineFromRenderingIsSaid: a dead engine is no engine that cannot render.
func TestWhatKeptAnEngineFromRenderingIsSaid(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"no connection": {fmt.Errorf("%w: connection refused", ErrUnreachable), `"Engine unreachable, asking others for tokens"`},
		"too slow":      {context.DeadlineExceeded, `"Engine did not render a request in time, asking others for tokens"`},
		"another error": {errors.New("status 500"), `"Engine does not render requests, asking others for tokens"`},
	} {
		t.Run(name, func(t *testing.T) {
			var logs []string
			p := New(Options{Now: newClock().Now, Renderer: fakeRenderer{err: tc.err},
				Log: funcr.New(func(_, args string) { logs = append(logs, args) }, funcr.Options{})})
			if err := p.Apply([]Spec{testSpec(t, 1)}); err != nil {
				t.Fatal(err)
			}
			pick(t, p, []byte(`{"model":"m","prompt":"text"}`)).End(Completed)
			logs = slices.DeleteFunc(logs, func(line string) bool { return !strings.Contains(line, "asking others") })
			if len(logs) != 1 || !strings.Contains(logs[0], tc.want) {
				t.Errorf("logs %q, want one with %s", logs, tc.want)
			}
		})
	}
}
