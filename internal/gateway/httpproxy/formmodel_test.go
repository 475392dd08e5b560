package httpproxy

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/usagelog"
)

// form is a form as clients of audio routes send it, with its content type.
func form(t *testing.T, models ...string) (kind, body string) {
	t.Helper()
	var text bytes.Buffer
	w := multipart.NewWriter(&text)
	file, err := w.CreateFormFile("file", "model")
	if err == nil {
		_, err = file.Write(bytes.Repeat([]byte("RIFF\r\n--\x00"), 1000))
	}
	for _, model := range models {
		if err == nil {
			err = w.WriteField("model", model)
		}
	}
	if err == nil {
		err = w.WriteField("language", "en")
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return w.FormDataContentType(), text.String()
}

// TestBodiesThatAreNotParsedGoToTheirModel: to the pool that has it and, if it is an adapter, to an engine that has loaded it, byte for
// byte; the record of use names it. So do multipart forms, and JSON.
func TestBodiesThatAreNotParsedGoToTheirModel(t *testing.T) {
	says := func(name string) string {
		return engine(t, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			_, _ = io.WriteString(w, name+" "+string(body))
		})
	}
	first := spec(says("without"), says("with"), says("without"))
	first.DiscoverAdapters, first.Adapters = true, nil
	other := spec(says("other"))
	other.Name, other.Model, other.Aliases, other.Adapters = "z", "other", nil, nil
	other.Endpoints[0].ID.Pod = "other"
	log := new(ledger)
	h := newHouse(t, Options{Usage: usagelog.New(log)}, first, other)
	h.picker.ObserveModels(first.Endpoints[1].ID, []picker.ListedModel{{Name: "m"}, {Name: "fr", Parent: "m"}})
	h.picker.ObserveModels(first.Endpoints[0].ID, []picker.ListedModel{{Name: "m"}})
	asked := 0
	ask := func(path, kind, body, want, model, adapter string) {
		t.Helper()
		if got := read(t, h.post(path, body, "Content-Type", kind)); got != want+" "+body {
			t.Errorf("%s for %s: sent to %.20q", path, model, got)
		}
		if r := log.next(t, asked); r.Adapter != adapter || r.Model != model || r.Route != path || r.Outcome != "completed" {
			t.Errorf("%s for %s: the record is %+v", path, model, r)
		}
		asked++
	}
	for range 6 { // more than there are endpoints
		for _, path := range []string{"/v1/audio/transcriptions", "/v1/audio/translations"} {
			kind, body := form(t, "fr")
			ask(path, kind, body, "with", "fr", "fr")
			kind, body = form(t, "m", "fr") // engines take the last one
			ask(path, kind, body, "with", "fr", "fr")
			kind, body = form(t, "other")
			ask(path, kind, body, "other", "other", "")
		}
		for _, path := range []string{"/v1/score", "/rerank", "/pooling"} {
			ask(path, "application/json", `{"model":"fr","query":"q"}`, "with", "fr", "fr")
			ask(path, "application/json", `{"model":"other","query":"q"}`, "other", "other", "")
		}
	}
	kind, body := form(t, "m")
	got := map[string]bool{}
	for range 3 {
		name, _, _ := strings.Cut(read(t, h.post("/v1/audio/transcriptions", body, "Content-Type", kind)), " ")
		got[name] = true
	}
	if !got["with"] || !got["without"] || len(got) != 2 {
		t.Errorf("the pool's own model is served by endpoints %v", got)
	}
	h.idle()
}

// TestAFormsModelIsRead as engines read it, or not at all.
func TestAFormsModelIsRead(t *testing.T) {
	kind, body := form(t, "a", "b")
	none, without := form(t)
	for name, tc := range map[string]struct{ kind, body, want string }{
		"the last one":        {kind, body, "b"},
		"none":                {none, without, ""},
		"no form":             {"application/json", `{"model":"a"}`, ""},
		"no boundary":         {"multipart/form-data", body, ""},
		"another boundary":    {"multipart/form-data; boundary=x", body, ""},
		"a part that is cut":  {kind, body[:strings.LastIndex(body, "a\r\n")], ""},
		"a file of that name": {"multipart/form-data; boundary=x", "--x\r\nContent-Disposition: form-data; name=model; filename=f\r\n\r\na\r\n--x--\r\n", ""},
		"more parts than engines take": {kind: "multipart/form-data; boundary=x",
			body: strings.Repeat("--x\r\n\r\n\r\n", 3000) + "--x\r\nContent-Disposition: form-data; name=model\r\n\r\na\r\n--x--\r\n"},
		"a name that is a book": {"multipart/form-data; boundary=x", "--x\r\nContent-Disposition: form-data; name=model\r\n\r\n" + strings.Repeat("a", 5000) + "\r\n--x--\r\n", ""},
	} {
		if got := openai.FormModel(tc.kind, []byte(tc.body)); got != tc.want {
			t.Errorf("%s: %.40q, want %q", name, got, tc.want)
		}
	}
}
