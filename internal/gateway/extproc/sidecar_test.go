package extproc

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/test/envoytest"
	"github.com/kvasir-dev/kvasir/test/sidecarwire"
)

// recordedAnswers are what each recorded answer of llm-d's sidecar to a hand-off counts as; nil for none.
func recordedAnswers() map[string]*picker.HandoffOutcome {
	completed, failed := picker.HandoffCompleted, picker.HandoffDecodeFailed
	return map[string]*picker.HandoffOutcome{
		"completion": &completed, "stream": &completed, "chat": &completed, "no parameters": &completed, "a URL": &completed,
		"a list": &completed, "two headers": &completed, "decode cut in the stream": &completed,
		"prefill dead": &failed, "prefill cut": &failed, "prefill error": &failed, "prefill unavailable": &failed,
		"prefill retried": &failed, "decode dead": &failed, "decode cut": &failed, "decode error": &failed, "target not allowed": &failed,
		// These can be the fault of the request, or the queue of either engine.
		"prefill refused": nil, "prefill full": nil, "decode full": nil, "prefill without JSON": nil, "no JSON": nil,
	}
}

// TestAnswersOfTheSidecarCountAsRecorded plays the recorded answers of llm-d's sidecar to hand-offs. After three in a row that show that
// hand-offs fail, requests are served alone, and none of them counts against the circuit of the endpoint that decodes.
func TestAnswersOfTheSidecarCountAsRecorded(t *testing.T) {
	// Of these, the picker never hands over, or nothing is answered.
	others := []string{"responses", "another path", "no header", "an empty header", "decode dead alone", "TLS by default",
		"client gone in prefill", "client gone in decode"}
	record, cases := sidecarwire.Recorded(), recordedAnswers()
	if n := len(cases) + len(others); n != len(record.Exchanges) {
		t.Errorf("%d exchanges are recorded, %d known here", len(record.Exchanges), n)
	}
	for name, want := range cases {
		exchange := record.Of(name)
		t.Run(name, func(t *testing.T) { countsAs(t, exchange, want, envoytest.Options{}) })
		if exchange.Answer.Status >= 400 {
			hidden := envoytest.Options{Response: envoytest.WithMode(filter.ProcessingMode_NONE)}
			t.Run(name+", by its header", func(t *testing.T) { countsAs(t, exchange, want, hidden) })
		}
	}
}

func countsAs(t *testing.T, exchange sidecarwire.Exchange, want *picker.HandoffOutcome, o envoytest.Options) {
	t.Helper()
	if exchange.Name == "" {
		t.Fatal("it is not recorded")
	}
	handed := make(chan bool, 1)
	decode := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		header := r.Header.Get(picker.PrefillerHeader) != ""
		handed <- header
		if header {
			replay(w, exchange.Answer)
		}
	})
	s := spec("127.0.0.1:9", decode)
	s.Endpoints[0].Role, s.Endpoints[1].Role = endpoint.Prefill, endpoint.Decode
	s.Policy.Handoffs = picker.HandoffSpec{Rule: picker.HandoffAbove, UncachedTokens: 64, Sidecar: true}
	s.Policy.CircuitOpen = 1 << 40 // no hand-off is tried again in this test
	h := newHouse(t, Options{}, ServeOptions{}, s)
	o.Allowed = []string{picker.PrefillerHeader}
	g, stream := h.envoy(o), strings.Contains(exchange.Request.Body, `"stream":true`)
	const failures = 3
	for i := range failures + 1 {
		answer := g.post("/v1/completions", fmt.Sprintf(`{"model":"m","stream":%t,"prompt":[%d%s]}`, stream, i+1, strings.Repeat(",7", 998)))
		_, _ = io.Copy(io.Discard, answer.Body)
		if got, alone := await(t, handed), i == failures && want != nil && *want == picker.HandoffDecodeFailed; got == alone {
			t.Errorf("request %d is handed over: %t", i, got)
		}
		h.idle()
	}
	stats := h.picker.Stats()[0]
	counted := maps.Clone(stats.Handoffs)
	maps.DeleteFunc(counted, func(_ picker.HandoffOutcome, n int64) bool { return n == 0 })
	if want == nil && len(counted) > 0 || want != nil && (len(counted) != 1 || counted[*want] < failures) {
		t.Errorf("hand-offs %v", counted)
	}
	if n := stats.Endpoints[1].Failures; n != 0 {
		t.Errorf("%d failures count against the endpoint that decodes", n)
	}
}

// replay answers as the sidecar has, behind Envoy.
func replay(w http.ResponseWriter, a sidecarwire.Answer) {
	w.Header().Set("X-Envoy-Upstream-Service-Time", "3")
	for name, values := range a.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.Status)
	_, _ = io.WriteString(w, a.Body)
	if a.Broken {
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}
