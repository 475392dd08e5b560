package vllmsim

import (
	"sync"

	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// Finish reasons, as the API spells them.
const (
	finishLength = "length"
	finishStop   = "stop"
	finishAbort  = "abort"
	finishError  = "error"
)

// stream carries a request's tokens from the engine's loop to the handler that serves it.
type stream struct {
	req *enginemodel.Request // the loop's
	// reason is what the request ends with when it is not aborted.
	reason string
	// holds is the name under which the blocks of the request are kept after its end, and blocks are these; empty for none.
	holds  string
	blocks []enginemodel.Block // written before the end is shown
	// tells is what the usage counts as cached, if the prompt was loaded from another engine; nil for what this one has found. Guarded by mu.
	tells *int
	// ready gets a token when there is something new; several streams of a handler can share it.
	ready chan struct{}

	notified int // the loop's: tokens already shown to the handler

	mu     sync.Mutex
	tokens []uint32 // guarded by mu, grows
	cached int      // guarded by mu
	finish string   // guarded by mu, not empty once ended
}

// view is what a handler sees of a stream.
type view struct {
	// tokens generated so far; read-only.
	tokens []uint32
	// cached prompt tokens, known with the first token.
	cached int
	// loaded: these are those of the engine that has prefilled.
	loaded bool
	// finish is the reason for the end, empty before it.
	finish string
}

func (s *stream) view() view {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := view{tokens: s.tokens, cached: s.cached, finish: s.finish}
	if s.tells != nil {
		v.cached, v.loaded = *s.tells, true
	}
	return v
}

// show passes the available tokens to the handler. The slice must only ever be appended to.
func (s *stream) show(tokens []uint32, cached int, finish string) {
	s.mu.Lock()
	s.tokens, s.cached, s.finish = tokens, cached, finish
	s.mu.Unlock()
	select {
	case s.ready <- struct{}{}:
	default:
	}
}
