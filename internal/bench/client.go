// Package bench measures a user's own engines: it sends the same kind of chats in turns through different ways to them, reads
// the engines' counters before and after each turn, and compares the turns.
package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const (
	// requestTimeout bounds a request, from sending it to the end of its answer.
	requestTimeout = 10 * time.Minute
	// maxEvent bounds a line of an answer's stream, in bytes.
	maxEvent = 1 << 20
	// maxErrorBody is how much of a refusal is quoted, in bytes.
	maxErrorBody = 300
	// maxConnections bounds the idle connections that are kept.
	maxConnections = 2048
)

// Client sends streamed chats to one address. It is safe for many goroutines.
type Client struct {
	url, key string
	http     *http.Client
}

// NewClient returns a client of a base URL such as http://127.0.0.1:8080. If key is not empty, requests carry it as a bearer
// token.
func NewClient(url, key string) *Client {
	return &Client{url: strings.TrimRight(url, "/"), key: key, http: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: maxConnections, DisableCompression: true, IdleConnTimeout: requestTimeout},
	}}
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// answer is a chat's answer as the client saw it.
type answer struct {
	text string
	// strategy is what the picker says it has routed by; empty without a picker.
	strategy string
	// prompt and output are the engine's usage, in tokens; output is the number of events with text where the engine sends no
	// usage.
	prompt, output int
	// ttft is the time from sending to the first text, total to the end of the stream.
	ttft, total time.Duration
	// gaps are the times between events with text.
	gaps []time.Duration
}

// event is what is read of a streamed event.
type event struct {
	Choices []struct {
		Delta struct {
			Content   string `json:"content"`
			Reasoning string `json:"reasoning_content"`
			Thinking  string `json:"reasoning"`
		} `json:"delta"`
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

// post sends a streamed chat and reads its answer. It fails unless the answer is complete: a status of 200, some text, a finish
// reason that is no abort, and the end mark.
func (c *Client) post(ctx context.Context, body []byte) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("making a request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	start := time.Now()
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() // read to the end or given up
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
		return nil, fmt.Errorf("status %d: %s", resp.StatusCode, bytes.TrimSpace(text))
	}
	a := &answer{strategy: resp.Header.Get("X-Kvasir-Strategy")}
	if err := a.read(resp.Body, start); err != nil {
		return nil, err
	}
	a.total = time.Since(start)
	return a, nil
}

// read reads server-sent events up to the end mark.
func (a *answer) read(body io.Reader, start time.Time) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, 4<<10), maxEvent)
	var text strings.Builder
	finish, last := "", start
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok {
			continue
		}
		if data = bytes.TrimSpace(data); string(data) == "[DONE]" {
			a.text = text.String()
			return a.complete(finish)
		}
		var e event
		if err := json.Unmarshal(data, &e); err != nil {
			return fmt.Errorf("reading an event of the stream: %w", err)
		}
		if len(e.Error) > 0 && string(e.Error) != "null" {
			return fmt.Errorf("the stream carries an error: %s", e.Error[:min(len(e.Error), maxErrorBody)])
		}
		for i := range e.Choices {
			choice := &e.Choices[i]
			text.WriteString(choice.Delta.Content)
			if choice.Delta.Content+choice.Delta.Reasoning+choice.Delta.Thinking != "" {
				now := time.Now()
				a.heard(now.Sub(start), now.Sub(last))
				last = now
			}
			if choice.FinishReason != nil {
				finish = *choice.FinishReason
			}
		}
		if e.Usage != nil {
			a.prompt, a.output = e.Usage.PromptTokens, e.Usage.CompletionTokens
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading the stream: %w", err)
	}
	return errors.New("the stream ended without its end mark")
}

// heard records an event with text, some time after the start and after the event before.
func (a *answer) heard(sinceStart, gap time.Duration) {
	if a.ttft == 0 {
		a.ttft = sinceStart
		return
	}
	a.gaps = append(a.gaps, gap)
}

// complete returns an error that names what an ended stream lacks.
func (a *answer) complete(finish string) error {
	switch {
	case a.ttft == 0:
		return errors.New("the answer has no text")
	case finish != "stop" && finish != "length":
		return fmt.Errorf("the answer's finish reason is %q", finish)
	case a.output == 0:
		a.output = 1 + len(a.gaps)
	}
	return nil
}

// message of a chat.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// body is a streamed chat with an answer of exactly maxTokens tokens.
func body(model string, messages []message, maxTokens int) ([]byte, error) {
	text, err := json.Marshal(map[string]any{
		"model": model, "messages": messages, "max_tokens": maxTokens, "stream": true, "stream_options": map[string]bool{"include_usage": true},
		"ignore_eos": true, "temperature": 0,
	})
	if err != nil {
		return nil, fmt.Errorf("writing a chat: %w", err)
	}
	return text, nil
}
