package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/fault"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
)

// watchSilence is how long a replica can be silent before the operator reconnects; it sends its state every second.
const watchSilence = 10 * time.Second

// Replica is one pod of a pool's picker.
type Replica struct {
	// Name of the pod, and Address (host:port) of its operator service.
	Name, Address string
	// Ready is the pod's condition.
	Ready bool
}

// PickersOptions of Pickers. Zero values take the defaults.
type PickersOptions struct {
	// Dial returns how to reach the pickers of a pool (namespace/name); required.
	Dial func(pool string) (DialOptions, error)
	// OnChange, if set, is called when an update of a replica can unblock a drain or change a condition: its first update, an acknowledged
	// or lifted mark, another pool or policy, or another finding. It must not block.
	OnChange func(pool string)
	Log      logr.Logger
	// MinBackoff and MaxBackoff bound the waits between two attempts; defaults 50 ms and 2 s.
	MinBackoff, MaxBackoff time.Duration
}

// Pickers are all that the operator listens to: one stream to each replica of each pool. It is safe for concurrent use.
type Pickers struct {
	o PickersOptions

	mu     sync.Mutex // guards what follows
	pools  map[string]*listened
	closed bool
}

// listened is a pool that is listened to.
type listened struct {
	reports  operatorfeed.Pool
	expected []operatorfeed.Expected
	links    map[Replica]*watchLink // by name and address
}

// watchLink is to one replica.
type watchLink struct {
	Replica
	pool   string
	client *Client
	cancel context.CancelFunc
	ended  chan struct{}
	last   operatorfeed.State // guarded by Pickers.mu
	fresh  bool               // guarded by Pickers.mu; last is of the stream that there is
}

// NewPickers connects to no replica before Set.
func NewPickers(o PickersOptions) *Pickers {
	if o.MinBackoff <= 0 {
		o.MinBackoff = 50 * time.Millisecond
	}
	if o.MaxBackoff <= 0 {
		o.MaxBackoff = 2 * time.Second
	}
	return &Pickers{o: o, pools: map[string]*listened{}}
}

// Close ends all streams and waits for them. None begins after it.
func (p *Pickers) Close() {
	p.mu.Lock()
	p.closed = true
	var pools []string
	for pool := range p.pools {
		pools = append(pools, pool)
	}
	p.mu.Unlock()
	for _, pool := range pools {
		p.Forget(pool)
	}
}

// Forget ends the streams of a removed pool, and drops their state.
func (p *Pickers) Forget(pool string) {
	p.Set(pool, nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pools, pool)
}

// Set makes the replicas of a pool's picker those: all of its pods that can serve, whether they are connected or not. Those
// without an address yet are expected only.
func (p *Pickers) Set(pool string, replicas []Replica) {
	wanted := map[Replica]bool{}
	var expected []operatorfeed.Expected
	for _, r := range replicas {
		expected = append(expected, operatorfeed.Expected{Picker: r.Name, Ready: r.Ready})
		if r.Address != "" && len(wanted) < maxPickers {
			wanted[Replica{Name: r.Name, Address: r.Address}] = true
		}
	}
	p.mu.Lock()
	l := p.pools[pool]
	if l == nil {
		l = &listened{links: map[Replica]*watchLink{}}
		p.pools[pool] = l
	}
	l.expected = expected
	if p.closed {
		wanted = nil // callers only read from now on
	}
	var gone []*watchLink
	for r, link := range l.links {
		if !wanted[r] {
			link.cancel()
			gone = append(gone, link)
			delete(l.links, r)
		}
	}
	for r := range wanted {
		if l.links[r] == nil {
			ctx, cancel := context.WithCancel(context.Background())
			link := &watchLink{Replica: r, pool: pool, cancel: cancel, ended: make(chan struct{})}
			l.links[r] = link
			go p.keep(ctx, link) // until it is cancelled, which the Set that does it waits for
		}
	}
	p.mu.Unlock()
	for _, link := range gone {
		<-link.ended
	}
}

// unknown is the name, in a View, of replicas without any known state.
const unknown = "(replicas not known yet)"

// View is what the replicas of a pool know together. Of a pool that was never Set nothing is known, and nothing is
// acknowledged.
func (p *Pickers) View(pool string) operatorfeed.View {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.pools[pool]
	if l == nil {
		return operatorfeed.View{Silent: []string{unknown}}
	}
	return l.reports.View(time.Now(), l.expected)
}

// keep listens to a replica until ctx ends.
func (p *Pickers) keep(ctx context.Context, l *watchLink) {
	defer close(l.ended)
	backoff, said := fault.Backoff{Min: p.o.MinBackoff, Max: p.o.MaxBackoff}, ""
	for {
		began := time.Now()
		err := p.listen(ctx, l)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > p.o.MaxBackoff {
			backoff.Reset()
			said = ""
		}
		if why := err.Error(); why != said {
			p.o.Log.V(1).Info("Receiving from picker failed", "pool", l.pool, "picker", l.Name, "reason", why)
			said = why
		}
		if !backoff.Wait(ctx) {
			return
		}
	}
}

// listen opens a stream and takes its messages until it breaks. The error is never nil.
func (p *Pickers) listen(ctx context.Context, l *watchLink) error {
	o, err := p.o.Dial(l.pool)
	if err != nil {
		return err
	}
	client, err := Dial(l.Address, o)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(watchSilence, func() { cancel(errors.New("no state received from the picker")) })
	defer quiet.Stop()
	stream, err := NewOperateClient(client.conn).Watch(ctx, &WatchRequest{Pool: l.pool})
	if err != nil {
		return fmt.Errorf("opening the stream: %w", err)
	}
	defer p.settle(l, nil)
	for {
		m, err := stream.Recv()
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return err
		}
		quiet.Reset(watchSilence)
		if m.GetPicker() != l.Name {
			return fmt.Errorf("at %s another picker answers, %q", l.Address, m.GetPicker())
		}
		p.receive(l, client, stateOf(m, time.Now()))
	}
}

// settle notes which connection to use for a replica, nil for none.
func (p *Pickers) settle(l *watchLink, client *Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.client, l.fresh = client, false
}

// receive takes a received state.
func (p *Pickers) receive(l *watchLink, client *Client, s operatorfeed.State) {
	p.mu.Lock()
	pool := p.pools[l.pool]
	if pool == nil || pool.links[Replica{Name: l.Name, Address: l.Address}] != l {
		p.mu.Unlock()
		return // it is being ended
	}
	pool.reports.Receive(time.Now(), s)
	news := !l.fresh || !sameFooting(&l.last, &s)
	l.client, l.last, l.fresh = client, s, true
	p.mu.Unlock()
	if news && p.o.OnChange != nil {
		p.o.OnChange(l.pool)
	}
}

// sameFooting reports whether two states of a replica agree on what it follows, whether it can, and what it has found. The messages of
// findings can differ: they have counts that change all the time.
func sameFooting(a, b *operatorfeed.State) bool {
	if a.Incarnation != b.Incarnation || a.PoolGeneration != b.PoolGeneration || a.PolicyName != b.PolicyName ||
		a.PolicyGeneration != b.PolicyGeneration || a.Ready != b.Ready || a.Unserved != b.Unserved || len(a.Pods) != len(b.Pods) ||
		a.Resolved != b.Resolved || a.AcceptedGeneration != b.AcceptedGeneration || a.KeyID != b.KeyID {
		return false
	}
	after := b.Findings()
	for i, before := range a.Findings() {
		if before.Verdict != after[i].Verdict || before.Reason != after[i].Reason {
			return false
		}
	}
	for uid, p := range b.Pods {
		if before, ok := a.Pods[uid]; !ok || before.Draining != p.Draining || before.Synced != p.Synced || before.Degraded != p.Degraded {
			return false
		}
	}
	return true
}

// ErrNoPicker means that no connected replica can do what was requested.
var ErrNoPicker = errors.New("no picker reports")

// Warm has a pod warmed up by one of the replicas: with at most so many prompt tokens, for at most so long. It waits until
// that is done, and reports what was done.
func (p *Pickers) Warm(ctx context.Context, pool, pod string, maxTokens int, maxTime time.Duration) (WarmDone, error) {
	ctx, cancel := context.WithTimeout(ctx, maxTime+warmGrace)
	defer cancel()
	err := ErrNoPicker
	for _, client := range p.clients(pool) {
		var done WarmDone
		if done, err = client.warm(ctx, WarmOrder{Pool: pool, Pod: pod, MaxTokens: maxTokens, MaxTime: maxTime}); err == nil {
			return done, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return WarmDone{}, fmt.Errorf("warming pod %s up: %w", pod, err)
}

// warmGrace is how much longer than it can take the end of a warm-up is waited for.
const warmGrace = 5 * time.Second

// clients are connections to the replicas of a pool that report and are ready, by name.
func (p *Pickers) clients(pool string) (all []*Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.pools[pool]
	if l == nil {
		return nil
	}
	var links []*watchLink
	for _, link := range l.links {
		if link.fresh && link.last.Ready {
			links = append(links, link)
		}
	}
	slices.SortFunc(links, func(a, b *watchLink) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	for _, link := range links {
		all = append(all, link.client)
	}
	return all
}

// warm has a pod warmed up by the picker.
func (c *Client) warm(ctx context.Context, o WarmOrder) (done WarmDone, err error) {
	stream, err := NewOperateClient(c.conn).Warm(ctx, &WarmRequest{
		Pool: o.Pool, PodUid: o.Pod, MaxTokens: int64(o.MaxTokens), MaxSeconds: int32(max(1, o.MaxTime/time.Second)),
	})
	if err != nil {
		return done, err
	}
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return done, nil
		case err != nil:
			return done, err
		}
		done = WarmDone{Prompts: int(m.GetPrompts()), Tokens: int(m.GetTokens()), Skipped: int(m.GetSkipped())}
	}
}
