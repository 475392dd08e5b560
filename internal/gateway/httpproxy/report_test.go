package httpproxy

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// TestEnginesAreAskedForWhatEventsHaveLost: the body of the client with one more field, and unchanged once no event is missing.
func TestEnginesAreAskedForWhatEventsHaveLost(t *testing.T) {
	bodies := make(chan string, 1)
	s := asksUsage(engine(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies <- string(body)
		_, _ = io.WriteString(w, `{"id":"x","choices":[{"index":0,"text":"a","finish_reason":"stop"}],`+
			`"usage":{"prompt_tokens":20,"completion_tokens":1}}`)
	}))
	s.NoEvents = false
	h := newHouse(t, Options{}, s)
	feeds := h.picker.Feeds()
	if len(feeds) != 1 {
		t.Fatalf("%d feeds", len(feeds))
	}
	h.picker.SetExact("default", "pool", &picker.Exact{Releases: &picker.Releases{feeds[0].Endpoint.Epoch(): 32}})
	prompt := `{"model":"m", "prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]`
	for incomplete, want := range map[bool]string{true: prompt + `,"vllm_xargs":{"kv_cache_report_mode":"full"}}`, false: prompt + "}"} {
		feeds[0].Incomplete(incomplete)
		if answer := h.post("/v1/completions", prompt+"}"); answer.StatusCode != http.StatusOK {
			t.Fatalf("status %d", answer.StatusCode)
		}
		if got := <-bodies; got != want {
			t.Errorf("incomplete %v: the engine gets\n%s, want\n%s", incomplete, got, want)
		}
	}
	h.idle()
}

// TestARequestThatAskedForAReportIsPickedForAgain: found on a cluster, as an engine that prefilled died and the request was refused for the
// field that the picker had put into its body.
func TestARequestThatAskedForAReportIsPickedForAgain(t *testing.T) {
	fails := engine(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	serves := engine(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"id":"x","choices":[{"index":0,"text":"a","finish_reason":"stop"}],"usage":{"prompt_tokens":100,"completion_tokens":1}}`)
	})
	s := asksUsage(fails)
	s.Endpoints = append(s.Endpoints, spec(serves, fails).Endpoints[0])
	s.Endpoints[1].ID.Pod, s.Endpoints[1].Pod = "pod-decodes", "pod-decodes"
	s.Endpoints[0].Role, s.Endpoints[1].Role = endpoint.Prefill, endpoint.Decode
	s.Policy.Handoffs = picker.HandoffSpec{Rule: picker.HandoffAbove, UncachedTokens: 17}
	s.NoEvents = false
	h := newHouse(t, Options{}, s)
	releases := picker.Releases{}
	for _, f := range h.picker.Feeds() {
		releases[f.Endpoint.Epoch()] = 32
		f.Incomplete(true)
	}
	h.picker.SetExact("default", "pool", &picker.Exact{Releases: &releases})
	ids := strings.TrimSuffix(strings.Repeat("7,", 100), ",")
	if answer := h.post("/v1/completions", `{"model":"m","prompt":[`+ids+`]}`); answer.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(answer.Body)
		t.Errorf("status %d: %s", answer.StatusCode, body)
	}
	if answer := h.post("/v1/completions", `{"model":"m","prompt":[`+ids+`],"vllm_xargs":{"kv_cache_report_mode":"full"}}`); answer.StatusCode != http.StatusBadRequest {
		t.Errorf("a client's report: status %d", answer.StatusCode)
	}
	h.idle()
}
