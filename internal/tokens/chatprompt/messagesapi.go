package chatprompt

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/chattemplate"
)

// fromMessages makes a Messages request the chat that the engine makes of it (vLLM's AnthropicServingMessages,
// to_chat_completion_request, from v0.24 on; before v0.29 by another name).
func (q *request) fromMessages() error {
	switch {
	case q.release.has(messagesKnown) != yes:
		return unsupported("%s", q.req.Route)
	case q.req.CacheSalt != "" && q.release.has(messagesSalted) != yes:
		return unsupported("a cache_salt that the engine ignores")
	}
	q.chat = &chat{}
	given, err := q.given("messages")
	if err != nil {
		return err
	}
	if given.Kind() != chattemplate.KindList {
		return unsupported("messages that are no list")
	}
	system, err := q.systemTexts(given.Items())
	if err != nil {
		return err
	}
	out := make([]chattemplate.Value, 0, len(given.Items())+1)
	if len(system) > 0 {
		out = append(out, q.newMessage("system", chattemplate.String(strings.Join(system, ""))).Value())
	}
	for _, item := range given.Items() {
		if out, err = q.blocksOf(out, item.Dict()); err != nil {
			return err
		}
	}
	q.chat.messages = chattemplate.List(out)
	if err := q.thinking(); err != nil {
		return err
	}
	return q.messagesTools()
}

// systemTexts are the texts of the one system message at the beginning: those of the field system, and of the system
// messages amid the turns where the engine merges them.
func (q *request) systemTexts(messages []chattemplate.Value) (texts []string, err error) {
	system, err := q.given("system")
	if err != nil {
		return nil, err
	}
	switch system.Kind() {
	case chattemplate.KindString:
		if system.Text() != "" {
			texts = append(texts, system.Text())
		}
	case chattemplate.KindMissing, chattemplate.KindNone:
	default:
		text, err := blockTexts(system)
		if err != nil {
			return nil, err
		}
		if text != "" {
			texts = append(texts, text)
		}
	}
	for _, m := range messages {
		if roleOf(m) != "system" {
			continue
		}
		switch q.merged {
		case unknown:
			return nil, unsupported("system messages amid the turns")
		case yes:
			text, err := inlineSystem(m.Dict())
			if err != nil {
				return nil, err
			}
			if text != "" {
				texts = append(texts, text)
			}
		}
	}
	return texts, nil
}

// inlineSystem is the text of a system message amid the turns; empty if nothing is left of it.
func inlineSystem(m *chattemplate.Dict) (string, error) {
	content, _ := m.Get("content")
	if content.Kind() != chattemplate.KindString {
		return blockTexts(content)
	}
	if strings.HasPrefix(content.Text(), billing) {
		return "", nil
	}
	return content.Text(), nil
}

// blockTexts joins the texts of a list of blocks, without the line that Claude Code puts first.
func blockTexts(list chattemplate.Value) (string, error) {
	if list.Kind() != chattemplate.KindList {
		return "", unsupported("system prompts of an unusual type")
	}
	var b strings.Builder
	for _, block := range list.Items() {
		kind, _ := block.Dict().Get("type")
		text, _ := block.Dict().Get("text")
		if kind.Text() != "text" || text.Kind() != chattemplate.KindString {
			return "", unsupported("blocks of a system prompt that are no text")
		}
		if !strings.HasPrefix(text.Text(), billing) {
			b.WriteString(text.Text())
		}
	}
	return b.String(), nil
}

// blocksOf appends what one message becomes: results of tools are messages of their own, before the rest of it.
func (q *request) blocksOf(out []chattemplate.Value, m *chattemplate.Dict) ([]chattemplate.Value, error) {
	role, _ := m.Get("role")
	content, _ := m.Get("content")
	switch role.Text() {
	case "user", "assistant":
	case "system":
		if q.merged == yes {
			return out, nil
		}
		text, err := inlineSystem(m)
		if err == nil && text != "" {
			out = append(out, q.newMessage("system", chattemplate.String(text)).Value())
		}
		return out, err
	default:
		return out, unsupported("messages of an unusual role")
	}
	switch content.Kind() {
	case chattemplate.KindString:
		return append(out, q.newMessage(role.Text(), content).Value()), nil
	case chattemplate.KindList:
	default:
		return out, unsupported("content of an unusual type")
	}
	var parts, calls []chattemplate.Value
	var thoughts []string
	for _, item := range content.Items() {
		block := item.Dict()
		kind, _ := block.Get("type")
		var err error
		switch kind := kind.Text(); {
		case kind == "text":
			parts, err = q.textBlock(parts, block)
		case kind == "image" && role.Text() == "user":
			parts, err = q.imageBlock(parts, block)
		case kind == "redacted_thinking":
		case kind == "thinking" && role.Text() == "assistant":
			thoughts, err = thinkingBlock(thoughts, block)
		case kind == "tool_use" && role.Text() == "assistant":
			calls, err = q.toolUse(calls, block)
		case kind == "tool_result" && role.Text() == "user":
			out, err = q.toolResult(out, block)
		default:
			err = unsupported("blocks of an unusual type")
		}
		if err != nil {
			return out, err
		}
	}
	if role.Text() == "user" && len(parts) == 0 {
		return out, nil
	}
	turn := q.newMessage(role.Text(), contentOf(parts))
	if len(thoughts) > 0 {
		turn.Set("reasoning", chattemplate.String(strings.Join(thoughts, "")))
	}
	if len(calls) > 0 {
		turn.Set("tool_calls", chattemplate.List(calls))
	}
	return append(out, turn.Value()), nil
}

// contentOf is the content of a message with these parts: the text itself where there is only one.
func contentOf(parts []chattemplate.Value) chattemplate.Value {
	switch len(parts) {
	case 0:
		return chattemplate.Value{}
	case 1:
		if text, ok := parts[0].Dict().Get("text"); ok {
			return text
		}
	}
	return chattemplate.List(parts)
}

func (q *request) textBlock(parts []chattemplate.Value, block *chattemplate.Dict) ([]chattemplate.Value, error) {
	text, _ := block.Get("text")
	switch {
	case isUnset(text), text.Kind() == chattemplate.KindString && text.Text() == "":
		return parts, nil
	case text.Kind() != chattemplate.KindString:
		return parts, unsupported("texts of an unusual type")
	}
	return append(parts, q.part(text, nil)), nil
}

func thinkingBlock(thoughts []string, block *chattemplate.Dict) ([]string, error) {
	text, _ := block.Get("thinking")
	switch {
	case isUnset(text):
		return thoughts, nil
	case text.Kind() != chattemplate.KindString:
		return thoughts, unsupported("thoughts of an unusual type")
	}
	return append(thoughts, text.Text()), nil
}

// toolUse is a call of a tool. The engine writes its input as JSON, which the chat's arguments are decoded from again.
func (q *request) toolUse(calls []chattemplate.Value, block *chattemplate.Dict) ([]chattemplate.Value, error) {
	id, _ := block.Get("id")
	name, _ := block.Get("name")
	input, _ := block.Get("input")
	if isUnset(input) {
		input = q.arena.NewDict(0).Value()
	}
	if id.Text() == "" || name.Kind() != chattemplate.KindString || input.Kind() != chattemplate.KindDict {
		return calls, unsupported("tool calls of an unusual type") // without an id the engine makes one of the time
	}
	return append(calls, q.called(id, name, input)), nil
}

// toolResult appends the message that the result of a tool becomes: the texts of its parts in lines. Its images are a user's message.
func (q *request) toolResult(out []chattemplate.Value, block *chattemplate.Dict) ([]chattemplate.Value, error) {
	id, _ := block.Get("tool_use_id")
	content, _ := block.Get("content")
	var text string
	var shown []chattemplate.Value
	switch content.Kind() {
	case chattemplate.KindString:
		text = content.Text()
	case chattemplate.KindMissing, chattemplate.KindNone:
	case chattemplate.KindList:
		lines := make([]string, 0, len(content.Items()))
		for _, item := range content.Items() {
			kind, _ := item.Dict().Get("type")
			if kind.Text() == "image" {
				var err error
				if shown, err = q.imageBlock(shown, item.Dict()); err != nil {
					return out, err
				}
				continue
			}
			line, ok := item.Dict().Get("text")
			if kind.Text() != "text" || ok && line.Kind() != chattemplate.KindString {
				return out, unsupported("results of tools that are no text")
			}
			lines = append(lines, line.Text())
		}
		text = strings.Join(lines, "\n")
	default:
		return out, unsupported("results of tools of an unusual type")
	}
	if !isUnset(id) && id.Kind() != chattemplate.KindString {
		return out, unsupported("tool_use_id of an unusual type")
	}
	m := q.newMessage("tool", chattemplate.String(text))
	m.Set("tool_call_id", chattemplate.String(id.Text()))
	out = append(out, m.Value())
	if len(shown) > 0 {
		out = append(out, q.newMessage("user", chattemplate.List(shown)).Value())
	}
	return out, nil
}

// thinking sets the effort that output_config and thinking stand for.
func (q *request) thinking() error {
	config, err := q.given("output_config")
	if err != nil {
		return err
	}
	effort, _ := config.Dict().Get("effort")
	if !isUnset(config) && config.Kind() != chattemplate.KindDict || !isUnset(effort) && effort.Kind() != chattemplate.KindString {
		return unsupported("output_config of an unusual type")
	}
	q.chat.effort = effort
	if q.release.has(messagesThink) != yes {
		return nil
	}
	thinking, err := q.given("thinking")
	if err != nil || isUnset(thinking) {
		return err
	}
	kind, _ := thinking.Dict().Get("type")
	switch kind.Text() {
	case "enabled", "adaptive":
	case "disabled":
		unthinking, err := q.unthinking()
		q.chat.effort = chattemplate.String(unthinking)
		return err
	default:
		return unsupported("thinking of an unusual type")
	}
	return nil
}

// efforts are those that a Messages request can ask for.
var efforts = []string{"low", "medium", "high", "xhigh", "max"}

// disabledEffort is the effort by which the engine disables thinking: none, or low where the template refuses none or
// ignores it.
func (r *Renderer) disabledEffort() (string, error) {
	if !r.plain.Uses("reasoning_effort") && !r.plain.Uses("enable_thinking") {
		return "none", nil
	}
	none, err := r.withEffort("none")
	var raised *chattemplate.RaisedError
	switch {
	case errors.As(err, &raised):
		return "low", nil
	case err != nil:
		return "", err
	}
	for _, effort := range efforts {
		text, err := r.withEffort(effort)
		switch {
		case errors.As(err, &raised):
		case err != nil:
			return "", err
		case text == none:
			return "low", nil
		}
	}
	return "none", nil
}

// withEffort is the prompt of a short chat with an effort.
func (r *Renderer) withEffort(effort string) (string, error) {
	body := fmt.Appendf(nil, `{"model":"m","messages":[{"role":"user","content":"Hi"}],"reasoning_effort":%q}`, effort)
	var req openai.Request
	if err := openai.Parse(openai.ChatCompletions, body, &req); err != nil {
		return "", err
	}
	p, err := r.Render(context.Background(), body, &req)
	if err != nil {
		return "", err
	}
	defer p.Release()
	return strings.Clone(p.Text), nil
}

// messagesTools converts the tools of a Messages request, and whether any can be used.
func (q *request) messagesTools() error {
	choice, err := q.given("tool_choice")
	if err != nil {
		return err
	}
	if kind, _ := choice.Dict().Get("type"); kind.Text() == "none" {
		q.chat.toolChoice = kind
	}
	given, err := q.given("tools")
	if err != nil || isUnset(given) {
		return err
	}
	if given.Kind() != chattemplate.KindList {
		return unsupported("tools that are no list")
	}
	tools := q.arena.NewList(len(given.Items()))
	for i, item := range given.Items() {
		if tools[i], err = q.messagesTool(item.Dict()); err != nil {
			return err
		}
	}
	q.chat.tools = chattemplate.List(tools)
	return nil
}

func (q *request) messagesTool(given *chattemplate.Dict) (v chattemplate.Value, err error) {
	schema, _ := given.Get("input_schema")
	parameters := schema.Dict()
	if parameters == nil {
		return v, unsupported("tools without input_schema")
	}
	if _, ok := parameters.Get("type"); !ok {
		parameters = q.arena.NewDict(schema.Dict().Len() + 1)
		addMissing(parameters, schema.Dict())
		parameters.Set("type", chattemplate.String("object"))
	}
	if deferred, _ := given.Get("defer_loading"); !isUnset(deferred) {
		return v, unsupported("tools with defer_loading")
	}
	name, _ := given.Get("name")
	description, _ := given.Get("description")
	strict, _ := given.Get("strict")
	return q.described(name, description, parameters.Value(), strict), nil
}

// mergesSystem reports whether the engine merges system messages amid the turns into the first one: where a template
// that it uses refuses them. Before v0.31 it looks only at the template of --chat-template.
func (r *Renderer) mergesSystem() answer {
	switch {
	case r.release.has(messagesThink) == yes && r.plain.systemFirst == no:
		return r.withTool.systemFirst
	case r.release.has(messagesThink) != yes && r.options.Template == "":
		return yes
	}
	return r.plain.systemFirst
}

// generationTag is a tag that only the transformers library has.
var generationTag = regexp.MustCompile(`\{%[-+]?\s*generation\b`)

// refusesSystem reports whether rendering a system message amid the turns fails as the engine tries it: by Jinja alone,
// without the functions and variables that the transformers library adds.
func (m *model) refusesSystem(source string) answer {
	if generationTag.MatchString(source) {
		return yes
	}
	var a chattemplate.Arena
	turn := func(role string) chattemplate.Value {
		d := a.NewDict(2)
		d.Set("role", chattemplate.String(role))
		d.Set("content", chattemplate.String("t"))
		return d.Value()
	}
	messages := []chattemplate.Value{turn("system"), turn("user"), turn("system"), turn("user")}
	_, err := m.Render(context.Background(), nil, &a, &chattemplate.Input{Vars: []chattemplate.Var{
		{Name: "messages", Value: chattemplate.List(messages)},
		{Name: "add_generation_prompt", Value: chattemplate.Bool(false)},
		{Name: "raise_exception"}, {Name: "strftime_now"},
	}})
	var raised *chattemplate.RaisedError
	switch {
	case errors.As(err, &raised):
		return yes
	case err != nil:
		return unknown
	}
	return no
}
