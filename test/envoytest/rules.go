package envoytest

import (
	"io"
	"net/http"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// maxAnswer is the most bytes of a body that one answer can have. Envoy takes 64 KiB; pickers stay below.
const maxAnswer = 62000

// way is one direction of an exchange, as far as it was shown and answered in full-duplex mode.
//
//	answers:  headers --> body* --(end of body, or trailers)--> nothing
type way struct {
	name string

	shownHeaders, shownBody, shownEnd, shownTrailers bool // to the picker
	gotHeaders, gotEnd                               bool // from it
}

// headers takes the answer to the headers.
func (w *way) headers() string {
	switch {
	case !w.shownHeaders:
		return w.name + " headers are answered before they were shown"
	case w.gotHeaders:
		return w.name + " headers are answered twice"
	}
	w.gotHeaders = true
	return ""
}

// body takes a piece of the body.
func (w *way) body(r *pb.CommonResponse) (piece []byte, wrong string) {
	s := r.GetBodyMutation().GetStreamedResponse()
	switch {
	case s == nil:
		return nil, w.name + " body is answered without streamed_response"
	case r.GetHeaderMutation() != nil:
		return nil, w.name + " headers are changed with a body that is streamed"
	case !w.gotHeaders:
		return nil, w.name + " body is answered before the headers"
	case w.gotEnd:
		return nil, w.name + " body goes on behind its end"
	case !w.shownBody:
		return nil, w.name + " body is answered, and none was shown"
	case len(s.GetBody()) > maxAnswer:
		return nil, w.name + " body comes in pieces that are too large"
	case s.GetEndOfStream() && !w.shownEnd:
		return nil, w.name + " body ends that was not shown to end"
	}
	w.gotEnd = s.GetEndOfStream()
	return s.GetBody(), ""
}

// trailers takes the answer to the trailers.
func (w *way) trailers() string {
	switch {
	case !w.shownTrailers:
		return w.name + " trailers are answered, and none were shown"
	case !w.gotHeaders:
		return w.name + " trailers are answered before the headers"
	case w.gotEnd:
		return w.name + " trailers are answered behind the end"
	}
	w.gotEnd = true
	return ""
}

// answered takes one message of the picker.
func (x *exchange) answered(m *pb.ProcessingResponse) *failure {
	x.mu.Lock()
	defer x.mu.Unlock()
	g := x.gateway
	if m.GetModeOverride() != nil {
		return g.violated("the mode is overridden")
	}
	var wrong string
	switch a := m.GetResponse().(type) {
	case *pb.ProcessingResponse_RequestHeaders:
		if wrong = x.request.headers(); wrong == "" {
			return x.routeTo(m, a.RequestHeaders.GetResponse())
		}
	case *pb.ProcessingResponse_RequestBody:
		var piece []byte
		if piece, wrong = x.request.body(a.RequestBody.GetResponse()); wrong == "" {
			x.pieceOf(x.toEngine, piece, &x.request)
		}
	case *pb.ProcessingResponse_RequestTrailers:
		if wrong = x.request.trailers(); wrong == "" {
			x.toEngine.end(io.EOF)
		}
	case *pb.ProcessingResponse_ResponseHeaders:
		if wrong = x.response.headers(); wrong == "" {
			x.answerHead <- a.ResponseHeaders.GetResponse()
		}
	case *pb.ProcessingResponse_ResponseBody:
		if !fullDuplex(g.options.Response) {
			x.bodyAnswer <- m
			return nil
		}
		var piece []byte
		if piece, wrong = x.response.body(a.ResponseBody.GetResponse()); wrong == "" {
			x.pieceOf(x.toClient, piece, &x.response)
		}
	case *pb.ProcessingResponse_ResponseTrailers:
		if wrong = x.response.trailers(); wrong == "" {
			x.toClient.end(io.EOF)
		}
	case *pb.ProcessingResponse_ImmediateResponse:
		return x.refused(a.ImmediateResponse)
	default:
		wrong = "an answer of no kind"
	}
	if wrong != "" {
		return g.violated("%s", wrong)
	}
	return nil
}

func (x *exchange) pieceOf(p *pipe, piece []byte, w *way) {
	p.put(piece)
	if w.gotEnd {
		p.end(io.EOF)
	}
}

// refused makes the client's answer of an immediate response. x.mu is held.
func (x *exchange) refused(r *pb.ImmediateResponse) *failure {
	f := &failure{status: int(r.GetStatus().GetCode()), why: r.GetDetails(), header: http.Header{}, body: r.GetBody()}
	if f.body == nil {
		f.body = []byte{}
	}
	if f.status < 200 || f.status > 599 {
		return x.gateway.violated("an immediate response has status %d", f.status)
	}
	if wrong := x.gateway.apply(f.header, r.GetHeaders(), func(string) bool { return true }); wrong != nil {
		return wrong
	}
	return f
}

// routeTo takes the picker's choice. x.mu is held.
func (x *exchange) routeTo(m *pb.ProcessingResponse, r *pb.CommonResponse) *failure {
	if r.GetBodyMutation() != nil {
		return x.gateway.violated("a body comes with the answer to the headers")
	}
	list, f := x.gateway.destinations(m, r, x.header)
	if f != nil {
		return f
	}
	x.routed <- list
	return nil
}
