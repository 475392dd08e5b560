package httpproxy

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

func TestBodiesPassByteForByte(t *testing.T) {
	var got []byte
	answer := "{ \"weird\" :\t[1e400, \"\\ud83d\\ude00\", \"\xc3\xa9\"] }\r\n\n"
	address := engine(t, func(w http.ResponseWriter, r *http.Request) {
		got, _ = io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		_, _ = io.WriteString(w, answer)
	})
	h := newHouse(t, Options{}, spec(address))
	cases := map[string]string{
		"spaces and duplicate keys": "\n{\t\"model\":\"x\" , \"model\" : \"m\",\"prompt\":[1,2 ,3]}\r\n ",
		"escapes":                   `{"mod\u0065l":"m","prompt":"\u0000\ud83d\ude00 \"\\\/"}`,
		"raw UTF-8":                 `{"prompt":"Größe 😀","model":"m"}`,
		"numbers beyond float64":    `{"model":"m","prompt":"x","seed":123456789012345678901234567890,"x":1E+400}`,
		"nested model":              `{"metadata":{"model":"other"},"model":"m","prompt":"x"}`,
	}
	for name, body := range cases {
		t.Run(name, func(t *testing.T) {
			r := h.post("/v1/completions", body)
			if text := read(t, r); text != answer || r.StatusCode != http.StatusOK {
				t.Errorf("answer: %d %q, want %q", r.StatusCode, text, answer)
			}
			if diff := cmp.Diff(body, string(got)); diff != "" {
				t.Errorf("the engine has got another body (-want +got):\n%s", diff)
			}
		})
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: int64(len(cases))})
}

func TestWrongRequestsAreRefusedInTheStyleOfTheAPI(t *testing.T) {
	address := engine(t, func(http.ResponseWriter, *http.Request) { t.Error("the engine was asked") })
	drained := spec(address)
	drained.Name, drained.Model, drained.Aliases, drained.Adapters = "drained", "drained", nil, nil
	drained.MaxRequestBody = 1 << 10
	drained.Endpoints[0].Terminating = true
	h := newHouse(t, Options{}, spec(address), drained)
	cases := map[string]struct {
		method, path, body string
		header             []string
		status             int
		code, reason       string
		answer             map[string]string
	}{
		"broken JSON": {"POST", "/v1/completions", `{"model":"m","prompt":`, nil, 400, "invalid_request", request.RefusedUnreadable, nil},
		"no model":    {"POST", "/v1/completions", `{"prompt":"x"}`, nil, 400, "invalid_request", request.RefusedUnreadable, nil},
		"empty body":  {"POST", "/v1/chat/completions", ``, nil, 400, "invalid_request", request.RefusedUnreadable, nil},
		"unknown model": {"POST", "/v1/completions", `{"model":"nobody","prompt":"x"}`, nil, 404, "model_not_found",
			request.RefusedModel, nil},
		"unknown path": {"POST", "/completion", `{}`, nil, 404, "not_found", request.RefusedPath, nil},
		"root":         {"GET", "/", ``, nil, 404, "not_found", request.RefusedPath, nil},
		"wrong method": {"GET", "/v1/completions", ``, nil, 405, "method_not_allowed", request.RefusedMethod,
			map[string]string{"Allow": "POST"}},
		"models are not posted to": {"POST", "/v1/models", ``, nil, 405, "method_not_allowed", request.RefusedMethod,
			map[string]string{"Allow": "GET, HEAD"}},
		"too large": {"POST", "/v1/completions", strings.Repeat(" ", 1<<20+1), nil, 413, "request_too_large",
			request.RefusedTooLarge, nil},
		"compressed": {"POST", "/v1/completions", `{}`, []string{"Content-Encoding", "gzip"}, 415, "unsupported_encoding",
			request.RefusedEncoding, nil},
		"no endpoint": {"POST", "/v1/completions", `{"model":"drained","prompt":"x"}`, nil, 503, "no_endpoint",
			request.RefusedNoEndpoint, map[string]string{"Retry-After": "1"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			before := h.seen.count(func(r *recorder) int { return r.refused[tc.reason] })
			request, err := http.NewRequest(tc.method, h.url+tc.path, strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			r := h.do(request, append(tc.header, "X-Request-Id", "abc")...)
			text := read(t, r)
			if r.StatusCode != tc.status {
				t.Errorf("status %d, want %d: %s", r.StatusCode, tc.status, text)
			}
			for name, want := range tc.answer {
				if got := r.Header.Get(name); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
			if got := r.Header.Get("X-Request-Id"); got != "abc" {
				t.Errorf("request id %q", got)
			}
			var e struct {
				Error struct{ Message, Type, Code string }
			}
			if err := json.Unmarshal([]byte(text), &e); err != nil || e.Error.Code != tc.code || e.Error.Message == "" || e.Error.Type == "" {
				t.Errorf("error body %s (%v), want code %s", text, err, tc.code)
			}
			after := h.seen.count(func(r *recorder) int { return r.refused[tc.reason] })
			if after != before+1 {
				t.Errorf("refused for %s: %d before, %d after", tc.reason, before, after)
			}
		})
	}
	h.idle()
}
