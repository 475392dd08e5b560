package extproc

import (
	"io"
	"net/http"
	"strings"
	"testing"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// TestEnginesGetTheTenantsSaltBehindAGateway: the same salts as of the proxy (TestEnginesGetTheTenantsSalt of
// internal/gateway/httpproxy), behind gateways that keep the body and such that do not. A body that a gateway does not show to its end
// is refused.
func TestEnginesGetTheTenantsSaltBehindAGateway(t *testing.T) {
	got := make(chan string, 8)
	s := keyed(t, engine(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- string(b)
		_, _ = io.WriteString(w, "{}")
	}))
	s.Policy.Admission.Tenants.Salts = true
	s.Policy.Admission.Tenants.Classes["some"].Models = nil // a body that is not shown is not refused for that
	const long = 200_000
	for name, tc := range map[string]struct {
		options envoytest.Options
		shown   bool
	}{
		"full duplex": {envoytest.Options{Seed: 3}, true},
		"buffered":    {envoytest.Options{Request: envoytest.WithMode(filter.ProcessingMode_BUFFERED), MessageTimeout: patience}, true},
		"not shown":   {envoytest.Options{Request: envoytest.WithMode(filter.ProcessingMode_NONE), MessageTimeout: patience}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, Options{}, ServeOptions{}, s)
			g := h.envoy(tc.options)
			for _, fields := range []string{"", `,"cache_salt":"a"`, `,"priority":1,"cache\u005fsalt":"a"`, `,"user":"` + strings.Repeat("u", long) + `"`} {
				for _, key := range []string{"small", "acme"} {
					const head = `{"model":"m","prompt":"x"`
					own := ""
					if strings.Contains(fields, `"a"`) {
						own = "a"
					}
					answer := g.post("/v1/completions", head+fields+"}", "Authorization", "Bearer k-"+key, "Content-Type", "application/json")
					text := read(t, answer)
					if !tc.shown {
						if answer.StatusCode != 400 || !strings.Contains(text, "cache_salt_unsupported") {
							t.Errorf("%.40s of %s: status %d: %s", fields, key, answer.StatusCode, text)
						}
						continue
					}
					if answer.StatusCode != 200 {
						t.Fatalf("%.40s of %s: status %d: %s", fields, key, answer.StatusCode, text)
					}
					body := await(t, got)
					var r openai.Request
					if err := openai.Parse(openai.Completions, []byte(body), &r); err != nil {
						t.Fatal(err)
					}
					if want := s.Seed.TenantSalt(key, own); r.CacheSalt != want {
						t.Errorf("%.40s of %s: salt %q, want %q", fields, key, r.CacheSalt, want)
					}
					if !strings.HasPrefix(body, head) || len(fields) > long && len(r.User) != long || r.Steering != 0 {
						t.Errorf("%.40s of %s: the engine gets %.100s", fields, key, body)
					}
				}
			}
			for path, want := range map[string]int{"/v1/embeddings": 400, "/v1/rerank": 400, "/pooling": 400, "/tokenize": 200, "/v1/messages/count_tokens": 200} {
				const body = `{"model":"m","max_tokens":1,"input":"x","messages":[{"role":"user","content":"hi"}]}`
				answer := g.post(path, body, "Authorization", "Bearer k-acme", "Content-Type", "application/json")
				text := read(t, answer)
				if answer.StatusCode != want || want == 400 && !strings.Contains(text, "caches of tenants") {
					t.Errorf("%s: status %d, want %d: %s", path, answer.StatusCode, want, text)
				}
				if answer.StatusCode == 200 {
					if b := await(t, got); b != body {
						t.Errorf("%s: the engine gets %s", path, b)
					}
				}
			}
			h.picker.SetExact(s.Namespace, s.Name, &picker.Exact{Releases: &picker.Releases{s.Endpoints[0].Epoch(): 27}})
			for _, path := range []string{"/v1/messages", openai.Generate} {
				const body = `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"hi"}],"token_ids":[1],"cache_salt":"a"}`
				answer := g.post(path, body, "Authorization", "Bearer k-acme", "Content-Type", "application/json")
				text := read(t, answer)
				if !tc.shown {
					if answer.StatusCode != 400 || !strings.Contains(text, "caches of tenants") {
						t.Errorf("%s: status %d: %s", path, answer.StatusCode, text)
					}
					continue
				}
				if answer.StatusCode != 200 {
					t.Fatalf("%s: status %d: %s", path, answer.StatusCode, text)
				}
				if salt, err := openai.SaltOf([]byte(await(t, got))); err != nil || salt != s.Seed.TenantSalt("acme", "a") {
					t.Errorf("%s: the engine gets the salt %q, %v", path, salt, err)
				}
			}
			h.idle()
		})
	}
}
