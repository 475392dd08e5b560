package httpproxy

import (
	"io"
	"net/http"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// What is not read goes by load, byte for byte, to the pool of its model; what is not for clients goes nowhere.
func TestPathsThatAreNotReadGoByLoad(t *testing.T) {
	says := func(name string) string {
		return engine(t, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			_, _ = io.WriteString(w, name+" "+r.URL.Path+" "+string(body))
		})
	}
	other := spec(says("other"))
	other.Name, other.Model, other.Aliases, other.Adapters = "z", "other", nil, nil
	other.Endpoints[0].ID.Pod = "other"
	h := newHouse(t, Options{}, spec(says("first")), other)
	for path, tc := range map[string]struct{ body, want string }{
		"/v1/rerank":               {`{"model":"other","query":"q","documents":[]}`, "other"},
		"/tokenize":                {`{"model":"m","prompt":"x"}`, "first"},
		"/score":                   {`{"text_1":"a"}`, "first"},
		"/v1/audio/transcriptions": {"--x\r\nContent-Disposition: form-data", "first"},
		"/v1/images/generations":   {`{"model":"other","prompt":"x"}`, "other"}, // not known here
		"/v1/completion":           {`{"model":"m"}`, "first"},
		"/invocations":             {`{"model":"other","prompt":"x"}`, "other"},
		"/inference/v1/generate":   {`{"model":"m","token_ids":[1]}`, "first"},
		"/generative_scoring":      {`{"model":"m"}`, "first"},
		"/v1/decisions":            {`{"model":"other"}`, "other"},
		"/ping":                    {"", "first"},
	} {
		if got := read(t, h.post(path, tc.body)); got != tc.want+" "+path+" "+tc.body {
			t.Errorf("%s: %q", path, got)
		}
	}
	for _, path := range []string{"/v1/load_lora_adapter", "/sleep", "/reset_prefix_cache", "/metrics", "/v1", "/v1/",
		"/%73leep", "/%2573leep", "//sleep", "/Sleep/", "/v1/sleep", "/prefix/pause", "/adapters/x", "/inference/v1/abort_requests", "/kv_event_sources",
		"/v1/unload_lora_adapter", "/v1/load_lora_adapter/", "/v1/%6Coad_lora_adapter", "/v1/../sleep", "/v1/x/../load_lora_adapter", "/v1//load_lora_adapter", "/v1/%2e%2e/sleep"} {
		if got := h.post(path, "{}").StatusCode; got != http.StatusNotFound {
			t.Errorf("%s: status %d", path, got)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.url+"/tokenize", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if got := h.do(r).StatusCode; got != http.StatusMethodNotAllowed {
		t.Errorf("status %d", got)
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		r, err := http.NewRequestWithContext(t.Context(), method, h.url+"/v1/responses/resp_1?x=1", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if got := read(t, h.do(r)); got != "first /v1/responses/resp_1 " {
			t.Errorf("%s: %q", method, got)
		}
	}
	eventually(t, "all have ended", func() bool {
		done := int64(0)
		for _, s := range h.picker.Stats() {
			done += s.Outcomes[picker.Completed]
		}
		return done == 13
	})
	h.idle()
}
