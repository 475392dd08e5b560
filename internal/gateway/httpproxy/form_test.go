package httpproxy

import (
	"bytes"
	"mime/multipart"
	"strings"
	"testing"
)

// TestFormsDoNotSteerTheEngine: the fields of forms, which audio routes take, are held to what those of JSON are.
func TestFormsDoNotSteerTheEngine(t *testing.T) {
	address, got := seeing(t)
	s := keyed(t, address)
	s.Policy.Admission.Tenants.Classes["all"].SetsPriority, s.Policy.Admission.Tenants.Classes["all"].SetsTransfer = true, true
	s.Policy.Admission.Tenants.Classes["some"].Models = nil // the model of a form is not read
	h := newHouse(t, Options{}, s)
	for _, path := range []string{"/v1/audio/transcriptions", "/v1/audio/translations"} {
		for field, status := range map[string]int{
			"language":                       200,
			"priority":                       400,
			"kv_transfer_params":             400,
			"vllm_xargs[kv_transfer_params]": 400,
			"vllm_xargs[speed]":              200,
		} {
			for _, key := range []string{"small", "acme"} {
				var form bytes.Buffer
				w := multipart.NewWriter(&form)
				_ = w.WriteField("model", "m")
				_ = w.WriteField(field, "1")
				_ = w.Close()
				body, want := form.String(), status
				if key == "acme" {
					want = 200
				}
				answer := h.post(path, body, "Authorization", "Bearer k-"+key, "Content-Type", w.FormDataContentType())
				if text := read(t, answer); answer.StatusCode != want || want == 400 && !strings.Contains(text, "field_not_allowed") {
					t.Errorf("%s, %s of %s: status %d, want %d: %s", path, field, key, answer.StatusCode, want, text)
				}
				if answer.StatusCode == 200 {
					if r := await(t, "the request", got); r.body != body {
						t.Errorf("%s, %s of %s: the engine gets\n%s", path, field, key, r.body)
					}
				}
			}
		}
	}
	h.idle()
}
