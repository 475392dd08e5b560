package chatprompt

import (
	"strings"

	"github.com/kvasir-dev/kvasir/internal/tokens/chattemplate"
)

// developers gives messages of the role developer the form in which a template gets them that does not know the role:
// newer releases make them system messages, and merge all system messages into one at the beginning unless there is
// only one, which is there already.
func (q *request) developers(messages []chattemplate.Value) ([]chattemplate.Value, error) {
	if q.model.developers || !hasRole(messages, "developer") {
		return messages, nil
	}
	switch q.release.has(systemDevelopers) {
	case unknown:
		return nil, unsupported("the role developer in a template that does not know it")
	case no:
		return messages, nil
	}
	var texts []string
	others := q.arena.NewList(len(messages) + 1)[:1] // room for the one system message
	merge := false
	for i, m := range messages {
		switch roleOf(m) {
		case "developer":
			messages[i] = q.asSystem(m.Dict())
		case "system":
		default:
			others = append(others, m)
			continue
		}
		merge = merge || i > 0
		if text := contentText(messages[i]); text != "" {
			texts = append(texts, text)
		}
	}
	if !merge {
		return messages, nil
	}
	merged := q.arena.NewDict(2)
	merged.Set("role", chattemplate.String("system"))
	merged.Set("content", chattemplate.String(strings.Join(texts, "\n\n")))
	others[0] = merged.Value()
	return others, nil
}

func roleOf(message chattemplate.Value) string {
	role, _ := message.Dict().Get("role")
	return role.Text()
}

func hasRole(messages []chattemplate.Value, role string) bool {
	for _, m := range messages {
		if roleOf(m) == role {
			return true
		}
	}
	return false
}

// asSystem is a developer's message as a system message: without tools.
func (q *request) asSystem(m *chattemplate.Dict) chattemplate.Value {
	out := q.arena.NewDict(m.Len())
	for i := range m.Len() {
		switch key, v := m.At(i); key.Text() {
		case "role":
			out.Set("role", chattemplate.String("system"))
		case "tools":
		default:
			out.Set(key.Text(), v)
		}
	}
	return out.Value()
}

// contentText is the text of a message's content: a string, or the texts of its parts in lines.
func contentText(message chattemplate.Value) string {
	content, _ := message.Dict().Get("content")
	if content.Kind() != chattemplate.KindList {
		return content.Text()
	}
	var texts []string
	for _, part := range content.Items() {
		text, _ := part.Dict().Get("text")
		texts = append(texts, text.Text())
	}
	return strings.Join(texts, "\n")
}

// billing begins the texts of system prompts with a line that is new with every request.
const billing = "x-anthropic-billing-header"

// withoutBilling is the content of a system message as the engine reads it: without such a line at the beginning of a
// text, and without texts that are then empty.
func (q *request) withoutBilling(content chattemplate.Value) (chattemplate.Value, error) {
	begins := func(v chattemplate.Value) bool { return strings.HasPrefix(v.Text(), billing) }
	textOf := func(part chattemplate.Value) chattemplate.Value { text, _ := part.Dict().Get("text"); return text }
	found := begins(content)
	for _, part := range content.Items() {
		found = found || begins(textOf(part))
	}
	switch {
	case !found || q.release.has(billingDropped) == no:
		return content, nil
	case q.release.has(billingDropped) == unknown:
		return content, unsupported("a billing header in a system message")
	}
	rest := func(v chattemplate.Value) chattemplate.Value {
		_, rest, _ := strings.Cut(v.Text(), "\n")
		return chattemplate.String(rest)
	}
	if content.Kind() == chattemplate.KindString {
		if left := rest(content); left.Text() != "" {
			return left, nil
		}
		return chattemplate.List(nil), nil
	}
	kept := q.arena.NewList(len(content.Items()))[:0]
	for _, part := range content.Items() {
		if begins(textOf(part)) {
			left := rest(textOf(part))
			if left.Text() == "" {
				continue
			}
			part = q.withText(part.Dict(), left)
		}
		kept = append(kept, part)
	}
	return chattemplate.List(kept), nil
}

// withText is a part with another text.
func (q *request) withText(part *chattemplate.Dict, text chattemplate.Value) chattemplate.Value {
	out := q.arena.NewDict(part.Len())
	for i := range part.Len() {
		key, v := part.At(i)
		out.Set(key.Text(), v)
	}
	out.Set("text", text)
	return out.Value()
}
