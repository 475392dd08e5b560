package vllmsim

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// keepAlive is how long the engine's HTTP server keeps a connection on which nothing is asked.
const keepAlive = 5 * time.Second

// Engine is a running engine.
type Engine struct {
	cfg     Config
	loop    *loop
	pub     *publisher // nil without events
	metrics *metrics
	server  *http.Server
	addr    string
	served  sync.WaitGroup
	created time.Time
	lastID  atomic.Uint64
	// draining makes new requests end as aborted at once.
	draining atomic.Bool
	closing  sync.Once
	adapters *adapters
	// transfers are blocks that other engines read.
	transfers *transfers
	stopping  sync.Mutex // one at a time stops or resumes the loop for a client
}

// Start returns an engine that serves, after Config.StartupDelay.
func Start(cfg Config) (*Engine, error) { return StartContext(context.Background(), cfg) }

// StartContext is Start, but gives up when ctx ends before the engine serves. ctx does not end the engine.
func StartContext(ctx context.Context, cfg Config) (*Engine, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if cfg.StartupDelay > 0 {
		select {
		case <-time.After(cfg.StartupDelay):
		case <-ctx.Done():
			return nil, fmt.Errorf("starting up: %w", ctx.Err())
		}
	}
	model, err := newModel(cfg)
	if err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, metrics: newMetrics(cfg), created: time.Now(), adapters: newAdapters(cfg.LoRAs)}
	if !cfg.Events.Disabled {
		if e.pub, err = newPublisher(cfg); err != nil { // its sockets outlive ctx
			return nil, err
		}
	}
	addr := net.JoinHostPort(cfg.Host, strconv.Itoa(cfg.Port))
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		if e.pub != nil {
			e.pub.close()
		}
		return nil, fmt.Errorf("listening on %s: %w", addr, err)
	}
	side, err := listenSide(ctx, &cfg.Transfer)
	if err != nil {
		_ = ln.Close()
		if e.pub != nil {
			e.pub.close()
		}
		return nil, err
	}
	e.addr = ln.Addr().String()
	e.loop = newLoop(model, cfg, e.pub, e.metrics)
	e.transfers = newTransfers(&cfg, func(r *enginemodel.Request) { e.loop.do(func() { e.loop.model.Free(r) }) })
	e.loop.keep, e.metrics.transfers = e.transfers.hold, e.transfers
	e.metrics.step(model.Stats())
	e.server = &http.Server{Handler: e.handler(), ReadHeaderTimeout: 30 * time.Second, IdleTimeout: keepAlive, MaxHeaderBytes: 64 << 10}
	e.served.Go(e.loop.run)
	for _, ln := range []net.Listener{ln, side} {
		if ln == nil {
			continue
		}
		e.served.Go(func() {
			if err := e.server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
				cfg.Log.Error(err, "Serving HTTP failed")
			}
		})
	}
	return e, nil
}

func newModel(cfg Config) (*enginemodel.Engine, error) {
	words, err := Palette(cfg.Text, WordsVocabulary)
	if err != nil {
		return nil, err
	}
	seed := cfg.Seed
	if seed == 0 {
		var b [8]byte
		if _, err := rand.Read(b[:]); err != nil {
			return nil, fmt.Errorf("drawing a hash seed: %w", err)
		}
		seed = binary.BigEndian.Uint64(b[:])
	}
	return enginemodel.New(enginemodel.Config{
		NumBlocks: cfg.NumBlocks - 1, // vLLM keeps one that is never written
		BlockSize: cfg.BlockSize, MaxBatchedTokens: cfg.MaxBatchedTokens, MaxSeqs: cfg.MaxSeqs,
		MaxModelLen: cfg.MaxModelLen, Time: cfg.Time, Seed: seed, Palette: words, NoPrefixCaching: cfg.NoPrefixCaching,
	})
}

// Addr is where HTTP is served, host:port.
func (e *Engine) Addr() string { return e.addr }

// URL is http:// and Addr.
func (e *Engine) URL() string { return "http://" + e.addr }

// EventsAddr is where events are published, host:port; empty when there are none or the publisher connects.
func (e *Engine) EventsAddr() string {
	if e.pub == nil {
		return ""
	}
	events, _ := e.pub.addresses()
	return events
}

// ReplayAddr is where replays are served, host:port; empty when there are none.
func (e *Engine) ReplayAddr() string {
	if e.pub == nil {
		return ""
	}
	_, replay := e.pub.addresses()
	return replay
}

// Config is the configuration with its defaults filled in.
func (e *Engine) Config() Config { return e.cfg }

// Shutdown does what the engine does on SIGTERM: with a ShutdownTimeout it lets running requests end for as long, and
// answers new ones at once as aborted or, before 0.29, does not listen any more. Then, or without one, it aborts what is
// left, and closes all sockets once the answers are out. ctx cuts everything short.
func (e *Engine) Shutdown(ctx context.Context) error {
	if !e.draining.Swap(true) && e.cfg.ShutdownTimeout > 0 {
		var closing sync.WaitGroup
		draining, drained := context.WithCancel(ctx)
		if e.cfg.Release.closesBeforeDraining() {
			closing.Go(func() { _ = e.server.Shutdown(draining) }) // stops listening at once; below it is waited for
		}
		e.drain(ctx, e.cfg.ShutdownTimeout)
		drained()
		closing.Wait()
	}
	e.loop.abortAll()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err := e.server.Shutdown(ctx)
	e.stop()
	if err != nil {
		return fmt.Errorf("closing the HTTP server: %w", err)
	}
	return nil
}

// drain waits until no request is left, the time is over or ctx ends.
func (e *Engine) drain(ctx context.Context, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		live := 0
		if !e.loop.call(func() { live = e.loop.live }) || live == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Close aborts running requests and ends the engine; all that was published is flushed to subscribers.
func (e *Engine) Close() error {
	e.loop.abortAll()
	err := e.server.Close()
	e.stop()
	return err
}

// Kill ends the engine as a crash would: connections break, queued events are lost.
func (e *Engine) Kill() {
	e.closing.Do(func() {
		if err := e.server.Close(); err != nil {
			e.cfg.Log.V(1).Info("Closing the HTTP server failed", "error", err.Error())
		}
		if e.pub != nil {
			e.pub.kick()
		}
		e.loop.stop()
		e.transfers.close()
		if e.pub != nil {
			e.pub.close()
		}
	})
	e.served.Wait()
}

func (e *Engine) stop() {
	e.closing.Do(func() {
		e.loop.stop()
		e.transfers.close()
		if e.pub != nil {
			e.pub.close()
		}
	})
	e.served.Wait()
}

// Pause holds the engine before its next step, so that requests stay as they are; it returns when no step is under way.
func (e *Engine) Pause() { e.loop.pause() }

// Resume undoes Pause.
func (e *Engine) Resume() { e.loop.resume() }

// Step takes one step of a paused engine in no time and reports whether there was anything to do. Its events are
// published, and its tokens sent, before it returns.
func (e *Engine) Step() bool { return e.loop.step() }

// Stats are the model's gauges and counters now, not those of the last step.
func (e *Engine) Stats() enginemodel.Stats {
	var s enginemodel.Stats
	if !e.loop.call(func() { s = e.loop.model.Stats() }) {
		return e.metrics.last()
	}
	return s
}

// Match is the number of leading full blocks of tokens that the cache holds without a gap.
func (e *Engine) Match(adapter, salt string, tokens []uint32) int {
	n := 0
	e.loop.call(func() { n = e.loop.model.Match(adapter, salt, tokens) })
	return n
}

// Blocks are the cached engine hashes, as events announce them, with the number of physical blocks of each.
func (e *Engine) Blocks() map[uint64]int {
	blocks := map[uint64]int{}
	e.loop.call(func() {
		for h, n := range e.loop.model.Pool().All {
			blocks[uint64(h)] = n
		}
	})
	return blocks
}

// Evict forgets the n least recently used blocks that no request holds and publishes their removal at once; a paused
// engine publishes it with its next step.
func (e *Engine) Evict(n int) { e.loop.call(func() { e.loop.model.Evict(n) }) }

// Flush evicts every block that no request holds.
func (e *Engine) Flush() { e.Evict(e.cfg.NumBlocks) }

// ResetPrefixCache clears the cache as the endpoint of that name does: the event leaves with the next step that serves
// a request. It reports false while a request holds blocks.
func (e *Engine) ResetPrefixCache() bool {
	ok := false
	e.loop.call(func() { ok = e.loop.model.ResetPrefixCache() })
	return ok
}

// Subscribers is the number of subscribers to events.
func (e *Engine) Subscribers() int {
	if e.pub == nil {
		return 0
	}
	return e.pub.subscribers()
}

// KickSubscribers breaks the connections of all subscribers and returns their number. The process stays alive: they can
// reconnect and receive the next sequence number.
func (e *Engine) KickSubscribers() int {
	if e.pub == nil {
		return 0
	}
	return e.pub.kick()
}

// Encode tokenizes text as the engine does for completions.
func (e *Engine) Encode(text string) ([]uint32, error) { return e.cfg.Text.Encode(nil, text, true) }

// Decode is the text of token ids.
func (e *Engine) Decode(ids []uint32) string { return e.cfg.Text.Decode(ids) }
