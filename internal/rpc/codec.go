package rpc

import (
	"fmt"
	"reflect"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers what codec uses
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/kvasir-dev/kvasir/internal/protosize"
)

const (
	// maxDecoded bounds what a message takes when it is decoded, in bytes: one of maxMessage could take 50 times as much. Changes and
	// updates are sent in parts of 256 KiB.
	maxDecoded = 16 << 20
	// maxFirst is the same of the first message of a stream, which says what its client is.
	maxFirst = 64 << 10
)

// codec decodes messages of bounded size.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Unmarshal decodes a message, unless it would take too much memory.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	most := int64(maxDecoded)
	if f, ok := v.(first); ok {
		v, most = f.message, maxFirst
	}
	raw := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer raw.Free()
	if m, ok := v.(proto.Message); ok {
		if _, within := shapeOf(m).Decoded(raw.ReadOnlyData(), most); !within {
			return fmt.Errorf("a message of %d bytes would take more than %d bytes of memory when it is decoded", raw.Len(), most)
		}
	}
	return c.CodecV2.Unmarshal(mem.BufferSlice{raw}, v)
}

// shapes are those of messages, by type.
var shapes sync.Map

func shapeOf(m proto.Message) *protosize.Shape {
	kind := reflect.TypeOf(m)
	s, ok := shapes.Load(kind)
	if !ok {
		s, _ = shapes.LoadOrStore(kind, protosize.Of(m))
	}
	return s.(*protosize.Shape)
}

// first is a message that must be small.
type first struct{ message any }

// stream receives a small first message.
type stream struct {
	grpc.ServerStream
	begun bool
}

// RecvMsg receives a message.
func (s *stream) RecvMsg(m any) error {
	if !s.begun {
		s.begun = true
		return s.ServerStream.RecvMsg(first{m})
	}
	return s.ServerStream.RecvMsg(m)
}
