package envoytest

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// sendRequestBody shows the body piece by piece, without waiting for anything.
func (x *exchange) sendRequestBody() {
	var last *pb.ProcessingRequest
	var unsent error
	show := func(piece []byte, end bool) error {
		x.mu.Lock()
		x.request.shownBody, x.request.shownEnd = true, end
		x.mu.Unlock()
		last = &pb.ProcessingRequest{
			Request:         &pb.ProcessingRequest_RequestBody{RequestBody: &pb.HttpBody{Body: piece, EndOfStream: end}},
			MetadataContext: x.gateway.metadata(OnBody, ""),
		}
		unsent = x.send(last)
		return unsent
	}
	err := x.cut(noticed{x.r.Body, &x.bodyRead}, x.r.ContentLength, func() bool { return len(x.r.Trailer) > 0 }, show)
	switch {
	case unsent != nil: // receive learns why the stream has ended
	case err != nil:
		if !x.toEngine.ended() {
			x.cancel() // the client has gone
		}
	case len(x.r.Trailer) > 0:
		x.mu.Lock()
		x.request.shownTrailers = true
		x.mu.Unlock()
		_ = x.send(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_RequestTrailers{
			RequestTrailers: &pb.HttpTrailers{Trailers: headerMap(nil, x.r.Trailer)},
		}})
	case x.gateway.options.DuplicateEnd:
		_ = x.send(last)
	}
}

// cut reads a body of a length, -1 if that is not known, and shows it in pieces, and the last piece ends it
// unless there are trailers.
func (x *exchange) cut(body io.Reader, length int64, trailers func() bool, show func(piece []byte, end bool) error) error {
	for buf := make([]byte, 64<<10); ; {
		n, err := body.Read(buf)
		length -= int64(n)
		piece := append([]byte(nil), buf[:n]...)
		for len(piece) > 0 {
			size := x.size(len(piece))
			end := length == 0 && size == len(piece) && x.size(2) == 1 && !trailers()
			if err := show(piece[:size], end); err != nil {
				return err
			}
			if end {
				_, err := body.Read(buf) // so that the end is seen
				if errors.Is(err, io.EOF) {
					return nil
				}
				return err
			}
			piece = piece[size:]
		}
		switch {
		case errors.Is(err, io.EOF) && trailers():
			return nil
		case errors.Is(err, io.EOF):
			return show(nil, true)
		case err != nil:
			return err
		}
	}
}

// stopReading ends the sender of the body when the request has ended without it. At the end of a body net/http begins to wait for the
// client to go away, and takes a deadline that passes then for it, for all later requests on the connection: so there is none.
func (x *exchange) stopReading(sent <-chan struct{}) {
	select {
	case <-sent:
		return
	default:
	}
	if !x.bodyRead.Load() {
		control := http.NewResponseController(x.w)
		_ = control.SetReadDeadline(time.Unix(1, 0))
		defer func() { _ = control.SetReadDeadline(time.Time{}) }()
	}
	<-sent
}

// noticed notices the end of a body.
type noticed struct {
	io.Reader
	end *atomic.Bool
}

func (n noticed) Read(p []byte) (int, error) {
	size, err := n.Reader.Read(p)
	if err != nil {
		n.end.Store(true)
	}
	return size, err
}
