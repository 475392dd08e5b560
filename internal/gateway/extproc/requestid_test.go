package extproc

import (
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// TestRequestsOfGatewaysHaveAnID: the gateway's own is left alone. Without one, or with one that cannot stand in a log, the
// engine and the client get a new one.
func TestRequestsOfGatewaysHaveAnID(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:9"))
	for given, kept := range map[string]bool{"": false, "0b5f6d5e": true, "my prompt": false} {
		s := h.script()
		s.send(requestHead(false, append([]string{"x-request-id", given}, post...)...), requestPiece(completion, true))
		engine := valueSet(s.receive().GetRequestHeaders().GetResponse().GetHeaderMutation(), "x-request-id")
		s.receive()
		s.send(responseHead(false, ":status", "200"))
		client := valueSet(s.receive().GetResponseHeaders().GetResponse().GetHeaderMutation(), "x-request-id")
		if engine != client || kept != (engine == "") || !kept && len(engine) != 32 {
			t.Errorf("%q: the engine gets %q, the client %q", given, engine, client)
		}
	}
}

func valueSet(m *pb.HeaderMutation, name string) string {
	for _, o := range m.GetSetHeaders() {
		if o.GetHeader().GetKey() == name {
			return string(o.GetHeader().GetRawValue())
		}
	}
	return ""
}

// TestRefusalsOfGatewaysRequestsAreLogged, at debug, without a word of the request.
func TestRefusalsOfGatewaysRequestsAreLogged(t *testing.T) {
	lines := make(chan string, 9)
	log := funcr.New(func(_, line string) { lines <- line }, funcr.Options{Verbosity: 1})
	h := newHouse(t, Options{Log: log}, ServeOptions{}, spec("127.0.0.1:9"))
	s := h.script()
	s.send(requestHead(false, append([]string{"x-request-id", "0b5f"}, post...)...), requestPiece(`{"model":"zebra","prompt":"x"}`, true))
	answer := s.receive().GetImmediateResponse()
	line := <-lines
	want := `"request"="0b5f" "status"=404 "code"="model_not_found" "reason"="model"`
	if !strings.Contains(line, want) || strings.Contains(line, "zebra") {
		t.Errorf("%s", line)
	}
	if id := valueSet(answer.GetHeaders(), "x-request-id"); id != "0b5f" {
		t.Errorf("the refusal has the id %q", id)
	}
}
