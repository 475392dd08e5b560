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

	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// lived makes the first endpoint one whose speed is known: it serves by answering at once, and its figures move.
func (h *house) lived(generated float64) {
	h.t.Helper()
	id := h.picker.Feeds()[0].Endpoint.ID
	for i := range 40 {
		if got := read(h.t, h.post("/v1/completions", streamed)); !strings.Contains(got, "[DONE]") {
			h.t.Fatal(got)
		}
		h.picker.Observe(id, time.Now(), load.Report{Running: i % 2, Generated: generated + float64(i)})
	}
}

// TestRequestsLeaveAnEngineThatHasStopped, those that it has accepted and not begun to answer; one that has begun stays. The
// engine gets no others until it moves again.
func TestRequestsLeaveAnEngineThatHasStopped(t *testing.T) {
	for name, header := range map[string]bool{"before the header": false, "after the header": true} {
		for _, comments := range []time.Duration{0, 100 * time.Millisecond} {
			t.Run(fmt.Sprint(name, ", comments ", comments), func(t *testing.T) {
				t.Parallel()
				stopsRequests(t, header, comments)
			})
		}
	}
}

// by is a streamed request of a user, by whom an engine tells requests apart: it can read one long after its client was answered.
func by(user string) string {
	return strings.Replace(streamed, "{", fmt.Sprintf(`{"user":%q,`, user), 1)
}

func stopsRequests(t *testing.T, header bool, comments time.Duration) {
	var stopped atomic.Bool
	var accepted, aside, again atomic.Int64
	resumed, begun := make(chan struct{}), make(chan struct{}, 1)
	resume := sync.OnceFunc(func() { close(resumed) })
	first := engine(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "begins") {
			eventStream(w)
			say(w, token("a"))
			begun <- struct{}{}
			<-resumed
			say(w, token("b")+doneOnly)
			return
		}
		if stopped.Load() {
			accepted.Add(1)
			aside.Add(int64(strings.Count(string(body), "aside")))
			again.Add(int64(strings.Count(string(body), "again")))
			if header {
				eventStream(w)
			}
			select {
			case <-resumed:
			case <-r.Context().Done():
				return
			}
		}
		time.Sleep(5 * time.Millisecond) // its speed can be learned
		saying(token("first")+doneOnly)(w, r)
	})
	s := spec(first, engine(t, saying(token("second")+doneOnly)))
	s.Policy.RetryStall, s.Policy.Comments = true, comments
	t.Cleanup(resume) // before the engine is closed
	h := newHouse(t, Options{StallLook: 20 * time.Millisecond}, s)
	h.lived(0)
	stays := make(chan string, 1)
	go func() {
		for { // round robin
			if got := read(t, h.post("/v1/completions", by("begins"))); strings.Contains(got, `"a"`) {
				stays <- got
				return
			}
		}
	}()
	await(t, "an answer has begun", begun)
	stopped.Store(true)
	answers := make(chan string, 8)
	for range cap(answers) {
		go func() { answers <- read(t, h.post("/v1/completions", streamed)) }()
	}
	eventually(t, "the engine has accepted requests", func() bool { return accepted.Load() > 0 })
	stop := make(chan struct{})
	defer close(stop)
	go func() { // it is scraped, and shows the same each time
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
				h.picker.Observe(h.picker.Feeds()[0].Endpoint.ID, time.Now(), load.Report{Running: 1, Generated: 39})
			}
		}
	}()
	began := time.Now()
	for range cap(answers) {
		if got := await(t, "an answer", answers); !strings.Contains(got, "second") || strings.Contains(got, "first") {
			t.Errorf("answer %q", got)
		}
	}
	t.Logf("all answered after %v", time.Since(began))
	if is := h.picker.Stats()[0].Endpoints[0]; !is.Stalled || !is.CircuitClosed || is.Failures != 0 {
		t.Errorf("the engine that has stopped: %+v", is)
	}
	for range 4 {
		if got := read(t, h.post("/v1/completions", by("aside"))); !strings.Contains(got, "second") {
			t.Errorf("answer %q", got)
		}
	}
	resume()
	if got := await(t, "the answer that had begun", stays); got != token("a")+token("b")+doneOnly {
		t.Errorf("it is %q", got)
	}
	for range 2 {
		read(t, h.post("/v1/completions", by("again")))
	}
	if again.Load() == 0 {
		t.Error("it moves again, and is sent no requests")
	}
	h.idle()
	if n := aside.Load(); n != 0 {
		t.Errorf("it was sent %d requests while it stood", n)
	}
	if n := h.picker.Stats()[0].Outcomes[picker.Failed]; n != 0 {
		t.Errorf("%d requests have failed", n)
	}
}
