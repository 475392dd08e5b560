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

// FuzzForward sends any body: it is refused with 400 or 404, or the engine gets it byte for byte and its answer, which is
// the same bytes in one of several forms, is returned.
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
	const first = "data: {\"choices\":[{\"text\":\"x\",\"delta\":{\"content\":\"x\"}}]}\n\n" // else the stream would be no answer
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, _ = io.ReadAll(r.Body)
		switch form % 3 {
		case 0:
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, first)
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
			parsed := openai.ParseFor(route, body, "m", new(openai.Request)) == nil // "m" is all that the picker serves
			switch w.Code {
			case http.StatusOK:
				answer := w.Body.Bytes()
				if form%3 == 0 {
					answer = bytes.TrimPrefix(answer, []byte(first))
				}
				if !parsed || !bytes.Equal(got, body) || !bytes.Equal(answer, body) {
					t.Errorf("sent %q, the engine got %q, %q came back", body, got, w.Body)
				}
			case http.StatusBadRequest:
				if parsed {
					t.Errorf("%q is refused: %s", body, w.Body)
				}
			case http.StatusServiceUnavailable:
				var a openai.AnswerScanner
				a.Reset(route, false)
				if a.Write(body); form%3 == 0 || !a.Aborted {
					t.Errorf("%q is no answer", body)
				}
			case http.StatusNotFound: // another model
			default:
				t.Errorf("%q: status %d", body, w.Code)
			}
		}
		if s := p.Stats()[0]; s.Endpoints[0].Load.InFlight != 0 || proxy.budget.Stats().Held != 0 {
			t.Errorf("%d in flight, %d bytes held", s.Endpoints[0].Load.InFlight, proxy.budget.Stats().Held)
		}
	})
}
