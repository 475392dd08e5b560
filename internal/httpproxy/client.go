package httpproxy

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/spans"
)

// client is the connection to who asked, with time-outs on what has to be read from it and written to it.
type client struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	h2      bool
	// messages: the request is one of the Anthropic API, and so is its answer.
	messages bool
	id       string // of the request
	status   int    // of the answer; 0 until it has begun
	span     *spans.Request
	started  bool      // the header of the answer is out
	unread   bool      // the request's body, or some of it
	writeBy  time.Time // the deadline in force
}

// WriteHeader starts the answer.
func (c *client) WriteHeader(status int) {
	c.started, c.status = true, status
	c.ResponseWriter.WriteHeader(status)
}

// readWithin bounds the reads from now on; 0 takes the bound off. Writers that know no deadlines are left alone.
func (c *client) readWithin(d time.Duration) {
	deadline := time.Time{}
	if d > 0 {
		deadline = time.Now().Add(d)
	}
	_ = c.control.SetReadDeadline(deadline)
}

// beforeWrite bounds the writes that follow by the stall time, give or take a quarter. HTTP/2 streams are reset when
// a deadline passes, be there a write or not, so theirs is taken off by afterWrite.
func (c *client) beforeWrite() {
	now := time.Now()
	if !c.h2 && c.writeBy.Sub(now) > c.stall*3/4 {
		return
	}
	c.writeBy = now.Add(c.stall)
	_ = c.control.SetWriteDeadline(c.writeBy)
}

func (c *client) afterWrite() {
	if c.h2 {
		_ = c.control.SetWriteDeadline(time.Time{})
	}
}

// write sends a piece of the answer, and everything so far if flush is true.
func (c *client) write(p []byte, flush bool) error {
	c.beforeWrite()
	defer c.afterWrite()
	c.started = true
	if _, err := c.Write(p); err != nil {
		return err
	}
	if flush {
		return c.control.Flush()
	}
	return nil
}

// flush sends what was written so far.
func (c *client) flush() error {
	c.beforeWrite()
	defer c.afterWrite()
	return c.control.Flush()
}

// fail sends an error in the style of the API that was asked. When there is still a body to come the connection ends with it,
// because the server would else read on before it answers.
func (c *client) fail(status int, typ, code, message string) {
	if c.unread && !c.h2 {
		c.Header().Set("Connection", "close")
	}
	if c.messages {
		c.answerJSON(status, openai.AppendMessagesError(nil, status, message))
		return
	}
	c.answerJSON(status, openai.AppendError(nil, status, typ, code, message))
}

// answerJSON sends a whole answer. Who does not want it any more does not get it: there is nothing to do about it.
func (c *client) answerJSON(status int, body []byte) {
	h := c.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if c.id != "" {
		h["X-Request-Id"] = []string{c.id}
	}
	c.WriteHeader(status)
	_ = c.write(body, false)
}

// modelList is the answer to GET /v1/models.
type modelList struct {
	Object string  `json:"object"`
	Data   []model `json:"data"`
}

type model struct {
	ID      string  `json:"id"`
	Object  string  `json:"object"`
	Created int64   `json:"created"`
	OwnedBy string  `json:"owned_by"`
	Root    string  `json:"root"`
	Parent  *string `json:"parent"`
}

// models lists the names that requests may use, over all pools.
func (p *Proxy) models(out *client, r *http.Request) {
	models, err := p.picker.ModelsFor(r.Header.Get)
	if err != nil {
		p.refusePick(out, r, err)
		return
	}
	list := modelList{Object: "list", Data: []model{}}
	for _, m := range models {
		entry := model{ID: m.Name, Object: "model", OwnedBy: "kvasir", Root: m.Name}
		if m.Parent != "" {
			entry.Parent = &m.Parent
		}
		list.Data = append(list.Data, entry)
	}
	body, err := json.Marshal(list)
	if err != nil { // strings cannot fail to marshal
		panic(err)
	}
	out.answerJSON(http.StatusOK, body)
}
