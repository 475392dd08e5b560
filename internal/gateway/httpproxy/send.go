package httpproxy

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// send sends the request to the present target.
func (e *exchange) send(ctx context.Context) (*http.Response, error) {
	if e.handed != nil {
		return e.sendBody(ctx, e.handed.body)
	}
	return e.sendBody(ctx, e.body)
}

// sendBody sends the request with a body to the present target.
func (e *exchange) sendBody(ctx context.Context, body *body) (*http.Response, error) {
	ep := e.decision.Targets[e.attempt].Endpoint
	e.taken = new(atomic.Bool)
	r := e.outgoing(ctx, e.headerFor(e.decision, ep), body)
	_ = r.Body.Close()
	r.Body = body.reader(e.taken)
	r.GetBody = func() (io.ReadCloser, error) { // the engine has not received it
		e.taken = new(atomic.Bool) // net/http can still read the body before
		return body.reader(e.taken), nil
	}
	return e.proxy.engines.RoundTrip(r, ep)
}

// headerFor is the header of the request to an endpoint of a decision.
func (e *exchange) headerFor(d *picker.Decision, ep *endpoint.Endpoint) http.Header {
	header := requestHeader(e.request, ep, e.client.engineID, d)
	if e.asksUsage || d.Leg() == picker.PrefillLeg || d.CountsTokens() {
		header["Accept-Encoding"] = []string{"identity"} // nothing can be taken out of a compressed answer, or counted
	}
	if span := e.client.span; span != nil {
		delete(header, "Tracestate") // of a context that cannot be read
		span.Inject(func(name, value string) { header[http.CanonicalHeaderKey(name)] = []string{value} })
	}
	return header
}

// outgoing is the request with a body.
func (e *exchange) outgoing(ctx context.Context, header http.Header, body *body) *http.Request {
	r := &http.Request{
		Method: e.request.Method, URL: upstreamURL(e.request.URL), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: body.reader(new(atomic.Bool)), ContentLength: int64(len(body.Bytes)),
		GetBody: func() (io.ReadCloser, error) { return body.reader(new(atomic.Bool)), nil },
	}
	return r.WithContext(ctx)
}
