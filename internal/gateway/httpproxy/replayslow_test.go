package httpproxy

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// TestAReplayToASlowClientDelaysNoOther: while a client takes nothing of its replay, others get theirs, the answer can give way, and the
// replay is in the memory of clients. Without room there it is refused.
func TestAReplayToASlowClientDelaysNoOther(t *testing.T) {
	t.Parallel()
	large := `{"choices":[{"text":"` + strings.Repeat("x", 1<<20-200) + `","finish_reason":"stop"}]}`
	s := caching(engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, large)
	}))
	s.Policy.Responses.MaxBytes = 4 << 20
	h := newHouse(t, Options{Budget: budget.New(8<<20, time.Now)}, s)
	h.ask(cold)
	eventually(t, "it is stored", func() bool { return h.responses().Entries == 1 })
	h.idle()

	body := `{"model":"m","prompt":"p"` + cold + `}`
	slow := &slowWriter{header: http.Header{}, begun: make(chan struct{}), goOn: make(chan struct{})}
	var all sync.WaitGroup
	all.Go(func() {
		h.proxy.ServeHTTP(slow, httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(body)))
	})
	await(t, "the slow replay has begun", slow.begun)
	if held := h.proxy.budget.Held(budget.Answers); held != int64(len(large)) {
		t.Errorf("%d bytes are held of an answer of %d", held, len(large))
	}
	if got, cache := h.ask(cold); cache != "hit" || got != large {
		t.Errorf("beside a slow client: %q, %d bytes", cache, len(got))
	}
	s.Generation++
	if err := h.picker.Apply([]picker.Spec{s}); err != nil { // the answer is dropped
		t.Fatal(err)
	}
	close(slow.goOn)
	all.Wait()
	if slow.got.String() != large {
		t.Errorf("the slow client got %d bytes", slow.got.Len())
	}
	h.idle()

	tight := newHouse(t, Options{Budget: budget.New(1<<20, time.Now)}, s)
	tight.ask(cold)
	eventually(t, "it is stored", func() bool { return tight.responses().Entries == 1 })
	tight.idle()
	refused := tight.post("/v1/completions", body)
	if text := read(t, refused); refused.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, picker.CodeOverloaded) {
		t.Errorf("without room: %d, %d bytes", refused.StatusCode, len(text))
	}
	tight.idle()
}

// slowWriter is a client that takes the first piece of its answer, and the others only when it goes on.
type slowWriter struct {
	header      http.Header
	got         bytes.Buffer
	begun, goOn chan struct{}
}

func (s *slowWriter) Header() http.Header { return s.header }

func (s *slowWriter) WriteHeader(int) {}

func (s *slowWriter) Write(p []byte) (int, error) {
	if s.got.Len() == 0 {
		s.begun <- struct{}{}
		<-s.goOn
	}
	return s.got.Write(p)
}
