package envoy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/gateway/extproc"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
	enginemetrics "github.com/kvasir-dev/kvasir/internal/vllm"
)

// pool is the pool of engines at some addresses. It holds requests while none of them is ready, takes no limit of theirs
// into account, and spreads requests evenly.
func pool(addresses ...string) picker.Spec {
	s := picker.Spec{
		Namespace: "default", Name: "pool", Model: "m", Engine: "VLLM", NoEvents: true, BlockTokens: 16, MaxRequestBody: 8 << 20,
		Policy: picker.PolicySpec{
			Strategy: policy.Config{Type: policy.RoundRobin}, SpeculationMax: time.Minute, MaxKVUsage: 0.95,
			CircuitFailures: 1000, CircuitOpen: time.Second, Attempts: 3, AnswerHeaders: "Never",
			Admission: picker.AdmissionSpec{Queue: true, WaitBudget: time.Hour,
				Limits: admission.Limits{Requests: 1000, Bytes: 1 << 30, TTL: time.Minute, Hold: time.Minute}},
		},
	}
	for i, a := range addresses {
		s.Endpoints = append(s.Endpoints, endpoint.Endpoint{
			ID: endpoint.ID{Pod: fmt.Sprintf("uid-%d", i)}, Pod: fmt.Sprintf("pod-%d", i), Namespace: "default",
			Address: a, RankHeader: -1, Ready: true, Serving: true,
		})
	}
	return s
}

// replica is one picker replica: it serves gateways with TLS.
type replica struct {
	picker  *picker.Picker
	server  *extproc.Server
	address string
	ledger  *ledger
	conns   *connections
	leaving atomic.Bool  // health checks fail
	ahead   atomic.Int64 // of the time, what the picker takes for it

	stop context.CancelFunc
	done chan error
}

// settings of a replica; the zero value serves at a free port with a certificate of its own.
type settings struct {
	address string
	certs   certs.Files
	age     time.Duration // of connections
}

func startReplica(t *testing.T, spec picker.Spec, s settings) *replica {
	t.Helper()
	r := &replica{ledger: &ledger{}, done: make(chan error, 1)}
	r.picker = picker.New(picker.Options{Log: logr.Discard(), Now: func() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) }})
	r.apply(t, spec)
	config, err := extproc.TLS(s.certs, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if s.address == "" {
		s.address = "127.0.0.1:0"
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	r.address, r.conns = listener.Addr().String(), &connections{Listener: listener}
	r.conns.thawed.L = &r.conns.mu
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	r.server = extproc.New(extproc.Options{Picker: r.picker, Observer: r.ledger, Log: logr.Discard()})
	go func() {
		r.done <- r.server.Serve(ctx, r.conns, extproc.ServeOptions{TLS: config, ConnectionAge: s.age, Log: logr.Discard(),
			Ready: func() bool { return !r.leaving.Load() }})
	}()
	t.Cleanup(r.crash)
	return r
}

func (r *replica) apply(t *testing.T, spec picker.Spec) {
	t.Helper()
	if err := r.picker.Apply([]picker.Spec{spec}); err != nil {
		t.Fatal(err)
	}
}

// drain ends the replica as SIGTERM does when its lame duck time is over, and waits for its end.
func (r *replica) drain(t *testing.T) {
	t.Helper()
	r.stop()
	if err := <-r.done; err != nil {
		t.Errorf("draining a picker: %v", err)
	}
	r.done <- nil
}

// crash ends the replica as SIGKILL does: the kernel resets its connections, and new ones are refused.
func (r *replica) crash() {
	r.conns.reset()
	r.stop()
	r.done <- <-r.done
}

func (r *replica) stats() picker.PoolStats { return r.picker.Stats()[0] }

// scrape reads the metrics of the engines, which are the pool's endpoints in this order.
func (r *replica) scrape(t *testing.T, all []*engine) {
	t.Helper()
	for i, e := range all {
		answer, err := http.Get("http://" + e.address() + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		m, err := enginemetrics.ParseMetrics(text, -1)
		if err != nil {
			t.Fatal(err)
		}
		r.picker.Observe(endpoint.ID{Pod: fmt.Sprintf("uid-%d", i)}, time.Now(), load.Report{Generated: m.Generated, CountsGenerated: m.CountsGenerated})
	}
}

// idle waits until nothing of any request is left in the replica.
func (r *replica) idle(t *testing.T) {
	t.Helper()
	until(t, "no load, no body and no stream is left in the picker", func() bool {
		for _, ep := range r.stats().Endpoints {
			if ep.Load.InFlight != 0 {
				return false
			}
		}
		return r.server.Buffered() == 0 && r.server.Streams() == 0
	})
}

// connections is a listener whose connections can be reset or frozen all at once.
type connections struct {
	net.Listener
	mu     sync.Mutex
	thawed sync.Cond
	open   map[*connection]bool // guarded by mu
	frozen bool                 // guarded by mu
	over   bool                 // guarded by mu
}

func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	one := &connection{Conn: conn, of: c}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[*connection]bool{}
	}
	c.open[one] = true
	if c.over {
		one.reset()
	}
	return one, nil
}

func (c *connections) reset() {
	_ = c.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over, c.frozen = true, false
	for one := range c.open {
		one.reset()
	}
	c.thawed.Broadcast()
}

// freeze has the process read nothing any more, as SIGSTOP does, until thaw is called.
func (c *connections) freeze(frozen bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen = frozen
	c.thawed.Broadcast()
}

type connection struct {
	net.Conn
	of *connections
}

func (c *connection) reset() {
	_ = c.Conn.(*net.TCPConn).SetLinger(0)
	_ = c.Conn.Close()
}

func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	for c.of.frozen {
		c.of.thawed.Wait()
	}
	return n, err
}

func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// ledger is what a replica has accounted for.
type ledger struct {
	mu      sync.Mutex
	chosen  map[int]bool   // guarded by mu, the tokens of prompts for which there was a pick
	ended   []entry        // guarded by mu
	refused map[string]int // guarded by mu, by reason
}

// entry is the account of one request.
type entry struct {
	picked, served string // addresses
	next           string // the one behind picked in the list
	outcome        picker.Outcome
	prompt         int // tokens as the picker counted them
	told           picker.Reported
	bytes          int64 // of the answer's body
	byPrompt       bool  // the prompt was seen
}

func (l *ledger) Refused(reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused == nil {
		l.refused = map[string]int{}
	}
	l.refused[reason]++
}

func (l *ledger) Picked(d *picker.Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.chosen == nil {
		l.chosen = map[int]bool{}
	}
	l.chosen[d.PromptTokens] = true
}

// picked reports whether the replica has picked for a request.
func (l *ledger) picked(r request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.chosen[r.tokens]
}

func (*ledger) FirstToken(*picker.Decision, time.Duration) {}

func (l *ledger) Ended(d *picker.Decision, outcome picker.Outcome, _ time.Duration) {
	e := entry{
		picked: d.Targets[0].Endpoint.Address, outcome: outcome, prompt: d.PromptTokens, told: d.Reported(), bytes: d.AnswerBytes(),
		byPrompt: d.Tokens == picker.TokensGiven,
	}
	if len(d.Targets) > 1 {
		e.next = d.Targets[1].Endpoint.Address
	}
	if t := d.Target(); t != nil {
		e.served = t.Endpoint.Address
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = append(l.ended, e)
}

// entries are those after the first n.
func (l *ledger) entries(n int) []entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]entry(nil), l.ended[n:]...)
}

func (l *ledger) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ended)
}

// waitFor waits until the replica has accounted for n requests, and returns the entries after the first so many.
func (l *ledger) waitFor(t *testing.T, after, n int) []entry {
	t.Helper()
	until(t, fmt.Sprintf("%d requests are accounted for", n), func() bool { return l.len() >= after+n })
	return l.entries(after)
}
