package scrape

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// An engine that is paused takes requests and computes none, and its metrics do not show it. vLLM answers GET /is_paused
// where it can be paused over HTTP at all: in development mode (VLLM_SERVER_DEV_MODE=1).

// pausedEvery is the wait between two questions to an engine that answers, in units of Options.Busy; others are asked once
// in absentEvery waits of Options.ModelsEvery, in case that the engine was restarted in another mode.
const (
	pausedEvery = 5
	absentEvery = 6
	// maxPausedPage is the largest answer, in bytes.
	maxPausedPage = 4 << 10
)

// pollPaused asks whether the engine is paused until ctx ends.
func (p *page) pollPaused(ctx context.Context) {
	var body bytes.Buffer
	for {
		err := p.get(ctx, "/is_paused", maxPausedPage, &body)
		wait := absentEvery * p.options.ModelsEvery
		_ = p.caught("/is_paused", func() { wait = p.digestPaused(body.Bytes(), err) })
		if ctx.Err() != nil || !p.pause(ctx, wait) {
			return
		}
	}
}

// digestPaused takes an answer in and returns how long to wait before the next question.
func (p *page) digestPaused(text []byte, err error) time.Duration {
	paused := false
	if err == nil {
		paused, err = Paused(text)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		p.paused, p.pausable = paused, true
	case len(text) > 0: // there is no such page; no answer at all shows nothing
		p.paused, p.pausable = false, false
	}
	if p.pausable {
		return pausedEvery * p.options.Busy
	}
	return absentEvery * p.options.ModelsEvery
}

// Paused reads the answer of GET /is_paused.
func Paused(answer []byte) (bool, error) {
	var state struct {
		Paused *bool `json:"is_paused"`
	}
	if err := json.Unmarshal(answer, &state); err != nil {
		return false, fmt.Errorf("reading whether the engine is paused: %w", err)
	}
	if state.Paused == nil {
		return false, fmt.Errorf("reading whether the engine is paused: no is_paused")
	}
	return *state.Paused, nil
}
