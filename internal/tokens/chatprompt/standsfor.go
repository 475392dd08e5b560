package chatprompt

import "github.com/kvasir-dev/kvasir/internal/tokens/chattemplate"

// Requests of other APIs stand for chats: the engine rewrites them, and makes the prompt of the chat. The conversions here
// (messagesapi.go, responsesapi.go) do the same, so that all that is behind them is done by the code for chats.

// chat holds the fields of the chat that a request of another API stands for; each is KindMissing where it is absent.
type chat struct {
	messages, tools, toolChoice, effort chattemplate.Value
	// asMade: the engine leaves the fields of tool calls in the order in which it has made them.
	asMade bool
}

// field is a field of the chat. Those that the engine passes on unchanged are taken from the request.
func (c *chat) field(q *request, name string) (chattemplate.Value, error) {
	switch name {
	case "messages":
		return c.messages, nil
	case "tools":
		return c.tools, nil
	case "tool_choice":
		return c.toolChoice, nil
	case "reasoning_effort":
		return c.effort, nil
	case "chat_template_kwargs", "kv_transfer_params":
		return q.given(name)
	}
	return chattemplate.Value{}, nil
}

// newMessage is a message of a chat, with content unless that is missing.
func (q *request) newMessage(role string, content chattemplate.Value) *chattemplate.Dict {
	m := q.arena.NewDict(4)
	m.Set("role", chattemplate.String(role))
	if content.Kind() != chattemplate.KindMissing {
		m.Set("content", content)
	}
	return m
}

// called is a call of a tool in a chat's message.
func (q *request) called(id, name, arguments chattemplate.Value) chattemplate.Value {
	function := q.arena.NewDict(2)
	function.Set("name", name)
	function.Set("arguments", arguments)
	call := q.arena.NewDict(3)
	call.Set("id", id)
	call.Set("function", function.Value())
	call.Set("type", chattemplate.String("function"))
	return call.Value()
}

// described is a function in the form in which chats have it. strict is left out where it is unset.
func (q *request) described(name, description, parameters, strict chattemplate.Value) chattemplate.Value {
	function := q.arena.NewDict(4)
	function.Set("name", name)
	if !isUnset(description) {
		function.Set("description", description)
	}
	if !isUnset(parameters) {
		function.Set("parameters", parameters)
	}
	if !isUnset(strict) {
		function.Set("strict", strict)
	}
	tool := q.arena.NewDict(2)
	tool.Set("type", chattemplate.String("function"))
	tool.Set("function", function.Value())
	return tool.Value()
}
