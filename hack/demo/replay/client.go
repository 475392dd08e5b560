// Package replay sends the demo's two workloads to an OpenAI-compatible address, at the times they ask for, and
// measures each request as a client sees it.
package replay

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// requestTimeout bounds a request in wall time: a demo that is stuck must end.
	requestTimeout = 60 * time.Second
	// maxEvent bounds a line of an answer's stream, in bytes.
	maxEvent = 1 << 20
	// maxErrorBody is how much of a refusal is quoted, in bytes.
	maxErrorBody = 300
)

// Client sends requests to one address. It is safe for many goroutines.
type Client struct {
	url      string
	strategy string
	http     *http.Client
}

// NewClient returns a client for a base URL such as http://127.0.0.1:8080. Answers that another strategy than the given
// one has routed are errors; an empty strategy admits all.
func NewClient(url, strategy string) *Client {
	return &Client{url: url, strategy: strategy, http: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: maxInFlight, DisableCompression: true, IdleConnTimeout: requestTimeout},
	}}
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// answer is what a request got.
type answer struct {
	text string
	// pod, routed, predicted and confirmed are the proxy's headers.
	pod, prefiller               string
	routed, predicted, confirmed int
	blind                        bool
	// prompt, output and cached are the engine's usage, in tokens.
	prompt, output, cached int
	// ttft is the time from sending to the first text, total to the end, in wall time.
	ttft, total time.Duration
}

// chunk is what the demo reads of a streamed answer's event, of either route.
type chunk struct {
	Choices []struct {
		Text  string `json:"text"`
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens        int `json:"prompt_tokens"`
		CompletionTokens    int `json:"completion_tokens"`
		PromptTokensDetails *struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

// post sends a streamed request, of a session unless that is empty, and reads its answer. It fails unless the answer is
// complete: a status of 200, the proxy's headers, some text, a finish reason that is no abort, the usage and the end mark.
func (c *Client) post(ctx context.Context, path, session string, body []byte) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("making a request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if session != "" {
		req.Header.Set("X-Session-Id", session)
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
	a := &answer{}
	if err := a.readHeaders(resp.Header); err != nil {
		return nil, err
	}
	if got := resp.Header.Get("X-Kvasir-Strategy"); c.strategy != "" && got != c.strategy {
		return nil, fmt.Errorf("the request was routed by %q, not by %q", got, c.strategy)
	}
	if err := a.readStream(resp.Body, start); err != nil {
		return nil, err
	}
	a.total = time.Since(start)
	return a, nil
}

// readHeaders reads the proxy's headers about its pick.
func (a *answer) readHeaders(h http.Header) error {
	a.pod, _, _ = strings.Cut(h.Get("X-Kvasir-Endpoint"), "/") // pod/rank, and there is one rank
	if a.pod == "" {
		return errors.New("the answer names no endpoint")
	}
	a.prefiller, _, _ = strings.Cut(h.Get("X-Kvasir-Prefill-Endpoint"), "/")
	tokens, _, _ := strings.Cut(h.Get("X-Kvasir-Tokens"), ";")
	a.blind = tokens == "none" || tokens == "approximate"
	for name, v := range map[string]*int{
		"X-Kvasir-Prompt-Tokens": &a.routed, "X-Kvasir-Predicted-Tokens": &a.predicted, "X-Kvasir-Confirmed-Tokens": &a.confirmed,
	} {
		n, err := strconv.Atoi(h.Get(name))
		if err != nil || n < 0 {
			return fmt.Errorf("the answer's header %s is %q, not a number of tokens", name, h.Get(name))
		}
		*v = n
	}
	return nil
}

// readStream reads server-sent events up to the end mark.
func (a *answer) readStream(body io.Reader, start time.Time) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, 4<<10), maxEvent)
	var text strings.Builder
	finish, usage := "", false
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok {
			continue
		}
		data = bytes.TrimSpace(data)
		if string(data) == "[DONE]" {
			a.text = text.String()
			return a.whole(finish, usage)
		}
		var c chunk
		if err := json.Unmarshal(data, &c); err != nil {
			return fmt.Errorf("reading an event of the stream: %w", err)
		}
		if len(c.Error) > 0 && string(c.Error) != "null" {
			return fmt.Errorf("the stream carries an error: %s", c.Error[:min(len(c.Error), maxErrorBody)])
		}
		for i := range c.Choices {
			part := c.Choices[i].Text + c.Choices[i].Delta.Content
			if part != "" && a.ttft == 0 {
				a.ttft = time.Since(start)
			}
			text.WriteString(part)
			if r := c.Choices[i].FinishReason; r != nil {
				finish = *r
			}
		}
		if u := c.Usage; u != nil && u.PromptTokensDetails != nil {
			usage = true
			a.prompt, a.output, a.cached = u.PromptTokens, u.CompletionTokens, u.PromptTokensDetails.CachedTokens
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading the stream: %w", err)
	}
	return errors.New("the stream ended without its end mark")
}

// whole returns an error that names what an ended stream lacks.
func (a *answer) whole(finish string, usage bool) error {
	switch {
	case a.ttft == 0:
		return errors.New("the answer has no text")
	case finish != "stop" && finish != "length":
		return fmt.Errorf("the answer's finish reason is %q", finish)
	case !usage:
		return errors.New("the answer has no usage with cached tokens")
	}
	return nil
}
