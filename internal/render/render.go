// Package render asks an engine for the token ids of a request, as the engine itself would see them.
//
// Engines from vLLM v0.15 on have a render route beside each route of the API: it takes the request as it is and
// answers with the ids, template, tools, truncation and all. Where there is none, /tokenize serves, with those fields
// of the request that it knows; requests that say more than it understands are refused, not guessed.
package render

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/wire"
)

// Defaults of Options.
const (
	DefaultConcurrency = 64
	DefaultMaxAnswer   = 16 << 20
	DefaultTimeout     = 5 * time.Second
)

// Bounds that are not worth an option.
const (
	absentFor   = 60 * time.Second // how long an endpoint without render routes is believed to have none
	maxAbsent   = 4096             // endpoints remembered as such
	maxMessage  = 1 << 10          // of an engine's error message, bytes
	keepBuffer  = 1 << 20          // the largest buffer kept for the next answer, bytes
	maxIdle     = 256              // connections kept open
	maxIdleHost = 8                // of them to one endpoint
)

// Errors that callers may want to tell apart. Others are the network's.
var (
	// ErrBusy: as many questions are under way as may be.
	ErrBusy = errors.New("too many questions to engines")
	// ErrMultimodal: the prompt has images or the like, so that its ids alone do not name its blocks.
	ErrMultimodal = errors.New("the prompt has multimodal content")
	// ErrPrompts: the request has no text prompt, or more than one prompt.
	ErrPrompts = errors.New("the request has not exactly one text prompt")
	// ErrUnsupported: only the render route could answer, and the engine has none.
	ErrUnsupported = errors.New("the engine cannot render the request")
	// ErrAnswer: the engine's answer has no token ids, or is too large.
	ErrAnswer = errors.New("unreadable answer of the engine")
)

// StatusError is an engine's refusal. A status from 400 to 499 means that the request itself is at fault, and that the
// engine would say the same again if it were forwarded.
type StatusError struct {
	// Status of the answer.
	Status int
	// Message is the engine's own, at most 1 KiB. It may quote the prompt: for the client, not for logs.
	Message string
}

// Error leaves the engine's message out.
func (e *StatusError) Error() string {
	return fmt.Sprintf("the engine answered with status %d", e.Status)
}

// Options are what a Client is made of. Zero values mean the defaults.
type Options struct {
	// Concurrency is the most questions under way at once.
	Concurrency int
	// MaxAnswer is the largest answer read, bytes.
	MaxAnswer int64
	// Timeout bounds a question whose context has no deadline.
	Timeout time.Duration
	// Dial makes connections; nil is the network's own. The network is "tcp" or "unix".
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Stats counts what became of the questions.
type Stats struct {
	// Rendered and Tokenized are ids obtained from the render routes and from /tokenize.
	Rendered, Tokenized uint64
	// Busy counts questions not asked because too many were under way, Failed all other failures.
	Busy, Failed uint64
}

// Client asks engines. It is safe for concurrent use.
type Client struct {
	options Options
	engines *wire.Transports
	slots   chan struct{}
	buffers sync.Pool

	rendered, tokenized, busy, failed atomic.Uint64

	mu     sync.Mutex // guards absent
	absent map[routeAt]time.Time
}

// routeAt is one render route of one endpoint.
type routeAt struct {
	address, socket string
	route           openai.Route
}

// New returns a client.
func New(options Options) *Client {
	if options.Concurrency <= 0 {
		options.Concurrency = DefaultConcurrency
	}
	if options.MaxAnswer <= 0 {
		options.MaxAnswer = DefaultMaxAnswer
	}
	if options.Timeout <= 0 {
		options.Timeout = DefaultTimeout
	}
	if options.Dial == nil {
		options.Dial = (&net.Dialer{}).DialContext
	}
	c := &Client{
		options: options,
		slots:   make(chan struct{}, options.Concurrency),
		absent:  map[routeAt]time.Time{},
	}
	c.buffers.New = func() any { return new(bytes.Buffer) }
	c.engines = wire.NewTransports(options.Dial, func() *http.Transport {
		return &http.Transport{
			DisableCompression:     true, // costs the engine more than the network costs us
			MaxIdleConns:           maxIdle,
			MaxIdleConnsPerHost:    maxIdleHost,
			MaxConnsPerHost:        options.Concurrency,
			IdleConnTimeout:        30 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
		}
	})
	return c
}

// Close closes idle connections. Questions under way go on.
func (c *Client) Close() { c.engines.Close() }

// Stats tells what became of the questions so far.
func (c *Client) Stats() Stats {
	return Stats{Rendered: c.rendered.Load(), Tokenized: c.tokenized.Load(), Busy: c.busy.Load(), Failed: c.failed.Load()}
}

// Tokens asks an endpoint for the ids of a request's prompt. body is the request as it came; it is not read any more
// once Tokens has returned. apiKey is sent as a bearer token; empty sends none. It never waits for other questions.
//
// Errors wrap one of those above, *StatusError, the context's or the network's.
func (c *Client) Tokens(ctx context.Context, ep *endpoint.Endpoint, route openai.Route, body []byte, apiKey string) ([]uint32, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	default:
		c.busy.Add(1)
		return nil, ErrBusy
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.options.Timeout)
		defer cancel()
	}
	ids, err := c.ask(ctx, ep, route, body, apiKey)
	if err != nil {
		c.failed.Add(1)
		return nil, fmt.Errorf("asking %s for the tokens of a request: %w", ep.ID, err)
	}
	return ids, nil
}

func (c *Client) ask(ctx context.Context, ep *endpoint.Endpoint, route openai.Route, body []byte, apiKey string) ([]uint32, error) {
	at := routeAt{ep.Address, ep.Socket, route}
	if !c.isAbsent(at, time.Now()) {
		ids, err := c.render(ctx, ep, route, body, apiKey)
		if err == nil {
			c.rendered.Add(1)
		}
		if !errors.Is(err, errAbsent) {
			return ids, err
		}
		c.setAbsent(at, time.Now())
	}
	ids, err := c.tokenize(ctx, ep, route, body, apiKey)
	if err == nil {
		c.tokenized.Add(1)
	}
	return ids, err
}

// errAbsent says that an endpoint has no render route, or none that we understand.
var errAbsent = errors.New("no render route")

func (c *Client) render(ctx context.Context, ep *endpoint.Endpoint, route openai.Route, body []byte, apiKey string) (ids []uint32, err error) {
	err = c.post(ctx, ep, "/v1/"+route.String()+"/render", body, apiKey, func(status int, answer []byte) error {
		switch {
		case status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented,
			status == http.StatusNotFound && !aboutModel(answer):
			return errAbsent
		case status != http.StatusOK:
			return &StatusError{status, messageOf(answer)}
		}
		var a answerScan
		if err := a.scan(answer, "token_ids"); err != nil {
			// Early releases answered in other forms.
			return fmt.Errorf("%w: %w", errAbsent, err)
		}
		if a.objects != 1 {
			return ErrPrompts
		}
		if a.multimodal {
			return ErrMultimodal
		}
		ids = a.ids
		return nil
	})
	return ids, err
}

// post sends a body and hands status and answer to use, which must not keep the answer.
func (c *Client) post(ctx context.Context, ep *endpoint.Endpoint, path string, body []byte, apiKey string, use func(status int, answer []byte) error) error {
	src := &source{data: body}
	defer src.detach()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, path, src.reader())
	if err != nil {
		return err
	}
	req.ContentLength = int64(len(body))
	req.GetBody = func() (io.ReadCloser, error) { return src.reader(), nil }
	req.Header.Set("Content-Type", "application/json")
	// The question changes nothing, so that it may be sent again when a connection kept open turns out to be closed.
	// Present but empty, this is understood by the transport and not sent.
	req.Header["X-Idempotency-Key"] = nil
	if apiKey != "" {
		req.Header.Set("Authorization", "Bearer "+apiKey)
	}
	resp, err := c.engines.RoundTrip(req, ep)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	buf, ok := c.buffers.Get().(*bytes.Buffer)
	if !ok {
		buf = new(bytes.Buffer)
	}
	defer func() {
		if buf.Cap() <= keepBuffer {
			buf.Reset()
			c.buffers.Put(buf)
		}
	}()
	if _, err := buf.ReadFrom(io.LimitReader(resp.Body, c.options.MaxAnswer+1)); err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	if int64(buf.Len()) > c.options.MaxAnswer {
		return fmt.Errorf("%w: more than %d bytes", ErrAnswer, c.options.MaxAnswer)
	}
	return use(resp.StatusCode, buf.Bytes())
}

// isAbsent tells whether a route was not there a short while ago.
func (c *Client) isAbsent(at routeAt, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	until, ok := c.absent[at]
	return ok && now.Before(until)
}

// setAbsent remembers that a route is not there.
func (c *Client) setAbsent(at routeAt, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.absent) >= maxAbsent {
		for other, until := range c.absent {
			if !now.Before(until) {
				delete(c.absent, other)
			}
		}
	}
	if len(c.absent) >= maxAbsent {
		clear(c.absent)
	}
	c.absent[at] = now.Add(absentFor)
}

// source is a request's body. The transport may go on reading after the answer has come; it gets nothing any more
// once the source is detached, so that the caller may use the bytes again.
type source struct {
	mu   sync.Mutex
	data []byte
	gone bool
}

type sourceReader struct {
	source *source
	at     int
}

func (s *source) reader() io.ReadCloser { return &sourceReader{source: s} }

func (s *source) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.data, s.gone = nil, true
}

func (r *sourceReader) Read(p []byte) (int, error) {
	r.source.mu.Lock()
	defer r.source.mu.Unlock()
	if r.source.gone {
		return 0, io.ErrClosedPipe
	}
	if r.at == len(r.source.data) {
		return 0, io.EOF
	}
	n := copy(p, r.source.data[r.at:])
	r.at += n
	return n, nil
}

func (r *sourceReader) Close() error { return nil }
