package envoytest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// step sends a message and waits for its answer, no longer than the message time-out.
func (x *exchange) step(m *pb.ProcessingRequest) (*pb.ProcessingResponse, error) {
	if err := x.stream.Send(m); err != nil {
		return nil, &failure{status: http.StatusInternalServerError, why: "ext_proc: " + err.Error(), unreached: x.noBody}
	}
	type got struct {
		m   *pb.ProcessingResponse
		err error
	}
	answer := make(chan got, 1)
	go func() {
		m, err := x.stream.Recv()
		answer <- got{m, err}
	}()
	select {
	case a := <-answer:
		switch {
		case errors.Is(a.err, io.EOF):
			return nil, x.gateway.violated("the picker ends the stream before the request has ended")
		case a.err != nil:
			return nil, &failure{status: http.StatusInternalServerError, why: "ext_proc: " + a.err.Error(), unreached: x.noBody}
		}
		if r := a.m.GetImmediateResponse(); r != nil {
			return nil, x.refused(r)
		}
		return a.m, nil
	case <-time.After(x.gateway.options.MessageTimeout):
		x.stop()
		return nil, &failure{status: http.StatusGatewayTimeout, why: "ext_proc: no answer within the message time-out"}
	case <-x.ctx.Done():
		return nil, context.Cause(x.ctx)
	}
}

// lockstep takes a request through in a mode that waits for each answer.
func (x *exchange) lockstep() error {
	mode := modeOf(x.gateway.options.Request)
	m, err := x.step(x.requestHeaders(x.noBody))
	if err != nil {
		return err
	}
	r := m.GetRequestHeaders()
	if r == nil {
		return x.gateway.violated("request headers are answered by another kind")
	}
	var list []string
	var f *failure
	named := len(r.GetResponse().GetHeaderMutation().GetSetHeaders()) > 0
	if named {
		if list, f = x.gateway.destinations(m, r.GetResponse(), x.header); f != nil {
			return f
		}
	}
	body, err := x.lockstepBody(mode, &list)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return x.gateway.violated("no destination was named when the request had to go")
	}
	address, err := reach(x.ctx, list)
	if err != nil {
		return err
	}
	x.r.ContentLength = int64(len(body))
	response, err := x.upstream(address, io.NopCloser(bytes.NewReader(body)))
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	return x.lockstepResponse(response)
}

// lockstepBody sends the body, and reads the destination from the answer where it can be part of it.
func (x *exchange) lockstepBody(mode filter.ProcessingMode_BodySendMode, list *[]string) ([]byte, error) {
	body, err := io.ReadAll(x.r.Body)
	if err != nil || x.noBody || mode == filter.ProcessingMode_NONE {
		return body, err
	}
	pieces := [][]byte{body}
	for mode == filter.ProcessingMode_STREAMED && len(pieces[len(pieces)-1]) > 1000 {
		last := len(pieces) - 1
		pieces = append(pieces[:last], pieces[last][:1000], pieces[last][1000:])
	}
	trailers := len(x.r.Trailer) > 0
	for i, piece := range pieces {
		m, err := x.step(&pb.ProcessingRequest{
			Request: &pb.ProcessingRequest_RequestBody{RequestBody: &pb.HttpBody{Body: piece, EndOfStream: i == len(pieces)-1 && !trailers}},
		})
		if err != nil {
			return nil, err
		}
		r := m.GetRequestBody().GetResponse()
		switch {
		case m.GetRequestBody() == nil:
			return nil, x.gateway.violated("a request's body is answered by another kind")
		case r.GetBodyMutation().GetStreamedResponse() != nil:
			return nil, x.gateway.violated("streamed_response outside of full-duplex mode")
		case mode == filter.ProcessingMode_STREAMED && r.GetHeaderMutation() != nil:
			return nil, x.gateway.violated("headers are changed with a body that is streamed")
		case r.GetHeaderMutation() != nil:
			var f *failure
			if *list, f = x.gateway.destinations(m, r, x.header); f != nil {
				return nil, f
			}
		}
		if r.GetBodyMutation() != nil {
			body = r.GetBodyMutation().GetBody()
		}
	}
	if trailers {
		m, err := x.step(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_RequestTrailers{
			RequestTrailers: &pb.HttpTrailers{Trailers: headerMap(nil, x.r.Trailer)},
		}})
		if err != nil {
			return nil, err
		}
		if m.GetRequestTrailers() == nil {
			return nil, x.gateway.violated("a request's trailers are answered by another kind")
		}
	}
	return body, nil
}

// lockstepResponse shows an answer to the picker of a request that was taken through in such a mode.
func (x *exchange) lockstepResponse(response *http.Response) error {
	header := endToEnd(response.Header)
	end := response.ContentLength == 0
	m, err := x.step(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_ResponseHeaders{ResponseHeaders: &pb.HttpHeaders{
		Headers: headerMap([][2]string{{":status", strconv.Itoa(response.StatusCode)}}, header), EndOfStream: end,
	}}})
	if err != nil {
		return err
	}
	if m.GetResponseHeaders() == nil {
		return x.gateway.violated("response headers are answered by another kind")
	}
	if f := x.gateway.apply(header, m.GetResponseHeaders().GetResponse().GetHeaderMutation(), isOwn); f != nil {
		return f
	}
	return x.lockstepAnswer(response, header, end, x.step)
}

// lockstepAnswer sends an answer's body piece by piece, or not at all, and passes on the original, not what is returned.
func (x *exchange) lockstepAnswer(response *http.Response, header http.Header, end bool, step func(*pb.ProcessingRequest) (*pb.ProcessingResponse, error)) error {
	x.start(header, response.StatusCode)
	for buf := make([]byte, 4<<10); !end; {
		n, err := response.Body.Read(buf)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		end = err != nil
		if mode := modeOf(x.gateway.options.Response); mode != filter.ProcessingMode_NONE && (n > 0 || end) {
			m, err := step(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_ResponseBody{
				ResponseBody: &pb.HttpBody{Body: append([]byte(nil), buf[:n]...), EndOfStream: end},
			}})
			if err != nil {
				return err
			}
			if m.GetResponseBody() == nil || m.GetResponseBody().GetResponse().GetBodyMutation() != nil {
				return x.gateway.violated("a response's body is changed outside of full-duplex mode")
			}
		}
		if _, err := (flushing{x.w}).Write(buf[:n]); err != nil {
			return err
		}
	}
	return nil
}
