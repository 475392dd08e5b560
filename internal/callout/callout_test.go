package callout

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
)

// patience is the timeout of calls that should be answered.
const patience = 10 * time.Second

func calling(t testing.TB, now func() time.Time) *Services {
	t.Helper()
	s := NewServices(now, logr.Discard())
	t.Cleanup(s.Close)
	return s
}

// answering is a service that answers everything with a text.
func answering(t *testing.T, text string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }))
	t.Cleanup(s.Close)
	return s
}

// TestACallIsAPost of the body, to the URL as it is.
func TestACallIsAPost(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- r.Method + " " + r.URL.RequestURI() + " " + r.Header.Get("Content-Type") + " " + string(body)
		_, _ = io.WriteString(w, `{"decision_id": "1", "result": {"a": 1}}`)
	}))
	t.Cleanup(server.Close)
	result, err := calling(t, time.Now).Call(t.Context(), server.URL+"/v1/data/kvasir?x=1", patience, []byte(`{"input":{}}`))
	if err != nil || string(result) != `{"a": 1}` {
		t.Errorf("%s, %v", result, err)
	}
	if text := <-got; text != `POST /v1/data/kvasir?x=1 application/json {"input":{}}` {
		t.Errorf("the service got %s", text)
	}
}

// TestWhatIsNoAnswer: an answer without a result has none, and what is no object, or too large, is an error.
func TestWhatIsNoAnswer(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{
		`{}`: "", `{"result": null}`: "", "": "not a JSON object", "true": "not a JSON object", `{"result": true`: "not a JSON object", "[]": "not a JSON object",
		`{"result": true, "padding": "` + strings.Repeat("x", maxAnswer) + `"}`: "more than",
	} {
		result, err := calling(t, time.Now).Call(t.Context(), answering(t, answer).URL, patience, nil)
		switch {
		case want == "" && (err != nil || len(result) > 0 && string(result) != "null"):
			t.Errorf("%.40s: %s, %v", answer, result, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%.40s: %v, want %s", answer, err, want)
		}
	}
}

// TestServicesThatDoNotAnswer: the call fails within its time, and says why.
func TestServicesThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	stalls := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	t.Cleanup(stalls.Close)
	drips := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, " ")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Millisecond)
		}
	}))
	t.Cleanup(drips.Close)
	elsewhere := answering(t, `{"result": true}`)
	redirects := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	t.Cleanup(redirects.Close)
	broken := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	t.Cleanup(broken.Close)
	gone := answering(t, "")
	gone.Close()
	const short = 50 * time.Millisecond // for what never ends; the others fail whenever they do
	for url, want := range map[string]struct {
		why     string
		timeout time.Duration
	}{
		stalls.URL:                   {"has not answered within 50ms", short},
		drips.URL:                    {"has not answered within 50ms", short},
		redirects.URL:                {"answers 307", patience},
		broken.URL:                   {"EOF", patience},
		gone.URL:                     {"refused", patience},
		"http://169.254.169.254/v1/": {"link-local", patience},
	} {
		_, err := calling(t, time.Now).Call(t.Context(), url, want.timeout, []byte("{}"))
		if err == nil || !strings.Contains(err.Error(), want.why) {
			t.Errorf("%s: %v, want %q", url, err, want.why)
		}
	}
}

// TestAServiceThatFailsIsLeftAlone: after some failures in a row, calls fail at once, except for one in each pause; the first answer ends that.
func TestAServiceThatFailsIsLeftAlone(t *testing.T) {
	t.Parallel()
	var asked, fails atomic.Int64
	fails.Store(1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		if fails.Load() == 1 {
			http.Error(w, "broken", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, `{"result": true}`)
	}))
	t.Cleanup(s.Close)
	now := time.Unix(0, 0)
	services := calling(t, func() time.Time { return now })
	run := func() error { _, err := services.Call(t.Context(), s.URL, patience, nil); return err }
	for range 100 {
		if run() == nil {
			t.Fatal("a failure has passed")
		}
	}
	if n := asked.Load(); n != EnoughFailures {
		t.Errorf("asked %d times, want %d", n, EnoughFailures)
	}
	for range 3 {
		now = now.Add(Pause)
		for range 10 {
			_ = run()
		}
	}
	if n := asked.Load(); n != EnoughFailures+3 {
		t.Errorf("asked %d times after three pauses, want %d", n, EnoughFailures+3)
	}
	fails.Store(0)
	now = now.Add(Pause)
	for range 10 {
		if err := run(); err != nil {
			t.Fatal(err)
		}
	}
	// A client that leaves is no failure of the service.
	left, leave := context.WithCancel(t.Context())
	leave()
	for range 2 * EnoughFailures {
		if _, err := services.Call(left, s.URL, patience, nil); err == nil {
			t.Fatal("a call of a client that has left has passed")
		}
	}
	if err := run(); err != nil {
		t.Errorf("after clients have left: %v", err)
	}
}

// TestAClientKeepsOthersFromNoService: answers that a client's own request can cause do not count against the service.
func TestAClientKeepsOthersFromNoService(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{"400", "500", "not JSON", strings.Repeat("x", maxAnswer+1)} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if text, _ := io.ReadAll(r.Body); len(text) > 0 {
				_, _ = io.WriteString(w, `{"result": true}`)
				return
			}
			if status, err := strconv.Atoi(answer); err == nil {
				w.WriteHeader(status)
			}
			_, _ = io.WriteString(w, answer)
		}))
		t.Cleanup(s.Close)
		services := calling(t, time.Now)
		for range 2 * EnoughFailures {
			if _, err := services.Call(t.Context(), s.URL, patience, nil); err == nil {
				t.Fatalf("%.10q is an answer", answer)
			}
		}
		if _, err := services.Call(t.Context(), s.URL, patience, []byte("{}")); err != nil {
			t.Errorf("after answers %.10q, another client: %v", answer, err)
		}
	}
}

// TestCallsAreBounded: the calls under way never exceed the limit, those beyond it fail at once, and none is counted twice or forgotten.
func TestCallsAreBounded(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int64
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := now.Add(1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		select {
		case <-release:
		case <-r.Context().Done():
		}
		now.Add(-1)
		_, _ = io.WriteString(w, `{"result": true}`)
	}))
	t.Cleanup(s.Close)
	services := calling(t, time.Now)
	var passed, refused atomic.Int64
	var all sync.WaitGroup
	for range 3 * maxCalls {
		all.Go(func() {
			if _, err := services.Call(t.Context(), s.URL, time.Minute, nil); err != nil {
				if !strings.Contains(err.Error(), "under way") {
					t.Error(err)
				}
				if refused.Add(1) == 2*maxCalls {
					close(release) // all that are not refused are under way
				}
			} else {
				passed.Add(1)
			}
		})
	}
	all.Wait()
	if passed.Load() != maxCalls || most.Load() > maxCalls {
		t.Errorf("%d passed and %d were refused, at most %d at a time", passed.Load(), refused.Load(), most.Load())
	}
	services.mu.Lock()
	left := services.known[s.URL].calls
	services.mu.Unlock()
	services.Keep(map[string]bool{})
	if left != 0 || len(services.known) != 0 {
		t.Errorf("%d calls are still counted, %d services known", left, len(services.known))
	}
}

func TestURLsOfServices(t *testing.T) {
	t.Parallel()
	for url, good := range map[string]bool{
		"http://opa:8181/v1/data/kvasir": true, "https://opa.example.com": true, "http://127.0.0.1:8181/v1/data": true, "http://[fd00::1]:8181/": true,
		"opa:8181": false, "ftp://opa/": false, "http://": false, "http://user:secret@opa/": false, "http://opa/#x": false, "http://169.254.169.254/latest": false,
		"http://[fd00:ec2::254]/": false, "http://0.0.0.0/": false, "http://[::ffff:169.254.169.254]/": false,
	} {
		if fault := Fault(url); (fault == "") != good || strings.Contains(fault, "secret") {
			t.Errorf("%s: %q", url, fault)
		}
	}
}

// BenchmarkCall is what a call of a service costs that answers at once, with the service's own time.
func BenchmarkCall(b *testing.B) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"result": true}`) }))
	b.Cleanup(s.Close)
	services := calling(b, time.Now)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := services.Call(b.Context(), s.URL, patience, []byte(`{"input":{"model":"m"}}`)); err != nil {
			b.Fatal(err)
		}
	}
}
