package judge

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// terminate sends SIGTERM while requests run, and notes how they end and what new ones get until nothing listens.
func (j *judge) terminate(ctx context.Context) error {
	body := func(fields string) string {
		return with(fmt.Sprintf(`"max_tokens": %d, "prompt": %s%s`, j.long(), list(consecutive(40000, 40)), fields))
	}
	var streamed *http.Response
	plain := make(chan string, 1)
	for both := false; !both; {
		var err error
		if streamed, err = j.open(ctx, post("/v1/completions", "", body(`, "stream": true`))); err != nil {
			return err
		}
		defer streamed.Body.Close()
		go func() {
			_, data, err := j.send(ctx, post("/v1/completions", "", body("")))
			plain <- ending(data, err)
		}()
		// On a busy machine one can end before the other runs: then both are sent again.
		if both, err = j.running(ctx, 2, plain); err != nil {
			return err
		}
	}
	if err := j.Terminate(); err != nil {
		return err
	}
	data, err := j.shuttingDown(ctx, streamed.Body)
	j.observation("SIGTERM: a running stream").set("ends", ending(data, err))
	j.observation("SIGTERM: a running request").set("ends", <-plain)
	return j.gone(ctx)
}

// ending describes how a request ends when its engine ends. An engine that does not wait for it answers that it was
// aborted, answers with an error (the engine core is dead), or breaks the connection; one release does all of it, depending
// on the moment.
func ending(data []byte, err error) string {
	if err != nil || bytes.Contains(data, []byte(`"finish_reason":"abort"`)) || failure.Match(data) {
		return "aborted, or the connection breaks"
	}
	return "as without"
}

// failure matches the error of an answer or of an event.
var failure = regexp.MustCompile(`"error":\s*\{`)

// running waits until n requests run, or until one of them has ended.
func (j *judge) running(ctx context.Context, n int, ended <-chan string) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen := make(chan error, 1)
	go func() { seen <- j.gauge(ctx, "vllm:num_requests_running", n) }()
	select {
	case err := <-seen:
		return err == nil, err
	case <-ended:
		return false, nil
	}
}

// gauge waits until a gauge of the engine is n.
func (j *judge) gauge(ctx context.Context, name string, n int) error {
	for ctx.Err() == nil {
		text, err := j.scrape(ctx)
		if err != nil {
			return err
		}
		for line := range strings.Lines(text) {
			if m := sampleLine.FindStringSubmatch(strings.TrimSpace(line)); m != nil && m[1] == name && m[3] == fmt.Sprintf("%d.0", n) {
				return nil
			}
		}
	}
	return ctx.Err()
}

// shuttingDown reads the running stream to its end, and in between asks what the engine answers while it shuts down. An
// engine that does not wait is not asked: whether it still answers depends on the moment.
func (j *judge) shuttingDown(ctx context.Context, stream io.Reader) ([]byte, error) {
	type result struct {
		data []byte
		err  error
	}
	ended := make(chan result, 1)
	go func() {
		data, err := io.ReadAll(stream)
		ended <- result{data, err}
	}()
	if !j.Bounded() {
		r := <-ended
		return r.data, r.err
	}
	// The engine needs a moment until it knows; then its answers are the same until it ends.
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case r := <-ended:
		j.observation("SIGTERM: the engine").set("waits for running requests", "no")
		return r.data, r.err
	default:
		j.observation("SIGTERM: the engine").set("waits for running requests", "yes")
	}
	list := refusable()
	if j.Options {
		list = whileEnding()
	}
	for _, r := range list {
		r.name = "SIGTERM: while running requests end: " + r.name
		if err := j.ask(ctx, r); err != nil {
			j.observation(r.name).set("connection", "broken")
		}
	}
	r := <-ended
	return r.data, r.err
}

// whileEnding are requests that are sent while running ones end.
func whileEnding() []request {
	return []request{
		{name: "GET /health", method: "GET", path: "/health"},
		post("/v1/completions", "of ids", with(`"prompt": [5, 6, 7]`)),
		post("/v1/completions", "of ids, streamed", with(`"prompt": [5, 6, 7], "stream": true`)),
		post("/v1/completions", "of text", with(`"prompt": "Say hello"`)),
		post("/v1/chat/completions", "plain", with(hello)),
		post("/tokenize", "text", `{"prompt": "Say hello"}`),
	}
}

// gone waits until nothing listens any more.
func (j *judge) gone(ctx context.Context) error {
	for ctx.Err() == nil {
		if _, _, err := j.send(ctx, request{method: "GET", path: "/health"}); err != nil {
			j.observation("SIGTERM: the engine").set("ends", "yes")
			return nil //nolint:nilerr // the failure is what was waited for
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}
