package extproc

import (
	"io"
	"net/http"
	"strings"
	"testing"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// TestClientsDoNotSteerTheEngineBehindAGateway: what the proxy removes or refuses (TestClientsDoNotSteerTheEngine of
// internal/gateway/httpproxy) is removed and refused behind gateways that keep the body and such that do not.
func TestClientsDoNotSteerTheEngineBehindAGateway(t *testing.T) {
	type seen struct {
		header http.Header
		body   string
	}
	got := make(chan seen, 8)
	s := keyed(t, engine(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- seen{r.Header, string(b)}
		_, _ = io.WriteString(w, "{}")
	}))
	s.Policy.Admission.Tenants.Classes["all"].SetsPriority, s.Policy.Admission.Tenants.Classes["all"].SetsTransfer = true, true
	for name, options := range map[string]envoytest.Options{
		"full duplex": {Seed: 3},
		"buffered":    {Request: envoytest.WithMode(filter.ProcessingMode_BUFFERED), MessageTimeout: patience},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, Options{}, ServeOptions{}, s)
			g := h.envoy(options)
			for _, path := range []string{"/v1/completions", "/v1/rerank", "/inference/v1/generate"} {
				for fields, want := range map[string]struct {
					status int
					gets   string
				}{
					`,"priority":-5`:                              {200, strings.Repeat(" ", 14)},
					`,"priority":1,"pri\u006frity":-5,"n":1`:      {200, "," + strings.Repeat(" ", len(`"priority":1,"pri\u006frity":-5,`)) + `"n":1`},
					`,"n":1`:                                      {200, `,"n":1`},
					`,"kv_transfer_params":{"a":1}`:               {400, ""},
					`,"kv\u005ftransfer_params":{"a":1},"b":null`: {400, ""},
					`,"vllm_xargs":{"kv_transfer_params":"x"}`:    {400, ""},
				} {
					for _, key := range []string{"small", "acme"} {
						status, gets := want.status, want.gets
						if key == "acme" {
							status, gets = 200, fields
						}
						const head = `{"model":"m","prompt":"x"`
						answer := g.post(path, head+fields+"}", "Authorization", "Bearer k-"+key, "Content-Type", "application/json",
							"X-Vllm-Priority", "1", "X-Prefiller-Host-Port", "10.0.0.1:1")
						if text := read(t, answer); answer.StatusCode != status {
							t.Errorf("%s %s of %s: status %d, want %d: %s", path, fields, key, answer.StatusCode, status, text)
						}
						if answer.StatusCode != 200 {
							continue
						}
						r := await(t, got)
						if r.body != head+gets+"}" && status == 200 {
							t.Errorf("%s %s of %s: the engine gets\n%s", path, fields, key, r.body)
						}
						for _, header := range []string{"X-Vllm-Priority", "X-Prefiller-Host-Port"} {
							if passes := r.header.Get(header) != ""; passes != (key == "acme") {
								t.Errorf("%s of %s: the engine gets %q", header, key, r.header.Get(header))
							}
						}
					}
				}
			}
			h.idle()
		})
	}
}

// TestFormsDoNotSteerTheEngineBehindAGateway: forms of audio routes are checked, too.
func TestFormsDoNotSteerTheEngineBehindAGateway(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec(engine(t, says("{}"))))
	for _, options := range []envoytest.Options{{}, {Request: envoytest.WithMode(filter.ProcessingMode_BUFFERED), MessageTimeout: patience}} {
		g := h.envoy(options)
		for field, status := range map[string]int{"language": 200, "priority": 400, "kv_transfer_params": 400} {
			body := "--x\r\nContent-Disposition: form-data; name=\"" + field + "\"\r\n\r\n1\r\n--x--\r\n"
			answer := g.post("/v1/audio/transcriptions", body, "Content-Type", "multipart/form-data; boundary=x")
			if text := read(t, answer); answer.StatusCode != status {
				t.Errorf("%s: status %d, want %d: %s", field, answer.StatusCode, status, text)
			}
		}
	}
	h.idle()
}
