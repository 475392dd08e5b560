package httpproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/engines/transport"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/overload"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// Mirroring bounds the copies of requests that ModelRoutes send to mirrors. Zero values take the defaults.
type Mirroring struct {
	// Most copies under way at once; one pool can have twice as many as are free; 64.
	Most int
	// Budget is what they hold in memory, apart from what requests draw on; one of 64 MiB.
	Budget *budget.Budget
	// Timeout is the longest time that a copy takes, from its beginning to the end of its answer; 5 min. MaxAnswer is the longest
	// answer that is read, in bytes; 64 MiB.
	Timeout   time.Duration
	MaxAnswer int64
}

// mirrorCost is what a copy under way takes besides its body: as a request, and the header of the client's request, which it refers to.
const mirrorCost = requestCost + maxAnswerHeader + 64<<10

// mirrorShare is the part of the copies' memory that one body can take at most.
const mirrorShare = 8

// mirrors are the copies that are under way. They belong to no request: a client's answer does not wait for them.
type mirrors struct {
	Mirroring

	slots   underWay
	engines *transport.Transports
	ctx     context.Context // ends with the proxy
	end     context.CancelFunc
	running sync.WaitGroup
}

// newMirrors makes the place for copies. Their connections are their own, so that requests keep theirs.
func newMirrors(o *Options) *mirrors {
	m := &mirrors{Mirroring: o.Mirroring}
	m.Most = cmp.Or(m.Most, 64)
	m.Timeout = cmp.Or(m.Timeout, 5*time.Minute)
	m.MaxAnswer = cmp.Or(m.MaxAnswer, 64<<20)
	if m.Budget == nil {
		m.Budget = budget.New(64<<20, time.Now)
	}
	m.slots = underWay{most: m.Most, owners: map[string]int{}}
	m.engines = newTransports(&Options{DialTimeout: o.DialTimeout, MaxIdle: max(1, m.Most/2), IdlePerEndpoint: max(1, m.Most/2)})
	m.ctx, m.end = context.WithCancel(context.Background())
	return m
}

// close cuts the copies off, and waits until they have ended.
func (m *mirrors) close() {
	m.end()
	m.running.Wait()
	m.engines.Close()
}

// mirror sends the copies of a request that was picked for. What it does before it returns does not depend on the mirrors: it counts, and
// copies the body once for each of them.
func (e *exchange) mirror() {
	for _, to := range e.proxy.picker.Mirrors(&e.pick, e.decision) {
		c, why := e.proxy.mirrors.copyOf(e, to)
		if c == nil {
			to.Dropped(why)
			continue
		}
		go c.run()
	}
}

// mirrored is a copy of one request on its way to a mirror.
type mirrored struct {
	proxy   *Proxy
	to      *picker.Mirror
	request *http.Request // of the client
	route   openai.Route
	id      string // no other request under way brings it to an engine
	leaveID func()
	held    *budget.Account // of what it takes besides the body
	body    *body           // nil once the answer has begun
}

// copyOf makes a copy if there is room for it.
func (m *mirrors) copyOf(e *exchange, to *picker.Mirror) (*mirrored, picker.Drop) {
	size := len(e.body.Bytes)
	switch {
	case e.proxy.options.Overload.Refuses(overload.LowPriority):
		return nil, picker.DropOverload
	case int64(size) > m.Budget.Stats().Limit/mirrorShare:
		return nil, picker.DropMemory
	case !m.slots.enter(to.Pool()):
		return nil, picker.DropBusy
	}
	c := &mirrored{proxy: e.proxy, to: to, request: e.request, route: e.route}
	c.id, c.leaveID = e.proxy.ids.enter(e.client.engineID + "-mirror")
	c.held = m.Budget.Open(budget.Requests, to.Pool(), "", nil)
	c.body = &body{proxy: e.proxy, account: m.Budget.Open(budget.Bodies, to.Pool(), "", nil)}
	c.body.refs.Store(1)
	m.running.Add(1)
	if !c.held.Take(mirrorCost) || !c.body.Fill(c.body.account.Take, size) {
		c.close()
		return nil, picker.DropMemory
	}
	c.body.Bytes = append(c.body.Bytes, e.body.Bytes...)
	if !c.body.TakeIDs(c.body.account.Take, c.route) {
		c.close()
		return nil, picker.DropMemory
	}
	return c, 0
}

// close gives back what the copy holds.
func (c *mirrored) close() {
	m := c.proxy.mirrors
	c.dropBody()
	c.held.Close()
	c.leaveID()
	m.slots.leave(c.to.Pool())
	m.running.Done()
}

// dropBody releases the body; a connection that still sends it keeps its own reference.
func (c *mirrored) dropBody() {
	if c.body != nil {
		c.body.release()
		c.body = nil
	}
}

// run sends the copy, and reads its answer to the end.
func (c *mirrored) run() {
	m := c.proxy.mirrors
	defer c.close()
	defer func() {
		if v := recover(); v != nil {
			c.proxy.options.Log.Error(fmt.Errorf("panic: %v", v), "Mirroring failed", "request", c.id, "stack", string(debug.Stack()))
		}
	}()
	ctx, cancel := context.WithTimeout(m.ctx, m.Timeout)
	defer cancel()
	in := picker.Request{ID: c.id, Route: c.route, Body: c.body.Bytes, Header: headerOf(c.request)}
	in.Rename = func(r *openai.Request, model string) ([]byte, bool) {
		ok := c.body.Rename(c.body.account.Take, r, model)
		return c.body.Bytes, ok
	}
	d, err := c.proxy.picker.PickMirror(ctx, c.to, &in)
	if err != nil {
		c.to.Dropped(picker.DropOf(err))
		return
	}
	outcome := picker.Failed
	defer func() { d.End(outcome) }()
	if !c.rewrite(d) {
		c.to.Dropped(picker.DropMemory)
		return
	}
	c.to.Sent()
	ended := outcome
	defer func() { c.to.Ended(ended) }()
	if outcome, err = c.send(ctx, d); err != nil {
		d.Abandon()
		if log := c.proxy.options.Log.V(1); log.Enabled() {
			log.Info("Mirrored request failed", "request", c.id, "pool", d.Pool, "endpoint", d.Targets[0].Endpoint.ID.String(),
				"reason", reasonOf(err))
		}
	}
	if ended = outcome; errors.Is(err, errLong) || ctx.Err() != nil {
		ended = picker.Outcome(picker.MirrorCutOff)
	}
}

var errLong = errors.New("the answer is too long")

// rewrite makes of the body what the pool's engines get, and reports whether there was room for that.
func (c *mirrored) rewrite(d *picker.Decision) bool {
	if d.DropsPriority() {
		openai.DropPriority(c.body.Bytes)
	}
	salt := d.CacheSalt()
	return salt == "" || c.body.Salt(c.body.account.Take, salt)
}

// send sends the copy to its endpoint, once, and reads the answer.
func (c *mirrored) send(ctx context.Context, d *picker.Decision) (picker.Outcome, error) {
	ep := d.Targets[0].Endpoint
	sent := c.body
	r := &http.Request{
		Method: c.request.Method, URL: &url.URL{Path: c.request.URL.Path, RawPath: c.request.URL.RawPath},
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: c.header(d), Body: sent.reader(new(atomic.Bool)), ContentLength: int64(len(sent.Bytes)),
		GetBody: func() (io.ReadCloser, error) { return sent.reader(new(atomic.Bool)), nil },
	}
	response, err := c.proxy.mirrors.engines.RoundTrip(r.WithContext(ctx), ep)
	if err != nil {
		return picker.Failed, err
	}
	defer func() { _ = response.Body.Close() }()
	c.dropBody()
	return c.read(d, response)
}

// mirroredHeaders are those of the client's headers that an engine gets with a copy: what its body is, and what the API asks of an answer.
// No others, and no query: keys, cookies, addresses and names of people are for the pool that the client has asked.
var mirroredHeaders = []string{"Content-Type", "Accept", "Anthropic-Version", "Anthropic-Beta"}

// header is that of a copy. The engine gets the key of its own pool, and none of the client's.
func (c *mirrored) header(d *picker.Decision) http.Header {
	all := requestHeader(c.request, d.Targets[0].Endpoint, c.id, d)
	h := http.Header{"Accept-Encoding": {"identity"}, "User-Agent": nil, "X-Request-Id": {c.id}}
	for _, name := range append([]string{rankHeader}, mirroredHeaders...) {
		if v, ok := all[name]; ok {
			h[name] = v
		}
	}
	if value := d.Spec().EngineAPIKey; value != "" {
		h["Authorization"] = []string{"Bearer " + value}
	}
	return h
}

// read reads an answer to its end, for the account of the decision, and keeps nothing of it.
func (c *mirrored) read(d *picker.Decision, response *http.Response) (picker.Outcome, error) {
	p := pipes.Get().(*pipe)
	defer pipes.Put(p)
	p.answer.Start(d, response.StatusCode, response.Header.Get("Content-Type"), strings.Join(response.Header["Content-Encoding"], ","))
	for left := c.proxy.mirrors.MaxAnswer; ; {
		n, err := response.Body.Read(p.buf[:])
		p.answer.Write(p.buf[:n])
		if left -= int64(n); left < 0 {
			return picker.Failed, errLong
		}
		if errors.Is(err, io.EOF) {
			outcome, _ := p.answer.Close()
			return outcome, nil
		}
		if err != nil {
			return picker.Failed, err
		}
	}
}
