package extproc

import (
	"io"
	"net/http"
	"testing"

	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// TestClientsSeeWhatIsLeftOfTheirLimits in the headers of the OpenAI API, on answers and on refusals.
func TestClientsSeeWhatIsLeftOfTheirLimits(t *testing.T) {
	s := keyed(t, engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "{}")
	}))
	s.Policy.Admission.Tenants.Classes["some"].RequestsPerMinute = 2
	h := newHouse(t, Options{}, ServeOptions{}, s)
	g := h.envoy(envoytest.Options{})
	for i, left := range []string{"1", "0", "0"} {
		answer := g.post("/v1/completions", `{"model":"m","prompt":"x"}`, "Authorization", "Bearer k-small", "Content-Type", "application/json")
		if refused := answer.StatusCode == 429; refused != (i == 2) {
			t.Fatalf("request %d: status %d", i, answer.StatusCode)
		}
		if got := answer.Header.Get("X-Ratelimit-Remaining-Requests"); got != left {
			t.Errorf("request %d: %q requests are left, want %s", i, got, left)
		}
		if got := answer.Header.Get("X-Ratelimit-Limit-Tokens"); got != "" {
			t.Errorf("request %d: a limit of %s tokens, which the class does not have", i, got)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
	}
	h.idle()
}
