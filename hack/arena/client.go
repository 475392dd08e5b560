//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// outcome is what a client has seen of one request. First and total count from the planned arrival, so that a client that
// falls behind makes no router look faster.
type outcome struct {
	first, total time.Duration
	failure      string // why it has failed, in a word or two; empty if it has not
}

// client sends requests to one address.
type client struct {
	url   string
	limit time.Duration // for the whole request
	http  *http.Client
}

func newClient(url string, limit time.Duration) *client {
	return &client{url: url + "/v1/chat/completions", limit: limit, http: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true},
	}}
}

// load sends each request at its time, whatever has become of those before it, and returns their outcomes when all have
// ended. The hooks are called at their times.
func (c *client) load(ctx context.Context, list []request, hooks map[time.Duration]func()) []outcome {
	out := make([]outcome, len(list))
	start := time.Now()
	var all sync.WaitGroup
	for at, hook := range hooks {
		all.Go(func() {
			if sleep(ctx, time.Until(start.Add(at))) {
				hook()
			}
		})
	}
	for i := range list {
		if !sleep(ctx, time.Until(start.Add(list[i].at))) {
			break
		}
		all.Go(func() { out[i] = c.send(ctx, &list[i], start.Add(list[i].at)) })
	}
	all.Wait()
	c.http.CloseIdleConnections()
	return out
}

// sleep reports whether ctx is still valid afterwards.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// send sends one request and reads its answer to the end.
func (c *client) send(ctx context.Context, r *request, planned time.Time) outcome {
	ctx, cancel := context.WithDeadline(ctx, planned.Add(c.limit))
	defer cancel()
	var o outcome
	err := c.answer(ctx, r, func() { o.first = time.Since(planned) })
	o.total = time.Since(planned)
	if err != nil {
		o.failure = kind(err)
	}
	return o
}

// statusError is an answer that is a refusal.
type statusError struct {
	status int
	text   []byte
}

// Error implements error.
func (e *statusError) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.text) }

var errCut = errors.New("the stream has ended before the answer")

// answer reads a streamed answer. It calls first at the first text.
func (c *client) answer(ctx context.Context, r *request, first func()) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(r.body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Session-Id", r.session)
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() // read to the end or given up
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		return &statusError{status: resp.StatusCode, text: text}
	}
	lines, begun, ended := bufio.NewScanner(resp.Body), false, false
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok {
			continue
		}
		data = bytes.TrimSpace(data)
		if string(data) == "[DONE]" {
			break
		}
		var e event
		if err := json.Unmarshal(data, &e); err != nil {
			return fmt.Errorf("reading an event: %w", err)
		}
		for i := range e.Choices {
			if e.Choices[i].Delta.Content != "" && !begun {
				begun = true
				first()
			}
			ended = ended || e.Choices[i].FinishReason == "length" || e.Choices[i].FinishReason == "stop"
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if !ended { // an end mark alone proves nothing: a router can add it to a stream whose engine has died
		return errCut
	}
	return nil
}

// event is what is read of an event of a stream.
type event struct {
	Choices []struct {
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
}

// kind names a failure for the table.
func kind(err error) string {
	var status *statusError
	var network net.Error
	switch {
	case errors.As(err, &status):
		return fmt.Sprintf("status %d", status.status)
	case errors.Is(err, context.DeadlineExceeded):
		return "late"
	case errors.Is(err, context.Canceled):
		return "interrupted"
	case errors.Is(err, errCut), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return "cut"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.As(err, &network) && network.Timeout():
		return "late"
	}
	return "other"
}
