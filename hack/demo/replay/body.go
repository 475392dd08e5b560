package replay

import (
	"encoding/json"
	"fmt"
	"strconv"
)

const bodyEnd = `,"stream":true,"stream_options":{"include_usage":true},"ignore_eos":true,"temperature":0}`

// completionBody is a completion request with a prompt of token ids.
func completionBody(model string, prompt []uint32, maxTokens int) []byte {
	b := make([]byte, 0, 256+6*len(prompt))
	b = append(b, `{"model":`...)
	b = strconv.AppendQuote(b, model)
	b = append(b, `,"prompt":[`...)
	for i, token := range prompt {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(token), 10)
	}
	b = append(b, `],"max_tokens":`...)
	b = strconv.AppendInt(b, int64(maxTokens), 10)
	return append(b, bodyEnd...)
}

// message of a chat.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// chatBody is a chat request with text messages.
func chatBody(model string, messages []message, maxTokens int) ([]byte, error) {
	text, err := json.Marshal(messages)
	if err != nil {
		return nil, fmt.Errorf("writing a chat: %w", err)
	}
	b := make([]byte, 0, 256+len(text))
	b = append(b, `{"model":`...)
	b = strconv.AppendQuote(b, model)
	b = append(b, `,"messages":`...)
	b = append(b, text...)
	b = append(b, `,"max_tokens":`...)
	b = strconv.AppendInt(b, int64(maxTokens), 10)
	return append(b, bodyEnd...), nil
}
