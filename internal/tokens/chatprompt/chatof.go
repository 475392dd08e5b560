package chatprompt

import (
	"context"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/chattemplate"
)

// MessagesChat is the body of the chat that a Messages request stands for, as engines of a release make it, for callers without
// the model's files. It has only the fields that the prompt depends on. The error wraps ErrUnsupported where the chat depends on
// the template: system messages amid the turns, and thinking that is disabled.
func MessagesChat(ctx context.Context, body []byte, req *openai.Request, release string) ([]byte, error) {
	if req.Multimodal {
		return nil, unsupported("content that is not text")
	}
	r := &Renderer{release: parseRelease(release), merged: unknown}
	r.unthinking = func() (string, error) { return "", unsupported("thinking that is disabled in the way of the template") }
	var w work
	q := &request{Renderer: r, work: &w, ctx: ctx, body: body, req: req}
	if err := q.fromMessages(); err != nil {
		return nil, err
	}
	if err := q.noTransferredIDs(); err != nil {
		return nil, err
	}
	out := q.arena.NewDict(6)
	out.Set("model", chattemplate.String(req.Model))
	for _, name := range []string{"messages", "tools", "tool_choice", "reasoning_effort", "chat_template_kwargs"} {
		v, err := q.field(name)
		switch {
		case err != nil:
			return nil, err
		case !isUnset(v):
			out.Set(name, v)
		}
	}
	if err := q.quoteArguments(); err != nil {
		return nil, err
	}
	text, err := chattemplate.AppendJSON(nil, out.Value())
	return text, asUnsupported(err)
}

// quoteArguments makes the arguments of tool calls the JSON texts that they are in a chat's body.
func (q *request) quoteArguments() error {
	for _, m := range q.chat.messages.Items() {
		calls, _ := m.Dict().Get("tool_calls")
		for _, call := range calls.Items() {
			function, _ := call.Dict().Get("function")
			arguments, _ := function.Dict().Get("arguments")
			text, err := chattemplate.AppendJSON(nil, arguments)
			if err != nil {
				return asUnsupported(err)
			}
			function.Dict().Set("arguments", q.arena.Text(text))
		}
	}
	return nil
}
