package extproc

import (
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// TestTheSidecarGetsOnlyOurPrefiller: the sidecar of an engine that decodes is given an endpoint of the pool, and only if the request is
// handed over. What clients send in the header, in any form, reaches no engine, with a sidecar or without.
func TestTheSidecarGetsOnlyOurPrefiller(t *testing.T) {
	got := make(chan []string, 1)
	decode := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		var steers []string
		for name, values := range r.Header {
			for _, of := range []string{"prefiller", "encoder", "data-parallel", "kv-cache-source"} {
				if strings.Contains(strings.ToLower(name), of) {
					steers = append(steers, values...)
				}
			}
		}
		got <- steers
		_, _ = io.WriteString(w, "{}")
	})
	const prefill = "127.0.0.1:9"
	long := `{"model":"m","prompt":[N,` + strings.Repeat("7,", 998) + `7]}`
	prompts := 0
	for name, tc := range map[string]struct {
		sidecar    bool
		path, body string
		want       []string
	}{
		"handed over":             {true, "/v1/completions", long, []string{prefill}},
		"below a prefix":          {true, "/models/m/v1/completions", long, []string{prefill}},
		"a short prompt":          {true, "/v1/completions", completion, nil},
		"another route":           {true, "/v1/embeddings", `{"model":"m","input":"x"}`, nil},
		"a body without a format": {true, "/v1/audio/transcriptions", "x", nil},
		"no sidecar":              {false, "/v1/completions", long, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec(prefill, decode)
			s.Endpoints[0].Role, s.Endpoints[1].Role = endpoint.Prefill, endpoint.Decode
			s.Policy.Handoffs = picker.HandoffSpec{Rule: picker.HandoffAbove, UncachedTokens: 64, Sidecar: tc.sidecar}
			h := newHouse(t, Options{}, ServeOptions{}, s)
			for _, options := range []envoytest.Options{
				{Seed: 3, Allowed: []string{picker.PrefillerHeader}},
				{Request: envoytest.WithMode(filter.ProcessingMode_BUFFERED), MessageTimeout: patience, Allowed: []string{picker.PrefillerHeader}},
			} {
				g := h.envoy(options)
				for _, hostile := range []map[string][]string{
					nil,
					{"X-Prefiller-Host-Port": {"10.0.0.1:1"}},
					{"X-Prefiller-Host-Port": {"", "10.0.0.1:1"}},
					{"X-Prefiller-Host-Port": {"10.0.0.1:1,10.0.0.2:1", "127.0.0.1:9"}},
					{"X-PREFILLER-HOST-PORT": {"10.0.0.1:1"}, "x-prefiller-host-port": {"", ""}},
					{"X-Prefiller-Url": {"", "http://10.0.0.1:1"}, "X-Encoder-Hosts-Ports": {"10.0.0.1:1"}},
					{"X-Data-Parallel-Host-Port": {"", "10.0.0.1:1"}, "X-Kv-Cache-Source-Host-Port": {"", "10.0.0.1:1"}},
				} {
					prompts++ // no endpoint holds the next one
					body := strings.Replace(tc.body, "N", strconv.Itoa(prompts), 1)
					r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+tc.path, strings.NewReader(body))
					if err != nil {
						t.Fatal(err)
					}
					for name, values := range hostile {
						r.Header[name] = values
					}
					if answer := g.do(r); answer.StatusCode != 200 {
						t.Fatalf("status %d: %s", answer.StatusCode, read(t, answer))
					}
					if steers := await(t, got); !slices.Equal(steers, tc.want) {
						t.Errorf("after %v the engine gets %q, want %q", hostile, steers, tc.want)
					}
				}
			}
			h.idle()
		})
	}
}

// TestBehindASidecarTheAnswerNamesBothEndpoints: people see where a request was prefilled.
func TestBehindASidecarTheAnswerNamesBothEndpoints(t *testing.T) {
	s := spec("127.0.0.1:9", engine(t, says("{}")))
	s.Endpoints[0].Role, s.Endpoints[1].Role = endpoint.Prefill, endpoint.Decode
	s.Policy.Handoffs = picker.HandoffSpec{Rule: picker.HandoffAbove, UncachedTokens: 64, Sidecar: true}
	s.Policy.AnswerHeaders = "Always"
	h := newHouse(t, Options{}, ServeOptions{}, s)
	answer := h.envoy(envoytest.Options{Allowed: []string{picker.PrefillerHeader}}).post("/v1/completions",
		`{"model":"m","prompt":[`+strings.Repeat("7,", 999)+`7]}`)
	_ = read(t, answer)
	if to, from := answer.Header.Get("X-Kvasir-Endpoint"), answer.Header.Get("X-Kvasir-Prefill-Endpoint"); to != "pod-1/0" || from != "pod-0/0" {
		t.Errorf("at %q, prefilled at %q", to, from)
	}
	h.idle()
	if n := h.picker.Stats()[0].Handoffs[picker.HandoffCompleted]; n != 1 {
		t.Errorf("hand-offs %v", h.picker.Stats()[0].Handoffs)
	}
}
