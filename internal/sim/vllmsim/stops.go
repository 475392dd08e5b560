package vllmsim

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// The ways to treat running requests when an engine stops computing.
const (
	stopAbort = "abort"
	stopWait  = "wait"
	stopKeep  = "keep"
)

// stopped holds the loop. mode says what happens to the requests inside: they are aborted, computed to their end, or kept. With
// clearCache the cache is emptied; what running requests hold stays, which the engine would compute again. While an engine waits
// for running requests, new ones are still computed.
func (e *Engine) stopped(ctx context.Context, mode string, clearCache bool) {
	switch mode {
	case stopAbort:
		e.loop.hold(true)
		e.loop.abortAll()
	case stopWait:
		e.drain(ctx, time.Hour)
	}
	e.loop.hold(true)
	if clearCache {
		e.ResetPrefixCache()
	}
}

// stopMode reads the mode of a query; the error is the client's.
func stopMode(r *http.Request) (string, error) {
	mode := r.URL.Query().Get("mode")
	setDefault(&mode, stopAbort)
	if !slices.Contains([]string{stopAbort, stopWait, stopKeep}, mode) {
		return "", invalid("query.mode", "the mode is abort, wait or keep")
	}
	return mode, nil
}

func (e *Engine) serveSleep(w http.ResponseWriter, r *http.Request) {
	level := 1
	mode, err := stopMode(r)
	if text := r.URL.Query().Get("level"); text != "" && err == nil {
		if level, err = strconv.Atoi(text); err != nil || e.cfg.Release >= sinceSleepAnswers && (level < 0 || level > 2) {
			err = invalid("query.level", "the level is 0, 1 or 2")
		}
	}
	if err != nil {
		e.writeError(w, err)
		return
	}
	e.stopping.Lock()
	defer e.stopping.Unlock()
	e.stopped(r.Context(), mode, level > 0)
	shown := level
	if level == 0 {
		shown = noState
	}
	e.metrics.sleep(shown)
	e.writeStop(w, map[string]any{"status": "sleeping", "level": level})
}

// noState: the engine sleeps at level 0, which no state of its metric stands for.
const noState = -1

func (e *Engine) serveWake(w http.ResponseWriter, _ *http.Request) {
	e.stopping.Lock()
	defer e.stopping.Unlock()
	e.loop.hold(false)
	e.metrics.sleep(0)
	e.writeStop(w, map[string]any{"status": "awake", "tags": nil})
}

// writeStop answers a request to sleep or wake up; older releases say nothing.
func (e *Engine) writeStop(w http.ResponseWriter, done map[string]any) {
	if e.cfg.Release < sinceSleepAnswers {
		e.writePlain(w, "")
		return
	}
	e.writeJSON(w, done)
}

func (e *Engine) servePause(w http.ResponseWriter, r *http.Request) {
	mode, err := stopMode(r)
	clearCache := true
	if text := r.URL.Query().Get("clear_cache"); text != "" && err == nil {
		if clearCache, err = strconv.ParseBool(text); err != nil {
			err = invalid("query.clear_cache", "clear_cache is true or false")
		}
	}
	if err != nil {
		e.writeError(w, err)
		return
	}
	e.stopping.Lock()
	defer e.stopping.Unlock()
	e.stopped(r.Context(), mode, clearCache)
	e.writeJSON(w, map[string]string{"status": "paused"})
}

func (e *Engine) serveResume(w http.ResponseWriter, _ *http.Request) {
	e.stopping.Lock()
	defer e.stopping.Unlock()
	e.loop.hold(false)
	e.writeJSON(w, map[string]string{"status": "resumed"})
}

func (e *Engine) serveIsPaused(w http.ResponseWriter, _ *http.Request) {
	e.writeJSON(w, map[string]bool{"is_paused": e.loop.isHeld()})
}

func (e *Engine) serveIsSleeping(w http.ResponseWriter, _ *http.Request) {
	e.writeJSON(w, map[string]bool{"is_sleeping": e.loop.isHeld()})
}
