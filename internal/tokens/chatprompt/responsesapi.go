package chatprompt

import (
	"slices"

	"github.com/kvasir-dev/kvasir/internal/tokens/chattemplate"
)

// fromResponses makes a Responses request the chat that the engine makes of it (vLLM's construct_input_messages and
// construct_tool_dicts, from v0.27 on). What an engine keeps (previous_response_id) is not known here.
func (q *request) fromResponses() error {
	if q.release.has(responsesKnown) != yes {
		return unsupported("%s", q.req.Route)
	}
	q.chat = &chat{asMade: true}
	if truncation, err := q.given("truncation"); err != nil {
		return err
	} else if truncation.Kind() != chattemplate.KindMissing && truncation.Text() != "disabled" {
		return unsupported("a prompt shortened to the model's length")
	}
	var out items
	instructions, err := q.given("instructions")
	switch {
	case err != nil:
		return err
	case instructions.Text() != "":
		out = append(out, q.newMessage("system", instructions))
	case !isUnset(instructions) && instructions.Kind() != chattemplate.KindString:
		return unsupported("instructions of an unusual type")
	}
	input, err := q.given("input")
	switch {
	case err != nil:
		return err
	case input.Kind() == chattemplate.KindString:
		out = append(out, q.newMessage("user", input))
	case input.Kind() != chattemplate.KindList:
		return unsupported("input of an unusual type")
	}
	for _, item := range input.Items() {
		if out, err = q.item(out, item.Dict()); err != nil {
			return err
		}
	}
	q.chat.messages = out.list(q)
	if err := q.reasoningEffort(); err != nil {
		return err
	}
	return q.responsesTools()
}

// items are the messages of a chat so far.
type items []*chattemplate.Dict

func (t items) list(q *request) chattemplate.Value {
	out := q.arena.NewList(len(t))
	for i, m := range t {
		out[i] = m.Value()
	}
	return chattemplate.List(out)
}

// answer is the last message if it is an assistant's that lacks a field; else nil.
func (t items) answer(lacking string) *chattemplate.Dict {
	if len(t) == 0 || roleOf(t[len(t)-1].Value()) != "assistant" {
		return nil
	}
	if _, has := t[len(t)-1].Get(lacking); has {
		return nil
	}
	return t[len(t)-1]
}

// add sets a field of the last message, if that is an assistant's that lacks it, and else of a new one.
func (t items) add(q *request, field string, v chattemplate.Value) items {
	if m := t.answer(field); m != nil {
		m.Set(field, v)
		return t
	}
	m := q.newMessage("assistant", chattemplate.Value{})
	m.Set(field, v)
	return append(t, m)
}

// item appends what one item of the input becomes. What an assistant has thought, said and called is one message.
func (q *request) item(out items, item *chattemplate.Dict) (items, error) {
	kind, _ := item.Get("type")
	role, _ := item.Get("role")
	if status, _ := item.Get("status"); !isUnset(status) && status.Text() != "completed" {
		return out, unsupported("items that are not completed") // the engine might continue them
	}
	switch kind.Text() {
	case "function_call":
		return q.functionCall(out, item)
	case "function_call_output":
		return q.functionOutput(out, item)
	case "reasoning":
		text, err := thought(item)
		return out.add(q, "reasoning", text), err
	case "message", "":
	default:
		return out, unsupported("items of the input of an unusual type")
	}
	if role.Text() == "assistant" {
		text, err := said(item)
		return out.add(q, "content", text), err
	}
	if !slices.Contains([]string{"user", "system", "developer"}, role.Text()) || !hasOnly(item, "type", "role", "content") {
		return out, unsupported("messages of an unusual type")
	}
	content, _ := item.Get("content")
	content, err := q.inputContent(content)
	return append(out, q.newMessage(role.Text(), content)), err
}

// hasOnly reports whether all keys of a dict are among names.
func hasOnly(d *chattemplate.Dict, names ...string) bool {
	for i := range d.Len() {
		if key, _ := d.At(i); !slices.Contains(names, key.Text()) {
			return false
		}
	}
	return true
}

// inputContent is content as chats have it: a text, or text parts.
func (q *request) inputContent(content chattemplate.Value) (chattemplate.Value, error) {
	switch content.Kind() {
	case chattemplate.KindString:
		return content, nil
	case chattemplate.KindList:
	default:
		return content, unsupported("content of an unusual type")
	}
	out := q.arena.NewList(len(content.Items()))
	for i, item := range content.Items() {
		part := item.Dict()
		kind, _ := part.Get("type")
		text, _ := part.Get("text")
		if url, _ := part.Get("image_url"); q.takesImages && kind.Text() == "input_image" && url.Kind() == chattemplate.KindString &&
			hasOnly(part, "type", "image_url", "detail") {
			out[i] = q.imageURL("url", url)
			continue
		}
		if kind.Text() != "input_text" || text.Kind() != chattemplate.KindString || !hasOnly(part, "type", "text") {
			return content, unsupported("parts of the input that are no text")
		}
		out[i] = q.part(text, nil)
	}
	return chattemplate.List(out), nil
}

// said is the text of an assistant's message: of several parts the engine takes the first.
func said(item *chattemplate.Dict) (chattemplate.Value, error) {
	kind, _ := item.Get("type")
	content, _ := item.Get("content")
	if content.Kind() == chattemplate.KindString {
		return content, nil
	}
	if kind.Text() != "message" || content.Kind() != chattemplate.KindList || len(content.Items()) == 0 {
		return content, unsupported("an assistant's content of an unusual type")
	}
	for _, part := range content.Items() {
		kind, _ := part.Dict().Get("type")
		text, _ := part.Dict().Get("text")
		if kind.Text() != "output_text" || text.Kind() != chattemplate.KindString {
			return content, unsupported("parts of an assistant's message that are no text")
		}
	}
	text, _ := content.Items()[0].Dict().Get("text")
	return text, nil
}

// thought is the text of an item of reasoning: of its content, or else of its summary, the first.
func thought(item *chattemplate.Dict) (chattemplate.Value, error) {
	content, _ := item.Get("content")
	summary, ok := item.Get("summary")
	encrypted, _ := item.Get("encrypted_content")
	if !ok || summary.Kind() != chattemplate.KindList || !isUnset(encrypted) ||
		!isUnset(content) && content.Kind() != chattemplate.KindList {
		return content, unsupported("reasoning of an unusual type")
	}
	for _, v := range []chattemplate.Value{content, summary} {
		if len(v.Items()) == 0 {
			continue
		}
		text, _ := v.Items()[0].Dict().Get("text")
		if text.Kind() != chattemplate.KindString {
			return content, unsupported("reasoning that is no text")
		}
		return text, nil
	}
	return chattemplate.String(""), nil
}

func (q *request) functionCall(out items, item *chattemplate.Dict) (items, error) {
	id, _ := item.Get("call_id")
	name, _ := item.Get("name")
	arguments, _ := item.Get("arguments")
	namespace, _ := item.Get("namespace")
	for _, v := range []chattemplate.Value{id, name, arguments} {
		if v.Kind() != chattemplate.KindString {
			return out, unsupported("tool calls of an unusual type")
		}
	}
	if !isUnset(namespace) {
		return out, unsupported("tools in namespaces")
	}
	call := q.called(id, name, arguments)
	if len(out) > 0 && out.answer("tool_calls") == nil && roleOf(out[len(out)-1].Value()) == "assistant" {
		q.calls = append(q.calls, call)
		out[len(out)-1].Set("tool_calls", chattemplate.List(q.calls))
		return out, nil
	}
	q.calls = []chattemplate.Value{call}
	return out.add(q, "tool_calls", chattemplate.List(q.calls)), nil
}

func (q *request) functionOutput(out items, item *chattemplate.Dict) (items, error) {
	id, _ := item.Get("call_id")
	if id.Kind() != chattemplate.KindString {
		return out, unsupported("results of tools of an unusual type")
	}
	output, _ := item.Get("output")
	content, err := q.inputContent(output)
	m := q.newMessage("tool", content)
	m.Set("tool_call_id", id)
	return append(out, m), err
}

// reasoningEffort sets the effort that the field reasoning has.
func (q *request) reasoningEffort() error {
	reasoning, err := q.given("reasoning")
	if err != nil || isUnset(reasoning) {
		return err
	}
	effort, _ := reasoning.Dict().Get("effort")
	if reasoning.Kind() != chattemplate.KindDict || !isUnset(effort) && effort.Kind() != chattemplate.KindString {
		return unsupported("reasoning of an unusual type")
	}
	q.chat.effort = effort
	return nil
}

// responsesTools converts the tools of a Responses request.
func (q *request) responsesTools() error {
	choice, err := q.given("tool_choice")
	if err != nil {
		return err
	}
	q.chat.toolChoice = choice
	given, err := q.given("tools")
	switch {
	case err != nil:
		return err
	case given.Kind() == chattemplate.KindMissing, given.Kind() == chattemplate.KindList && len(given.Items()) == 0:
		return nil
	case given.Kind() != chattemplate.KindList:
		return unsupported("tools that are no list")
	}
	tools := q.arena.NewList(len(given.Items()))
	for i, item := range given.Items() {
		tool := item.Dict()
		kind, _ := tool.Get("type")
		deferred, _ := tool.Get("defer_loading")
		if kind.Text() != "function" || !isUnset(deferred) {
			return unsupported("tools that are no functions")
		}
		name, _ := tool.Get("name")
		description, _ := tool.Get("description")
		parameters, _ := tool.Get("parameters")
		strict, _ := tool.Get("strict")
		tools[i] = q.described(name, description, parameters, strict)
	}
	q.chat.tools = chattemplate.List(tools)
	return nil
}
