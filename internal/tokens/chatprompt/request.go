package chatprompt

import (
	"context"
	"slices"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/chattemplate"
)

// request is one chat request on its way to a prompt.
type request struct {
	*Renderer
	*work
	ctx   context.Context // lives as long as one call of prompt
	body  []byte
	req   *openai.Request
	model *model
	chat  *chat // the chat that a request of another API stands for; nil for chats
	// calls are the tool calls of the last message, while items of Responses are converted. They are kept here so that a call can
	// be appended without a copy of those before it: a body can have very many.
	calls []chattemplate.Value
}

// prompt leaves the prompt in w.text. Of the body only the fields that prompts depend on are decoded.
func (r *Renderer) prompt(ctx context.Context, w *work, body []byte, req *openai.Request) (special bool, err error) {
	if req.Multimodal && !w.takesImages {
		return false, unsupported("content that is not text")
	}
	q := &request{Renderer: r, work: w, ctx: ctx, body: body, req: req}
	switch req.Route {
	case openai.ChatCompletions:
	case openai.Messages:
		err = q.fromMessages()
	case openai.Responses:
		err = q.fromResponses()
	default:
		err = unsupported("%s", req.Route)
	}
	if err != nil {
		return false, err
	}
	special, err = q.flag("add_special_tokens", req.AddsSpecial())
	if err != nil {
		return false, err
	}
	return special, q.render(ctx)
}

// field is a field of the chat; KindMissing if it is absent.
func (q *request) field(name string) (chattemplate.Value, error) {
	if q.chat != nil {
		return q.chat.field(q, name)
	}
	return q.given(name)
}

// given decodes a top-level field of the request; KindMissing if it is absent.
func (q *request) given(name string) (chattemplate.Value, error) {
	at, end, found, ok := q.req.Span(name)
	switch {
	case !ok:
		return chattemplate.Value{}, unsupported("so many fields")
	case !found:
		return chattemplate.Value{}, nil
	}
	v, err := q.arena.DecodeSpan(q.ctx, q.body, at, end, q.req)
	if err != nil && q.ctx.Err() == nil {
		err = unsupported("%v", err)
	}
	return v, err
}

// member is a field of the chat; not ok when it is absent or null.
func (q *request) member(name string) (v chattemplate.Value, ok bool, err error) {
	v, err = q.field(name)
	return v, err == nil && !isUnset(v), err
}

func (q *request) flag(name string, otherwise bool) (bool, error) {
	v, err := q.field(name)
	switch {
	case err != nil:
		return false, err
	case v.Kind() == chattemplate.KindMissing:
		return otherwise, nil
	case v.Kind() != chattemplate.KindBool:
		return false, unsupported("%s of an unusual type", name)
	}
	return v.Truth(), nil
}

// foreign are fields with which the engine does something that is not known here.
var foreign = []string{"chat_template", "truncation_side"}

// noTransferredIDs fails if kv_transfer_params has ids, which the engine uses as the prompt.
func (q *request) noTransferredIDs() error {
	v, ok, err := q.member("kv_transfer_params")
	if err != nil || !ok {
		return err
	}
	if _, ok := v.Dict().Get("prompt_token_ids"); ok {
		return unsupported("ids in kv_transfer_params")
	}
	return nil
}

func (q *request) render(ctx context.Context) error {
	for _, name := range foreign {
		if value, ok := q.req.Raw(name); q.chat == nil && (value != nil || !ok) {
			return unsupported("%s in the request", name)
		}
	}
	if err := q.noTransferredIDs(); err != nil {
		return err
	}
	tools, err := q.tools()
	if err != nil {
		return err
	}
	q.model = q.plain
	if tools.Kind() != chattemplate.KindNone {
		q.model = q.withTool
	}
	conversation, err := q.messages()
	if err != nil {
		return err
	}
	generate, err := q.flag("add_generation_prompt", true)
	if err != nil {
		return err
	}
	resume, err := q.flag("continue_final_message", false)
	switch {
	case err != nil:
		return err
	case resume && generate:
		return unsupported("continue_final_message with add_generation_prompt")
	}
	documents, err := q.documents()
	if err != nil {
		return err
	}
	q.vars = append(q.vars, q.tokens...)
	if err := q.kwargs(); err != nil {
		return err
	}
	q.set("tools", tools)
	q.set("documents", documents)
	q.set("add_generation_prompt", chattemplate.Bool(generate))
	if resume {
		return q.resumed(ctx, conversation)
	}
	q.text, err = q.apply(ctx, q.text, conversation)
	return err
}

func (q *request) set(name string, v chattemplate.Value) {
	q.vars = append(q.vars, chattemplate.Var{Name: name, Value: v})
}

// apply renders the template for a conversation.
func (q *request) apply(ctx context.Context, dst []byte, conversation []chattemplate.Value) ([]byte, error) {
	in := chattemplate.Input{Limits: q.options.Limits}
	if q.model.UsesClock() {
		var err error
		if in.Now, err = q.now(); err != nil {
			return dst, err
		}
	}
	vars := q.vars // the messages are this render's alone
	vars = append(vars, chattemplate.Var{Name: "messages", Value: chattemplate.List(conversation)})
	in.Vars = vars
	out, err := q.model.Render(ctx, dst, &q.arena, &in)
	return out, asUnsupported(err)
}

// documents are a list of objects of strings, or None.
func (q *request) documents() (chattemplate.Value, error) {
	v, ok, err := q.member("documents")
	if !ok {
		return chattemplate.None(), err
	}
	if v.Kind() != chattemplate.KindList {
		return v, unsupported("documents of an unusual type")
	}
	for _, document := range v.Items() {
		d := document.Dict()
		if d == nil {
			return v, unsupported("documents of an unusual type")
		}
		for i := range d.Len() {
			if _, text := d.At(i); text.Kind() != chattemplate.KindString {
				return v, unsupported("documents of an unusual type")
			}
		}
	}
	return v, nil
}

// fixed are the names that are not for chat_template_kwargs: fields of the request, and what transformers itself takes
// or passes.
var fixed = []string{
	"add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents", "max_length", "messages",
	"padding", "return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize", "tokenizer_kwargs", "tools",
	"truncation",
}

// kwargs sets the further variables of the template: chat_template_kwargs, and what reasoning_effort means. A variable that
// the template does not use does not matter. The engine's own (--default-chat-template-kwargs) are not known: where they
// matter, the proof of the tokenizer fails.
func (q *request) kwargs() error {
	v, ok, err := q.member("chat_template_kwargs")
	if err != nil {
		return err
	}
	given := v.Dict()
	if ok && given == nil {
		return unsupported("chat_template_kwargs of an unusual type")
	}
	for i := range given.Len() {
		key, v := given.At(i)
		name := key.Text()
		switch {
		case slices.Contains(fixed, name):
			return unsupported("%s among chat_template_kwargs", name)
		case !q.model.Uses(name):
			continue
		case v.Kind() == chattemplate.KindNone || v.Text() == "auto":
			// Newer releases take such values for none, unless the engine has a default.
			if q.release.has(fieldsWin) == unknown {
				return unsupported("unset values among chat_template_kwargs")
			}
			if q.release.has(fieldsWin) == yes {
				continue
			}
		}
		q.set(name, v)
	}
	return q.effort(given)
}

// effort sets what reasoning_effort means.
func (q *request) effort(given *chattemplate.Dict) error {
	v, ok, err := q.member("reasoning_effort")
	if !ok {
		return err
	}
	if v.Kind() != chattemplate.KindString {
		return unsupported("reasoning_effort of an unusual type")
	}
	if q.model.Uses("reasoning_effort") {
		_, both := given.Get("reasoning_effort")
		if both && q.release.has(fieldsWin) != yes || q.release.has(effortPassed) != yes {
			return unsupported("reasoning_effort")
		}
		if v.Text() != "auto" {
			q.set("reasoning_effort", v)
		}
	}
	if _, ok := given.Get("enable_thinking"); ok || !q.model.Uses("enable_thinking") {
		return nil
	}
	switch q.release.has(effortThinks) {
	case yes:
		q.set("enable_thinking", chattemplate.Bool(v.Text() != "none"))
	case unknown:
		return unsupported("reasoning_effort")
	}
	return nil
}
