package chatprompt

import (
	"bytes"
	"context"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/tokens/chattemplate"
)

// tag marks the end of the final message while it is looked for.
const tag = "CONTINUE_FINAL_MESSAGE_TAG "

// resumed leaves the prompt of a conversation whose last message is to be continued: it ends where that message ends.
// Releases of the transformers library find that place in different ways: by the last place where the message's text
// occurs, or by a mark behind the message. The prompt is certain only where they agree.
func (q *request) resumed(ctx context.Context, conversation []chattemplate.Value) error {
	if len(conversation) == 0 {
		return unsupported("continue_final_message without a message")
	}
	last := conversation[len(conversation)-1].Dict()
	content, _ := last.Get("content")
	final := content
	if items := content.Items(); len(items) > 0 { // the text of the last part
		final, _ = items[len(items)-1].Dict().Get("text")
	}
	if final.Text() == "" || strings.TrimSpace(final.Text()) != final.Text() {
		return unsupported("continuing a message that is empty or has white space around it")
	}
	text, err := q.apply(ctx, q.text, conversation)
	if err != nil {
		return err
	}
	tagged := chattemplate.String(final.Text() + tag)
	if items := content.Items(); len(items) > 0 {
		parts := q.arena.NewList(len(items))
		copy(parts, items)
		parts[len(parts)-1] = q.with(items[len(items)-1].Dict(), "text", tagged)
		tagged = chattemplate.List(parts)
	}
	with := q.arena.NewList(len(conversation))
	copy(with, conversation)
	with[len(with)-1] = q.with(last, "content", tagged)
	second, err := q.apply(ctx, nil, with)
	if err != nil {
		return err
	}
	end := bytes.LastIndex(text, []byte(final.Text())) + len(final.Text())
	mark := bytes.LastIndex(second, []byte(strings.TrimSpace(tag)))
	if end < len(final.Text()) || mark != end || !bytes.Equal(second[:mark], text[:end]) {
		return unsupported("continuing this message")
	}
	q.text = text[:end]
	return nil
}

// with is a dictionary with another value of one of its keys.
func (q *request) with(given *chattemplate.Dict, name string, value chattemplate.Value) chattemplate.Value {
	out := q.arena.NewDict(given.Len())
	for i := range given.Len() {
		key, v := given.At(i)
		out.Set(key.Text(), v)
	}
	out.Set(name, value)
	return out.Value()
}
