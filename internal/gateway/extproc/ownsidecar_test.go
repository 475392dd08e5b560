package extproc

import (
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/relay"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// TestKvasirsSidecarGetsATicketAndItsReportStaysHere: the sidecar gets one ticket, signed for the pool, whatever clients send, and no client
// gets its report, from whatever engine it is.
func TestKvasirsSidecarGetsATicketAndItsReportStaysHere(t *testing.T) {
	const prefill = "127.0.0.1:9"
	tickets := make(chan []string, 1)
	decode := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		tickets <- r.Header.Values(relay.TicketHeader)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set(relay.ReportHeader, "prefill_failed;cause=connect")
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"x","finish_reason":"length"}]}`)
	})
	for _, handed := range []bool{true, false} {
		s := spec(prefill, decode)
		s.Endpoints[0].Role, s.Endpoints[1].Role = endpoint.Prefill, endpoint.Decode
		s.Policy.Handoffs = picker.HandoffSpec{Rule: picker.HandoffAbove, UncachedTokens: 64, Sidecar: true, Own: true}
		s.Policy.CircuitOpen = 1 // all are tried again at once
		body, prompts := completion, 0
		if handed {
			body = `{"model":"m","prompt":[N,` + strings.Repeat("7,", 998) + `7]}`
		}
		h := newHouse(t, Options{}, ServeOptions{}, s)
		for _, options := range []envoytest.Options{
			{Seed: 3, Allowed: []string{relay.TicketHeader}},
			{Request: envoytest.WithMode(filter.ProcessingMode_BUFFERED), MessageTimeout: patience, Allowed: []string{relay.TicketHeader}},
		} {
			g := h.envoy(options)
			for _, hostile := range [][]string{nil, {"1 10.0.0.1:1 0 0 x"}, {"", "x"}} {
				prompts++ // no endpoint holds the next one
				text := strings.NewReader(strings.Replace(body, "N", strconv.Itoa(prompts), 1))
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+"/v1/completions", text)
				if err != nil {
					t.Fatal(err)
				}
				r.Header[http.CanonicalHeaderKey(relay.TicketHeader)] = hostile
				answer := g.do(r)
				if answer.StatusCode != 200 || answer.Header.Get(relay.ReportHeader) != "" {
					t.Errorf("status %d, header %v: %s", answer.StatusCode, answer.Header, read(t, answer))
				}
				switch got := await(t, tickets); {
				case !handed && len(got) > 0:
					t.Errorf("after %q the engine gets %q for a short prompt", hostile, got)
				case handed && len(got) != 1:
					t.Errorf("after %q the sidecar gets %q", hostile, got)
				case handed:
					if ticket, err := relay.Open(got[0], relay.TagOf(s.Endpoints[1].ID.Pod), time.Now(), s.Seed); err != nil || ticket.Address != prefill || slices.Contains(hostile, got[0]) {
						t.Errorf("after %q the sidecar gets %q: %+v, %v", hostile, got, ticket, err)
					}
				}
			}
		}
		h.idle()
		failed := h.picker.Stats()[0].Handoffs[picker.HandoffPrefillFailed]
		if handed && failed == 0 || !handed && failed > 0 {
			t.Errorf("hand-offs %v", h.picker.Stats()[0].Handoffs)
		}
	}
}
