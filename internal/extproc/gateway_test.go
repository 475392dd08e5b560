package extproc

import (
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// Gateways say which endpoint has served in metadata or in an attribute. A header of the answer says nothing, because the
// endpoint itself could have written it.
func TestGatewaysSayWhichEndpointHasServed(t *testing.T) {
	const a, b, c = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"
	said := func(key, value string) *structpb.Struct {
		return &structpb.Struct{Fields: map[string]*structpb.Value{key: structpb.NewStringValue(value)}}
	}
	metadata := func(m *pb.ProcessingRequest, address string) {
		m.MetadataContext = &core.Metadata{FilterMetadata: map[string]*structpb.Struct{destinationSpace: said(servedKey, address)}}
	}
	attribute := func(m *pb.ProcessingRequest, address string) {
		m.Attributes = map[string]*structpb.Struct{attributeSpace: said(upstreamAddress, address)}
	}
	header := func(m *pb.ProcessingRequest, address string) {
		h := m.GetResponseHeaders().GetHeaders()
		h.Headers = append(h.Headers, &core.HeaderValue{Key: servedKey, RawValue: []byte(address)})
	}
	for name, tc := range map[string]struct {
		say      func(*pb.ProcessingRequest, string)
		served   string
		list     bool
		want     picker.GatewayStats
		failures int64 // of the first endpoint
	}{
		"the pick, in metadata":                  {metadata, a, false, picker.GatewayStats{Told: 1}, 0},
		"the pick, in an attribute":              {attribute, a, false, picker.GatewayStats{Told: 1}, 0},
		"another of the list, in metadata":       {metadata, b, true, picker.GatewayStats{Told: 1, Retried: 1}, 1},
		"another of the list, in an attribute":   {attribute, b, true, picker.GatewayStats{Told: 1, Retried: 1}, 1},
		"the third of the list":                  {metadata, c, true, picker.GatewayStats{Told: 1, Retried: 1}, 1},
		"one that was not named":                 {metadata, b, false, picker.GatewayStats{Told: 1, Unfollowed: 1}, 0},
		"one of no pool":                         {attribute, "192.0.2.1:1", true, picker.GatewayStats{Told: 1, Unfollowed: 1}, 0},
		"a header that the engine may have made": {header, b, true, picker.GatewayStats{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			pool := spec(a, b, c)
			pool.OrderedDestinations = tc.list
			h := newHouse(t, Options{}, ServeOptions{}, pool)
			s := h.script()
			s.routed(completion)
			m := responseHead(true, ":status", "200")
			tc.say(m, tc.served)
			s.send(m)
			s.receive()
			s.cancel()
			h.outcomes(map[picker.Outcome]int64{picker.Completed: 1})
			stats := h.picker.Stats()[0]
			got := picker.GatewayStats{}
			if len(stats.Gateways) > 0 {
				got = stats.Gateways[0]
				tc.want.Gateway = "127.0.0.1"
			}
			if got != tc.want || stats.Endpoints[0].Failures != tc.failures {
				t.Errorf("%+v, %d failures, want %+v, %d", got, stats.Endpoints[0].Failures, tc.want, tc.failures)
			}
		})
	}
}

// A gateway that holds a streamed answer back until it is complete shows all its events in the first message, with the
// end.
func TestBufferedStreamsAreNoticed(t *testing.T) {
	const event = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n"
	for name, tc := range map[string]struct {
		contentType       string
		pieces            []*pb.ProcessingRequest
		streams, buffered int64
	}{
		"held back":                       {"text/event-stream", []*pb.ProcessingRequest{responsePiece(event+event+"data: [DONE]\n\n", true)}, 1, 1},
		"as it comes":                     {"text/event-stream", []*pb.ProcessingRequest{responsePiece(event, false), responsePiece(event, false), responsePiece("", true)}, 1, 0},
		"all at once, and then the end":   {"text/event-stream", []*pb.ProcessingRequest{responsePiece(event+event, false), responsePiece("", true)}, 0, 0},
		"one event, which says nothing":   {"text/event-stream", []*pb.ProcessingRequest{responsePiece(event, true)}, 0, 0},
		"JSON, which comes as one anyway": {"application/json", []*pb.ProcessingRequest{responsePiece(event+event, true)}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"))
			s := h.script()
			s.routed(completion)
			s.send(responseHead(false, ":status", "200", "content-type", tc.contentType))
			s.receive()
			for _, m := range tc.pieces {
				s.send(m)
				s.receive()
			}
			s.cancel()
			h.outcomes(map[picker.Outcome]int64{picker.Completed: 1})
			var got picker.GatewayStats
			if all := h.picker.Stats()[0].Gateways; len(all) > 0 {
				got = all[0]
			}
			if got.Streams != tc.streams || got.Buffered != tc.buffered {
				t.Errorf("%+v, want %d streams, %d of them buffered", got, tc.streams, tc.buffered)
			}
		})
	}
}
