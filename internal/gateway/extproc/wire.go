package extproc

import (
	"slices"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/encoding/protowire"
)

// The messages that nearly all bytes are in, pieces of bodies, are read and written by hand, where they lie. Field numbers
// are those of external_processor.proto and struct.proto.
const (
	// requestBodyField and responseBodyField are bodies in a ProcessingRequest. In a ProcessingResponse their numbers are
	// one less.
	requestBodyField  = 4
	responseBodyField = 5
	// firstRequestField to lastRequestField are what a ProcessingRequest has one of: headers, bodies and trailers.
	firstRequestField, lastRequestField = 2, 7

	dynamicMetadataField = 8 // in a ProcessingResponse
)

// piece is a piece of a body.
type piece struct {
	bytes []byte
	end   bool // it is the last
}

func pieceOf(b *pb.HttpBody) piece { return piece{b.GetBody(), b.GetEndOfStream()} }

// pieceIn reads a ProcessingRequest that has a piece of a body, once, and no header or trailer. kind is requestBodyField or
// responseBodyField. rest is what else the message has: gateways can be configured to send metadata with each. The piece lies in raw. ok is
// false for all other messages, and for what cannot be read, which is for the library.
func pieceIn(raw []byte) (kind protowire.Number, p piece, rest []byte, ok bool) {
	var before, body []byte
	for at := 0; at < len(raw); {
		field, form, n := protowire.ConsumeTag(raw[at:])
		if n < 0 {
			return 0, piece{}, nil, false
		}
		m := protowire.ConsumeFieldValue(field, form, raw[at+n:])
		switch {
		case m < 0:
			return 0, piece{}, nil, false
		case (field == requestBodyField || field == responseBodyField) && form == protowire.BytesType && kind == 0:
			kind, before, rest = field, raw[:at], raw[at+n+m:]
			body, _ = protowire.ConsumeBytes(raw[at+n:])
		case field >= firstRequestField && field <= lastRequestField:
			return 0, piece{}, nil, false
		}
		at += n + m
	}
	if p, ok = bodyIn(body); !ok || kind == 0 {
		return 0, piece{}, nil, false
	}
	if len(before) > 0 {
		rest = slices.Concat(before, rest)
	}
	return kind, p, rest, true
}

// bodyIn reads a HttpBody.
func bodyIn(raw []byte) (p piece, ok bool) {
	for len(raw) > 0 {
		field, form, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return piece{}, false
		}
		raw = raw[n:]
		switch {
		case field == 1 && form == protowire.BytesType: // body
			p.bytes, n = protowire.ConsumeBytes(raw)
		case field == 2 && form == protowire.VarintType: // end_of_stream
			var v uint64
			v, n = protowire.ConsumeVarint(raw)
			p.end = protowire.DecodeBool(v)
		default:
			n = protowire.ConsumeFieldValue(field, form, raw)
		}
		if n < 0 {
			return piece{}, false
		}
		raw = raw[n:]
	}
	return p, true
}

// streamed is what precedes and follows a piece of a body in the answer to one of its kind, in the one form that
// full-duplex mode takes:
//
//	ProcessingResponse{BodyResponse{response: CommonResponse{body_mutation: {streamed_response: {body, end_of_stream}}}}}
func streamed(kind protowire.Number, size int, end bool) (head, tail []byte) {
	innermost := 0
	if size > 0 {
		innermost = protowire.SizeTag(1) + protowire.SizeBytes(size)
	}
	if end {
		tail = streamEnd
		innermost += len(tail)
	}
	sizes := [4]int{innermost, 0, 0, 0} // of StreamedBodyResponse, BodyMutation, CommonResponse, BodyResponse
	for i := range 3 {
		sizes[i+1] = protowire.SizeTag(1) + protowire.SizeBytes(sizes[i])
	}
	head = make([]byte, 0, 40)
	for i, field := range [4]protowire.Number{kind - 1, 1, 3, 3} { // and response, body_mutation, streamed_response
		head = protowire.AppendTag(head, field, protowire.BytesType)
		head = protowire.AppendVarint(head, uint64(sizes[3-i]))
	}
	if size > 0 {
		head = protowire.AppendTag(head, 1, protowire.BytesType)
		head = protowire.AppendVarint(head, uint64(size))
	}
	return head, tail
}

// streamEnd is end_of_stream: true.
var streamEnd = []byte{2<<3 | byte(protowire.VarintType), 1}

// destinationMetadata is the field dynamic_metadata of an answer that names the destination of a request, for gateways that
// read metadata and not headers: {"envoy.lb": {"x-gateway-destination-endpoint": destination}}.
func destinationMetadata(destination string) []byte {
	value := nested(nil, 3, []byte(destination)) // string_value
	inner := appendEntry(nil, destinationHeader, value)
	outer := appendEntry(nil, destinationSpace, nested(nil, 5, inner)) // struct_value
	return nested(nil, dynamicMetadataField, outer)
}

// appendEntry appends an entry of a Struct's fields.
func appendEntry(b []byte, key string, value []byte) []byte {
	return nested(b, 1, nested(nested(nil, 1, []byte(key)), 2, value))
}

// nested appends a field of bytes.
func nested(b []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), value)
}
