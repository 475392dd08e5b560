package extproc

import (
	"bytes"
	"slices"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// What is written by hand is what the library writes.
func TestPiecesAreWrittenAsTheLibraryDoes(t *testing.T) {
	for _, size := range []int{0, 1, 100, 127, 128, 16383, 16384, maxChunk} {
		for _, end := range []bool{false, true} {
			body := bytes.Repeat([]byte("x"), size)
			common := &pb.CommonResponse{BodyMutation: &pb.BodyMutation{Mutation: &pb.BodyMutation_StreamedResponse{
				StreamedResponse: &pb.StreamedBodyResponse{Body: body, EndOfStream: end},
			}}}
			for kind, m := range map[protowire.Number]*pb.ProcessingResponse{
				requestBodyField: requestBodyAnswer(common), responseBodyField: responseBodyAnswer(common),
			} {
				want, err := proto.Marshal(m)
				if err != nil {
					t.Fatal(err)
				}
				head, tail := streamed(kind, size, end)
				if got := slices.Concat(head, body, tail); !bytes.Equal(got, want) {
					t.Errorf("%d bytes, end %v: %x, want %x", size, end, got[:min(len(got), 40)], want[:min(len(want), 40)])
				}
			}
		}
	}
	want := &pb.ProcessingResponse{DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{
		destinationSpace: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			destinationHeader: structpb.NewStringValue("[::1]:8000,10.0.0.1:80"),
		}}),
	}}}
	var got pb.ProcessingResponse
	if err := proto.Unmarshal(destinationMetadata("[::1]:8000,10.0.0.1:80"), &got); err != nil || !proto.Equal(&got, want) {
		t.Errorf("metadata %v, %v", &got, err)
	}
}

// FuzzPieces: a message that is read by hand is one that the library reads, to the same piece.
func FuzzPieces(f *testing.F) {
	for _, m := range []*pb.ProcessingRequest{
		requestPiece("body", false), responsePiece("", true), requestHead(true, post...), {},
		{Request: requestPiece("x", true).GetRequest(), MetadataContext: &core.Metadata{}},
	} {
		raw, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		kind, p, rest, ok := pieceIn(raw)
		if !ok {
			return
		}
		var m pb.ProcessingRequest
		if err := proto.Unmarshal(raw, &m); err != nil {
			return // unknown fields that are not as they should be
		}
		b := m.GetRequestBody()
		if kind == responseBodyField {
			b = m.GetResponseBody()
		}
		if !bytes.Equal(b.GetBody(), p.bytes) || b.GetEndOfStream() != p.end {
			t.Errorf("%v, want %v", p, b)
		}
		var other pb.ProcessingRequest
		m.Request = nil
		if err := proto.Unmarshal(rest, &other); err != nil || !proto.Equal(&other, &m) {
			t.Errorf("beside the piece: %v, %v, want %v", &other, err, &m)
		}
	})
	for _, m := range []*pb.ProcessingRequest{
		requestPiece("body", true), responsePiece("", false), withSubset(requestPiece("x", true), list("10.0.0.1:80")),
	} {
		raw, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		if _, _, _, ok := pieceIn(raw); !ok {
			f.Errorf("not read by hand: %v", m)
		}
	}
}
