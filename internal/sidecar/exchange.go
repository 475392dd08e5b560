package sidecar

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/relay"
)

// exchange is one request.
type exchange struct {
	server  *Server
	w       http.ResponseWriter
	control *http.ResponseController
	r       *http.Request
	// body is the request's, nil for none. If rest is not nil, it follows.
	body *held
	rest io.Reader
	// report is that of a request with a ticket; nil without one.
	report  *relay.Report
	sent    time.Time // the second leg; zero without one
	writeBy time.Time // the present deadline
}

// How much of a body is allocated before it arrives, if its length is not known, and at most.
const (
	readAhead = 16 << 10
	mostAhead = 64 << 10
)

// hold reads the body of the request, so that it can be sent again after a connection that the engine was about to close, and handed over.
// If there is no room for it, it passes as it arrives.
func (x *exchange) hold() {
	r := x.r
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return
	}
	size := int(min(r.ContentLength, mostAhead))
	if size < 0 {
		size = readAhead
	}
	if max(r.ContentLength, int64(size)) <= x.server.options.MaxBody {
		x.body = x.server.newHeld(size)
	}
	if x.body == nil {
		x.rest = r.Body
		return
	}
	for {
		if b := x.body.bytes; len(b) == cap(b) && int64(len(b)) != r.ContentLength && !x.grow() {
			x.rest = r.Body
			return
		}
		_ = x.control.SetReadDeadline(time.Now().Add(x.server.options.Stall))
		b := x.body.bytes
		n, err := r.Body.Read(b[len(b):cap(b)])
		x.body.bytes = b[:len(b)+n]
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			panic(http.ErrAbortHandler) // the client has left, or is too slow
		}
	}
	_ = x.control.SetReadDeadline(time.Time{})
}

// grow makes room for more of a body.
func (x *exchange) grow() bool {
	size := 2 * cap(x.body.bytes)
	if length := x.r.ContentLength; length >= 0 {
		size = int(min(int64(size), length))
	}
	if int64(size) > x.server.options.MaxBody {
		return false
	}
	more := x.body.grown(size)
	if more != nil {
		x.body = more
	}
	return more != nil
}

// pass sends the request to the pod's engine, and the answer to the client.
func (x *exchange) pass() {
	if x.report != nil && x.report.Outcome == "" {
		x.report.Outcome, x.report.Cause = relay.Refused, cmp.Or(x.report.Cause, relay.CauseRequest)
	}
	engine, _ := x.server.ends()
	answer, err := x.send(x.r.Context(), &engine, x.r.Header, x.r.Host, x.body)
	if err != nil {
		x.abort(err)
		return
	}
	defer func() { _ = answer.Body.Close() }()
	x.begin(answer)
	x.copy(answer, answer.ContentLength)
}

// send sends the request with a header and a body, which the rest of the request's body follows, to an engine.
func (x *exchange) send(ctx context.Context, to *endpoint.Endpoint, header http.Header, host string, body *held) (*http.Response, error) {
	if _, ok := header["User-Agent"]; !ok {
		header["User-Agent"] = nil // else net/http would add its own
	}
	delete(header, "Expect")
	delete(header, "Content-Length")
	out := &http.Request{
		Method: x.r.Method, URL: targetOf(x.r), Host: host,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: header,
	}
	switch {
	case x.rest != nil:
		out.ContentLength = x.r.ContentLength
		out.Body = x.unheld()
	case body != nil && len(body.bytes) > 0:
		out.ContentLength = int64(len(body.bytes))
		out.GetBody = func() (io.ReadCloser, error) { return body.reader(), nil }
		out.Body = body.reader()
	}
	return x.server.engines.RoundTrip(out.WithContext(ctx), to)
}

// unheld is a body that is not held, or only its beginning.
func (x *exchange) unheld() io.ReadCloser {
	if x.body == nil {
		return io.NopCloser(&patient{x})
	}
	begin := x.body.reader()
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(begin, &patient{x}), begin}
}

// targetOf is the target of a request as it was received: what is written in another way can mean something else to the engine.
func targetOf(r *http.Request) *url.URL {
	u := &url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery, ForceQuery: r.URL.ForceQuery}
	if path, _, _ := strings.Cut(r.RequestURI, "?"); strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "//") {
		u.Opaque = path
	}
	return u
}

// patient reads what is left of the client's body, which must go on arriving.
type patient struct{ x *exchange }

// Read implements io.Reader.
func (p *patient) Read(b []byte) (int, error) {
	_ = p.x.control.SetReadDeadline(time.Now().Add(p.x.server.options.Stall))
	n, err := p.x.rest.Read(b)
	if err != nil {
		_ = p.x.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// begin sends the header of an answer.
func (x *exchange) begin(answer *http.Response) {
	h := x.w.Header()
	dropHops(answer.Header)
	for name, values := range answer.Header {
		h[name] = values
	}
	for _, name := range []string{"Date", "Content-Type"} {
		if _, ok := h[name]; !ok {
			h[name] = nil // else net/http would add its own
		}
	}
	x.tell()
	x.w.WriteHeader(answer.StatusCode)
}

// tell puts the report into the answer's header.
func (x *exchange) tell() {
	h := x.w.Header()
	delete(h, reportHeader)
	if x.report == nil {
		return
	}
	if !x.sent.IsZero() {
		x.report.Since = max(x.server.options.Now().Sub(x.sent), time.Microsecond)
	}
	x.server.counts.handoff(x.report.Outcome)
	h[reportHeader] = []string{x.report.String()}
}

var buffers = sync.Pool{New: func() any { return new([16 << 10]byte) }}

// copy sends the body of an answer as it arrives. left is how many bytes it has, -1 if that is not known.
func (x *exchange) copy(answer *http.Response, left int64) {
	buf := buffers.Get().(*[16 << 10]byte)
	defer buffers.Put(buf)
	if left < 0 {
		x.flush() // clients see that it has begun
	}
	for {
		n, err := answer.Body.Read(buf[:])
		left -= int64(n)
		if n > 0 && !x.write(buf[:n], left != 0) {
			return
		}
		if errors.Is(err, io.EOF) {
			for name, values := range answer.Trailer {
				x.w.Header()[http.TrailerPrefix+name] = values
			}
			return
		}
		if err != nil {
			x.abort(err)
		}
	}
}

// write sends a piece of the answer. It reports false if the client has gone.
func (x *exchange) write(p []byte, flush bool) bool {
	x.beforeWrite()
	if _, err := x.w.Write(p); err != nil {
		return false
	}
	return !flush || x.control.Flush() == nil
}

func (x *exchange) flush() {
	x.beforeWrite()
	_ = x.control.Flush()
}

// beforeWrite bounds the writes that follow by the stall time, give or take a quarter.
func (x *exchange) beforeWrite() {
	now := time.Now()
	if stall := x.server.options.Stall; x.writeBy.Sub(now) <= stall*3/4 {
		x.writeBy = now.Add(stall)
		_ = x.control.SetWriteDeadline(x.writeBy)
	}
}

// abort breaks the connection to the client, as the engine has broken or refused its own: what a gateway does when an engine is dead
// depends on whether it has answered.
func (x *exchange) abort(err error) {
	x.server.noteRefusal(err)
	if x.r.Context().Err() == nil {
		x.server.counts.broken.Add(1)
		x.server.options.Log.V(1).Info("Engine has not answered, or not to the end", "reason", err.Error())
	}
	panic(http.ErrAbortHandler)
}

// refuse answers in place of an engine.
func (x *exchange) refuse(status int, kind, message string) {
	body := openai.AppendError(nil, status, kind, "", message)
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Connection", "close") // the body of the request is not read
	x.w.WriteHeader(status)
	if !strings.EqualFold(x.r.Method, http.MethodHead) {
		_, _ = x.w.Write(body)
	}
}
