package chatprompt

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/chattemplate"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
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
