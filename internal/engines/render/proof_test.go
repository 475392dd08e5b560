package render

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

func TestAProofTakesTheMostExactRoute(t *testing.T) {
	const served = "/v1/chat/completions"
	body := strings.Replace(chatBody, `,"stream":true`, `,"return_token_ids":true`, 1)
	rendered := answer{200, `{"token_ids":[1,2]}`}
	cases := map[string]struct {
		answers map[string]answer
		want    Answer
		err     error
		status  int
		asked   []string
	}{
		"rendered": {map[string]answer{chatRender: rendered}, Answer{IDs: []uint32{1, 2}, Source: Rendered}, nil, 0, []string{chatRender}},
		"served where the route is switched off": {
			map[string]answer{chatRender: {403, routeClosed}, served: {200, `{"choices":[{"token_ids":[9]}],"prompt_token_ids":[3,4]}`}},
			Answer{IDs: []uint32{3, 4}, Source: Served}, nil, 0, []string{chatRender, served}},
		"served by an engine without the route, as a completion": {
			map[string]answer{served: {200, `{"choices":[{"prompt_token_ids":[5]}]}`}},
			Answer{IDs: []uint32{5}, Source: Served}, nil, 0, []string{chatRender, served}},
		"tokenized by an engine that does not tell what it has served": {
			map[string]answer{served: {200, `{"choices":[{}]}`}, "/tokenize": {200, `{"tokens":[6]}`}},
			Answer{IDs: []uint32{6}, Source: Tokenized}, nil, 0, []string{chatRender, served, "/tokenize"}},
		"tokenized by an engine that generates nothing": {
			map[string]answer{served: {404, routeAbsent}, "/tokenize": {200, `{"tokens":[6]}`}},
			Answer{IDs: []uint32{6}, Source: Tokenized}, nil, 0, []string{chatRender, served, "/tokenize"}},
		"a model that is not served": {map[string]answer{served: {404, `{"error":{"message":"The model does not exist.","type":"NotFoundError","code":404}}`}, "/tokenize": {200, `{"tokens":[6]}`}},
			Answer{}, nil, 404, []string{chatRender, served}},
		"a refusal is the answer": {map[string]answer{chatRender: {403, routeClosed}, served: {400, `{}`}, "/tokenize": {200, `{"tokens":[6]}`}},
			Answer{}, nil, 400, []string{chatRender, served}},
		"an engine in trouble": {map[string]answer{chatRender: {403, routeClosed}, served: {503, `{}`}}, Answer{}, nil, 503, []string{chatRender, served}},
		"an answer that is no JSON": {map[string]answer{chatRender: {403, routeClosed}, served: {200, `<html>`}}, Answer{}, ErrAnswer, 0,
			[]string{chatRender, served}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			e := &engine{answers: tc.answers}
			got, err := newClient(t, Options{}).Proof(t.Context(), start(t, e), openai.ChatCompletions, []byte(body), "key")
			wantError(t, err, tc.err, tc.status)
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(tc.asked, e.paths()); d != "" {
				t.Error(d)
			}
			if last := e.asked[len(e.asked)-1]; last.Path == served && (last.Body != body || last.Auth != "Bearer key") {
				t.Errorf("the engine was asked to serve %+v", last)
			}
		})
	}
}

// TestAProofOfOtherAPIs: without a render route, answers to Responses requests have ids, and those to Messages requests their
// number. An engine that does not serve an API, or fails at it, says nothing about chats.
func TestAProofOfOtherAPIs(t *testing.T) {
	const messages, responses = "/v1/messages", "/v1/responses"
	cases := map[string]struct {
		route  openai.Route
		served answer
		want   Answer
		err    error
		status int
	}{
		"ids of a response": {openai.Responses, answer{200, `{"output":[],"input_messages":[{"type":"raw_message_tokens","message":"x","tokens":[1,2]}]}`},
			Answer{IDs: []uint32{1, 2}, Source: Served}, nil, 0},
		"a response without ids":        {openai.Responses, answer{200, `{"output":[],"usage":{"input_tokens":3}}`}, Answer{}, ErrUnsupported, 0},
		"a response with other content": {openai.Responses, answer{200, `{"input_messages":[{"role":"system"},{"role":"user"}]}`}, Answer{}, ErrUnsupported, 0},
		"the number of a message":       {openai.Messages, answer{200, `{"usage":{"input_tokens":7,"output_tokens":1}}`}, Answer{Number: 7, Source: Served}, nil, 0},
		"a number in parts": {openai.Messages, answer{200, `{"usage":{"input_tokens":7,"cache_read_input_tokens":16,"cache_creation_input_tokens":2}}`},
			Answer{Number: 25, Source: Served}, nil, 0},
		"no number":              {openai.Messages, answer{200, `{"usage":null}`}, Answer{}, ErrUnsupported, 0},
		"an API that is absent":  {openai.Messages, answer{404, routeAbsent}, Answer{}, ErrUnsupported, 0},
		"an engine that fails":   {openai.Responses, answer{500, `{"error":{"type":"InternalServerError"}}`}, Answer{}, ErrUnsupported, 0},
		"another model":          {openai.Messages, answer{404, `{"type":"error","error":{"type":"NotFoundError","message":"x"}}`}, Answer{}, nil, 404},
		"a refusal":              {openai.Messages, answer{400, `{}`}, Answer{}, nil, 400},
		"an engine that is full": {openai.Responses, answer{503, `{}`}, Answer{}, nil, 503},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			path, body := messages, messagesBody
			if tc.route == openai.Responses {
				path, body = responses, responsesBody
			}
			e := &engine{answers: map[string]answer{path + "/render": {403, routeClosed}, path: tc.served}}
			got, err := newClient(t, Options{}).Proof(t.Context(), start(t, e), tc.route, []byte(body), "key")
			wantError(t, err, tc.err, tc.status)
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff([]string{path + "/render", path}, e.paths()); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestWhatAnEngineLacksIsKnownUntilItIsGone(t *testing.T) {
	e := &engine{answers: map[string]answer{chatRender: {403, routeClosed}, completionRender: {403, routeClosed}, "/tokenize": {200, `{"tokens":[1]}`}}}
	c := newClient(t, Options{})
	ep := start(t, e)
	ask := func(ep *endpoint.Endpoint, route openai.Route, body string) error {
		_, err := c.Tokens(t.Context(), ep, route, []byte(body), "")
		return err
	}
	if got := c.Lacks(ep); got != LacksNothing {
		t.Errorf("an engine that was not asked lacks %d", got)
	}
	for range 2 {
		if err := ask(ep, openai.ChatCompletions, chatBody); err != nil {
			t.Fatal(err)
		}
	}
	if err := ask(ep, openai.Completions, completionBody); err != nil {
		t.Fatal(err)
	}
	// One flag switches all routes off, so that the other route is not asked.
	if d := cmp.Diff([]string{chatRender, "/tokenize", "/tokenize", "/tokenize"}, e.paths()); d != "" {
		t.Error(d)
	}
	if got := c.Lacks(ep); got != SwitchedOff {
		t.Errorf("the engine lacks %d, want that its routes are switched off", got)
	}
	// The engine is started again with the flag, at the same address: a question in between finds no engine there.
	gone := *ep
	c.forget(&gone)
	e.mu.Lock()
	e.answers[chatRender] = answer{http.StatusOK, `{"token_ids":[1]}`}
	e.mu.Unlock()
	got, err := c.Tokens(t.Context(), ep, openai.ChatCompletions, []byte(chatBody), "")
	if err != nil || got.Source != Rendered || c.Lacks(ep) != LacksNothing {
		t.Errorf("got %+v, %v; the engine lacks %d", got, err, c.Lacks(ep))
	}
}

func TestAnEngineThatIsNotReachedIsForgotten(t *testing.T) {
	c := newClient(t, Options{})
	ep := &endpoint.Endpoint{Socket: t.TempDir() + "/none"}
	c.setLack(ep, openai.ChatCompletions, SwitchedOff, time.Now())
	if _, err := c.Tokens(t.Context(), ep, openai.ChatCompletions, []byte(chatBody), ""); err == nil {
		t.Fatal("an engine that is not there has answered")
	}
	if got := c.Lacks(ep); got != LacksNothing {
		t.Errorf("the engine lacks %d though another may answer next", got)
	}
}
