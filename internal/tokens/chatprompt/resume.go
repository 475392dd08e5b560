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
	final := content.Text()
	if final == "" || strings.TrimSpace(final) != final {
		return unsupported("continuing a message that is empty, in parts, or has white space around it")
	}
	text, err := q.apply(ctx, q.text, conversation)
	if err != nil {
		return err
	}
	marked := q.arena.NewDict(last.Len())
	for i := range last.Len() {
		key, v := last.At(i)
		marked.Set(key.Text(), v)
	}
	marked.Set("content", chattemplate.String(final+tag))
	with := q.arena.NewList(len(conversation))
	copy(with, conversation)
	with[len(with)-1] = marked.Value()
	second, err := q.apply(ctx, nil, with)
	if err != nil {
		return err
	}
	end := bytes.LastIndex(text, []byte(final)) + len(final)
	mark := bytes.LastIndex(second, []byte(strings.TrimSpace(tag)))
	if end < len(final) || mark != end || !bytes.Equal(second[:mark], text[:end]) {
		return unsupported("continuing this message")
	}
	q.text = text[:end]
	return nil
}
