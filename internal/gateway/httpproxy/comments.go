package httpproxy

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// streams are the routes whose streams consist of server-sent events, which can have comments.
var streams = map[openai.Route]bool{openai.Completions: true, openai.ChatCompletions: true, openai.Responses: true, openai.Messages: true}

// comment is a line that parsers of server-sent events pass over, and the blank line after which proxies pass it on.
const comment = ": keep-alive\n\n"

// comments are sent to a client that waits for a stream, for clients and proxies that give up on silence. The first one
// is sent with a header, before any engine has answered:
//
//	silence --every--> header, comment --every--> comment ... --first event or error--> over
//
// Until then the request can be tried elsewhere as before, but an error can only be an event, and headers that describe the
// decision are left out. The handler calls stop before it touches the answer or its header.
type comments struct {
	client *client
	route  openai.Route
	every  time.Duration

	mu    sync.Mutex // orders the timer and the handler
	timer *time.Timer
	over  bool // the handler writes the answer now
	begun bool // the header was sent with a comment
}

// comment begins to send comments; 0 sends none.
func (c *client) comment(route openai.Route, every time.Duration) {
	if every <= 0 || c.comments != nil {
		return
	}
	k := &comments{client: c, route: route, every: every}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer = time.AfterFunc(every, k.send)
	c.comments = k
}

func (k *comments) send() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return
	}
	c := k.client
	if !k.begun {
		k.begun = true
		h := c.Header()
		h["Content-Type"] = []string{"text/event-stream; charset=utf-8"}
		h["Cache-Control"] = []string{"no-cache"}
		h["X-Request-Id"] = []string{c.id}
		c.WriteHeader(http.StatusOK)
	}
	if c.write([]byte(comment), true) == nil { // else the client has gone, which the handler finds out
		k.timer.Reset(k.every)
	}
}

// stop ends the comments and reports whether any was sent. It does nothing on nil.
func (k *comments) stop() (begun bool) {
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.over = true
	k.timer.Stop()
	return k.begun
}

// isPlainStream reports whether an answer can follow comments: it is a stream of events without a coding.
func isPlainStream(r *http.Response) bool {
	return r.StatusCode == http.StatusOK && picker.IsEventStream(r.Header.Get("Content-Type")) && !encoded(r.Header)
}

// endStream makes the last event of an answer that cannot follow comments.
func (e *exchange) endStream(response *http.Response, cancel context.CancelCauseFunc) picker.Outcome {
	timer := time.AfterFunc(keepErrorWait, func() { cancel(errOver) })
	defer timer.Stop()
	body, _ := io.ReadAll(io.LimitReader(response.Body, keepError)) // what has arrived is enough
	var a picker.Answer
	a.Start(e.decision, response.StatusCode, response.Header.Get("Content-Type"), response.Header.Get("Content-Encoding"))
	a.Write(body)
	outcome, _ := a.Close()
	if outcome == picker.Completed {
		outcome = picker.Failed
	}
	e.client.failAs(&savedAnswer{header: response.Header, status: response.StatusCode, body: body})
	return outcome
}

// failAs ends a stream of comments with an engine's error.
func (c *client) failAs(s *savedAnswer) {
	if s.status < 300 && !encoded(s.header) && picker.IsEventStream(s.header.Get("Content-Type")) {
		_ = c.write(s.body, false) // its first event is the error
		return
	}
	type fields struct {
		Message, Type string
		Code          any
	}
	var body struct {
		Error fields
		fields
	}
	if json.Unmarshal(s.body, &body) == nil && body.Error.Message == "" {
		body.Error = body.fields // of vLLM before v0.10
	}
	is := body.Error
	if is.Message == "" {
		is = fields{Message: "The engine answered with an error.", Type: "bad_gateway", Code: "upstream_failed"}
	}
	code, _ := is.Code.(string)
	// Not logged: it contains text of the engine.
	c.answerError(&picker.Error{Status: s.status, Type: is.Type, Code: code, Message: is.Message})
}
