package reporter

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// engineLoad is an engine whose requests end when the test says so.
type engineLoad struct {
	busy  atomic.Bool
	fails atomic.Bool
	asked atomic.Int64
}

func (e *engineLoad) ask(context.Context) (bool, error) {
	e.asked.Add(1)
	if e.fails.Load() {
		return false, errors.New("no answer")
	}
	return e.busy.Load(), nil
}

// waiting runs a waiter in virtual time.
func waiting(t *testing.T, play func(t *testing.T, w *Waiter, e *engineLoad)) {
	synctest.Test(t, func(t *testing.T) {
		e := &engineLoad{}
		w := &Waiter{Busy: e.ask}
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { w.Run(ctx) })
		play(t, w, e)
		cancel()
		running.Wait()
	})
}

func TestWaitingEndsWhenTheEngineIsIdle(t *testing.T) {
	waiting(t, func(t *testing.T, w *Waiter, e *engineLoad) {
		e.busy.Store(true)
		began := time.Now()
		time.AfterFunc(time.Minute, func() { e.busy.Store(false) })
		if idle, err := w.Wait(context.Background()); !idle || err != nil {
			t.Errorf("idle %v, %v", idle, err)
		}
		if took := time.Since(began); took < time.Minute || took > time.Minute+3*DefaultWaitEvery {
			t.Errorf("took %s", took)
		}
	})
}

// Requests can be on their way to an engine that seems idle.
func TestAnIdleEngineIsNotBelievedAtOnce(t *testing.T) {
	waiting(t, func(t *testing.T, w *Waiter, e *engineLoad) {
		began := time.Now()
		time.AfterFunc(time.Second, func() { e.busy.Store(true) })
		time.AfterFunc(10*time.Second, func() { e.busy.Store(false) })
		if idle, _ := w.Wait(context.Background()); !idle || time.Since(began) < 10*time.Second {
			t.Errorf("idle %v after %s", idle, time.Since(began))
		}
		began = time.Now()
		if idle, _ := w.Wait(context.Background()); !idle || time.Since(began) < DefaultWaitSettle {
			t.Errorf("idle %v after %s", idle, time.Since(began))
		}
	})
}

func TestAnEngineThatDoesNotAnswerIsNotIdle(t *testing.T) {
	waiting(t, func(t *testing.T, w *Waiter, e *engineLoad) {
		e.fails.Store(true)
		began := time.Now()
		if idle, err := w.Wait(context.Background()); idle || err != nil || time.Since(began) != DefaultWaitDeadline {
			t.Errorf("idle %v, %v after %s", idle, err, time.Since(began))
		}
	})
}

func TestNobodyIsAskedWhileNobodyWaits(t *testing.T) {
	waiting(t, func(t *testing.T, w *Waiter, e *engineLoad) {
		time.Sleep(time.Hour)
		if n := e.asked.Load(); n != 0 {
			t.Errorf("asked %d times", n)
		}
		e.busy.Store(true)
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Minute, cancel) // the caller goes
		if idle, _ := w.Wait(ctx); idle {
			t.Error("a busy engine is idle")
		}
		time.Sleep(time.Second)
		before := e.asked.Load()
		time.Sleep(time.Hour)
		if e.asked.Load() != before || before < 60 {
			t.Errorf("asked %d times while somebody waited, %d later", before, e.asked.Load()-before)
		}
	})
}

func TestOnlySoManyWait(t *testing.T) {
	waiting(t, func(t *testing.T, w *Waiter, e *engineLoad) {
		e.busy.Store(true)
		var waiters sync.WaitGroup
		var refused, done atomic.Int64
		for range maxWaiting + 10 {
			waiters.Go(func() {
				out := httptest.NewRecorder()
				w.ServeHTTP(out, httptest.NewRequest(http.MethodGet, "/", nil))
				switch out.Code {
				case http.StatusOK:
					done.Add(1)
				case http.StatusServiceUnavailable:
					refused.Add(1)
				}
			})
		}
		synctest.Wait()
		if refused.Load() != 10 {
			t.Errorf("%d refused, want 10", refused.Load())
		}
		e.busy.Store(false)
		waiters.Wait()
		if done.Load() != maxWaiting {
			t.Errorf("%d answered, want %d", done.Load(), maxWaiting)
		}
		out := httptest.NewRecorder()
		w.ServeHTTP(out, httptest.NewRequest(http.MethodPost, "/", nil))
		if out.Code != http.StatusMethodNotAllowed {
			t.Errorf("POST is answered %d", out.Code)
		}
	})
}

func TestEnginesAreAskedByTheirMetrics(t *testing.T) {
	var page atomic.Value
	page.Store("")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if page.Load() == "" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, page.Load())
	}))
	ask := EngineBusy(server.Client(), server.URL)
	const series = "vllm:num_requests_running{engine=\"0\"} %d.0\nvllm:num_requests_waiting{engine=\"0\"} %d.0\n" +
		"vllm:num_requests_running{engine=\"1\"} %d.0\nvllm:num_requests_waiting{engine=\"1\"} 0.0\n"
	for name, tc := range map[string]struct {
		page   string
		busy   bool
		failed bool
	}{
		"idle":                   {page: fmt.Sprintf(series, 0, 0, 0)},
		"one runs":               {page: fmt.Sprintf(series, 1, 0, 0), busy: true},
		"one waits":              {page: fmt.Sprintf(series, 0, 1, 0), busy: true},
		"one runs on another":    {page: fmt.Sprintf(series, 0, 0, 2), busy: true},
		"a page of something":    {page: "x 1\n", failed: true},
		"an error of the engine": {page: "", busy: true, failed: true},
	} {
		page.Store(tc.page)
		if busy, err := ask(context.Background()); (err != nil) != tc.failed || !tc.failed && busy != tc.busy {
			t.Errorf("%s: busy %v, %v", name, busy, err)
		}
	}
	server.Close()
	if busy, err := ask(context.Background()); busy || err != nil {
		t.Errorf("an engine that does not listen: busy %v, %v", busy, err)
	}
}
