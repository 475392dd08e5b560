package openai

import (
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
)

func TestAdministrativePathsAreKnownInEverySpelling(t *testing.T) {
	for _, p := range []string{
		"/sleep", "/sleep/", "//sleep", "/sleep?level=1", "/sleep#x", "/SLEEP", "/Sleep", "/%73leep", "/%2573leep", "/sleep%2f", "/sleep%20", "/sleep%00", "/sleep;x=1",
		"/v1/../sleep", "/v1/%2e%2e/sleep", "/v1/..%2fsleep", "/v1/./x/..%5c..%5csleep", "/./sleep", "/sleep/.", "/sleep/x/..", "\\sleep", "sleep", "/sle%ep/../sleep", "/%zz/sleep",
		"http://engine:8000/sleep", "/prefix/sleep", "/v1/load_lora_adapter", "/prefix/v1/unload_lora_adapter/", "/adapters", "/adapters/x", "/reset_prefix_cache?x=/v1/models",
		"/collective_rpc", "/inference/v1/abort_requests", "/update_weights", "/metrics", "/metrics/", "/server_info?config_format=json", "/%25252573leep", "/v1/%2525252525252525", "/openapi.json",
		"/flush_cache", "/prefix/flush%5fcache", "/update_weights_from_disk", "/release_memory_occupation", "/resume_memory_occupation/", "/abort_request",
		"/get_server_info?x=1", "/Load_LoRA_Adapter",
	} {
		if !Administrative(p) {
			t.Errorf("%q is open", p)
		}
	}
	for _, p := range []string{
		"/v1/chat/completions", "/v1/completions?sleep=/sleep", "/v1/models", "/v1/models/Qwen/Qwen3-32B", "/inference/v1/generate", "/ping", "/invocations", "/version", "/health",
		"/v1/responses/resp_1/cancel", "/sleeping", "/v1/sleeper", "/pool/v1/messages", "/v1/models/50%25", "/v1/models/%E4%BD%A0", "", "/", "*",
		"/generate", "/encode", "/get_model_info", "/open_session", "/separate_reasoning",
	} {
		if Administrative(p) {
			t.Errorf("%q is closed", p)
		}
	}
}

// However a path is disguised, what a server makes of it by decoding, cleaning and folding stays closed.
func FuzzAdministrative(f *testing.F) {
	for _, p := range []string{"/sleep", "/v1/../%73leep/", "//ADAPTERS/x?y", "/a;b/%252e%252e/pause", "%5cresume%2f%2e"} {
		f.Add(p, uint64(1))
	}
	f.Fuzz(func(t *testing.T, p string, seed uint64) {
		got := Administrative(p)
		if decoded, err := url.PathUnescape(p); err == nil && Administrative(decoded) && !got {
			t.Errorf("%q is open, %q closed", p, decoded)
		}
		if got {
			return
		}
		rng := rand.New(rand.NewPCG(seed, 0))
		names := make([]string, 0, len(administrative))
		for name := range administrative {
			names = append(names, name)
		}
		disguised := names[rng.IntN(len(names))]
		for range rng.IntN(4) {
			i := 1 + rng.IntN(len(disguised)-1)
			switch rng.IntN(5) {
			case 0:
				disguised = disguised[:i] + url.QueryEscape(disguised[i:i+1]) + disguised[i+1:]
			case 1:
				disguised = "/x/.." + disguised
			case 2:
				disguised += "/"
			case 3:
				disguised = strings.ToUpper(disguised[:i]) + disguised[i:]
			case 4:
				disguised = "/" + disguised
			}
		}
		if !Administrative(disguised) {
			t.Errorf("%q is open", disguised)
		}
	})
}
