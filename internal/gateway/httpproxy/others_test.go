package httpproxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// moody is an engine that answers with an error while it is ill, and ends connections while it is gone.
type moody struct {
	ill, gone atomic.Bool
	asked     atomic.Int64
}

func (m *moody) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.asked.Add(1)
	_, _ = io.Copy(io.Discard, r.Body)
	if m.gone.Load() {
		panic(http.ErrAbortHandler)
	}
	if m.ill.Load() {
		http.Error(w, `{"error":{"message":"ill"}}`, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, completed)
}

// leftOut is a house of two engines: the circuit of the second is open.
func leftOut(t *testing.T, change func(*picker.Spec)) (h *house, first, second *moody) {
	t.Helper()
	first, second = &moody{}, &moody{}
	s := spec(engine(t, first.ServeHTTP), engine(t, second.ServeHTTP))
	s.Policy.CircuitFailures, s.Policy.CircuitOpen = 1, time.Hour
	change(&s)
	h = newHouse(t, Options{}, s)
	second.ill.Store(true)
	for second.asked.Load() == 0 {
		_ = read(t, h.post("/v1/completions", `{"model":"m","prompt":"x"}`))
	}
	h.idle()
	first.asked.Store(0)
	second.asked.Store(0)
	return h, first, second
}

// TestAnEndpointThatWasLeftOutGetsARequestThatFailsElsewhere: an open circuit is no reason to fail a request.
func TestAnEndpointThatWasLeftOutGetsARequestThatFailsElsewhere(t *testing.T) {
	h, first, second := leftOut(t, func(*picker.Spec) {})
	first.ill.Store(true)
	second.ill.Store(false)
	r := h.post("/v1/completions", `{"model":"m","prompt":"x"}`)
	if text := read(t, r); r.StatusCode != http.StatusOK {
		t.Errorf("status %d: %s", r.StatusCode, text)
	}
	if a, b := first.asked.Load(), second.asked.Load(); a != 1 || b != 1 {
		t.Errorf("the engines have got it %d and %d times", a, b)
	}
	h.idle()
}

// TestAnEndpointThatWasLeftOutIsNoWayAroundThePolicy: attempts and the failures to retry are bounds.
func TestAnEndpointThatWasLeftOutIsNoWayAroundThePolicy(t *testing.T) {
	for name, change := range map[string]func(*picker.Spec){
		"attempts": func(s *picker.Spec) { s.Policy.Attempts = 1 },
		"failures": func(s *picker.Spec) { s.Policy.RetryServerError = false },
	} {
		h, first, second := leftOut(t, change)
		first.ill.Store(true)
		r := h.post("/v1/completions", `{"model":"m","prompt":"x"}`)
		if text := read(t, r); r.StatusCode != http.StatusInternalServerError || !strings.Contains(text, "ill") || second.asked.Load() != 0 {
			t.Errorf("%s: status %d, %s, the other engine has got it %d times", name, r.StatusCode, text, second.asked.Load())
		}
		h.idle()
	}
}

// TestTheErrorOfAnEngineIsKeptWhileTheOthersAreTried: the client gets it if they do not answer.
func TestTheErrorOfAnEngineIsKeptWhileTheOthersAreTried(t *testing.T) {
	h, first, second := leftOut(t, func(*picker.Spec) {})
	first.ill.Store(true)
	second.gone.Store(true)
	r := h.post("/v1/completions", `{"model":"m","prompt":"x"}`)
	if text := read(t, r); r.StatusCode != http.StatusInternalServerError || !strings.Contains(text, "ill") || second.asked.Load() == 0 {
		t.Errorf("status %d: %s; the other engine has got it %d times", r.StatusCode, text, second.asked.Load())
	}
	h.idle()
}

// TestAnEndpointThatHasComeGetsARequestThatFails, though it was not there at the pick.
func TestAnEndpointThatHasComeGetsARequestThatFails(t *testing.T) {
	arrived, goOn := make(chan struct{}), make(chan struct{})
	dies := engine(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(arrived)
		<-goOn
		panic(http.ErrAbortHandler)
	})
	comes := &moody{}
	h := newHouse(t, Options{}, spec(dies))
	answer := make(chan *http.Response, 1)
	go func() { answer <- h.post("/v1/completions", `{"model":"m","prompt":"x"}`) }()
	await(t, "the request is at the engine", arrived)
	h.apply([]picker.Spec{spec(dies, engine(t, comes.ServeHTTP))})
	close(goOn)
	if r := await(t, "the answer", answer); r.StatusCode != http.StatusOK || comes.asked.Load() != 1 {
		t.Errorf("status %d: %s; the engine that has come got %d requests", r.StatusCode, read(t, r), comes.asked.Load())
	}
	h.idle()
}

// TestEndpointsThatWereLeftOutGetNoMoreThanThePolicysAttempts of both picks together.
func TestEndpointsThatWereLeftOutGetNoMoreThanThePolicysAttempts(t *testing.T) {
	engines := [3]*moody{{}, {}, {}}
	s := spec(engine(t, engines[0].ServeHTTP), engine(t, engines[1].ServeHTTP), engine(t, engines[2].ServeHTTP))
	s.Policy.CircuitFailures, s.Policy.CircuitOpen, s.Policy.Attempts = 1, time.Hour, 2
	h := newHouse(t, Options{}, s)
	engines[1].gone.Store(true)
	engines[2].gone.Store(true)
	for i := 0; engines[1].asked.Load() == 0 || engines[2].asked.Load() == 0; i++ { // no request meets both
		_ = read(t, h.post("/v1/completions", fmt.Sprintf(`{"model":"m","prompt":"warm up %d"}`, i)))
	}
	h.idle()
	for _, e := range engines {
		e.asked.Store(0)
		e.gone.Store(false)
		e.ill.Store(true)
	}
	r := h.post("/v1/completions", `{"model":"m","prompt":"x"}`)
	if text := read(t, r); r.StatusCode != http.StatusInternalServerError || !strings.Contains(text, "ill") {
		t.Errorf("status %d: %s", r.StatusCode, text)
	}
	if a, b, c := engines[0].asked.Load(), engines[1].asked.Load(), engines[2].asked.Load(); a != 1 || b+c != 1 {
		t.Errorf("with 2 attempts, the engines have got it %d, %d and %d times", a, b, c)
	}
	h.idle()
}

// TestTheErrorOfAnEngineIsNotReplacedWhenNoOtherCanServeTheRequest: an endpoint that only prefills is no other one.
func TestTheErrorOfAnEngineIsNotReplacedWhenNoOtherCanServeTheRequest(t *testing.T) {
	decodes, prefills := &moody{}, &moody{}
	s := spec(engine(t, decodes.ServeHTTP), engine(t, prefills.ServeHTTP))
	s.Endpoints[1].Role = endpoint.Prefill
	h := newHouse(t, Options{}, s)
	decodes.ill.Store(true)
	r := h.post("/v1/completions", `{"model":"m","prompt":"x"}`)
	if text := read(t, r); r.StatusCode != http.StatusInternalServerError || !strings.Contains(text, "ill") || prefills.asked.Load() != 0 {
		t.Errorf("status %d: %s; the engine that prefills has got it %d times", r.StatusCode, text, prefills.asked.Load())
	}
	h.idle()
}

// TestARequestAtAnEngineThatHasStoppedIsNotGivenUpForABrokenOne: it is answered once the engine moves again.
func TestARequestAtAnEngineThatHasStoppedIsNotGivenUpForABrokenOne(t *testing.T) {
	var stopped atomic.Bool
	resumed, accepted := make(chan struct{}), make(chan struct{}, 1)
	resume := sync.OnceFunc(func() { close(resumed) })
	first := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if stopped.Load() {
			accepted <- struct{}{}
			select {
			case <-resumed:
			case <-r.Context().Done():
				return
			}
		}
		time.Sleep(5 * time.Millisecond) // its speed can be learned
		saying(token("first")+doneOnly)(w, r)
	})
	broken := &moody{}
	broken.gone.Store(true)
	s := spec(first, engine(t, broken.ServeHTTP))
	s.Policy.RetryStall, s.Policy.CircuitFailures, s.Policy.CircuitOpen = true, 1, time.Hour
	t.Cleanup(resume) // before the engine is closed
	h := newHouse(t, Options{StallLook: 20 * time.Millisecond}, s)
	h.lived(0)
	if broken.asked.Load() == 0 {
		t.Fatal("the other engine is not known as a broken one")
	}
	stopped.Store(true)
	answer := make(chan string, 1)
	go func() { answer <- read(t, h.post("/v1/completions", streamed)) }()
	await(t, "the engine has the request", accepted)
	id := h.picker.Feeds()[0].Endpoint.ID
	eventually(t, "the engine is seen as one that has stopped", func() bool {
		h.picker.Observe(id, time.Now(), load.Report{Running: 1, Generated: 39})
		return h.picker.Stats()[0].Endpoints[0].Stalled
	})
	select {
	case got := <-answer:
		t.Fatalf("answer %q", got)
	case <-time.After(500 * time.Millisecond): // many looks
	}
	resume()
	if got := await(t, "the answer", answer); !strings.Contains(got, "first") {
		t.Errorf("answer %q", got)
	}
}

// TestTheErrorOfAnEngineIsKeptWhileTheOthersHaveNoRoom: the client gets it, and not that it has waited for them for too long.
func TestTheErrorOfAnEngineIsKeptWhileTheOthersHaveNoRoom(t *testing.T) {
	arrived, goOn := make(chan struct{}), make(chan struct{})
	fails := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(arrived)
		<-goOn
		http.Error(w, `{"error":{"message":"ill"}}`, http.StatusInternalServerError)
	})
	full := &limited{goOn: make(chan struct{})}
	other := engine(t, full.ServeHTTP)
	of := func(engines ...string) picker.Spec {
		s := spec(engines...)
		s.Policy.Admission.Queue = true
		s.Policy.Admission.Limits.Requests, s.Policy.Admission.Limits.Bytes = 1000, 1<<20
		s.Policy.Admission.Limits.TTL = 50 * time.Millisecond
		return s
	}
	h := newHouse(t, Options{}, of(fails))
	answer := make(chan *http.Response, 1)
	go func() { answer <- h.post("/v1/completions", `{"model":"m","prompt":"x"}`) }()
	await(t, "the request is at the engine", arrived)
	s := of(fails, other)
	s.Endpoints[0].Ready = false
	h.apply([]picker.Spec{s})
	if r := h.post("/v1/completions", streamed); r.StatusCode != http.StatusTooManyRequests { // it shows that the other engine is full
		t.Fatalf("status %d: %s", r.StatusCode, read(t, r))
	}
	close(goOn)
	if r := await(t, "the answer", answer); r.StatusCode != http.StatusInternalServerError {
		t.Errorf("status %d: %s", r.StatusCode, read(t, r))
	}
	h.outcomes(map[picker.Outcome]int64{picker.Failed: 2})
}
