package extproc

import (
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// TestMessagesAreRefusedInTheirOwnWords: errors on the routes of the Anthropic API look as its clients expect.
func TestMessagesAreRefusedInTheirOwnWords(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"))
	g := h.envoy(envoytest.Options{Seed: 7})
	for path, body := range map[string]string{
		"/v1/messages":                     `{"model":"n","messages":[{"role":"user","content":"x"}]}`,
		"/anthropic/v1/messages?beta=true": `{"model":"n","messages":[{"role":"user","content":"x"}]}`,
		"/v1/messages/count_tokens":        `{"model":"n","messages":[{"role":"user","content":"x"}]}`,
	} {
		answer := g.post(path, body)
		if text := read(t, answer); answer.StatusCode != 404 || !strings.HasPrefix(text, `{"type":"error","error":{"type":"not_found_error"`) {
			t.Errorf("%s: status %d, %s", path, answer.StatusCode, text)
		}
	}
	h.idle()
}

// TestCountingTokensGoesByLoad: it is for a model, and computes nothing.
func TestCountingTokensGoesByLoad(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"))
	s := h.script()
	s.send(requestHead(false, ":method", "POST", ":path", "/v1/messages/count_tokens"), requestPiece(`{"model":"alias","messages":[{"role":"user","content":"x"}]}`, true))
	if destinationOf(s.receive()) == "" {
		t.Fatal("not routed")
	}
	h.seen.mu.Lock()
	defer h.seen.mu.Unlock()
	if last := h.seen.models[len(h.seen.models)-1]; last != "alias" {
		t.Errorf("picked for model %q", last)
	}
}
