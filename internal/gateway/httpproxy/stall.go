package httpproxy

import (
	"context"
	"sync"
	"time"
)

// stallLook is how often a request without an answer asks whether its endpoint has stalled.
const stallLook = time.Second

// stallWatch takes a request away from an endpoint that has stalled, as long as another one is left and the answer is not
// committed. It never ends an attempt that the retry budget does not let be tried elsewhere.
type stallWatch struct {
	exchange *exchange
	cancel   context.CancelCauseFunc

	mu    sync.Mutex // before that of held
	timer *time.Timer
	held  *held // nil until the answer has begun
	over  bool  // the answer is committed, or the attempt has ended
	fired bool  // the attempt is given up
}

// watchStall begins to watch the present attempt; nil if nothing can be done about a stall.
func (e *exchange) watchStall(cancel context.CancelCauseFunc) *stallWatch {
	if !e.more(failedStalled) {
		return nil
	}
	w := &stallWatch{exchange: e, cancel: cancel}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(e.proxy.options.StallLook, w.look)
	return w
}

func (w *stallWatch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	if h := w.held; h != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.committed {
			w.over = true
			return
		}
	}
	if d := w.exchange.decision; !d.Stalled() || !d.MayRetry() {
		w.timer.Reset(w.exchange.proxy.options.StallLook)
		return
	}
	w.over, w.fired = true, true
	if w.held != nil {
		w.held.stalled = true
	}
	w.cancel(errStalled)
}

// answers passes the watch on to an answer that has begun. It reports false if the attempt was given up before.
func (w *stallWatch) answers(h *held) bool {
	if w == nil {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = h
	return !w.fired
}

// stop ends the watch.
func (w *stallWatch) stop() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.timer.Stop()
}
