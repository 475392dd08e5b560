package extproc

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// Load tools and load balancers ask GET /health before they send requests, without a key. Behind a gateway they get the
// proxy's answer: no engine is asked, there need not be one, and nothing is accounted.
func TestHealthIsAnsweredAsByTheProxy(t *testing.T) {
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Passed") == "" {
			t.Errorf("%s %s has come to the engine", r.Method, r.URL)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusAccepted)
	})
	for name, s := range map[string]picker.Spec{"everybody": spec(e), "tenants": keyed(t, e), "a pool at zero": holding()} {
		t.Run(name, func(t *testing.T) {
			var ready atomic.Bool
			h := newHouse(t, Options{}, ServeOptions{Ready: ready.Load}, s)
			for seed := range uint64(3) {
				g := h.envoy(envoytest.Options{Seed: seed})
				for is, want := range map[bool]int{true: http.StatusOK, false: http.StatusServiceUnavailable} {
					ready.Store(is)
					for _, method := range []string{http.MethodGet, http.MethodHead} {
						r, err := http.NewRequestWithContext(t.Context(), method, g.url+"/health?x=1", http.NoBody)
						if err != nil {
							t.Fatal(err)
						}
						answer := g.do(r)
						if text := read(t, answer); answer.StatusCode != want || text != "" {
							t.Errorf("%s: status %d, body %q; want %d", method, answer.StatusCode, text, want)
						}
					}
				}
			}
			h.outcomes(map[picker.Outcome]int64{})
			h.idle()
		})
	}
	// Any other request for the path, or another path, is one like all others.
	g := newHouse(t, Options{}, ServeOptions{}, spec(e)).envoy(envoytest.Options{})
	for _, tc := range [][3]string{
		{"POST", "/health", ""}, {"GET", "/health", "x"}, {"GET", "/health/", ""}, {"GET", "/x/health", ""}, {"GET", "/healthz", ""},
	} {
		r, err := http.NewRequestWithContext(t.Context(), tc[0], g.url+tc[1], strings.NewReader(tc[2]))
		if err != nil {
			t.Fatal(err)
		}
		if answer := g.do(r, "X-Passed", "true"); answer.StatusCode != http.StatusAccepted {
			t.Errorf("%s %s: status %d", tc[0], tc[1], answer.StatusCode)
		}
	}
}
