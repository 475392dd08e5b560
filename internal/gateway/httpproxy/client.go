package httpproxy

import (
	"net/http"
	"net/textproto"
	"strconv"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tracing"
	"github.com/kvasir-dev/kvasir/internal/usagelog"
)

// client is the connection to the client, with time-outs on reads from it and writes to it.
type client struct {
	http.ResponseWriter
	control *http.ResponseController
	log     logr.Logger
	stall   time.Duration
	h2      bool
	// messages: the request is one of the Anthropic API, and so is its answer.
	messages bool
	id       string // of the request
	engineID string // the same, for engines
	tenant   string // the request's tenant; empty where tenants are not distinguished
	reason   string // why the request was refused; empty if it was not, or not before a pick
	status   int    // of the answer; 0 until it has begun
	span     *tracing.Request
	usage    *usagelog.Request // nil where nothing is recorded
	arrived  time.Time         // when the record of its use has begun
	started  bool              // the header of the answer is out
	unread   bool              // the request's body, or some of it
	writeBy  time.Time         // the present deadline
	comments *comments         // nil without
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

// owner is the party that a request's memory is accounted to: its tenant, or else the client's address.
func (c *client) owner(r *http.Request) string {
	if c.tenant != "" {
		return c.tenant
	}
	return budget.Client(r.RemoteAddr)
}

// account begins an account of a request.
func (p *Proxy) account(part budget.Part, c *client, r *http.Request, shed func()) *budget.Account {
	if c.tenant != "" {
		return p.budget.Open(part, c.tenant, "", shed)
	}
	return p.budget.Open(part, budget.Client(r.RemoteAddr), r.RemoteAddr, shed)
}

// fail refuses a request with an error of the picker, and logs it.
func (c *client) fail(e *picker.Error) {
	if log := c.log.V(1); log.Enabled() {
		log.Info("Request refused", "request", c.id, "status", e.Status, "code", e.Code, "reason", c.reason)
	}
	if after := request.RetryAfter(e); after != "" {
		c.Header().Set("Retry-After", after)
	}
	c.answerError(e)
}

// answerError sends an error in the style of the requested API, as an event if comments have been sent. If a part of the body has not
// arrived yet, the connection ends with the answer, because the server would otherwise read the rest before it answers.
func (c *client) answerError(e *picker.Error) {
	if c.comments.stop() {
		_ = c.write(openai.AppendErrorEvent(nil, c.comments.route, e.Status, e.Type, e.Code, e.Message), false)
		return
	}
	if c.unread && !c.h2 {
		c.Header().Set("Connection", "close")
	}
	if c.messages {
		c.answerJSON(e.Status, openai.AppendMessagesError(nil, e.Status, e.Message))
		return
	}
	c.answerJSON(e.Status, openai.AppendError(nil, e.Status, e.Type, e.Code, e.Message))
}

// put sets a header of the answer, in place of what the engine has set.
func (c *client) put(name, value string) {
	c.Header()[textproto.CanonicalMIMEHeaderKey(name)] = []string{value}
}

// answerJSON sends a complete answer. An error means that the client has gone; nothing can be done about it.
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
