package httpproxy

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// Load tools and load balancers ask GET /health before they send requests, without a key, as they ask vLLM.
func TestHealthIsAnsweredAsByVLLM(t *testing.T) {
	s := spec(engine(t, func(http.ResponseWriter, *http.Request) { t.Error("an engine was asked") }))
	known, problems := tenant.NewDirectory(nil)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	s.Policy.Admission.Tenants = &picker.TenantsSpec{Known: known, Reject: true, Default: &tenant.Class{Weight: 1}}
	var ready atomic.Bool
	h := newHouse(t, Options{Ready: ready.Load}, s)
	for name, tc := range map[string]struct {
		method, body string
		ready        bool
		status       int
	}{
		"ready":                            {"GET", "", true, 200},
		"ready, asked without the body":    {"HEAD", "", true, 200},
		"not ready":                        {"GET", "", false, 503},
		"a method that vLLM has not":       {"POST", "", true, 401}, // as every request of a stranger
		"with a body that is not expected": {"GET", "x", true, 401},
	} {
		ready.Store(tc.ready)
		var body io.Reader = http.NoBody
		if tc.body != "" {
			body = strings.NewReader(tc.body)
		}
		r, err := http.NewRequestWithContext(t.Context(), tc.method, h.url+"/health", body)
		if err != nil {
			t.Fatal(err)
		}
		got := h.do(r)
		text, err := io.ReadAll(got.Body)
		if err != nil || got.StatusCode != tc.status || tc.status != 401 && len(text) > 0 {
			t.Errorf("%s: status %d, body %q, %v; want %d", name, got.StatusCode, text, err, tc.status)
		}
	}
	h.outcomes(map[picker.Outcome]int64{})
}
