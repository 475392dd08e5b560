package httpproxy

import (
	"io"
	"net/http"
	"testing"

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
