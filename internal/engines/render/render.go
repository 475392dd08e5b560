// Package render asks an engine for the token ids of a request, as the engine itself would see them.
//
// Engines from vLLM v0.15 on have a render route beside /v1/completions and /v1/chat/completions (and from v0.29 and
// v0.30 beside /v1/messages and /v1/responses): it takes the request as it is and answers with the ids, template, tools,
// truncation and all. From v0.30 on they need --enable-scale-out: without it 0.30 and 0.31 answer 404, newer ones 403. Where
// they do not answer, /tokenize is asked with those fields of the request that it knows; requests that say more than it
// understands are refused, not guessed.
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

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/engines/transport"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// Defaults of Options.
const (
	DefaultConcurrency = 64
	DefaultMaxAnswer   = 16 << 20
	DefaultTimeout     = 5 * time.Second
)

// Bounds that are not worth an option.
const (
	lackFor     = 60 * time.Second // how long the render routes of an engine are not used after they did not answer
	maxLacking  = 4096             // engines remembered as such
	maxMessage  = 1 << 10          // of an engine's error message, bytes
	keepBuffer  = 64 << 10         // the largest buffer kept for the next answer, bytes
	maxIdle     = 256              // connections kept open
	maxIdleHost = 8                // of them to one endpoint
	itemsShare  = 4                // questions about items are at most one part in so many
)

// Errors that callers might want to distinguish. Others are the network's.
var (
	// ErrBusy: as many questions are under way as are allowed.
	ErrBusy = errors.New("too many questions to engines")
	// ErrMultimodal: the prompt has images or the like, so that its ids alone do not name its blocks, and the engine does not tell the rest.
	ErrMultimodal = errors.New("the prompt has multimodal content")
	// ErrPrompts: the request has no text prompt, or too many.
	ErrPrompts = errors.New("the request has no text prompts, or too many")
	// ErrUnsupported: only the render route could answer, and the engine has none.
	ErrUnsupported = errors.New("the engine cannot render the request")
	// ErrAnswer: the engine's answer has no token ids, or is too large.
	ErrAnswer = errors.New("unreadable answer of the engine")
)

// StatusError is an engine's refusal. A status from 400 to 499 means that the request itself is at fault, and that the
// engine would refuse it again if it were forwarded.
type StatusError struct {
	// Status of the answer.
	Status int
	// Message is the engine's own, at most 1 KiB. It might quote the prompt: for the client, not for logs.
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
	// Room is the memory that answers draw on, and questions that differ from the request; nil for no bound. Each engine has a share of it
	// for all questions to it that are under way, and 256 KiB outside of it.
	Room *budget.Room
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
	engines *transport.Transports
	slots   chan struct{}
	items   chan struct{} // of the slots, those for questions about items, which can take as long as clients want
	buffers sync.Pool
	shares  shares

	rendered, tokenized, busy, failed atomic.Uint64

	mu     sync.Mutex
	routes map[engineKey]*routes // guarded by mu; what engines lack
}

// Answer is what an engine returns about the prompts of a request.
type Answer struct {
	// IDs of the first prompt.
	IDs []uint32
	// More are the ids of further prompts.
	More [][]uint32
	// Items of the first prompt in the order of their offsets, only for Items.
	Items []kvblock.Item
	// Number is the number of the ids if the engine has returned that instead of them, which is so only for Proof; otherwise 0.
	Number int
	// Source is how the engine was asked.
	Source Source
	// Release gives back the memory of the ids, which must not be used any more; nil if they take none. It can be called more than once.
	Release func()
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
		items:   make(chan struct{}, max(1, options.Concurrency/itemsShare)),
		shares:  shares{room: options.Room, of: map[engineKey]*share{}},
		routes:  map[engineKey]*routes{},
	}
	c.buffers.New = func() any { return new(bytes.Buffer) }
	c.engines = transport.NewTransports(options.Dial, func() *http.Transport {
		return &http.Transport{
			DisableCompression:     true, // costs the engine more than the network costs us
			MaxIdleConns:           maxIdle,
			MaxIdleConnsPerHost:    maxIdleHost,
			MaxConnsPerHost:        options.Concurrency,
			MaxResponseHeaderBytes: 64 << 10,
		}
	})
	return c
}

// Close closes idle connections. Running calls continue.
func (c *Client) Close() { c.engines.Close() }

// Stats counts the outcomes of requests to engines so far.
func (c *Client) Stats() Stats {
	return Stats{Rendered: c.rendered.Load(), Tokenized: c.tokenized.Load(), Busy: c.busy.Load(), Failed: c.failed.Load()}
}

// Tokens requests the ids of a request's prompts from an endpoint. body is the unmodified request; it is not read any more
// once Tokens has returned. apiKey is sent as a bearer token; empty sends none. It never waits for other calls. The caller must
// call Release of the answer.
//
// Errors wrap one of those above, *StatusError, the context's or the network's.
func (c *Client) Tokens(ctx context.Context, ep *endpoint.Endpoint, route openai.Route, body []byte, apiKey string) (Answer, error) {
	return c.question(ctx, ep, len(body), func(ctx context.Context, m *memory) (Answer, error) {
		return c.ask(ctx, m, ep, route, body, apiKey)
	})
}

// question asks an endpoint by ask, within the bounds of the client, for the tokens of a request of so many bytes.
func (c *Client) question(ctx context.Context, ep *endpoint.Endpoint, size int,
	ask func(context.Context, *memory) (Answer, error)) (Answer, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	default:
		c.busy.Add(1)
		return Answer{}, ErrBusy
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.options.Timeout)
		defer cancel()
	}
	m := c.shares.open(ep)
	out, err := ask(ctx, m)
	if err == nil {
		err = out.plausible(size)
	}
	if err != nil {
		m.close()
		c.failed.Add(1)
		return Answer{}, fmt.Errorf("asking %s for the tokens of a request: %w", ep.ID, err)
	}
	out.Release = m.close
	return out, nil
}

func (c *Client) ask(ctx context.Context, m *memory, ep *endpoint.Endpoint, route openai.Route, body []byte,
	apiKey string) (Answer, error) {
	out, lack, err := c.render(ctx, m, ep, route, payload{body: body}, apiKey, false)
	if lack == LacksNothing {
		if err == nil {
			c.rendered.Add(1)
		}
		return out, err
	}
	out, err = c.tokenize(ctx, m, ep, route, body, apiKey, lack)
	if err == nil {
		c.tokenized.Add(1)
	}
	return out, err
}

// lackError means that a render route cannot be used, and contains the reason.
type lackError struct{ lack Lack }

func (e *lackError) Error() string { return "no render route" }

// render asks a render route. lack is why it does not answer, if it does not. Prompts with items have an answer only if withItems is set.
func (c *Client) render(ctx context.Context, m *memory, ep *endpoint.Endpoint, route openai.Route, content payload,
	apiKey string, withItems bool) (out Answer, lack Lack, err error) {
	if route == openai.Embeddings { // no release has a render route for it
		return Answer{}, Absent, nil
	}
	if lack := c.lack(ep, route, time.Now()); lack != LacksNothing {
		return Answer{}, lack, nil
	}
	err = c.post(ctx, m, ep, "/v1/"+route.String()+"/render", content, apiKey, func(status int, answer []byte) error {
		switch {
		case status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented,
			status == http.StatusNotFound && !aboutModel(answer):
			return &lackError{Absent}
		case status == http.StatusForbidden && bytes.Contains(answer, []byte("--enable-scale-out")):
			return &lackError{SwitchedOff}
		case status == http.StatusForbidden:
			return &lackError{Forbidden}
		case status != http.StatusOK:
			return &StatusError{status, messageOf(answer)}
		}
		var a answerScan
		if err := a.scan(answer, "token_ids"); err != nil {
			early, ok := earlyAnswer(answer, route)
			if !ok {
				return &lackError{Absent}
			}
			out = early
			return m.keep(&out)
		}
		if a.objects == 0 || a.objects > 1 && route != openai.Completions {
			return ErrPrompts
		}
		out = Answer{IDs: a.ids, More: a.more, Source: Rendered}
		switch {
		case a.multimodal && (!withItems || a.objects > 1):
			return ErrMultimodal
		case a.multimodal:
			cost := treeCost * (len(a.hashes) + len(a.places))
			if err := m.take(cost); err != nil {
				return err
			}
			defer m.Put(cost)
			items, err := a.items()
			if err != nil {
				return err
			}
			out.Items = items
		}
		return m.keep(&out)
	})
	var lacking *lackError
	if errors.As(err, &lacking) {
		c.setLack(ep, route, lacking.lack, time.Now())
		return Answer{}, lacking.lack, nil
	}
	return out, LacksNothing, err
}

// payload is what is sent: head and then body, so that nothing is copied where only the beginning differs from the request.
type payload struct {
	head string
	body []byte
}

// post sends a payload and hands status and answer to use, which must not keep the answer, and for which scanCost is taken of m.
func (c *Client) post(ctx context.Context, m *memory, ep *endpoint.Endpoint, path string, content payload, apiKey string,
	use func(status int, answer []byte) error) error {
	src := &source{head: content.head, data: content.body}
	defer src.detach()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, path, src.reader())
	if err != nil {
		return err
	}
	req.ContentLength = int64(len(content.head) + len(content.body))
	req.GetBody = func() (io.ReadCloser, error) { return src.reader(), nil }
	req.Header.Set("Content-Type", "application/json")
	// The question changes nothing, so that it can be sent again when a connection kept open turns out to be closed.
	// Present but empty, this is understood by the transport and not sent.
	req.Header["X-Idempotency-Key"] = nil
	if apiKey != "" {
		req.Header.Set("Authorization", "Bearer "+apiKey)
	}
	resp, err := c.engines.RoundTrip(req, ep)
	if err != nil {
		if ctx.Err() == nil {
			c.forget(ep)
		}
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	buf, ok := c.buffers.Get().(*bytes.Buffer)
	if !ok {
		buf = new(bytes.Buffer)
	}
	before := m.held
	defer func() {
		if buf.Cap() <= keepBuffer {
			buf.Reset()
			c.buffers.Put(buf)
		}
	}()
	err = m.read(buf, resp.Body, c.options.MaxAnswer)
	reading := m.held - before
	defer func() { m.Put(reading) }()
	if err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	cost := scanCost * buf.Len()
	if err := m.take(cost); err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	defer m.Put(cost)
	return use(resp.StatusCode, buf.Bytes())
}

// source is a request's body. The transport might continue to read after the answer has arrived; it gets nothing more once
// the source is detached, so that the caller can reuse the bytes.
type source struct {
	head string
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
	head := len(r.source.head)
	if r.at < head {
		n := copy(p, r.source.head[r.at:])
		r.at += n
		return n, nil
	}
	if r.at == head+len(r.source.data) {
		return 0, io.EOF
	}
	n := copy(p, r.source.data[r.at-head:])
	r.at += n
	return n, nil
}

func (r *sourceReader) Close() error { return nil }
