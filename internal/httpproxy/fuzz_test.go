package httpproxy

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// FuzzForward sends any body: it is refused with 400 or 404, or the engine gets it byte for byte and its answer, which
// is the same bytes in one of several forms, comes back.
func FuzzForward(f *testing.F) {
	for _, seed := range []string{
		streamed, `{"model":"m","prompt":"x"}`, `{"model":"m","messages":[{"role":"user","content":"x"}]}`, "", "{", "\x00",
		`{"model":"alias","prompt":["a","b"],"n":2}`, "data: {\"choices\":[{}]}\n\ndata: [DONE]\n\n",
	} {
		for form := range byte(3) {
			f.Add([]byte(seed), form)
		}
	}
	var got []byte
	var form byte
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, _ = io.ReadAll(r.Body)
		switch form % 3 {
		case 0:
			w.Header().Set("Content-Type", "text/event-stream")
		case 1:
			w.Header().Set("Content-Type", "application/json")
		}
		_, _ = w.Write(got)
	}))
	f.Cleanup(engine.Close)
	p := picker.New(picker.Options{Log: logr.Discard()})
	if err := p.Apply([]picker.Spec{spec(engine.Listener.Addr().String())}); err != nil {
		f.Fatal(err)
	}
	proxy := New(Options{Picker: p, Log: logr.Discard()})
	f.Cleanup(proxy.Close)
	f.Fuzz(func(t *testing.T, body []byte, kind byte) {
		form, got = kind, nil
		for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
			route, _ := openai.RouteOf(path)
			w := httptest.NewRecorder()
			proxy.ServeHTTP(w, httptest.NewRequest("POST", path, bytes.NewReader(body)))
			parsed := openai.Parse(route, body, new(openai.Request)) == nil
			switch w.Code {
			case http.StatusOK:
				if !parsed || !bytes.Equal(got, body) || !bytes.Equal(w.Body.Bytes(), body) {
					t.Errorf("sent %q, the engine got %q, %q came back", body, got, w.Body)
				}
			case http.StatusBadRequest:
				if parsed {
					t.Errorf("%q is refused: %s", body, w.Body)
				}
			case http.StatusNotFound: // another model
			default:
				t.Errorf("%q: status %d", body, w.Code)
			}
		}
		if s := p.Stats()[0]; s.Endpoints[0].Load.InFlight != 0 || proxy.Buffered() != 0 {
			t.Errorf("%d in flight, %d bytes held", s.Endpoints[0].Load.InFlight, proxy.Buffered())
		}
	})
}
