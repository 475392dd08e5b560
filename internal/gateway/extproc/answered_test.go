package extproc

import (
	"fmt"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// A gateway that sends without reading does not stop the picker from receiving, and one that reads slowly gets all.
func TestReceivingNeverWaitsForSending(t *testing.T) {
	h := newHouse(t, Options{MaxPending: 64 << 20}, ServeOptions{}, spec("127.0.0.1:1"))
	s := h.script()
	s.routed(completion)
	s.send(responseHead(false, ":status", "200"))
	piece := strings.Repeat("x", 64<<10)
	const n = 320 // 20 MiB, more than the windows of any connection
	for range n { // nothing is read meanwhile: sending would block if the picker did not receive
		s.send(responsePiece(piece, false))
	}
	s.send(responsePiece("", true))
	s.receive()
	got := 0
	for {
		b := s.receive().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		got += len(b.GetBody())
		if b.GetEndOfStream() {
			break
		}
	}
	if got != n*len(piece) {
		t.Errorf("%d bytes come back, want %d", got, n*len(piece))
	}
	s.cancel()
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 1})
}

func TestSlowReadersGetEverything(t *testing.T) {
	h := newHouse(t, Options{MaxPending: 100 << 10}, ServeOptions{}, spec(digest(t)))
	body := large(1 << 20)
	if text := read(t, h.envoy(envoytest.Options{ReadPause: time.Millisecond}).post("/v1/completions", body)); text != body {
		t.Errorf("%d bytes", len(text))
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 1})
}

func TestAnswersSayWhereTheyCameFromIfThePolicyAllows(t *testing.T) {
	s := spec(engine(t, says("ok")))
	s.Policy.AnswerHeaders = "OnRequest"
	h := newHouse(t, Options{}, ServeOptions{}, s)
	g := h.envoy(envoytest.Options{})
	if answer := g.post("/v1/completions", completion); answer.Header.Get("X-Kvasir-Endpoint") != "" {
		t.Errorf("without a request for it: %v", answer.Header)
	}
	answer := g.post("/v1/completions", completion, "X-Kvasir-Explain", "true")
	if answer.Header.Get("X-Kvasir-Endpoint") != "pod-0/0" || answer.Header.Get("X-Kvasir-Attempt") != "1" {
		t.Errorf("header %v", answer.Header)
	}
}

// The headers that name tenants and priorities are seen in both spellings: the first session key decides here.
func TestGatewayHeadersInBothSpellings(t *testing.T) {
	s := spec("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4", "127.0.0.1:5")
	s.Policy.Strategy = policy.Config{Type: policy.Rendezvous}
	s.Policy.SessionKeys = []picker.SessionKey{{Type: "Header", Name: picker.FairnessHeader}}
	h := newHouse(t, Options{}, ServeOptions{}, s)
	at := func(name, value string) string {
		s := h.script()
		s.send(requestHead(false, append([]string{name, value}, post...)...), requestPiece(completion, true))
		return destinationOf(s.receive())
	}
	all := map[string]bool{}
	for i := range 20 {
		value := fmt.Sprint("tenant-", i)
		a, b := at("x-gateway-inference-fairness-id", value), at("x-llm-d-inference-fairness-id", value)
		if a != b {
			t.Errorf("%s goes to %s and to %s", value, a, b)
		}
		all[a] = true
	}
	if len(all) < 2 {
		t.Error("the header makes no difference")
	}
}

// A gateway that answers by itself, before the request is complete, is followed.
func TestAnswersOfTheGatewayItself(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"))
	s := h.script()
	s.send(requestHead(false, post...), requestPiece("{", false), responseHead(false, ":status", "408"))
	if s.receive().GetResponseHeaders() == nil {
		t.Fatal("not answered")
	}
	s.send(responsePiece("late", true))
	if b := s.receive().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse(); string(b.GetBody()) != "late" || !b.GetEndOfStream() {
		t.Errorf("%v", b)
	}
	s.cancel()
	h.idle()
}

func TestGatewaysThatBreakTheProtocolAreTold(t *testing.T) {
	for name, messages := range map[string][]*pb.ProcessingRequest{
		"a body first":  {requestPiece("x", true)},
		"headers twice": {requestHead(false, post...), requestHead(false, post...)},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"))
			s := h.script()
			s.send(messages...)
			if m, err := s.stream.Recv(); err == nil {
				t.Errorf("%v", m)
			}
			h.idle()
		})
	}
}
