package envoy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// TestSidecarsGetThePrefillerBehindGateways: the engine that decodes gets one header with the endpoint of the pool that prefills, whatever the
// client has sent in it.
func TestSidecarsGetThePrefillerBehindGateways(t *testing.T) {
	if *vllm != "" {
		t.Skip("the real engine has no sidecar")
	}
	const prefill = "127.0.0.1:9"
	got := make(chan []string, 1)
	sidecar := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		got <- slices.Concat(r.Header.Values(picker.PrefillerHeader), r.Header.Values("X-Kv-Cache-Source-Host-Port"))
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"x","finish_reason":"length"}]}`)
	}))
	t.Cleanup(sidecar.Close)
	decode := sidecar.Listener.Addr().String()
	for _, g := range gateways {
		t.Run(g.name, func(t *testing.T) {
			s := pool(prefill, decode)
			s.Endpoints[0].Role, s.Endpoints[1].Role = endpoint.Prefill, endpoint.Decode
			s.Policy.Handoffs = picker.HandoffSpec{Rule: picker.HandoffAbove, UncachedTokens: 64, Sidecar: true}
			r := startReplica(t, s, settings{})
			client := start(t, []string{r.address}, []string{prefill, decode}, g).client(t, g, http11)
			for _, hostile := range [][]string{nil, {"10.0.0.1:1"}, {"", "10.0.0.1:1"}, {"10.0.0.1:1,10.0.0.2:1", "10.0.0.3:1"}} {
				for _, long := range []bool{true, false} {
					q := newRequest(false)
					if !long {
						q.tokens = 8
					}
					// Its first token is its own: no endpoint holds the prompt.
					body := strings.Replace(q.body(), `"prompt":[1`, `"prompt":[`+newRequest(false).id(), 1)
					ask, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://envoy/v1/completions", strings.NewReader(body))
					if err != nil {
						t.Fatal(err)
					}
					ask.Header.Set("Content-Type", "application/json")
					ask.Header["X-Prefiller-Host-Port"] = hostile
					ask.Header["X-Kv-Cache-Source-Host-Port"] = hostile
					answer, err := client.Do(ask)
					if err != nil {
						t.Fatal(err)
					}
					text, _ := io.ReadAll(answer.Body)
					_ = answer.Body.Close()
					if answer.StatusCode != http.StatusOK {
						t.Fatalf("status %d: %s", answer.StatusCode, text)
					}
					var want []string
					if long {
						want = []string{prefill}
					}
					if headers := <-got; !slices.Equal(headers, want) {
						t.Errorf("%d tokens, after %q: the sidecar gets %q, want %q", q.tokens, hostile, headers, want)
					}
				}
			}
			r.idle(t)
		})
	}
}
