package httpproxy

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// keyed is a pool of tenants: acme has the key k-acme and can use all models, small has k-small and can use m alone.
func keyed(t *testing.T, addresses ...string) picker.Spec {
	t.Helper()
	var entries []tenant.Entry
	for name, class := range map[string]string{"acme": "all", "small": "some"} {
		sum := sha256.Sum256([]byte("k-" + name))
		e, err := tenant.Parse(name, []byte(`{"class":"`+class+`","sha256":["`+hex.EncodeToString(sum[:])+`"]}`))
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
	}
	known, problems := tenant.NewDirectory(entries)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	s := spec(addresses...)
	s.Policy.Admission.Tenants = &picker.TenantsSpec{Known: known, Reject: true, Default: &tenant.Class{Weight: 1}, Classes: map[string]*tenant.Class{
		"all": {Weight: 1}, "some": {Weight: 1, Models: []string{"m"}},
	}}
	return s
}

// TestTenantsAreHeldToTheirLimitsOnEveryRoute: no path and no method is open to strangers, nor reveals anything to them,
// and a tenant cannot reach models of other tenants.
func TestTenantsAreHeldToTheirLimitsOnEveryRoute(t *testing.T) {
	var served atomic.Int64
	s := keyed(t, engine(t, func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		if r.Header.Get("Authorization") != "" || r.Header.Get("X-Api-Key") != "" {
			t.Errorf("%s: a tenant's key has come to the engine", r.URL.Path)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "{}")
	}))
	h := newHouse(t, Options{}, s)
	chat := func(model string) string {
		return `{"model":"` + model + `","messages":[{"role":"user","content":"hi"}],"max_tokens":1}`
	}
	const (
		m = "m"
		x = "lora"
	)
	type want struct{ acme, small int }
	for _, tc := range []struct {
		method, path, body string
		want               want
	}{
		{"POST", "/v1/chat/completions", chat(m), want{200, 200}},
		{"POST", "/v1/chat/completions", chat(x), want{200, 403}},
		{"POST", "/v1/chat/completions", chat("none"), want{404, 404}},
		{"POST", "/v1/chat/completions", "{", want{400, 400}},
		{"POST", "/v1/chat/completions", strings.Repeat("x", 1<<20+1), want{413, 413}},
		{"POST", "/v1/completions", `{"model":"lora","prompt":"hi"}`, want{200, 403}},
		{"POST", "/v1/responses", `{"model":"lora","input":"hi"}`, want{200, 403}},
		{"POST", "/v1/messages", chat(x), want{200, 403}},
		{"POST", "/v1/messages/count_tokens", chat(x), want{200, 403}},
		{"POST", "/v1/embeddings", `{"model":"lora","input":"hi"}`, want{200, 403}},
		{"POST", "/v1/rerank", `{"model":"lora","query":"q"}`, want{200, 403}},
		{"POST", "/v1/rerank", `{"model":"m","query":"q"}`, want{200, 200}},
		{"POST", "/v1/audio/transcriptions", "--form", want{200, 403}},
		{"POST", "/tokenize", `{"model":"lora"}`, want{200, 403}},
		{"GET", "/v1/models", "", want{200, 200}},
		{"HEAD", "/v1/models", "", want{200, 200}},
		{"POST", "/v1/models", "{}", want{405, 405}},
		{"GET", "/v1/chat/completions", "", want{405, 405}},
		{"OPTIONS", "/v1/chat/completions", "", want{405, 405}},
		{"POST", "/sleep", "", want{404, 404}},
		{"GET", "/", "", want{404, 404}},
		{"GET", "/metrics", "", want{404, 404}},
	} {
		for shown, status := range map[string]int{
			"Authorization=Bearer ": 401, "Authorization=Bearer k-wrong": 401, "X-Api-Key=k-wrong": 401,
			"Authorization=Bearer k-acme": tc.want.acme, "X-Api-Key=k-acme": tc.want.acme, "X-Api-Key=k-small": tc.want.small,
		} {
			header, key, _ := strings.Cut(shown, "=")
			before := served.Load()
			r, err := http.NewRequestWithContext(t.Context(), tc.method, h.url+tc.path, strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			answer := h.do(r, header, key)
			text, _ := io.ReadAll(answer.Body)
			if answer.StatusCode != status {
				t.Errorf("%s %s %.40s with key %q: status %d, want %d: %s", tc.method, tc.path, tc.body, key, answer.StatusCode, status, text)
			}
			if status == 401 && served.Load() != before {
				t.Errorf("%s %s: a stranger was served", tc.method, tc.path)
			}
			if tc.path == "/v1/models" && tc.method == "GET" && status == 200 {
				if sees := strings.Contains(string(text), `"lora"`); sees != strings.HasSuffix(key, "k-acme") {
					t.Errorf("with key %q the models are %s", key, text)
				}
			}
		}
	}
	h.idle()
}

// TestAnswersThatAreChargedForAreNotCompressed: the bytes of a compressed answer say little about its tokens.
func TestAnswersThatAreChargedForAreNotCompressed(t *testing.T) {
	address, got := seeing(t)
	s := keyed(t, address)
	s.Policy.Admission.Tenants.Classes["some"].TokensPerMinute = 1000
	h := newHouse(t, Options{}, s)
	for key, want := range map[string]string{"small": "identity", "acme": "gzip"} {
		_ = read(t, h.post("/v1/completions", `{"model":"m","prompt":"x"}`, "Authorization", "Bearer k-"+key, "Accept-Encoding", "gzip"))
		if coding := await(t, "the request", got).header.Get("Accept-Encoding"); coding != want {
			t.Errorf("%s: the engine is asked for the coding %q, want %q", key, coding, want)
		}
	}
}
