package enginemodel

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Defaults of Config.
const (
	DefaultBlockSize        = 16
	DefaultMaxBatchedTokens = 8192
	DefaultMaxSeqs          = 256
	defaultVocabulary       = 32_000
)

// ErrInvalid is wrapped by errors about a request that no engine accepts.
var ErrInvalid = errors.New("invalid request")

// ContextError means that a prompt leaves no room for output.
type ContextError struct {
	// Max is the model's context length; Prompt and Output are what was asked, all in tokens.
	Max, Prompt, Output int
}

func (e *ContextError) Error() string {
	return fmt.Sprintf("the context length is %d tokens, the request has %d in its prompt and asks for %d", e.Max, e.Prompt, e.Output)
}

// Config parameterises an engine. Zero values take the defaults.
type Config struct {
	// NumBlocks is the size of the pool in blocks; it has no default.
	NumBlocks int
	// BlockSize is in tokens.
	BlockSize int
	// MaxBatchedTokens bounds the tokens of a step, MaxSeqs the requests that run at a time.
	MaxBatchedTokens int
	MaxSeqs          int
	// MaxModelLen bounds prompt and output together, in tokens; 0 takes what the pool holds. It must not exceed that.
	MaxModelLen int
	// Time is how long steps take; the zero model takes no time.
	Time TimeModel
	// Uneven takes another engine than vLLM, on the same GPU: see uneven.go.
	Uneven bool
	// Seed makes the block hashes of engines unrelated; engines of one seed take one another's Known.
	Seed uint64
	// Noise is the seed of what varies in the steps of an uneven engine.
	Noise uint64
	// Palette is what generated tokens are drawn from; empty is the ids below 32,000.
	Palette []uint32
	// NoPrefixCaching turns the cache off: nothing is committed and nothing hit.
	NoPrefixCaching bool
}

// Engine schedules requests over a pool of blocks. It is not safe for concurrent use, except for NewRequest.
type Engine struct {
	cfg   Config
	chain Chain
	pool  *Pool

	waiting []*Request // in order of service
	running []*Request // in order of admission

	// idleStep asks for a step although there might be nothing to compute, so that an abort or a flush takes effect.
	idleStep bool
	stats    Stats
	res      StepResult // reused
	removed  []Hash     // backs the hashes of removal events
	// spareEvents and spareRemoved swap with res.Events and removed at every step.
	spareEvents  []Event
	spareRemoved []Hash
	hits         []Block // scratch of admission
}

// Stats are gauges and counters since the start.
type Stats struct {
	Running, Waiting int
	// NumBlocks is the pool's size, UsedBlocks those that requests reference, CachedBlocks those that hold a hash.
	NumBlocks, UsedBlocks, CachedBlocks int
	// PrefixQueries and PrefixHits count tokens at first admissions: those looked up and those found.
	PrefixQueries, PrefixHits uint64
	PromptTokens              uint64
	GenerationTokens          uint64
	Preemptions               uint64
	Finished, Aborted         uint64
	Steps                     uint64
}

// New returns an idle engine with an empty cache.
func New(cfg Config) (*Engine, error) {
	if cfg.BlockSize == 0 {
		cfg.BlockSize = DefaultBlockSize
	}
	if cfg.MaxBatchedTokens == 0 {
		cfg.MaxBatchedTokens = DefaultMaxBatchedTokens
		if cfg.Uneven {
			cfg.MaxBatchedTokens = unevenBudget
		}
	}
	if cfg.MaxSeqs == 0 {
		cfg.MaxSeqs = DefaultMaxSeqs
	}
	if cfg.NumBlocks < 1 || cfg.BlockSize < 1 || cfg.MaxBatchedTokens < 1 || cfg.MaxSeqs < 1 || cfg.MaxModelLen < 0 {
		return nil, fmt.Errorf("numbers of blocks (%d), tokens in a block (%d), tokens in a step (%d) and running requests (%d) must be positive",
			cfg.NumBlocks, cfg.BlockSize, cfg.MaxBatchedTokens, cfg.MaxSeqs)
	}
	capacity := cfg.NumBlocks * cfg.BlockSize
	if cfg.MaxModelLen == 0 {
		cfg.MaxModelLen = capacity
	}
	if cfg.MaxModelLen > capacity {
		return nil, fmt.Errorf("one request of the context length (%d tokens) does not fit the cache (%d tokens)", cfg.MaxModelLen, capacity)
	}
	return &Engine{cfg: cfg, chain: NewChain(cfg.Seed), pool: NewPool(cfg.NumBlocks)}, nil
}

// Config returns the configuration with its defaults filled in.
func (e *Engine) Config() Config { return e.cfg }

// Chain computes the engine's hashes.
func (e *Engine) Chain() Chain { return e.chain }

// Pool is the engine's pool, to read.
func (e *Engine) Pool() *Pool { return e.pool }

// Stats returns the engine's gauges and counters.
func (e *Engine) Stats() Stats {
	s := e.stats
	s.Running, s.Waiting = len(e.running), len(e.waiting)
	s.NumBlocks, s.UsedBlocks, s.CachedBlocks = e.pool.Len(), e.pool.Len()-e.pool.Free(), e.pool.Cached()
	return s
}

// Add puts a request of NewRequest at the end of the waiting queue.
func (e *Engine) Add(r *Request, now time.Duration) {
	if r.state != stateNew {
		panic("enginemodel: a request was added twice")
	}
	r.state, r.Arrived = stateWaiting, now
	e.waiting = append(e.waiting, r)
}

// Abort ends a request at once and frees its blocks. It reports false if the request had ended already. Call it between
// steps; a step follows even if there is nothing else to do.
func (e *Engine) Abort(r *Request, now time.Duration) bool {
	switch r.state {
	case stateWaiting:
		e.waiting = remove(e.waiting, r)
	case stateRunning:
		e.running = remove(e.running, r)
	default:
		return false
	}
	e.end(r, now)
	e.stats.Aborted++
	e.idleStep = true
	return true
}

// ResetPrefixCache forgets all cached blocks. It reports false and does nothing while a request holds blocks. Its
// event is sent with the next step that has something to compute, as in the engine.
func (e *Engine) ResetPrefixCache() bool {
	if !e.pool.Reset() {
		return false
	}
	e.res.Events = append(e.res.Events, Event{Kind: Cleared})
	return true
}

// Evict forgets the n least recently used cached blocks that no request holds, as allocation would. A step follows even if
// there is nothing else to do, so that the events are sent.
func (e *Engine) Evict(n int) {
	e.pool.EvictOldest(n, e.evicted)
	e.idleStep = true
}

// Match is the number of leading full blocks of tokens that the cache holds without a gap.
func (e *Engine) Match(adapter, salt string, tokens []uint32) int {
	hashes := e.chain.Hashes(nil, e.chain.Root(adapter, salt), tokens, e.cfg.BlockSize)
	for i, h := range hashes {
		if e.pool.Copies(h) == 0 {
			return i
		}
	}
	return len(hashes)
}

// end frees a request's blocks.
func (e *Engine) end(r *Request, now time.Duration) {
	e.pool.Release(r.blocks)
	r.blocks = nil
	r.state, r.Finished = stateDone, now
}

// Free gives back the blocks of a request that has ended and holds them (Spec.Hold). Further calls do nothing. Call it
// between steps.
func (e *Engine) Free(r *Request) {
	if r.state == stateDone {
		e.pool.Release(r.blocks)
		r.blocks = nil
	}
}

func (e *Engine) evicted(h Hash) {
	e.removed = append(e.removed, h)
	n := len(e.removed)
	e.res.Events = append(e.res.Events, Event{Kind: Removed, Hashes: e.removed[n-1 : n : n]})
}

func remove(queue []*Request, r *Request) []*Request {
	i := slices.Index(queue, r)
	return slices.Delete(queue, i, i+1)
}
