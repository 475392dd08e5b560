package extproc

import (
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// droppedHeader carries the reason why a request was not served, for gateways' dashboards.
const droppedHeader = "x-llm-d-request-dropped-reason"

// dropped are its values by the reason of a refusal; others have none.
var dropped = map[string]string{
	request.RefusedMemory: "rejected-saturated", request.RefusedOverload: "rejected-saturated", request.RefusedTooMuch: "rejected-saturated",
	request.RefusedNoEndpoint: "rejected-no-endpoints",
}

// refusalAnswer is what is answered in place of a pick, in the words of the OpenAI API or of the Anthropic one (messages).
func refusalAnswer(why *request.Refusal, messages bool) *pb.ImmediateResponse {
	m := &pb.HeaderMutation{}
	put(m, "content-type", "application/json")
	if after := request.RetryAfter(&why.Error); after != "" {
		put(m, "retry-after", after)
	}
	if reason := dropped[why.Reason]; reason != "" {
		put(m, droppedHeader, reason)
	}
	picker.EachRateHeader(why.Rates, func(name, value string) { put(m, name, value) })
	body := openai.AppendError(nil, why.Status, why.Type, why.Code, why.Message)
	if messages {
		body = openai.AppendMessagesError(nil, why.Status, why.Message)
	}
	return &pb.ImmediateResponse{
		Status:  &typev3.HttpStatus{Code: typev3.StatusCode(why.Status)},
		Headers: m,
		Body:    body,
		Details: "kvasir_" + why.Reason,
	}
}
