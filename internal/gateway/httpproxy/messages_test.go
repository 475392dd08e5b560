package httpproxy

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// TestMessagesAreRefusedInTheirOwnWords: errors on the routes of the Anthropic API look as its clients expect.
func TestMessagesAreRefusedInTheirOwnWords(t *testing.T) {
	drained := spec("127.0.0.1:1")
	drained.Endpoints[0].Terminating = true
	h := newHouse(t, Options{}, drained)
	const body = `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}`
	for name, tc := range map[string]struct {
		method, path, body string
		status             int
		kind               string
	}{
		"broken JSON":         {"POST", "/v1/messages", `{"model":`, 400, "invalid_request_error"},
		"an unknown model":    {"POST", "/v1/messages", strings.Replace(body, `"m"`, `"nobody"`, 1), 404, "not_found_error"},
		"no endpoint":         {"POST", "/v1/messages", body, 503, "overloaded_error"},
		"too large":           {"POST", "/v1/messages", strings.Repeat(" ", 1<<20+1), 413, "request_too_large"},
		"another method":      {"GET", "/v1/messages", "", 405, "invalid_request_error"},
		"no engine can count": {"POST", "/v1/messages/count_tokens", body, 503, "overloaded_error"},
		"nothing to be count": {"POST", "/v1/messages/count_tokens", `{}`, 400, "invalid_request_error"},
	} {
		t.Run(name, func(t *testing.T) {
			request, err := http.NewRequest(tc.method, h.url+tc.path, strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			r := h.do(request)
			text := read(t, r)
			var e struct {
				Type  string
				Error struct{ Type, Message string }
			}
			if err := json.Unmarshal([]byte(text), &e); err != nil || r.StatusCode != tc.status || e.Type != "error" || e.Error.Type != tc.kind || e.Error.Message == "" {
				t.Errorf("status %d, %s (%v); want %d, %s", r.StatusCode, text, err, tc.status, tc.kind)
			}
		})
	}
}

// TestCountingTokensIsPassedThrough: it goes to the same path of an engine, as it is, and leaves no trace in the picker.
func TestCountingTokensIsPassedThrough(t *testing.T) {
	const body = `{"model":"m","messages":[{"role":"user","content":"` + "hi hi hi hi hi hi hi hi hi hi hi hi hi hi hi hi hi hi hi hi hi hi hi hi hi hi hi hi hi hi" + `"}]}`
	var path, got string
	h := newHouse(t, Options{}, spec(engine(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		path, got = r.URL.Path, string(b)
		_, _ = io.WriteString(w, `{"input_tokens":7}`)
	})))
	r := h.post("/v1/messages/count_tokens", body)
	if text := read(t, r); r.StatusCode != http.StatusOK || text != `{"input_tokens":7}` || path != "/v1/messages/count_tokens" || got != body {
		t.Errorf("status %d, %s; the engine got %s at %s", r.StatusCode, text, got, path)
	}
	if tokens := h.picker.Stats()[0].Tokens; tokens[picker.TokensApproximate] != 0 || tokens[picker.TokensNone] != 1 {
		t.Errorf("counted as %v", tokens)
	}
}
