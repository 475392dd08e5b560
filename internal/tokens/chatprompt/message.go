package chatprompt

import (
	"errors"
	"slices"
	"strings"
	"unsafe"

	"github.com/kvasir-dev/kvasir/internal/tokens/chattemplate"
)

// messages converts the messages to the form in which the template gets them. Only the parts of a message that the engine
// knows reach the template, in its order.
func (q *request) messages() ([]chattemplate.Value, error) {
	v, err := q.field("messages")
	if err != nil {
		return nil, err
	}
	if v.Kind() != chattemplate.KindList {
		return nil, unsupported("messages that are no list")
	}
	items := v.Items()
	out := q.arena.NewList(len(items))
	for i, item := range items {
		m := item.Dict()
		if m == nil {
			return nil, unsupported("messages of an unusual type")
		}
		message, err := q.message(m)
		if err != nil {
			return nil, err
		}
		out[i] = message
	}
	return q.developers(out)
}

func (q *request) message(m *chattemplate.Dict) (v chattemplate.Value, err error) {
	role, _ := m.Get("role")
	if role.Kind() != chattemplate.KindString {
		return v, unsupported("messages without a role")
	}
	content, err := q.content(m, role.Text())
	if err != nil {
		return v, err
	}
	out := q.arena.NewDict(5)
	out.Set("role", role)
	out.Set("content", content)
	switch role.Text() {
	case "assistant":
		err = q.assistant(m, out)
	case "tool":
		err = toolCallID(m, out)
	}
	if err != nil {
		return v, err
	}
	if name, ok := m.Get("name"); ok {
		if name.Kind() != chattemplate.KindString {
			return v, unsupported("names of an unusual type")
		}
		out.Set("name", name)
	}
	if task, ok := m.Get("task"); ok && task.Kind() != chattemplate.KindNone {
		return v, unsupported("messages with a task")
	}
	if role.Text() == "developer" {
		if tools, ok := m.Get("tools"); ok && tools.Kind() != chattemplate.KindNone {
			return v, unsupported("tools of a developer's message")
		}
		out.Set("tools", chattemplate.None())
	}
	return out.Value(), nil
}

func toolCallID(m, out *chattemplate.Dict) error {
	id, ok := m.Get("tool_call_id")
	if !ok {
		return nil
	}
	if id.Kind() != chattemplate.KindString && id.Kind() != chattemplate.KindNone {
		return unsupported("tool_call_id of an unusual type")
	}
	out.Set("tool_call_id", id)
	return nil
}

// content is a message's content as a string, or as a list of parts where the template asks for that.
func (q *request) content(m *chattemplate.Dict, role string) (chattemplate.Value, error) {
	given, ok := m.Get("content")
	if role == "system" {
		var err error
		if given, err = q.withoutBilling(given); err != nil {
			return given, err
		}
	}
	parts := q.model.format == chattemplate.ContentParts
	if parts && role == "tool" {
		switch q.release.has(flatToolContent) {
		case unknown:
			return given, unsupported("results of tools in a template that goes over parts")
		case yes:
			parts = false
			if given.Kind() == chattemplate.KindList {
				return q.flat(given.Items(), true)
			}
		}
	}
	switch {
	case given.Kind() == chattemplate.KindString && parts:
		return chattemplate.List(q.list(q.part(given, nil))), nil
	case given.Kind() == chattemplate.KindString:
		return given, nil
	case given.Kind() == chattemplate.KindList && parts:
		return q.parts(given.Items())
	case given.Kind() == chattemplate.KindList:
		return q.flat(given.Items(), false)
	case ok && (given.Kind() != chattemplate.KindNone || role != "assistant" && role != "function"):
		return given, unsupported("content of an unusual type")
	case parts:
		return chattemplate.List(nil), nil
	}
	return chattemplate.String(""), nil
}

// partText is the text of a part of a message's content. The engine reads an answer that was refused as a text.
func partText(v chattemplate.Value) (chattemplate.Value, error) {
	part := v.Dict()
	kind, _ := part.Get("type")
	text, _ := part.Get(kind.Text())
	if kind.Text() != "text" && kind.Text() != "refusal" || text.Kind() != chattemplate.KindString {
		return text, unsupported("parts of a message that are no text")
	}
	if id, ok := part.Get("uuid"); ok && id.Kind() != chattemplate.KindNone {
		return text, unsupported("parts with a uuid")
	}
	return text, nil
}

// flat joins the texts of parts with line breaks. Empty ones are left out, unless keepEmpty.
func (q *request) flat(items []chattemplate.Value, keepEmpty bool) (chattemplate.Value, error) {
	var out chattemplate.Value
	var joined strings.Builder
	n := 0
	for _, item := range items {
		text, err := partText(item)
		if err != nil {
			return text, err
		}
		if text.Text() == "" && !keepEmpty {
			continue
		}
		if n++; n == 1 {
			out = text
			continue
		}
		if n == 2 {
			joined.WriteString(out.Text())
		}
		joined.WriteByte('\n')
		joined.WriteString(text.Text())
	}
	switch n {
	case 0:
		return chattemplate.String(""), nil
	case 1:
		return out, nil
	}
	return chattemplate.String(joined.String()), nil
}

// parts keeps of each part its type and text, and from some release on fields that no kind of part defines.
func (q *request) parts(items []chattemplate.Value) (chattemplate.Value, error) {
	out := q.arena.NewList(len(items))
	for i, item := range items {
		if q.takesImages {
			image, ok, err := q.image(item.Dict())
			if err != nil {
				return image, err
			}
			if ok {
				out[i] = image
				continue
			}
		}
		text, err := partText(item)
		if err != nil {
			return text, err
		}
		extras, err := q.extras(item.Dict())
		if err != nil {
			return text, err
		}
		out[i] = q.part(text, extras)
	}
	return chattemplate.List(out), nil
}

func (q *request) part(text chattemplate.Value, extras *chattemplate.Dict) chattemplate.Value {
	out := q.arena.NewDict(2 + extras.Len())
	out.Set("type", chattemplate.String("text"))
	out.Set("text", text)
	for i := range extras.Len() {
		key, v := extras.At(i)
		out.Set(key.Text(), v)
	}
	return out.Value()
}

// definedFields are those that some kind of part defines; newFields are, too, in some releases.
var (
	definedFields = []string{"audio_embeds", "audio_url", "closed", "data", "image_embeds", "image_pil", "image_url",
		"input_audio", "name", "refusal", "text", "thinking", "type", "uuid", "video_url"}
	newFields = []string{"file", "prompt_cache_breakpoint", "video_embeds"}
)

// extras are the fields of a text part that no kind of part defines; nil without.
func (q *request) extras(part *chattemplate.Dict) (out *chattemplate.Dict, err error) {
	for i := range part.Len() {
		key, v := part.At(i)
		switch {
		case slices.Contains(definedFields, key.Text()):
			continue
		case q.release.has(partExtras) == no:
			return nil, nil
		case q.release.has(partExtras) == unknown, slices.Contains(newFields, key.Text()):
			return nil, unsupported("parts with the field %s", key.Text())
		case out == nil:
			out = q.arena.NewDict(part.Len())
		}
		out.Set(key.Text(), v)
	}
	return out, nil
}

func (q *request) list(v chattemplate.Value) []chattemplate.Value {
	out := q.arena.NewList(1)
	out[0] = v
	return out
}

// assistant adds the tool calls and the reasoning of an assistant's message.
func (q *request) assistant(m, out *chattemplate.Dict) error {
	calls, ok := m.Get("tool_calls")
	switch {
	case !ok:
	case calls.Kind() == chattemplate.KindNone:
		if content, ok := m.Get("content"); ok && content.Kind() == chattemplate.KindNone {
			return unsupported("neither content nor tool calls") // the engine refuses it
		}
	case calls.Kind() != chattemplate.KindList:
		return unsupported("tool_calls of an unusual type")
	case len(calls.Items()) == 0:
		if q.release.has(noToolCalls) != yes {
			return unsupported("an empty list of tool calls")
		}
	default:
		list := q.arena.NewList(len(calls.Items()))
		for i, call := range calls.Items() {
			var err error
			if list[i], err = q.toolCall(call.Dict()); err != nil {
				return err
			}
		}
		out.Set("tool_calls", chattemplate.List(list))
	}
	return q.reasoning(m, out)
}

// reasoning adds an assistant's reasoning.
func (q *request) reasoning(m, out *chattemplate.Dict) error {
	reasoning, _ := m.Get("reasoning")
	if old, ok := m.Get("reasoning_content"); ok && old.Kind() != chattemplate.KindNone && isUnset(reasoning) {
		switch q.release.has(renamedReasoning) {
		case yes:
			reasoning = old
		case unknown:
			return unsupported("reasoning_content")
		case no:
			if q.release.has(bothReasonings) != yes {
				return unsupported("reasoning_content")
			}
		}
	}
	switch {
	case isUnset(reasoning):
		return nil
	case reasoning.Kind() != chattemplate.KindString || q.release.has(bothReasonings) != yes:
		return unsupported("reasoning")
	}
	out.Set("reasoning", reasoning)
	out.Set("reasoning_content", reasoning)
	return nil
}

func isUnset(v chattemplate.Value) bool {
	return v.Kind() == chattemplate.KindMissing || v.Kind() == chattemplate.KindNone
}

// toolCall is a tool call with its fields in the engine's order, those that it does not know behind them, and the
// arguments decoded.
func (q *request) toolCall(given *chattemplate.Dict) (v chattemplate.Value, err error) {
	id, _ := given.Get("id")
	kind, _ := given.Get("type")
	f, _ := given.Get("function")
	function := f.Dict()
	name, _ := function.Get("name")
	arguments, _ := function.Get("arguments")
	decoded := q.chat != nil && arguments.Kind() == chattemplate.KindDict
	if id.Kind() != chattemplate.KindString || kind.Text() != "function" || name.Kind() != chattemplate.KindString ||
		arguments.Kind() != chattemplate.KindString && !decoded {
		return v, unsupported("tool calls of an unusual type")
	}
	if !decoded {
		if arguments, err = q.arguments(arguments.Text()); err != nil {
			return v, err
		}
	}
	called := q.arena.NewDict(function.Len())
	if q.chat != nil && q.chat.asMade {
		called.Set("name", name)
	}
	called.Set("arguments", arguments)
	called.Set("name", name)
	addMissing(called, function)
	out := q.arena.NewDict(given.Len())
	out.Set("id", id)
	out.Set("function", called.Value())
	out.Set("type", kind)
	addMissing(out, given)
	return out.Value(), nil
}

// addMissing adds the entries of from whose keys out lacks.
func addMissing(out, from *chattemplate.Dict) {
	for i := range from.Len() {
		key, v := from.At(i)
		if _, ok := out.Get(key.Text()); !ok {
			out.Set(key.Text(), v)
		}
	}
}

// arguments decodes the arguments of a tool call. Only objects are the same in all releases.
func (q *request) arguments(text string) (chattemplate.Value, error) {
	if text == "" {
		return q.arena.NewDict(0).Value(), nil
	}
	v, err := q.arena.DecodeSpan(q.ctx, unsafe.Slice(unsafe.StringData(text), len(text)), 0, len(text), nil)
	if err != nil && (q.ctx.Err() != nil || errors.Is(err, chattemplate.ErrLimit)) {
		return v, asUnsupported(err)
	}
	coerced := q.release.has(objectArguments)
	switch {
	case err == nil && v.Kind() == chattemplate.KindDict:
		return v, nil
	case err == nil && v.Kind() == chattemplate.KindList && coerced == no:
		return v, nil
	case coerced == yes && (err == nil || !looseJSON(text)):
		return q.arena.NewDict(0).Value(), nil
	}
	return v, unsupported("arguments of a tool call that are no JSON object")
}

// looseJSON reports whether a text that is no JSON could be some to Python, which takes NaN, infinities and halves of
// surrogate pairs, and goes deeper.
func looseJSON(text string) bool {
	return strings.Contains(text, "NaN") || strings.Contains(text, "Infinity") || strings.Contains(text, `\u`) ||
		strings.Count(text, "[")+strings.Count(text, "{") > 64
}
