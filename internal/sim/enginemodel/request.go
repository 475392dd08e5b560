package enginemodel

import (
	"fmt"
	"time"
)

// Spec describes a request to the engine.
type Spec struct {
	// Prompt holds the prompt's token ids; the engine keeps the slice and can append to it.
	Prompt []uint32
	// MaxTokens is the number of tokens to generate: every request ends by length. It is cut so that prompt and output
	// fit the model's context.
	MaxTokens int
	// Adapter is the LoRA adapter's name, empty for the base model; AdapterID its number in events (0: none).
	Adapter   string
	AdapterID int
	// Weights tells apart what was loaded under the adapter's name, where hashes depend on it.
	Weights string
	// Salt separates caches of tenants.
	Salt string
	// NoLookup computes all of the prompt, as requests for log probabilities of its tokens need.
	NoLookup bool
	// Hold keeps the request's blocks when it ends by length, until Engine.Free: another engine is to read them.
	Hold bool
	// Loaded: another engine has computed the prompt, and its KV arrives with the request. Only the last token is computed.
	Loaded bool
	// Arrived is how many tokens of the prompt's beginning another engine had, whose KV arrives with the request.
	Arrived int
	// Foreign: what has arrived was computed for another prompt, so that the answer is not that to this one.
	Foreign bool
	// Slot is the driver's own number for the request.
	Slot int
	// Known is the result of Know for the prompt; nil makes NewRequest compute it.
	Known *Known
}

// Known is what an engine works out of a prompt, for drivers that send one prompt many times: its blocks' hashes and
// what its answer depends on.
type Known struct {
	hashes []Hash
	sample uint64
}

// Know works out a prompt with an adapter and a salt, for all engines of one seed and block size.
func (e *Engine) Know(adapter, salt string, prompt []uint32) *Known {
	return &Known{e.chain.Hashes(make([]Hash, 0, len(prompt)/e.cfg.BlockSize), e.chain.Root(adapter, salt), prompt, e.cfg.BlockSize),
		sampleOf(prompt)}
}

// Request is a request inside an engine. The engine writes it; a driver can read it between steps.
//
// It has many fields because it is what the request asks for, its times and its place in the schedule.
type Request struct {
	Slot      int
	Adapter   string
	AdapterID int
	Salt      string
	MaxTokens int

	// Arrived, Started, FirstToken and Finished are model times; Started is the first admission.
	Arrived, Started, FirstToken, Finished time.Duration
	// CachedTokens is the number of prompt tokens that the first admission took from the cache.
	CachedTokens int
	// Preemptions counts how often the request lost its blocks.
	Preemptions int

	tokens []uint32 // prompt and output
	prompt int      // tokens in the prompt
	hashes []Hash   // of the full blocks of tokens, as far as computed
	root   Hash
	sample uint64
	// noLookup, hold, loaded and arrived as in Spec.
	noLookup, hold, loaded bool
	arrived                int

	found     int // prompt tokens that the last admission found in the cache
	state     state
	blocks    []Block
	lacked    int // the first of its blocks that was not cached when it could not be admitted
	computed  int // tokens whose KV is in blocks
	committed int // leading blocks that are cached
	scheduled int // tokens in the current step
}

type state uint8

const (
	stateNew state = iota
	stateWaiting
	stateRunning
	stateDone
)

// PromptTokens is the length of the prompt.
func (r *Request) PromptTokens() int { return r.prompt }

// prefilling reports whether the request has more to compute than its latest token, decoding that it has not.
func (r *Request) prefilling() bool { return len(r.tokens)-r.computed > 1 || r.computed < r.prompt }
func (r *Request) decoding() bool   { return !r.prefilling() }
func (r *Request) any() bool        { return true }

// Output is what has been generated so far. The slice is only ever appended to, so that it stays valid.
func (r *Request) Output() []uint32 { return r.tokens[r.prompt:len(r.tokens):len(r.tokens)] }

// Blocks are the physical blocks that the request has. They change with each step, until a request that holds its blocks
// has ended.
func (r *Request) Blocks() []Block { return r.blocks }

// Done reports whether the request has ended, by length or by abort.
func (r *Request) Done() bool { return r.state == stateDone }

// NewRequest checks spec and hashes its prompt. It only reads what never changes and is safe to call from any
// goroutine at any time; the result belongs to e.
func (e *Engine) NewRequest(spec Spec) (*Request, error) {
	n := len(spec.Prompt)
	switch {
	case n == 0:
		return nil, fmt.Errorf("%w: the prompt is empty", ErrInvalid)
	case n >= e.cfg.MaxModelLen:
		return nil, &ContextError{Max: e.cfg.MaxModelLen, Prompt: n, Output: spec.MaxTokens}
	case spec.MaxTokens < 1:
		return nil, fmt.Errorf("%w: max tokens is %d, must be at least 1", ErrInvalid, spec.MaxTokens)
	}
	r := &Request{
		Slot: spec.Slot, Adapter: spec.Adapter, AdapterID: spec.AdapterID, Salt: spec.Salt,
		MaxTokens: min(spec.MaxTokens, e.cfg.MaxModelLen-n),
		tokens:    spec.Prompt, prompt: n, noLookup: spec.NoLookup, hold: spec.Hold, loaded: spec.Loaded, arrived: spec.Arrived,
	}
	r.root = e.chain.Root(spec.root(), spec.Salt)
	r.hashes = make([]Hash, 0, r.likelyBlocks(e.cfg.BlockSize))
	if known := spec.Known; known != nil {
		r.hashes, r.sample = append(r.hashes, known.hashes...), known.sample
	} else {
		r.hashes = e.chain.Hashes(r.hashes, r.root, r.tokens, e.cfg.BlockSize)
		r.sample = sampleOf(r.tokens)
	}
	if spec.Foreign {
		r.sample = ^r.sample
	}
	return r, nil
}

// root names the adapter and its weights for the chain of hashes.
func (s *Spec) root() string {
	if s.Weights == "" {
		return s.Adapter
	}
	return s.Adapter + "\x00" + s.Weights
}

// AppendAnswer appends the n tokens that any engine with the default palette generates after a prompt.
func AppendAnswer(dst, prompt []uint32, n int) []uint32 {
	sample := sampleOf(prompt)
	for i := range n {
		dst = append(dst, generated(sample, i, nil))
	}
	return dst
}

// sampleOf is what the answer to a prompt depends on.
func sampleOf(prompt []uint32) uint64 { return uint64(Chain{}.Next(1, prompt)) }

// likelyBlocks is how many blocks to make room for: all, unless the output might be very long.
func (r *Request) likelyBlocks(blockSize int) int {
	return ceilDiv(r.prompt+min(r.MaxTokens, 4096), blockSize)
}

// nextToken is the token that follows those the request has: a function of the prompt and the position alone, the
// same in every engine.
func (r *Request) nextToken(palette []uint32) uint32 {
	return generated(r.sample, len(r.tokens)-r.prompt, palette)
}

// generated is token i of an answer.
func generated(sample uint64, i int, palette []uint32) uint32 {
	x := fold(sample^mix1, uint64(i)*2+mix2)
	if len(palette) == 0 {
		return uint32(x % defaultVocabulary)
	}
	return palette[x%uint64(len(palette))]
}
