package httpproxy

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestClientsSeeWhatIsLeftOfTheirLimits in the headers of the OpenAI API, on answers and on refusals; tenants without limits
// see none, and what an engine says of limits does not count.
func TestClientsSeeWhatIsLeftOfTheirLimits(t *testing.T) {
	s := keyed(t, engine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Ratelimit-Limit-Requests", "7")
		_, _ = io.WriteString(w, `{"choices":[{"text":"x","finish_reason":"length"}],"usage":{"prompt_tokens":30,"completion_tokens":10}}`)
	}))
	s.Policy.Admission.Tenants.Classes["some"].RequestsPerMinute = 2
	s.Policy.Admission.Tenants.Classes["some"].TokensPerMinute = 1000
	h := newHouse(t, Options{}, s)
	ask := func(key string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"x"}`))
		if err != nil {
			t.Fatal(err)
		}
		answer := h.do(r, "Authorization", "Bearer "+key)
		_, _ = io.Copy(io.Discard, answer.Body)
		return answer
	}
	for i, left := range []string{"1", "0", "0"} {
		answer := ask("k-small")
		if refused := answer.StatusCode == 429; refused != (i == 2) {
			t.Fatalf("request %d: status %d", i, answer.StatusCode)
		}
		if got := answer.Header.Values("X-Ratelimit-Remaining-Requests"); len(got) != 1 || got[0] != left {
			t.Errorf("request %d: %v requests are left, want %s", i, got, left)
		}
		if got := answer.Header.Get("X-Ratelimit-Limit-Requests"); got != "2" {
			t.Errorf("request %d: the limit is %s requests", i, got)
		}
		if answer.Header.Get("X-Ratelimit-Limit-Tokens") != "1000" || answer.Header.Get("X-Ratelimit-Reset-Requests") == "" {
			t.Errorf("request %d: %v", i, answer.Header)
		}
	}
	if got := ask("k-acme").Header.Values("X-Ratelimit-Remaining-Requests"); len(got) != 0 {
		t.Errorf("a tenant without limits sees %v", got)
	}
	h.idle()
}
