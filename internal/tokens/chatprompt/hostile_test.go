package chatprompt

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/chattemplate"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
	"github.com/kvasir-dev/kvasir/test/race"
)

// expiring is a context whose budget is used up once its error was asked for n times.
type expiring struct {
	context.Context
	n int
}

func (c *expiring) Err() error {
	if c.n--; c.n < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

func (c *expiring) Done() <-chan struct{} { return make(chan struct{}) }

// allocated is how many bytes f allocates.
func allocated(f func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

const hostileBytes = 8 << 20

// TestFieldsThatNoTemplateReadsCostNothing: values of other fields are not decoded, however many they are.
func TestFieldsThatNoTemplateReadsCostNothing(t *testing.T) {
	p := newPrompter(t)
	chat := `"messages":[{"role":"user","content":"Hello there, how do you do?"}]`
	junk := `"x":[0` + strings.Repeat(",0", hostileBytes/2) + `]`
	want, _ := keysOf(t, p, t.Context(), parsed(t, `{"model":"m",`+chat+`}`))
	for name, body := range map[string]string{
		"before the messages": `{"model":"m",` + junk + `,` + chat + `}`,
		"behind the messages": `{"model":"m",` + chat + `,` + junk + `}`,
	} {
		in := parsed(t, body)
		var got int
		var err error
		if n := allocated(func() { got, err = keysOf(t, p, t.Context(), in) }); n > 1<<20 {
			t.Errorf("%s: %d bytes were allocated", name, n)
		}
		if err != nil || got != want {
			t.Errorf("%s: %d tokens, want %d: %v", name, got, want, err)
		}
	}
}

// TestHostilePromptsKeepTheBudget: whatever the prompt, little is done once the budget is used up, and the work for one
// request is bounded without one.
func TestHostilePromptsKeepTheBudget(t *testing.T) {
	p := newPrompter(t)
	text := func(piece string) string {
		return `{"model":"m","prompt":"` + strings.Repeat(piece, hostileBytes/len(piece)) + `"}`
	}
	junk := "[0" + strings.Repeat(",0", hostileBytes/2) + "]"
	for name, body := range map[string]string{
		"combining marks":           text("\u0301"),
		"decomposed characters":     text("e\u0301\u0327"),
		"digits":                    text("1"),
		"spaces":                    text(" "),
		"beginnings of tokens":      text("<"),
		"one word":                  text("a"),
		"jamo":                      text("\u1100\u1161\u11a8"),
		"junk in a message":         `{"model":"m","messages":[{"role":"user","content":"a","x":` + junk + `}]}`,
		"junk among the arguments":  `{"model":"m","messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"x":` + junk + `}}`,
		"junk in a tool":            `{"model":"m","messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"x":` + junk + `}}}]}`,
		"junk in a call's argument": `{"model":"m","messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"id":"i","type":"function","function":{"name":"f","arguments":"{\"x\":` + junk + `}"}}]}]}`,
		"escapes":                   `{"model":"m","messages":[{"role":"user","content":"a"}],"documents":[{"a":"` + strings.Repeat(`\n`, hostileBytes/2) + `"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			in := parsed(t, body)
			var err error
			n := allocated(func() { _, err = keysOf(t, p, &expiring{t.Context(), 1}, in) })
			if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrUnsupported) {
				t.Errorf("beyond the budget: %v", err)
			}
			if most := hostileBytes + 1<<20; n > most { // a text might have to be copied once
				t.Errorf("%d bytes were allocated beyond the budget", n)
			}
			if n := allocated(func() { _, err = keysOf(t, p, t.Context(), in) }); n > 8*chattemplate.MaxDecoded { // buffers that grow are copied
				t.Errorf("%d bytes were allocated without a budget: %v", n, err)
			}
		})
	}
}

// TestHostileRequestsOfOtherAPIsKeepTheBudget: the same for requests that stand for chats. Their conversion is linear, so
// that it takes little beside the decoding, for bodies that are decoded in whole and for others.
func TestHostileRequestsOfOtherAPIsKeepTheBudget(t *testing.T) {
	p := newPrompterOf(t, "0.32.0")
	size := 0
	list := func(item string) string {
		return "[" + item + strings.Repeat(","+item, size/len(item)) + "]"
	}
	responses := func(items string) string { return `{"model":"m","input":` + items + `}` }
	messages := func(rest string) string {
		return `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"a"}],` + rest + `}`
	}
	content := func(role, blocks string) string {
		return `{"model":"m","max_tokens":1,"messages":[{"role":"` + role + `","content":` + blocks + `}]}`
	}
	call := `{"type":"function_call","call_id":"i","name":"f","arguments":"{}"}`
	type hostileBody struct {
		route openai.Route
		body  string
	}
	bodies := func() map[string]hostileBody {
		return map[string]hostileBody{
			"calls of tools":             {openai.Responses, responses(list(call))},
			"calls and reasoning":        {openai.Responses, responses(list(`{"type":"reasoning","id":"r","summary":[]},` + call))},
			"results":                    {openai.Responses, responses(list(`{"type":"function_call_output","call_id":"i","output":"o"}`))},
			"assistants":                 {openai.Responses, responses(list(`{"role":"assistant","content":"a"}`))},
			"parts":                      {openai.Responses, responses(`[{"role":"user","content":` + list(`{"type":"input_text","text":"a"}`) + `}]`)},
			"tools of responses":         {openai.Responses, `{"model":"m","input":"a","tools":` + list(`{"type":"function","name":"f"}`) + `}`},
			"a deep item":                {openai.Responses, responses(`[{"role":"user","content":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}]`)},
			"junk in an item":            {openai.Responses, responses(`[{"role":"user","content":"a","x":` + list("0") + `}]`)},
			"blocks":                     {openai.Messages, content("user", list(`{"type":"text","text":"a"}`))},
			"uses of tools":              {openai.Messages, content("assistant", list(`{"type":"tool_use","id":"i","name":"f","input":{}}`))},
			"thoughts":                   {openai.Messages, content("assistant", list(`{"type":"thinking","thinking":"t"}`))},
			"results of tools":           {openai.Messages, content("user", list(`{"type":"tool_result","tool_use_id":"i","content":"r"}`))},
			"parts of a result":          {openai.Messages, content("user", `[{"type":"tool_result","tool_use_id":"i","content":`+list(`{"type":"text","text":"a"}`)+`}]`)},
			"system blocks":              {openai.Messages, messages(`"system":` + list(`{"type":"text","text":"a"}`))},
			"tools":                      {openai.Messages, messages(`"tools":` + list(`{"name":"f","input_schema":{}}`))},
			"a schema with many keys":    {openai.Messages, messages(`"tools":[{"name":"f","input_schema":{"a":` + list("0") + `}}]`)},
			"an output_config of junk":   {openai.Messages, messages(`"output_config":{"x":` + list("0") + `}`)},
			"turns, with system prompts": {openai.Messages, `{"model":"m","max_tokens":1,"messages":` + list(`{"role":"system","content":"s"}`) + `}`},
		}
	}
	sizes := []int{hostileBytes / 8, hostileBytes}
	if race.Enabled { // there is one goroutine
		sizes = sizes[:1]
	}
	for _, size = range sizes {
		for name, tc := range bodies() {
			t.Run(fmt.Sprint(name, size), func(t *testing.T) {
				in := &hostile{body: []byte(tc.body)}
				if err := openai.Parse(tc.route, in.body, &in.req); err != nil {
					t.Fatal(err)
				}
				var err error
				n := allocated(func() { _, err = keysOf(t, p, &expiring{t.Context(), 1}, in) })
				if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrUnsupported) {
					t.Errorf("beyond the budget: %v", err)
				}
				if n > hostileBytes+1<<20 {
					t.Errorf("%d bytes were allocated beyond the budget", n)
				}
				if n := allocated(func() { _, err = keysOf(t, p, t.Context(), in) }); n > 8*chattemplate.MaxDecoded {
					t.Errorf("%d bytes were allocated without a budget: %v", n, err)
				}
			})
		}
	}
}

// keysOf makes the keys of a body.
func keysOf(t *testing.T, p *Prompter, ctx context.Context, in *hostile) (tokens int, err error) { //nolint:revive // t comes first
	t.Helper()
	_, tokens, err = p.AppendKeys(ctx, nil, in.body, &in.req, tokenizer.Chain{Root: 1, BlockTokens: 16})
	return tokens, err
}

// hostile is a parsed body.
type hostile struct {
	body []byte
	req  openai.Request
}

func parsed(t *testing.T, body string) *hostile {
	t.Helper()
	in := &hostile{body: []byte(body)}
	route := openai.ChatCompletions
	if strings.HasPrefix(body, `{"model":"m","prompt"`) {
		route = openai.Completions
	}
	if err := openai.Parse(route, in.body, &in.req); err != nil {
		t.Fatal(err)
	}
	return in
}
