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
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/test/race"
)

// court is a pool of endpoints that all hold one prompt of 200 tokens, whatever it is asked by: a chat, a text or ids.
type court struct {
	t *testing.T
	c *clock
	p *Picker
}

const courtTokens, courtHit = 200, 192

func newCourt(t *testing.T, endpoints int) *court {
	t.Helper()
	spec := testSpec(t, endpoints)
	spec.Policy.SpeculationOff = true
	spec.Policy.Admission.SetsTransfer = true
	spec.Adapters = []string{"adapter"}
	c := &court{t: t, c: newClock()}
	c.p = newPicker(t, c.c, spec)
	prompter := fakePrompter{tokens: courtTokens}
	c.p.SetExact("default", "m", &Exact{Texts: prompter, Chats: prompter})
	for _, f := range c.p.Feeds() {
		for _, model := range []string{"m", "adapter"} {
			for _, salt := range []string{"", "s"} {
				hold(f, kvblock.AppendKeys(nil, spec.Seed.Root(model, salt), make([]uint32, courtTokens), 16)...)
			}
		}
	}
	return c
}

// asksFor is a chat of a model, with further fields.
func asksFor(model, messages, fields string) *Request {
	return &Request{Route: openai.ChatCompletions, Body: fmt.Appendf(nil, `{"model":%q,"messages":[%s]%s}`, model, messages, fields)}
}

const userTurn = `{"role":"user","content":"x"}`

// serve answers a request that so many tokens were cached; -1 says nothing.
func (c *court) serve(in *Request, cached int) *Decision {
	c.t.Helper()
	d := pickFor(c.t, c.p, in)
	d.Usage(courtTokens, cached)
	d.End(Completed)
	return d
}

// oddWays are the ways in which a client can make the engine find less than was predicted, or say so, and count other tokens.
var oddWays = map[string]struct {
	in     *Request
	cached int
}{
	"echo":                         {asksFor("m", userTurn, `,"echo":true`), 0},
	"echo in other words":          {asksFor("m", userTurn, `,"echo":"YES","top_logprobs":null`), 0},
	"log-probabilities":            {asksFor("m", userTurn, `,"prompt_logprobs":0`), 0},
	"transfer of blocks":           {asksFor("m", userTurn, `,"kv_transfer_params":{"do_remote_prefill":true}`), 0},
	"cache salts":                  {asksFor("m", userTurn, `,"cache_salt":"s"`), 0},
	"truncated prompts":            {asksFor("m", userTurn, `,"truncate_prompt_tokens":64`), 0},
	"priorities":                   {asksFor("m", userTurn, `,"priority":-100`), 0},
	"a field of a later release":   {asksFor("m", userTurn, `,"no_cache":true`), 0},
	"beams":                        {asksFor("m", userTurn, `,"use_beam_search":true,"n":2`), -1},
	"template arguments":           {asksFor("m", userTurn, `,"chat_template_kwargs":{"a":1}`), 0},
	"a template":                   {asksFor("m", userTurn, `,"chat_template":"x"`), 0},
	"tools":                        {asksFor("m", userTurn, `,"tools":[{"type":"function","function":{"name":"f"}}]`), 0},
	"developer messages":           {asksFor("m", `{"role":"developer","content":"x"},`+userTurn, ""), 0},
	"reasoning":                    {asksFor("m", userTurn+`,{"role":"assistant","reasoning":"r","content":"x"}`, ""), 0},
	"parts":                        {asksFor("m", `{"role":"user","content":[{"type":"text","text":"x"}]}`, ""), 0},
	"images":                       {asksFor("m", `{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"}}]}`, ""), 0},
	"an adapter with other blocks": {asksFor("adapter", userTurn, ""), 0},
	"texts":                        {&Request{Route: openai.Completions, Body: []byte(`{"model":"m","prompt":"x"}`)}, 0},
	"lists of texts":               {&Request{Route: openai.Completions, Body: []byte(`{"model":"m","prompt":["x","y"]}`)}, 0},
	"ids":                          {&Request{Route: openai.Completions, Body: completionOf(make([]int, courtTokens))}, 0},
}

func TestNoClientTakesMatchingFromOthers(t *testing.T) {
	for name, way := range oddWays {
		t.Run(name, func(t *testing.T) {
			c := newCourt(t, 3)
			good := asksFor("m", userTurn, `,"temperature":0.5,"stream":false`)
			hour := 3600
			if race.Enabled { // which has one goroutine to look at
				hour = 600
			}
			for i := range hour {
				c.serve(way.in, way.cached)
				if i%10 == 0 {
					if d := c.serve(good, courtHit); d.Distrusted || d.Targets[0].Predicted != courtHit {
						t.Fatalf("after %d crafted requests a good one is predicted %d tokens, distrusted %v", i+1, d.Targets[0].Predicted, d.Distrusted)
					}
				}
				c.c.advance(time.Second)
			}
		})
	}
}

// courtRenderer lets engines make the same tokens as the picker of a court.
type courtRenderer struct{ tokenized bool }

func (r courtRenderer) Tokens(context.Context, *endpoint.Endpoint, *openai.Request, []byte, string) (Rendered, error) {
	return Rendered{IDs: make([]uint32, courtTokens), Tokenized: r.tokenized}, nil
}

// TestNoClientTakesTokensFromOthers: there are no tenants, and the engines count other tokens than were made for all requests of one
// shape, which are nine of ten. Requests of other classes keep their tokens, wherever those are made.
func TestNoClientTakesTokensFromOthers(t *testing.T) {
	const tools = `,"tools":[{"type":"function","function":{"name":"f"}}]`
	for source, want := range map[string]TokenSource{"process": TokensExact, "engine": TokensEngine, "tokenize": TokensTokenize} {
		for name, way := range oddWays {
			t.Run(source+"/"+name, func(t *testing.T) {
				c := newCourt(t, 3)
				exact := Exact{Texts: fakePrompter{tokens: courtTokens}, Chats: fakePrompter{tokens: courtTokens}}
				doubts := [openai.NumKinds]int{}
				c.p.options.Doubt = func(_, _ string, kinds openai.Kinds) { // as tokencheck does, without its hour
					for kind := range kinds.All {
						if doubts[kind]++; doubts[kind] == 3 {
							exact.Unproven |= openai.KindsOf(kind)
							now := exact
							c.p.SetExact("default", "m", &now)
						}
					}
				}
				if want != TokensExact {
					c.p.SetExact("default", "m", nil)
					c.p.options.Renderer = courtRenderer{want == TokensTokenize}
				}
				good := []*Request{asksFor("m", userTurn, `,"temperature":0.5`)}
				if name != "tools" {
					good = append(good, asksFor("m", userTurn, tools))
				}
				for i := range 600 {
					d := pickFor(t, c.p, way.in)
					d.Usage(courtTokens+1, way.cached)
					d.End(Completed)
					for _, in := range good {
						if i%10 != 0 {
							continue
						}
						if d := c.serve(in, courtHit); d.Tokens != want || d.Targets[0].Differs {
							t.Fatalf("after %d odd requests the tokens of a good one are %v, doubts %v", i+1, d.Tokens, doubts)
						}
					}
					c.c.advance(time.Second)
				}
			})
		}
	}
}

// The way that is left is to send what others send: there, tenants weigh the same however many requests they send.
func TestNoTenantTakesMatchingFromOthersByWhatTheySendToo(t *testing.T) {
	now := time.Unix(1e9, 0)
	var r record
	for i := range 10_000 {
		v := verdict{announced: 100_000, tenant: 1}
		if i%100 == 99 {
			v = verdict{announced: 160, found: 160, tenant: 2}
		}
		if i >= 100 && r.lost.Load() {
			t.Fatalf("trust is lost at answer %d", i)
		}
		if i < 100 && i%3 == 0 { // the other one is there from the beginning
			r.judge(now, verdict{announced: 160, found: 160, tenant: 2})
		}
		r.judge(now, v)
		now = now.Add(100 * time.Millisecond)
	}
}

func TestAnEngineThatReportsHitsWronglyIsDistrustedAlone(t *testing.T) {
	for name, report := range map[string]func(i int) int{
		"nothing, always":     func(int) int { return 0 },
		"a little, always":    func(int) int { return 16 },
		"nothing, mostly":     func(i int) int { return courtHit * (i % 4 / 3) },
		"nothing, after hits": func(i int) int { return courtHit * max(0, 1-i/100) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCourt(t, 3)
			in := asksFor("m", userTurn, "")
			liar, served := testEndpoint(1), 0
			for i := range 1200 {
				turn := testEndpoint(i % 3)
				in.Allow = func(ep *endpoint.Endpoint) bool { return ep.Pod == turn.Pod }
				d := pickFor(t, c.p, in)
				cached := courtHit
				if turn.Pod == liar.Pod {
					cached = report(served)
					served++
				} else if d.Targets[0].Distrusted || d.Targets[0].Predicted != courtHit {
					t.Fatalf("request %d: %s is predicted %d, distrusted %v", i, turn.Pod, d.Targets[0].Predicted, d.Targets[0].Distrusted)
				}
				c.c.advance(time.Second)
				d.Usage(courtTokens, cached)
				d.End(Completed)
			}
			got := c.p.Stats()[0].Trust
			want := Distrust{Endpoint: "pod-1/0", Tokens: TokensExact, Kind: openai.KindChat}
			if !slices.ContainsFunc(got.Distrusted, func(d Distrust) bool {
				d.Announced, d.Found = 0, 0
				return d == want
			}) || len(got.Distrusted) != 1 {
				t.Errorf("served %d, trust %+v", served, got)
			}
		})
	}
}

// The index learns from answers what events do not show. An answer about other tokens than the request's keys, or to a
// request with fields that change what the engine looks up, must not change it.
func TestNoClientTeachesTheIndexBlocksThatAreNotThere(t *testing.T) {
	for name, tc := range map[string]struct {
		fields string
		prompt int
		learns bool
	}{
		"a plain request":             {`"n":1`, 200, true},
		"a count of other tokens":     {`"n":1`, 201, false},
		"a truncated prompt":          {`"truncate_prompt_tokens":200`, 200, false},
		"a field of a later release":  {`"look_up":"all"`, 200, false},
		"a transfer from elsewhere":   {`"kv_transfer_params":{"do_remote_prefill":true}`, 200, false},
		"log-probabilities of prompt": {`"prompt_logprobs":1`, 200, false},
	} {
		t.Run(name, func(t *testing.T) {
			spec := testSpec(t, 1)
			spec.Policy.Admission.SetsTransfer = true
			p := newPicker(t, newClock(), spec)
			d := pick(t, p, withFields(completion("m", 0, 200, true), tc.fields))
			d.Usage(tc.prompt, 192)
			d.End(Completed)
			next := pick(t, p, completion("m", 0, 200, true))
			defer next.End(Completed)
			if learned := next.Targets[0].Predicted > 0; learned != tc.learns {
				t.Errorf("the next request is predicted %d tokens", next.Targets[0].Predicted)
			}
		})
	}
}

// Engines announce the blocks of a report as if they were stored again. So no policy lets a client ask for one.
func TestNoClientAsksForReportsOfCachedBlocks(t *testing.T) {
	spec := testSpec(t, 1)
	spec.Policy.Admission.SetsTransfer, spec.Policy.Admission.SetsPriority = true, true
	p := newPicker(t, newClock(), spec)
	for _, fields := range []string{
		`"vllm_xargs":{"kv_cache_report_mode":"full"}`, `"vllm_xargs":{"a":1,"kv_cache\u005freport_mode":"full"}`,
		`"vllm_xargs":{"kv_cache_report_mode":"full"},"vllm_xargs":{}`, `"session_id":"` + strings.Repeat("s", openai.MaxEventText) + `"`,
	} {
		body := withFields(completion("m", 0, 200, true), fields)
		for _, unparsed := range []bool{false, true} {
			var refused *Error
			_, err := p.Pick(t.Context(), &Request{Route: openai.Completions, Body: body, Unparsed: unparsed})
			if !errors.As(err, &refused) || refused.Status != 400 || refused.Code != "field_not_allowed" {
				t.Errorf("%s, unparsed %v: %v", fields, unparsed, err)
			}
		}
	}
	for n, want := range map[int]bool{openai.MaxEventText: false, openai.MaxEventText + 1: true} {
		header := func(name string) string { return map[string]string{"x-session-id": strings.Repeat("s", n)}[name] }
		var refused *Error
		d, err := p.Pick(t.Context(), &Request{Route: openai.Completions, Body: completion("m", 0, 200, true), Header: header})
		if errors.As(err, &refused) != want {
			t.Errorf("a session of %d bytes in the header: %v", n, err)
		}
		if d != nil {
			d.End(Completed)
		}
	}
}

// An endpoint that is distrusted and leaves takes its record with it.
func TestDistrustEndsWithTheLifeOfTheEndpoint(t *testing.T) {
	c := newCourt(t, 1)
	in := asksFor("m", userTurn, "")
	for range 2 * trustEnough {
		c.serve(in, 0)
		c.c.advance(3 * time.Second)
	}
	if got := c.p.Stats()[0].Trust; !got.Lost || len(got.Distrusted) != 1 || got.Distrusted[0].Found != 0 || got.Distrusted[0].Announced == 0 {
		t.Fatalf("trust %+v", got)
	}
	spec := testSpec(t, 1)
	spec.Endpoints[0].ID.Pod = "another"
	if err := c.p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	if got := c.p.Stats()[0].Trust; got.Lost || got.Losses != 1 || len(got.Distrusted) != 0 {
		t.Errorf("trust %+v", got)
	}
}

// completionOf is a request body with token ids.
func completionOf(ids []int) []byte {
	text := fmt.Sprint(ids)
	return []byte(`{"model":"m","prompt":` + strings.ReplaceAll(text, " ", ",") + `}`)
}
