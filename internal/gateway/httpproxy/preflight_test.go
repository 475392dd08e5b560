package httpproxy

import (
	"net/http"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// TestPreflightsReachNoEngine: a preflight shows no key, so that the picker answers it, by the policy, alike at every path.
func TestPreflightsReachNoEngine(t *testing.T) {
	s := keyed(t, engine(t, func(w http.ResponseWriter, r *http.Request) { t.Errorf("%s has come to the engine", r.Method) }))
	s.Policy.Admission.AllowedOrigins = []string{"https://a.example"}
	h := newHouse(t, Options{}, s)
	ask := func(path, body string, header ...string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, h.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		return h.do(r, header...)
	}
	preflight := []string{"Origin", "https://a.example", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,content-type"}
	for _, path := range []string{"/v1/chat/completions", "/v1/models", "/v1/rerank", "/v1/messages/count_tokens", "/sleep", "/"} {
		r := ask(path, "", preflight...)
		if r.StatusCode != http.StatusNoContent || r.Header.Get("Access-Control-Allow-Origin") != "https://a.example" ||
			r.Header.Get("Access-Control-Allow-Headers") != "authorization,content-type" || !strings.Contains(r.Header.Get("Access-Control-Allow-Methods"), "POST") {
			t.Errorf("%s: status %d, header %v", path, r.StatusCode, r.Header)
		}
		preflight[1] = "https://b.example"
		if r := ask(path, "", preflight...); r.StatusCode != http.StatusForbidden || r.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s from elsewhere: status %d, header %v", path, r.StatusCode, r.Header)
		}
		preflight[1] = "https://a.example"
	}
	for name, tc := range map[string]struct {
		body   string
		header []string
	}{
		"no preflight": {"", nil},
		"a body":       {"{}", preflight},
	} {
		if r := ask("/v1/chat/completions", tc.body, tc.header...); r.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: status %d", name, r.StatusCode)
		}
	}
	h.outcomes(map[picker.Outcome]int64{})
}

// TestPagesReadTheirRefusals: a page of an origin that is allowed can read the picker's own answers, others cannot.
func TestPagesReadTheirRefusals(t *testing.T) {
	s := keyed(t, engine(t, func(http.ResponseWriter, *http.Request) {}))
	s.Policy.Admission.AllowedOrigins = []string{"https://a.example"}
	h := newHouse(t, Options{}, s)
	for origin, want := range map[string]string{"https://a.example": "https://a.example", "https://b.example": "", "": ""} {
		for _, key := range []string{"k-acme", "none"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.url+"/v1/models", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			if got := h.do(r, "Origin", origin, "Authorization", "Bearer "+key).Header.Get("Access-Control-Allow-Origin"); got != want {
				t.Errorf("%q with key %s: %q", origin, key, got)
			}
		}
	}
}
