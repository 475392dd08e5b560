package reporter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/kvasir-dev/kvasir/internal/vllm"
)

// Waiter serves the wait endpoint, which the engine container's preStop hook calls: a request is answered when the engine
// is idle, or at the deadline. It only waits: calling it changes nothing. So any client can call it.
type Waiter struct {
	// Busy reports whether the engine has requests that run or wait; required.
	Busy func(ctx context.Context) (bool, error)
	// Every is the time between two questions; 0 takes DefaultWaitEvery.
	Every time.Duration
	// Settle is how long after the call requests that were sent before it can still arrive: readings count from then
	// on. 0 takes DefaultWaitSettle.
	Settle time.Duration
	// Deadline is the longest wait; 0 takes DefaultWaitDeadline.
	Deadline time.Duration

	once sync.Once
	kick chan struct{} // holds a token when a request has begun to wait

	mu      sync.Mutex
	waiting int           // guarded by mu
	last    reading       // guarded by mu
	next    chan struct{} // guarded by mu; closed at the next reading
}

// reading is an answer of the engine; at is when it was asked.
type reading struct {
	at   time.Time
	idle bool
}

// Defaults of Waiter, and how many can wait.
const (
	DefaultWaitEvery    = 500 * time.Millisecond
	DefaultWaitSettle   = 2 * time.Second
	DefaultWaitDeadline = 10 * time.Minute
	maxWaiting          = 256
	// idleReadings in a row make an engine idle.
	idleReadings = 2
)

func (w *Waiter) init() {
	w.once.Do(func() {
		w.kick, w.next = make(chan struct{}, 1), make(chan struct{})
		for v, d := range map[*time.Duration]time.Duration{&w.Every: DefaultWaitEvery, &w.Settle: DefaultWaitSettle,
			&w.Deadline: DefaultWaitDeadline} {
			if *v <= 0 {
				*v = d
			}
		}
	})
}

// Run polls the engine while a request waits, until ctx ends.
func (w *Waiter) Run(ctx context.Context) {
	w.init()
	for {
		w.mu.Lock()
		idle := w.waiting == 0
		w.mu.Unlock()
		var tick <-chan time.Time
		if !idle {
			w.read(ctx)
			tick = time.After(w.Every)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick:
		case <-w.waitFor(idle):
		}
	}
}

// waitFor is closed or filled when a request has begun to wait; nil while that does not matter.
func (w *Waiter) waitFor(idle bool) <-chan struct{} {
	if idle {
		return w.kick
	}
	return nil
}

func (w *Waiter) read(ctx context.Context) {
	at := time.Now()
	busy, err := w.Busy(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = reading{at, err == nil && !busy}
	close(w.next)
	w.next = make(chan struct{})
}

// enter counts a waiter. false means that too many wait.
func (w *Waiter) enter() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting >= maxWaiting {
		return false
	}
	w.waiting++
	select {
	case w.kick <- struct{}{}:
	default:
	}
	return true
}

func (w *Waiter) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting--
}

// Wait returns when the engine is idle (true), at the deadline or when ctx ends (false), or at once with an error when
// too many wait.
func (w *Waiter) Wait(ctx context.Context) (idle bool, err error) {
	w.init()
	from := time.Now().Add(w.Settle)
	ctx, cancel := context.WithTimeout(ctx, w.Deadline)
	defer cancel()
	if !w.enter() {
		return false, errors.New("too many wait")
	}
	defer w.leave()
	for seen := 0; seen < idleReadings; {
		w.mu.Lock()
		next := w.next
		w.mu.Unlock()
		select {
		case <-ctx.Done():
			return false, nil
		case <-next:
		}
		w.mu.Lock()
		last := w.last
		w.mu.Unlock()
		switch {
		case !last.idle:
			seen = 0
		case !last.at.Before(from):
			seen++
		}
	}
	return true, nil
}

// ServeHTTP implements http.Handler. The kubelet takes any status below 400 for done.
func (w *Waiter) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		http.Error(out, "only GET", http.StatusMethodNotAllowed)
		return
	}
	idle, err := w.Wait(r.Context())
	switch {
	case err != nil:
		http.Error(out, err.Error(), http.StatusServiceUnavailable)
	case idle:
		fmt.Fprintln(out, "idle")
	default:
		fmt.Fprintln(out, "deadline")
	}
}

const (
	// askTimeout bounds a question to the engine, maxMetrics its answer in bytes.
	askTimeout = 2 * time.Second
	maxMetrics = 4 << 20
)

// EngineBusy asks an engine's metrics page whether requests run or wait, on any rank. An engine that does not listen
// is not busy.
func EngineBusy(client *http.Client, url string) func(ctx context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		m, err := askEngine(ctx, client, url, -1)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return false, nil
		}
		return err != nil || m.Running+m.Waiting > 0, err
	}
}

// EngineBlocks reads from an engine's metrics page how many blocks the GPU tier of a rank has, 0 if it is not there.
func EngineBlocks(ctx context.Context, client *http.Client, url string, rank int) (int, error) {
	m, err := askEngine(ctx, client, url, rank)
	return m.NumBlocks, err
}

// askEngine reads an engine's metrics page for one rank, or for all of them by a negative one.
func askEngine(ctx context.Context, client *http.Client, url string, rank int) (vllm.Metrics, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return vllm.Metrics{}, fmt.Errorf("asking for %s: %w", url, err)
	}
	answer, err := client.Do(r)
	if err != nil {
		return vllm.Metrics{}, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return vllm.Metrics{}, fmt.Errorf("%s answers %s", url, answer.Status)
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxMetrics))
	if err != nil {
		return vllm.Metrics{}, fmt.Errorf("reading %s: %w", url, err)
	}
	m, err := vllm.ParseMetrics(text, rank)
	if err != nil {
		return vllm.Metrics{}, fmt.Errorf("reading %s: %w", url, err)
	}
	return m, nil
}
