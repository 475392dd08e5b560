package extproc

import (
	"net/http"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

func TestSequenceA_ABodyIsRoutedAndPassesUnchanged(t *testing.T) {
	const body = `{ "model":"m",  "prompt":[1,2,3], "x": 1.50000000000000000001 }`
	got := make(chan string, 1)
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		got <- readRequest(r)
		_, _ = w.Write([]byte(`{"choices":[]}`))
	})
	h := newHouse(t, Options{}, ServeOptions{}, spec(e))
	answer := h.gate(envoytest.Options{}).post("/v1/completions", body)
	if text := read(t, answer); answer.StatusCode != 200 || text != `{"choices":[]}` {
		t.Errorf("%d %q", answer.StatusCode, text)
	}
	if sent := <-got; sent != body {
		t.Errorf("the engine got %q", sent)
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 1})
}
