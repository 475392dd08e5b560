package extproc

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// Gateways say which endpoint has served in metadata or in an attribute. A header of the answer says nothing, because the
// endpoint itself could have written it.
func TestGatewaysSayWhichEndpointHasServed(t *testing.T) {
	const a, b, c = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3" // no process listens
	said := func(key, value string) *structpb.Struct {
		return &structpb.Struct{Fields: map[string]*structpb.Value{key: structpb.NewStringValue(value)}}
	}
	metadata := func(m *pb.ProcessingRequest, address string) {
		m.MetadataContext = &core.Metadata{FilterMetadata: map[string]*structpb.Struct{destinationSpace: said(servedKey, address)}}
	}
	attribute := func(m *pb.ProcessingRequest, address string) {
		m.Attributes = map[string]*structpb.Struct{attributeSpace: said(upstreamAddress, address)}
	}
	attempts := func(n float64) func(*pb.ProcessingRequest, string) {
		return func(m *pb.ProcessingRequest, address string) {
			attribute(m, address)
			m.Attributes[attributeSpace].Fields[upstreamAttempts] = structpb.NewNumberValue(n)
		}
	}
	header := func(m *pb.ProcessingRequest, address string) {
		h := m.GetResponseHeaders().GetHeaders()
		h.Headers = append(h.Headers, &core.HeaderValue{Key: servedKey, RawValue: []byte(address)})
	}
	forged := func(m *pb.ProcessingRequest, address string) {
		attribute(m, address)
		h := m.GetResponseHeaders().GetHeaders()
		h.Headers = append(h.Headers, &core.HeaderValue{Key: "x-envoy-attempt-count", RawValue: []byte("2")})
	}
	for name, tc := range map[string]struct {
		say      func(*pb.ProcessingRequest, string)
		served   string
		list     bool
		want     picker.GatewayStats
		failures int64 // of the first endpoint
		alive    bool  // it listens
	}{
		"the pick, in metadata":                  {metadata, a, false, picker.GatewayStats{Reported: 1}, 0, false},
		"the pick, in an attribute":              {attribute, a, false, picker.GatewayStats{Reported: 1}, 0, false},
		"another of the list, in metadata":       {metadata, b, true, picker.GatewayStats{Reported: 1, Retried: 1}, 1, false},
		"another of the list, in an attribute":   {attribute, b, true, picker.GatewayStats{Reported: 1, Retried: 1}, 1, false},
		"the third of the list":                  {metadata, c, true, picker.GatewayStats{Reported: 1, Retried: 1}, 1, false},
		"the next of the list; the pick listens": {metadata, b, true, picker.GatewayStats{Reported: 1}, 0, true},
		"the next of the list, two attempts":     {attempts(2), b, true, picker.GatewayStats{Reported: 1, Retried: 1}, 0, true},
		"the next of the list, asked and dead":   {attempts(2), b, true, picker.GatewayStats{Reported: 1, Retried: 1}, 1, false},
		"the next of the list, one attempt":      {attempts(1), b, true, picker.GatewayStats{Reported: 1, Unfollowed: 1}, 0, true},
		"the next of the list, no attempt":       {attempts(0), b, true, picker.GatewayStats{Reported: 1}, 0, true},
		"the next of the list, no number":        {attempts(math.NaN()), b, true, picker.GatewayStats{Reported: 1}, 0, true},
		"the next of the list, less than none":   {attempts(-1e300), b, true, picker.GatewayStats{Reported: 1}, 0, true},
		"the next of the list, endless attempts": {attempts(math.Inf(1)), b, true, picker.GatewayStats{Reported: 1, Retried: 1}, 0, true},
		"attempts that the engine may have made": {forged, b, true, picker.GatewayStats{Reported: 1}, 0, true},
		"one that was not named":                 {metadata, b, false, picker.GatewayStats{Reported: 1, Unfollowed: 1}, 0, true},
		"one that was not named: a retry":        {metadata, b, false, picker.GatewayStats{Reported: 1, Retried: 1}, 1, false},
		"one of no pool":                         {attribute, "192.0.2.1:1", true, picker.GatewayStats{Reported: 1, Unfollowed: 1}, 0, false},
		"a header that the engine may have made": {header, b, true, picker.GatewayStats{}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			first := a
			if tc.alive {
				first = engine(t, says("ok"))
			}
			pool := spec(first, b, c)
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
			h.server.probes.running.Wait()
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

// sentElsewhere has a request that is picked for an endpoint answered by another one.
func (h *house) sentElsewhere(picked, other string) {
	h.t.Helper()
	var one *script
	for first := ""; first != picked; {
		one = h.script()
		if first = one.routed(completion); first != picked {
			one.cancel()
		}
	}
	m := responseHead(true, ":status", "200")
	m.Attributes = map[string]*structpb.Struct{attributeSpace: {Fields: map[string]*structpb.Value{upstreamAddress: structpb.NewStringValue(other)}}}
	one.send(m)
	one.receive()
	one.cancel()
}

// However many requests a gateway sends elsewhere, an endpoint is dialled once a second, and each request is judged by that.
func TestPassedEndpointsAreProbedOnceASecond(t *testing.T) {
	var dials atomic.Int64
	s := httptest.NewUnstartedServer(says("ok"))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			dials.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	picked, other := s.Listener.Addr().String(), "127.0.0.1:2"
	var now atomic.Int64
	h := newHouse(t, Options{Now: func() time.Time { return time.Unix(1000, now.Load()) }}, ServeOptions{}, spec(picked, other))
	elsewhere := func(n int) {
		t.Helper()
		for range n {
			h.sentElsewhere(picked, other)
		}
		h.server.probes.running.Wait()
	}
	for i, want := range []int64{1, 2} {
		elsewhere(5)
		eventually(t, fmt.Sprintf("%d dials", want), func() bool { return dials.Load() == want })
		if n := h.picker.Stats()[0].Gateways[0].Unfollowed; n != int64(5*(i+1)) {
			t.Errorf("%d requests count as sent elsewhere, want %d", n, 5*(i+1))
		}
		now.Add(int64(probeEvery))
	}
	if n := dials.Load(); n != 2 {
		t.Errorf("%d dials, want 2", n)
	}
}

// An endpoint whose connections get no answer at all is dead, if that is so again and again and the endpoint that has answered
// in its place can be reached. Otherwise the picker's own network might be the reason.
func TestEndpointsThatAnswerNoConnectionAreDeadInTheEnd(t *testing.T) {
	const picked, other = "127.0.0.1:1", "127.0.0.1:2"
	for name, tc := range map[string]struct {
		finds    []reach // at the picked endpoint
		every    time.Duration
		other    reach
		failures int64 // of the picked endpoint, in the end
	}{
		"no answer":                         {[]reach{silent, silent, silent, silent}, probeEvery, listens, 2},
		"no answer, too few times":          {[]reach{silent, silent}, probeEvery, listens, 0},
		"an answer between":                 {[]reach{silent, silent, listens, silent, silent}, probeEvery, listens, 0},
		"no answer, at long intervals":      {[]reach{silent, silent, silent, silent}, silentFor + 1, listens, 0},
		"no answer from any":                {[]reach{silent, silent, silent, silent}, probeEvery, silent, 0},
		"the other one refuses":             {[]reach{silent, silent, silent, silent}, probeEvery, refuses, 0},
		"endpoints that cannot be asked":    {[]reach{unsure, unsure, unsure, unsure}, probeEvery, listens, 0},
		"refused, and then no answer":       {[]reach{refuses, silent, silent, silent}, probeEvery, listens, 2},
		"dead, and then an answer, at last": {[]reach{silent, silent, silent, listens, silent}, probeEvery, listens, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var now atomic.Int64
			h := newHouse(t, Options{Now: func() time.Time { return time.Unix(1000, now.Load()) }}, ServeOptions{}, spec(picked, other))
			probes := make(chan reach, 1)
			h.server.probes.dial = func(_ context.Context, address string) reach {
				if address == other {
					return tc.other
				}
				return <-probes
			}
			for _, found := range tc.finds {
				probes <- found
				h.sentElsewhere(picked, other)
				h.server.probes.running.Wait()
				now.Add(int64(tc.every))
			}
			s := h.picker.Stats()[0]
			if n := s.Endpoints[0].Failures; n != tc.failures || s.Gateways[0].Retried != n {
				t.Errorf("%d failures, %+v, want %d", n, s.Gateways[0], tc.failures)
			}
		})
	}
}

// What is remembered and waits for probes is bounded.
func TestProbesAreBounded(t *testing.T) {
	at := time.Unix(1000, 0)
	p := probes{all: map[string]*probe{}}
	for i := range maxProbed {
		p.all[fmt.Sprint(i)] = &probe{at: at, done: i > 0}
	}
	if p.room(at) {
		t.Error("more endpoints are remembered")
	}
	if !p.room(at.Add(probeEvery)) || len(p.all) != 1 {
		t.Errorf("%d endpoints are remembered after their time, want the one under way", len(p.all))
	}
}

// A gateway that holds a streamed answer back until it is complete shows all its events in the first message. So does every
// gateway with a short or fast answer, which says nothing.
func TestBufferedStreamsAreNoticed(t *testing.T) {
	const event = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n"
	events := func(n int) string { return strings.Repeat(event, n-1) + "data: [DONE]\n\n" }
	trailers := func() *pb.ProcessingRequest {
		return &pb.ProcessingRequest{Request: &pb.ProcessingRequest_ResponseTrailers{ResponseTrailers: &pb.HttpTrailers{}}}
	}
	for name, tc := range map[string]struct {
		contentType       string
		after             time.Duration
		pieces            []*pb.ProcessingRequest
		streams, buffered int64
	}{
		"held back":                       {"text/event-stream", heldFor, []*pb.ProcessingRequest{responsePiece(events(heldEvents), true)}, 1, 1},
		"held back, and trailers":         {"text/event-stream", heldFor, []*pb.ProcessingRequest{responsePiece(events(heldEvents), false), trailers()}, 1, 1},
		"few events":                      {"text/event-stream", time.Hour, []*pb.ProcessingRequest{responsePiece(events(heldEvents-1), true)}, 0, 0},
		"few events, and trailers":        {"text/event-stream", time.Hour, []*pb.ProcessingRequest{responsePiece(events(heldEvents-1), false), trailers()}, 0, 0},
		"a fast engine":                   {"text/event-stream", heldFor - 1, []*pb.ProcessingRequest{responsePiece(events(1000), true)}, 0, 0},
		"a fast engine, and trailers":     {"text/event-stream", heldFor - 1, []*pb.ProcessingRequest{responsePiece(events(1000), false), trailers()}, 0, 0},
		"as it comes":                     {"text/event-stream", time.Hour, []*pb.ProcessingRequest{responsePiece(event, false), responsePiece(event, false), responsePiece("", true)}, 1, 0},
		"as it comes, and trailers":       {"text/event-stream", time.Hour, []*pb.ProcessingRequest{responsePiece(events(9), false), responsePiece(event, false), trailers()}, 1, 0},
		"all at once, and then the end":   {"text/event-stream", time.Hour, []*pb.ProcessingRequest{responsePiece(events(9), false), responsePiece("", true)}, 0, 0},
		"JSON, which comes as one anyway": {"application/json", time.Hour, []*pb.ProcessingRequest{responsePiece(events(9), true)}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var past atomic.Int64
			h := newHouse(t, Options{Now: func() time.Time { return time.Unix(1000, past.Load()) }}, ServeOptions{}, spec("127.0.0.1:1"))
			s := h.script()
			s.routed(completion)
			s.send(responseHead(false, ":status", "200", "content-type", tc.contentType))
			s.receive()
			past.Add(int64(tc.after))
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
