package render

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// engine is an engine whose routes give configured answers. It records the requests it receives.
type engine struct {
	mu      sync.Mutex
	answers map[string]answer // by path
	asked   []question
}

type answer struct {
	status int
	body   string
}

type question struct {
	Path, Auth, Body string
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = append(e.asked, question{r.URL.Path, r.Header.Get("Authorization"), string(body)})
	a, ok := e.answers[r.URL.Path]
	if !ok {
		a = answer{http.StatusNotFound, routeAbsent}
	}
	if a.status == http.StatusFound {
		w.Header().Set("Location", "/elsewhere")
	}
	w.WriteHeader(a.status)
	_, _ = io.WriteString(w, a.body)
}

func (e *engine) paths() (out []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, q := range e.asked {
		out = append(out, q.Path)
	}
	return out
}

// start serves e over TCP and returns its endpoint.
func start(t *testing.T, h http.Handler) *endpoint.Endpoint {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return &endpoint.Endpoint{ID: endpoint.ID{Pod: "pod"}, Address: strings.TrimPrefix(server.URL, "http://")}
}

func newClient(t *testing.T, o Options) *Client {
	t.Helper()
	c := New(o)
	t.Cleanup(c.Close)
	return c
}

const (
	chatRender       = "/v1/chat/completions/render"
	completionRender = "/v1/completions/render"
)
