package httpproxy

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// TestEnginesGetEachRequestIDOnce at a time: older releases of vLLM fail on a request whose id is in use. The client's
// own id is answered all the same.
func TestEnginesGetEachRequestIDOnce(t *testing.T) {
	ids, proceed := make(chan string), make(chan struct{})
	address := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		ids <- r.Header.Get("X-Request-Id")
		<-proceed
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"text":"x","finish_reason":"stop"}]}`)
	})
	h := newHouse(t, Options{}, spec(address))
	answers := make(chan string, 3)
	send := func(id string) {
		go func() {
			request, err := http.NewRequest(http.MethodPost, h.url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"x"}`))
			if err != nil {
				t.Error(err)
				return
			}
			request.Header.Set("X-Request-Id", id)
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = response.Body.Close() }()
			_, _ = io.Copy(io.Discard, response.Body)
			answers <- response.Header.Get("X-Request-Id")
		}()
	}
	seen := map[string]bool{}
	for i := range 3 {
		send("mine")
		id := <-ids
		if seen[id] || i == 0 && id != "mine" || !strings.HasPrefix(id, "mine") {
			t.Errorf("request %d reaches the engine as %q, after %v", i, id, seen)
		}
		seen[id] = true
	}
	for range 3 {
		proceed <- struct{}{}
	}
	for range 3 {
		if id := <-answers; id != "mine" {
			t.Errorf("an answer has the id %q", id)
		}
	}
	h.stop() // every request is over
	if n := len(h.proxy.ids.used); n != 0 {
		t.Errorf("%d ids are kept", n)
	}
}

// TestOnlyCorrelationIDsPass: the client, the engine and the logs know a request by one id. A given one is kept if it can stand
// in a log.
func TestOnlyCorrelationIDsPass(t *testing.T) {
	var e echo
	h := newHouse(t, Options{}, spec(e.engine(t, nil)))
	for id, kept := range map[string]bool{
		strings.Repeat("x", picker.MaxRequestID): true, strings.Repeat("x", picker.MaxRequestID+1): false, "my prompt": false,
	} {
		r := h.post("/v1/completions", streamed, "X-Request-Id", id)
		read(t, r)
		got := e.header.Get("X-Request-Id")
		if (got == id) != kept || r.Header.Get("X-Request-Id") != got {
			t.Errorf("an id of %d bytes reaches the engine as %q, and the client as %q", len(id), got, r.Header.Get("X-Request-Id"))
		}
	}
}

// TestEveryRefusalIsLogged, at debug, with the id that the client has been given.
func TestEveryRefusalIsLogged(t *testing.T) {
	log := new(lines)
	dead := spec("127.0.0.1:1")
	h := newHouse(t, Options{Log: log.logger(1)}, dead)
	for name, tc := range map[string]struct{ path, body, want string }{
		"no such path":         {"/sleep", "{}", `"status"=404 "code"="not_found"`},
		"no such model":        {"/v1/completions", `{"model":"zebra","prompt":"x"}`, `"status"=404 "code"="model_not_found"`},
		"it cannot be read":    {"/v1/completions", `{"model":"m","prompt":{"zebra":1}}`, `"status"=400 "code"="invalid_request"`},
		"no engine is reached": {"/v1/completions", `{"model":"m","prompt":"x"}`, `"status"=502 "code"="upstream_failed"`},
	} {
		r := h.post(tc.path, tc.body)
		read(t, r)
		line := log.with("Request refused", r.Header.Get("X-Request-Id"))
		if !strings.Contains(line, tc.want) || strings.Contains(line, "zebra") {
			t.Errorf("%s: %q", name, line)
		}
	}
}

// lines are those of a log.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) logger(verbosity int) logr.Logger {
	return funcr.New(func(_, line string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all = append(l.all, line)
	}, funcr.Options{Verbosity: verbosity})
}

// with is the line that contains all the words, empty without one.
func (l *lines) with(words ...string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			return line
		}
	}
	return ""
}
