package extproc

import (
	"net/url"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// Answers that the picker gives in place of an engine.

// health answers a health check in place of an endpoint, as the proxy does: the status alone, without a key. It does not
// depend on endpoints, because a pool at zero is woken by its first request.
func (x *exchange) health() {
	code := typev3.StatusCode_OK
	if x.ready != nil && !x.ready() {
		code = typev3.StatusCode_ServiceUnavailable
	}
	x.answerItself(&pb.ImmediateResponse{Status: &typev3.HttpStatus{Code: code}, Details: "kvasir_health"})
}

// preflight answers a browser's preflight in place of an endpoint.
func (x *exchange) preflight() {
	headers, err := x.server.picker.Preflight(x.head.get, x.server.options.Pool)
	if err != nil {
		x.refuse(request.RefusalOf(err))
		return
	}
	m := &pb.HeaderMutation{}
	for _, header := range headers {
		put(m, header[0], header[1])
	}
	x.answerItself(&pb.ImmediateResponse{
		Status: &typev3.HttpStatus{Code: typev3.StatusCode_NoContent}, Headers: m, Details: "kvasir_preflight",
	})
}

// answerItself sends an answer that is no error in place of an endpoint. The stream then only waits for its end.
func (x *exchange) answerItself(answer *pb.ImmediateResponse) {
	x.request, x.response, x.refused, x.status = done, done, true, int(answer.GetStatus().GetCode())
	x.dropHead()
	x.send(&pb.ProcessingResponse{Response: &pb.ProcessingResponse_ImmediateResponse{ImmediateResponse: answer}})
}

// asksForModels reports whether a request without a body asks for a list that no engine has: of a port for all pools, while there are
// several or routes give models other names. A gateway that only observes takes no answer.
func (x *exchange) asksForModels() bool {
	method := x.head.get(":method")
	return (method == "GET" || method == "HEAD") && request.IsModels(x.head.path()) && !x.silent && x.server.options.Pool == "" &&
		x.server.picker.ListsModels()
}

// models answers with the models that the client can use, as the proxy does.
func (x *exchange) models() {
	path, err := url.PathUnescape(x.head.path())
	if err != nil {
		path = x.head.path()
	}
	answer, unknown, err := request.Models(x.server.picker, x.head.get, path, x.server.since)
	if err == nil && answer == nil {
		err = x.server.picker.Unknown(x.head.get, unknown)
	}
	if err != nil {
		x.refuse(request.RefusalOf(err))
		return
	}
	m := &pb.HeaderMutation{}
	put(m, "content-type", "application/json")
	put(m, picker.RequestIDHeader, x.id)
	x.answerItself(&pb.ImmediateResponse{
		Status: &typev3.HttpStatus{Code: typev3.StatusCode_OK}, Headers: m, Body: answer, Details: "kvasir_models",
	})
}

// strayed answers in place of an engine of another pool, to which the gateway has sent the request, or sent it again: what that engine
// answers is the answer of another model, or says that there is no such model.
func (x *exchange) strayed() {
	why := request.Strayed(x.decision.Spec().Name)
	x.settle(picker.Failed)
	answer := refusalAnswer(why, false)
	put(answer.Headers, picker.RequestIDHeader, x.id)
	x.span.FirstByte(why.Status)
	x.answerItself(answer)
}
