package envoytest

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// exchange is one request on its way through a gateway.
type exchange struct {
	gateway *Gateway
	w       http.ResponseWriter
	r       *http.Request
	ctx     context.Context    // of the request
	cancel  context.CancelFunc // breaks everything off
	stop    context.CancelFunc // resets the stream alone
	stream  pb.ExternalProcessor_ProcessClient
	noBody  bool
	started bool // the client has the header of the answer

	header, trailer    http.Header // of the request to the endpoint
	routed             chan []string
	answerHead         chan *pb.CommonResponse
	bodyAnswer         chan *pb.ProcessingResponse // to a piece of the answer, where each is waited for
	toEngine, toClient *pipe
	failed             chan struct{} // closed when err is set
	received           chan struct{} // closed when nothing more is received

	sendMu   sync.Mutex  // of the stream
	bodyRead atomic.Bool // the client's request, to its end

	mu                sync.Mutex // guards what follows
	request, response way
	err               error
	over              bool // the stream can end
	rng               *rand.Rand
}

// fullDuplex reports whether a mode is Envoy's full-duplex streaming, which is the default here.
func fullDuplex(m *filter.ProcessingMode_BodySendMode) bool {
	return m == nil || *m == filter.ProcessingMode_FULL_DUPLEX_STREAMED
}

func modeOf(m *filter.ProcessingMode_BodySendMode) filter.ProcessingMode_BodySendMode {
	if m == nil {
		return filter.ProcessingMode_FULL_DUPLEX_STREAMED
	}
	return *m
}

// run takes the request through, and returns what keeps it from an answer.
func (x *exchange) run() error {
	o := &x.gateway.options
	x.header, x.trailer = endToEnd(x.r.Header), x.r.Trailer.Clone()
	x.noBody = x.r.Body == http.NoBody || x.r.ContentLength == 0
	streamCtx, stop := context.WithCancel(x.ctx)
	defer stop()
	x.stop = stop
	var err error
	if x.stream, err = x.gateway.stream(streamCtx); err == nil {
		if fullDuplex(o.Request) {
			err = x.duplex()
		} else {
			err = x.lockstep()
		}
	}
	var f *failure
	if errors.As(err, &f) && f.unreached && o.FailOpen && x.ctx.Err() == nil {
		for _, name := range []string{destinationHeader, subsetKey, servedKey} {
			x.header.Del(name)
		}
		return x.direct(o.Endpoints[rand.IntN(len(o.Endpoints))], x.r.Body)
	}
	return err
}

// duplex is full-duplex streaming in both directions, or of the request alone.
func (x *exchange) duplex() error {
	x.request.name, x.response.name = "request", "response"
	x.routed, x.answerHead = make(chan []string, 1), make(chan *pb.CommonResponse, 1)
	x.bodyAnswer = make(chan *pb.ProcessingResponse, 1)
	x.failed, x.received = make(chan struct{}), make(chan struct{})
	x.toEngine, x.toClient = newPipe(), newPipe()
	x.toEngine.atEnd = func() {
		for name := range x.trailer {
			x.trailer[name] = x.r.Trailer[name]
		}
	}
	x.request.shownHeaders = true
	go x.receive()
	defer func() {
		x.finish()
		<-x.received
	}()
	if err := x.send(x.requestHeaders(x.noBody)); err != nil {
		return x.cause(err)
	}
	if x.noBody {
		x.toEngine.end(io.EOF)
	} else {
		sent := make(chan struct{})
		defer x.stopReading(sent)
		go func() { defer close(sent); x.sendRequestBody() }()
	}
	var list []string
	select {
	case list = <-x.routed:
	case <-x.failed:
		return x.cause(nil)
	case <-x.ctx.Done():
		return x.cause(x.ctx.Err()) // ctx ends with a failure, too
	}
	x.header.Del("Content-Length")
	address, err := reach(x.ctx, list)
	if err != nil {
		return err
	}
	response, err := x.upstream(address, x.toEngine)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if x.gateway.options.NoResponse {
		x.finish()
		return x.pass(response)
	}
	return x.respond(response, address)
}

// requestHeaders is the first message.
func (x *exchange) requestHeaders(end bool) *pb.ProcessingRequest {
	o := &x.gateway.options
	pseudo := [][2]string{{":method", x.r.Method}, {":path", x.r.URL.RequestURI()}, {":authority", x.r.Host}, {":scheme", "http"}}
	m := &pb.ProcessingRequest{
		Request:         &pb.ProcessingRequest_RequestHeaders{RequestHeaders: &pb.HttpHeaders{Headers: headerMap(pseudo, x.header), EndOfStream: end}},
		MetadataContext: x.gateway.metadata(OnHeaders, ""),
	}
	if !o.NoProtocolConfig {
		m.ProtocolConfig = &pb.ProtocolConfiguration{RequestBodyMode: modeOf(o.Request), ResponseBodyMode: modeOf(o.Response)}
	}
	return m
}

// size is how many of n bytes are sent next: all, or at random 0 to n, mostly few.
func (x *exchange) size(n int) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.rng == nil || n == 0:
		return n
	case x.rng.IntN(2) == 0:
		return n
	case n > 64 && x.rng.IntN(2) == 0:
		return x.rng.IntN(64)
	}
	return x.rng.IntN(n + 1)
}

// upstream sends the request to its endpoint.
func (x *exchange) upstream(address string, body io.ReadCloser) (*http.Response, error) {
	out := &http.Request{
		Method: x.r.Method, URL: &url.URL{Scheme: "http", Host: address, Path: x.r.URL.Path, RawPath: x.r.URL.RawPath, RawQuery: x.r.URL.RawQuery},
		Host: x.r.Host, Header: x.header, Body: body, ContentLength: -1, Trailer: x.trailer,
	}
	if x.noBody {
		out.Body, out.ContentLength = http.NoBody, 0
	}
	response, err := x.gateway.transport.RoundTrip(out.WithContext(x.ctx))
	if err != nil {
		if cause := x.cause(nil); cause != nil {
			return nil, cause
		}
		if x.ctx.Err() != nil {
			return nil, err
		}
		reason := "connection termination"
		if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
			reason = "remote connection failure, transport failure reason: delayed connect error: Connection refused"
		}
		return localReply(http.StatusServiceUnavailable, "upstream connect error or disconnect/reset before headers. reset reason: "+reason), nil
	}
	return response, nil
}

// localReply is an answer of the gateway's own. The picker is shown it like an endpoint's.
func localReply(status int, text string) *http.Response {
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {"text/plain"}},
		Body: io.NopCloser(strings.NewReader(text)), ContentLength: int64(len(text)),
	}
}

// respond sends the answer to the picker and passes on what it returns.
func (x *exchange) respond(response *http.Response, served string) error {
	end := response.ContentLength == 0 || x.r.Method == http.MethodHead || response.StatusCode == http.StatusNoContent
	x.mu.Lock()
	x.response.shownHeaders = true
	x.mu.Unlock()
	header := endToEnd(response.Header)
	err := x.send(&pb.ProcessingRequest{
		Request: &pb.ProcessingRequest_ResponseHeaders{ResponseHeaders: &pb.HttpHeaders{
			Headers: headerMap([][2]string{{":status", strconv.Itoa(response.StatusCode)}}, header), EndOfStream: end,
		}},
		MetadataContext: x.gateway.metadata(0, served),
	})
	if err != nil {
		return x.cause(err)
	}
	select {
	case r := <-x.answerHead:
		if f := x.gateway.apply(header, r.GetHeaderMutation(), isOwn); f != nil {
			return f
		}
	case <-x.failed:
		return x.cause(nil)
	case <-x.ctx.Done():
		return x.cause(x.ctx.Err()) // ctx ends with a failure, too
	}
	if !fullDuplex(x.gateway.options.Response) {
		return x.lockstepAnswer(response, header, end, x.stepAmong)
	}
	header.Del("Content-Length")
	x.start(header, response.StatusCode)
	if end {
		return nil
	}
	sent := make(chan struct{})
	defer func() { <-sent }()
	go func() { defer close(sent); x.sendResponseBody(response) }()
	for {
		piece, err := x.toClient.next()
		if errors.Is(err, io.EOF) {
			x.trailers(response)
			return nil
		}
		if err != nil {
			x.cancel()
			return err
		}
		if _, err := x.w.Write(piece); err != nil {
			x.cancel()
			return err
		}
		_ = http.NewResponseController(x.w).Flush()
	}
}

// isOwn reports whether a picker can add a header to an answer.
func isOwn(name string) bool {
	return name == "x-request-id" || strings.HasPrefix(name, "x-kvasir-") || strings.HasPrefix(name, "x-ratelimit-")
}

func (x *exchange) start(header http.Header, status int) {
	for name, values := range header {
		x.w.Header()[name] = values
	}
	x.started = true
	x.w.WriteHeader(status)
	_ = http.NewResponseController(x.w).Flush()
}

func (x *exchange) trailers(response *http.Response) {
	for name, values := range response.Trailer {
		for _, v := range values {
			x.w.Header().Add(http.TrailerPrefix+name, v)
		}
	}
}

// sendResponseBody shows the answer piece by piece.
func (x *exchange) sendResponseBody(response *http.Response) {
	err := x.cut(response.Body, response.ContentLength, func() bool { return len(response.Trailer) > 0 }, func(piece []byte, end bool) error {
		x.mu.Lock()
		x.response.shownBody, x.response.shownEnd = true, end
		x.mu.Unlock()
		return x.send(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_ResponseBody{ResponseBody: &pb.HttpBody{Body: piece, EndOfStream: end}}})
	})
	switch {
	case err != nil: // the endpoint has aborted, or nothing can be sent
		x.toClient.end(err)
	case len(response.Trailer) > 0:
		x.mu.Lock()
		x.response.shownTrailers = true
		x.mu.Unlock()
		_ = x.send(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_ResponseTrailers{
			ResponseTrailers: &pb.HttpTrailers{Trailers: headerMap(nil, response.Trailer)},
		}})
	}
}

// stepAmong sends a piece of the answer and waits for its answer, while another goroutine receives.
func (x *exchange) stepAmong(m *pb.ProcessingRequest) (*pb.ProcessingResponse, error) {
	if err := x.send(m); err != nil {
		return nil, x.cause(err)
	}
	select {
	case a := <-x.bodyAnswer:
		return a, nil
	case <-x.failed:
		return nil, x.cause(nil)
	case <-x.ctx.Done():
		return nil, x.ctx.Err()
	}
}

func (x *exchange) send(m *pb.ProcessingRequest) error {
	x.sendMu.Lock()
	defer x.sendMu.Unlock()
	return x.stream.Send(m)
}

// receive reads the picker's answers until the end, whatever becomes of them.
func (x *exchange) receive() {
	defer close(x.received)
	for {
		if pause := x.gateway.options.ReadPause; pause > 0 {
			time.Sleep(pause)
		}
		m, err := x.stream.Recv()
		if err == nil {
			if f := x.answered(m); f != nil {
				x.fail(f)
				x.cancel()
				return
			}
			continue
		}
		x.mu.Lock()
		over := x.over
		x.mu.Unlock()
		switch {
		case over || x.ctx.Err() != nil:
			x.fail(err)
		case errors.Is(err, io.EOF):
			x.fail(x.gateway.violated("the picker ends the stream before the request has ended"))
		default:
			x.fail(&failure{status: http.StatusInternalServerError, why: "ext_proc: " + err.Error(), unreached: x.noBody})
		}
		return
	}
}

// fail keeps the first failure and shows it to all goroutines.
func (x *exchange) fail(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err == nil {
		x.err = err
		close(x.failed)
	}
	x.toEngine.end(err)
	x.toClient.end(err)
}

// cause is what has failed first, else err.
func (x *exchange) cause(err error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err != nil {
		return x.err
	}
	if err == nil {
		return nil
	}
	return &failure{status: http.StatusInternalServerError, why: "ext_proc: " + err.Error(), unreached: x.noBody}
}

// finish ends the stream: by a reset, or gracefully.
func (x *exchange) finish() {
	x.mu.Lock()
	over := x.over
	x.over = true
	x.mu.Unlock()
	if over {
		return
	}
	if !x.gateway.options.HalfClose {
		x.stop()
		return
	}
	x.sendMu.Lock()
	_ = x.stream.CloseSend()
	x.sendMu.Unlock()
}

// pass passes an answer on that the picker is not shown.
func (x *exchange) pass(response *http.Response) error {
	x.start(endToEnd(response.Header), response.StatusCode)
	if _, err := io.Copy(flushing{x.w}, response.Body); err != nil {
		return err
	}
	x.trailers(response)
	return nil
}

// flushing sends every write at once.
type flushing struct{ http.ResponseWriter }

func (f flushing) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p)
	_ = http.NewResponseController(f.ResponseWriter).Flush()
	return n, err
}

// direct sends a request to an endpoint without any picker.
func (x *exchange) direct(address string, body io.ReadCloser) error {
	response, err := x.upstream(address, body)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	return x.pass(response)
}
