package httpproxy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A slash too many is corrected as engines do, with the body; it leads nowhere else.
func TestASlashTooManyIsRedirected(t *testing.T) {
	h := newHouse(t, Options{}, keyed(t, "127.0.0.1:1"))
	for _, tc := range []struct {
		path   string
		status int
		to     string
	}{
		{"/v1/chat/completions/", 307, "/v1/chat/completions"},
		{"/v1/embeddings/?a=b&c", 307, "/v1/embeddings?a=b&c"},
		{"/v1/messages/count_tokens/", 307, "/v1/messages/count_tokens"},
		{"/v1/chat/completions//", 307, "/v1/chat/completions"},
		{"/v1/score/", 307, "/v1/score"},
		{"/rerank/?top=1", 307, "/rerank?top=1"},
		{"/tokenize/", 307, "/tokenize"},
		{"/v1/audio/transcriptions/", 307, "/v1/audio/transcriptions"},
		{"/v1/responses/resp_1/", 307, "/v1/responses/resp_1"},
		{"/v1/responses/a%0d%0aSet-Cookie:x/", 307, "/v1/responses/a%0D%0ASet-Cookie:x"},
		{"/health/", 307, "/health"},
		{"/version/", 307, "/version"},
		{"/v1//score/", 404, ""},
		{"/v1/", 404, ""},
		{"//v1/score/", 404, ""},
		{"/sleep/", 404, ""},
		{"/v1/load_lora_adapter/", 404, ""},
		{"/v1/x/../load_lora_adapter/", 404, ""},
		{"//evil.example/v1/chat/completions/", 404, ""},
		{"/nothing/", 404, ""},
		{"/", 404, ""},
	} {
		r := httptest.NewRequest(http.MethodPost, "http://picker"+tc.path, strings.NewReader(`{"model":"m"}`))
		r.Header.Set("Authorization", "Bearer k-acme")
		w := httptest.NewRecorder()
		h.proxy.ServeHTTP(w, r)
		text, err := io.ReadAll(w.Body)
		if err != nil || w.Code != tc.status || w.Header().Get("Location") != tc.to {
			t.Errorf("%s: %d to %q, want %d to %q: %s", tc.path, w.Code, w.Header().Get("Location"), tc.status, tc.to, text)
		}
		if root := tc.path == "/"; root != strings.Contains(string(text), "/v1/models lists the models") {
			t.Errorf("%s: %s", tc.path, text)
		}
	}
	h.idle()
}
