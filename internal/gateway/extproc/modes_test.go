package extproc

import (
	"errors"
	"io"
	"testing"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// withModes sets what a gateway says of its body modes in the first message.
func withModes(m *pb.ProcessingRequest, request, response filter.ProcessingMode_BodySendMode) *pb.ProcessingRequest {
	m.ProtocolConfig = &pb.ProtocolConfiguration{RequestBodyMode: request, ResponseBodyMode: response}
	return m
}

const (
	duplex   = filter.ProcessingMode_FULL_DUPLEX_STREAMED
	inPieces = filter.ProcessingMode_STREAMED
	none     = filter.ProcessingMode_NONE
)

// bodyless routes a completion through a gateway that shows no bodies of answers.
func (h *house) bodyless() *script {
	h.t.Helper()
	s := h.script()
	s.send(withModes(requestHead(false, post...), duplex, none), requestPiece(completion, true))
	if destinationOf(s.receive()) == "" || s.receive().GetRequestBody() == nil {
		h.t.Fatal("not routed")
	}
	return s
}

// With response_body_mode NONE the headers are all that is shown of an answer, and they say how it ended.
func TestAnswersAreJudgedByTheirHeadersWhereNoBodyIsShown(t *testing.T) {
	for name, tc := range map[string]struct {
		status, contentType string
		want                picker.Outcome
		inFlight            int // right afterwards
	}{
		"JSON":             {"200", "application/json", picker.Completed, 0},
		"events":           {"200", "text/event-stream", picker.Completed, 1},
		"a client's error": {"422", "application/json", picker.Rejected, 0},
		"a server's error": {"503", "text/plain", picker.Failed, 0},
	} {
		for _, trailers := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"))
				s := h.bodyless()
				s.send(responseHead(false, ":status", tc.status, "content-type", tc.contentType))
				if s.receive().GetResponseHeaders() == nil {
					t.Fatal("the headers are not answered")
				}
				if trailers {
					s.send(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_ResponseTrailers{ResponseTrailers: &pb.HttpTrailers{}}})
					if s.receive().GetResponseTrailers() == nil {
						t.Fatal("the trailers are not answered")
					}
				}
				s.cancel()
				eventually(t, "the stream has ended", func() bool { return h.server.Streams() == 0 })
				stats := h.picker.Stats()[0]
				if stats.Outcomes[tc.want] != 1 || stats.Endpoints[0].Load.InFlight != tc.inFlight {
					t.Errorf("outcomes %v, %d in flight, want %v and %d", stats.Outcomes, stats.Endpoints[0].Load.InFlight, tc.want, tc.inFlight)
				}
			})
		}
	}
}

// A gateway can show answers on one route and none on another: a request that ends without one was given up by its client
// on the first, and is unreported on the second.
func TestWhatOneRouteShowsSaysNothingOfAnother(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"))
	whole := h.script()
	whole.routed(completion)
	whole.send(responseHead(true, ":status", "200"))
	whole.receive()
	whole.cancel()
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 1})

	h.bodyless().cancel() // no headers either, as with response_header_mode SKIP
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 1, picker.Unreported: 1})

	gone := h.script()
	gone.routed(completion)
	gone.cancel()
	eventually(t, "the client's leaving is seen", func() bool { return h.picker.Stats()[0].Outcomes[picker.ClientGone] == 1 })

	seen := h.bodyless() // and once headers were seen there, their absence says something
	seen.send(responseHead(false, ":status", "200"))
	seen.receive()
	seen.cancel()
	h.bodyless().cancel()
	eventually(t, "the client's leaving is seen", func() bool { return h.picker.Stats()[0].Outcomes[picker.ClientGone] == 2 })
}

// endsSilent fails when the picker says anything before the stream ends.
func (s *script) endsSilent() {
	s.t.Helper()
	if m, err := s.stream.Recv(); !errors.Is(err, io.EOF) {
		s.t.Errorf("the picker says %v, %v", m, err)
	}
}

// A gateway in observability_mode sends everything and waits for nothing, and Envoy names no body modes then, so the
// messages themselves must show them. Its requests are counted on the endpoints that they would have been sent to.
func TestObservabilityModeIsAccountedForAndNotAnswered(t *testing.T) {
	observed := func(m *pb.ProcessingRequest) *pb.ProcessingRequest { m.ObservabilityMode = true; return m }
	unnamed := func(m *pb.ProcessingRequest, _, _ filter.ProcessingMode_BodySendMode) *pb.ProcessingRequest {
		m.ProtocolConfig = nil
		return m
	}
	for name, tc := range map[string]struct {
		request, answer bool // whose body is shown
		modes           func(m *pb.ProcessingRequest, request, response filter.ProcessingMode_BodySendMode) *pb.ProcessingRequest
	}{
		"bodies are shown":                         {true, true, withModes},
		"no bodies":                                {false, false, withModes},
		"bodies are shown, no modes are named":     {true, true, unnamed},
		"no bodies, no modes are named":            {false, false, unnamed},
		"the body of requests, no modes are named": {true, false, unnamed},
		"the body of answers, no modes are named":  {false, true, unnamed},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"))
			s := h.script()
			mode := map[bool]filter.ProcessingMode_BodySendMode{true: inPieces, false: none}
			s.send(observed(tc.modes(requestHead(false, post...), mode[tc.request], mode[tc.answer])))
			if tc.request {
				s.send(observed(requestPiece(completion[:9], false)), observed(requestPiece(completion[9:], true)))
				eventually(t, "it is counted", func() bool { return h.picker.Stats()[0].Endpoints[0].Load.InFlight == 1 })
			}
			s.send(observed(responseHead(false, ":status", "200", "content-type", "application/json")))
			if tc.answer {
				s.send(observed(responsePiece(`{"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}}`, true)))
			}
			if err := s.stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
			s.endsSilent()
			h.outcomes(map[picker.Outcome]int64{picker.Completed: 1})
			want := int64(0)
			if tc.answer && tc.request {
				want = 1
			}
			if hits := h.picker.Stats()[0].Hits; hits.Answers != want {
				t.Errorf("hits %+v, want %d answers", hits, want)
			}
		})
	}
	t.Run("a refusal is not told either, and nothing waits", func(t *testing.T) {
		h := newHouse(t, Options{}, ServeOptions{}, holding())
		s := h.script()
		s.send(observed(withModes(requestHead(false, post...), inPieces, inPieces)), observed(requestPiece(completion, true)))
		eventually(t, "it is refused", func() bool {
			return h.seen.count(func(r *recorder) int { return r.refused[request.RefusedNoEndpoint] }) == 1
		})
		if err := s.stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		s.endsSilent()
	})
}
