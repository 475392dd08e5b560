package extproc

import (
	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// bodyMode is how a gateway shows bodies.
type bodyMode uint8

const (
	// fullDuplex gateways send a body without waiting, keep nothing of it, and take a body back in its place. Gateways that
	// do not announce a mode are treated as such.
	fullDuplex bodyMode = iota
	// buffered gateways wait for the answer to the headers, then send the body in one piece and take changes of the headers
	// with its answer.
	buffered
	// partial is buffered, but the body might be truncated.
	partial
	// unseen bodies are not shown, or only after the last moment at which an endpoint can be named.
	unseen
)

func requestMode(c *pb.ProtocolConfiguration) bodyMode {
	if c == nil {
		return fullDuplex
	}
	switch c.GetRequestBodyMode() {
	case filter.ProcessingMode_BUFFERED:
		return buffered
	case filter.ProcessingMode_BUFFERED_PARTIAL:
		return partial
	case filter.ProcessingMode_NONE, filter.ProcessingMode_STREAMED:
		return unseen
	}
	return fullDuplex
}

// bodyless reports whether a gateway shows at most the headers of answers. An answer is then judged by them.
func bodyless(c *pb.ProtocolConfiguration) bool {
	return c != nil && c.GetResponseBodyMode() == filter.ProcessingMode_NONE
}

// echoes reports whether a gateway takes the answer's body back in place of what it has sent.
func echoes(c *pb.ProtocolConfiguration) bool {
	switch c.GetResponseBodyMode() {
	case filter.ProcessingMode_FULL_DUPLEX_STREAMED, filter.ProcessingMode_GRPC:
		return true
	}
	return c == nil
}
