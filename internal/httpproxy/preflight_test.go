package httpproxy

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// What browsers may send is the engines' to say: a preflight reaches one, whoever sends it, and its answer comes back. It
// never does with a body, nor at a path that is not served.
func TestPreflightsReachAnEngine(t *testing.T) {
	address := engine(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || len(body) > 0 || r.Method != http.MethodOptions {
			t.Errorf("%s with %d bytes, %v", r.Method, len(body), err)
		}
		w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		w.Header().Set("Access-Control-Allow-Methods", r.URL.Path)
		w.WriteHeader(http.StatusNoContent)
	})
	s := spec(address)
	known, problems := tenant.NewDirectory(nil)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	s.Policy.Admission.Tenants = &picker.TenantsSpec{Known: known, Reject: true, Default: &tenant.Class{Weight: 1}}
	h := newHouse(t, Options{}, s)
	ask := func(path, body string, header ...string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, h.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		return h.do(r, header...)
	}
	preflight := []string{"Origin", "https://a.example", "Access-Control-Request-Method", "POST"}
	n := int64(0)
	for _, path := range []string{"/v1/chat/completions", "/v1/models", "/v1/rerank", "/v1/messages/count_tokens"} {
		r := ask(path, "", preflight...)
		if r.StatusCode != http.StatusNoContent || r.Header.Get("Access-Control-Allow-Origin") != "https://a.example" || r.Header.Get("Access-Control-Allow-Methods") != path {
			t.Errorf("%s: status %d, header %v", path, r.StatusCode, r.Header)
		}
		n++
	}
	for name, tc := range map[string]struct {
		path, body string
		header     []string
		status     int
	}{
		"no preflight": {"/v1/chat/completions", "", nil, 401},
		"a body":       {"/v1/chat/completions", "{}", preflight, 401},
		"no such path": {"/sleep", "", preflight, 404},
	} {
		if r := ask(tc.path, tc.body, tc.header...); r.StatusCode != tc.status {
			t.Errorf("%s: status %d", name, r.StatusCode)
		}
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: n})
}
