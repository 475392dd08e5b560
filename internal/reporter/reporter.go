package reporter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/fault"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/internal/sidecar"
	"github.com/kvasir-dev/kvasir/internal/zmtp"
)

// Reporter mirrors the ranks of one engine.
type Reporter struct {
	cfg   Config
	ranks []*rank
	model model
	// Sidecar are the numbers of the pool's port; nil if this process does not serve it. It is set before the status is asked for.
	Sidecar func() sidecar.Stats

	panics atomic.Uint64 // caught

	mu      sync.Mutex
	pickers map[string]*picker // guarded by mu; by address
}

// rank is one data-parallel rank of the engine.
type rank struct {
	number  int // as pickers count
	mirror  *cachesync.Mirror
	changed bell
	streams *events.Manager
	bound   *bound // nil when the engine's publisher listens
	feed    events.Feed
	file    string // empty when nothing is saved

	saveErrors atomic.Uint64
	saveFailed string // why the last save did, empty if it did not; of the goroutine that saves
}

// picker is one replica, and what pushes to it.
type picker struct {
	addr    string
	client  *rpc.Client
	cancel  context.CancelFunc
	pushing sync.WaitGroup

	mu      sync.Mutex
	senders []*cachesync.Sender // guarded by mu; by rank, nil between two streams
	last    string              // guarded by mu; why the last stream ended
	reached bool                // guarded by mu; a stream that has ended had begun, or a question was answered
	seeds   []kvblock.Seed      // guarded by mu; those that the picker has announced last, on streams that have ended
	// silentFrom is since when the picker gives no answer about requests in flight; zero while it does.
	silentFrom time.Time // guarded by mu
}

// New opens the sockets that the engine connects to, and reads what was saved.
func New(c Config) (*Reporter, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Reporter{cfg: c, pickers: map[string]*picker{}}
	for n := range c.Ranks {
		k, err := newRank(&r.cfg, n)
		if err != nil {
			r.close()
			return nil, fmt.Errorf("rank %d: %w", n, err)
		}
		r.ranks = append(r.ranks, k)
	}
	return r, nil
}

func newRank(c *Config, n int) (*rank, error) {
	k := &rank{number: n}
	k.mirror = cachesync.NewMirror(c.Mirror, k.changed.ring)
	ep := endpoint.Endpoint{ID: endpoint.ID{Pod: c.Pod, Rank: n}, Pod: c.Pod}
	var source events.Source = zmtp.EventSource{}
	addr := c.Subscribe
	if c.Listen != "" {
		addr = c.Listen
	}
	addr, err := shift(addr, c.FirstRank+n)
	if err != nil {
		return nil, err
	}
	if c.Listen != "" {
		if k.bound, err = bind(addr); err != nil {
			return nil, err
		}
		source, addr = k.bound, k.bound.listener.Addr()
	}
	ep.EventsAddress = addr
	if c.Replay != "" {
		if ep.ReplayAddress, err = shift(c.Replay, c.FirstRank+n); err != nil {
			k.close()
			return nil, err
		}
	}
	k.feed = events.Feed{Endpoint: ep, Engine: c.Engine, Sink: k.mirror}
	k.streams = events.New(events.Config{
		Source: source, Log: c.Log.WithName("events"), MinQuiet: c.MinQuiet, MaxQuiet: c.MaxQuiet,
		MaxBackoff: time.Second, // the engine is on this machine
		QueueBytes: queueBytes,
	})
	if c.StateDir != "" {
		k.file = stateFile(c.StateDir, c.FirstRank+n)
		k.load(c)
	}
	return k, nil
}

func (k *rank) close() {
	if k.streams != nil {
		k.streams.Close()
	}
	if k.bound != nil {
		k.bound.close()
	}
}

func (r *Reporter) close() {
	for _, k := range r.ranks {
		k.close()
	}
}

// EventsAddress is where the publisher of a rank is expected, or listens.
func (r *Reporter) EventsAddress(rank int) string { return r.ranks[rank].feed.Endpoint.EventsAddress }

// Mirror is what is known of a rank.
func (r *Reporter) Mirror(rank int) *cachesync.Mirror { return r.ranks[rank].mirror }

// queueBytes bounds the events of a rank that wait to be applied. Beyond it the history is read again.
const queueBytes = 4 << 20

// pool is the name of the one pool there is for a rank's streams.
const pool = "engine"

// Run mirrors and reports until ctx ends, and saves the mirrors. It can be called once.
func (r *Reporter) Run(ctx context.Context) {
	defer r.close()
	var saving sync.WaitGroup
	for _, k := range r.ranks {
		k.streams.Set(pool, []events.Feed{k.feed})
		if k.file != "" {
			saving.Go(func() { r.keepSaved(ctx, k) })
		}
	}
	r.follow(ctx)
	for _, k := range r.ranks {
		k.streams.Close() // nothing changes from here on
	}
	saving.Wait()
	for _, k := range r.ranks {
		if k.file != "" {
			r.caught("Saving the mirror panicked", func() { k.save(&r.cfg) }, "rank", k.number)
		}
	}
}

// follow pushes to the pickers that there are, until ctx ends.
func (r *Reporter) follow(ctx context.Context) {
	ticks := time.NewTicker(r.cfg.FindEvery)
	defer ticks.Stop()
	defer r.set(ctx, nil)
	failed := ""
	for {
		var addrs []string
		var err error
		if r.caught("Finding pickers panicked", func() { addrs, err = r.cfg.Pickers(ctx) }) {
			err = errPanic
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			failed = ""
			r.set(ctx, addrs)
		case failed != err.Error():
			failed = err.Error()
			r.cfg.Log.Error(err, "Finding pickers failed, keeping the known ones")
		}
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

// set makes the pickers those at the addresses.
func (r *Reporter) set(ctx context.Context, addrs []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var gone []*picker
	for addr, p := range r.pickers {
		if !slices.Contains(addrs, addr) {
			p.cancel()
			gone = append(gone, p)
			delete(r.pickers, addr)
		}
	}
	for _, p := range gone {
		p.pushing.Wait()
		_ = p.client.Close() // nothing is under way
		r.cfg.Log.Info("Picker gone", "picker", p.addr)
	}
	for _, addr := range addrs {
		if r.pickers[addr] != nil {
			continue
		}
		client, err := rpc.Dial(addr, r.cfg.Dial)
		if err != nil {
			r.cfg.Log.Error(err, "Sending to picker failed", "picker", addr)
			continue
		}
		r.cfg.Log.Info("Picker found", "picker", addr)
		p := &picker{addr: addr, client: client, senders: make([]*cachesync.Sender, len(r.ranks))}
		pushing, cancel := context.WithCancel(ctx)
		p.cancel = cancel
		for _, k := range r.ranks {
			p.pushing.Go(func() { r.push(pushing, p, k) })
		}
		if r.cfg.Model.Named() {
			p.pushing.Go(func() { r.offer(pushing, p) })
		}
		r.pickers[addr] = p
	}
}

// errPanic is what is shown of a panic besides the log's line about it.
var errPanic = errors.New("a fault of the reporter")

// caught reports whether f has panicked, which is then counted and logged. What called it goes on.
func (r *Reporter) caught(what string, f func(), values ...any) bool {
	return fault.Catch(f, func(p *fault.Panic) {
		r.panics.Add(1)
		r.cfg.Log.Error(p, what, append(values, "stack", string(p.Stack))...)
	}) != nil
}

// push sends a rank's state to a picker until ctx ends.
func (r *Reporter) push(ctx context.Context, p *picker, k *rank) {
	changed, end := k.changed.listen()
	defer end()
	backoff := fault.Backoff{Min: r.cfg.MinBackoff, Max: r.cfg.MaxBackoff}
	log := r.cfg.Log.WithValues("picker", p.addr, "rank", strconv.Itoa(k.number))
	said := ""
	for {
		sender := cachesync.NewSender(k.mirror, r.cfg.Pod, k.number)
		p.mu.Lock()
		p.senders[k.number] = sender
		p.mu.Unlock()
		err := p.client.Push(ctx, sender, changed)
		worked := false
		if caught := (*fault.Panic)(nil); !errors.As(err, &caught) {
			worked = sender.Stats().Welcome
		} else {
			r.panics.Add(1)
			log.Error(caught, "Reporting to a picker panicked", "stack", string(caught.Stack))
			err = errPanic // the words of a panic can be those of a message
		}
		p.mu.Lock()
		p.senders[k.number], p.last, p.reached = nil, err.Error(), p.reached || worked
		if worked {
			p.seeds = sender.Seeds()
		}
		p.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		if worked {
			backoff.Reset()
		}
		if why := err.Error(); worked || why != said {
			log.Info("Report interrupted", "reason", why)
			said = why
		}
		if !backoff.Wait(ctx) {
			return
		}
	}
}
