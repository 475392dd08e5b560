package extproc

import (
	"testing"
	"time"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// holding is a pool that holds requests while no endpoint serves.
func holding(addresses ...string) picker.Spec {
	s := spec(addresses...)
	s.Policy.Admission = picker.AdmissionSpec{
		Queue: true, WaitBudget: time.Second,
		Limits: admission.Limits{Requests: 10, Bytes: 1 << 30, TTL: time.Minute, Hold: time.Minute},
	}
	return s
}

// A pool that is scaled to zero, still loading or asleep holds the requests of gateways as it holds those of its proxy. A
// restriction to a subset that no endpoint will ever be in is refused at once.
func TestGatewaysRequestsAreHeldWhileNoEndpointServes(t *testing.T) {
	const a, b = "127.0.0.1:1", "127.0.0.1:2"
	loading := func(addresses ...string) picker.Spec {
		s := holding(addresses...)
		for i := range s.Endpoints {
			s.Endpoints[i].Ready = false
		}
		return s
	}
	half := loading(a, b)
	half.Endpoints[1].Ready = true
	waking := holding(a, b)
	waking.Endpoints[1].Ready = false
	unseen := func(m *pb.ProcessingRequest) *pb.ProcessingRequest {
		m.ProtocolConfig.RequestBodyMode = filter.ProcessingMode_STREAMED
		return m
	}
	body := requestPiece(completion, true)
	for name, tc := range map[string]struct {
		pool     picker.Spec
		messages []*pb.ProcessingRequest
		want     string // the destination once all endpoints are ready, "" for a refusal at once
		asleep   int    // so many of the first endpoints' engines sleep
	}{
		"no pods":                                   {holding(), []*pb.ProcessingRequest{requestHead(false, post...), body}, a, 0},
		"loading pods":                              {loading(a), []*pb.ProcessingRequest{requestHead(false, post...), body}, a, 0},
		"the body is not shown":                     {loading(a), []*pb.ProcessingRequest{unseen(requestHead(false, post...))}, a, 0},
		"the body is not shown, no pods":            {holding(), []*pb.ProcessingRequest{unseen(requestHead(false, post...))}, a, 0},
		"no body, which no model is needed for":     {holding(), []*pb.ProcessingRequest{requestHead(true, ":method", "GET", ":path", "/v1/models")}, "", 0},
		"an unknown path":                           {holding(), []*pb.ProcessingRequest{unseen(requestHead(false, ":method", "POST", ":path", "/x"))}, "", 0},
		"a subset of loading pods":                  {loading(a, b), []*pb.ProcessingRequest{withSubset(requestHead(false, post...), list(b)), body}, b, 0},
		"a subset that is loading, another serves":  {half, []*pb.ProcessingRequest{withSubset(requestHead(false, post...), list(a)), body}, "", 0},
		"a subset of none of the pods":              {loading(a), []*pb.ProcessingRequest{withSubset(requestHead(false, post...), list(b)), body}, "", 0},
		"an empty subset":                           {holding(), []*pb.ProcessingRequest{withSubset(requestHead(false, post...), list()), body}, "", 0},
		"engines that sleep":                        {holding(a, b), []*pb.ProcessingRequest{requestHead(false, post...), body}, a, 2},
		"engines that sleep, the body is not shown": {holding(a, b), []*pb.ProcessingRequest{unseen(requestHead(false, post...))}, a, 2},
		"a subset that sleeps like the others":      {holding(a, b), []*pb.ProcessingRequest{withSubset(requestHead(false, post...), list(b)), body}, b, 2},
		"a subset that sleeps, another serves":      {holding(a, b), []*pb.ProcessingRequest{withSubset(requestHead(false, post...), list(a)), body}, "", 1},
		"one that sleeps, others are loading":       {waking, []*pb.ProcessingRequest{withSubset(requestHead(false, post...), list(b)), body}, b, 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, Options{}, ServeOptions{}, tc.pool)
			for i := range tc.pool.Endpoints {
				h.picker.ObserveSleep(tc.pool.Endpoints[i].ID, time.Now(), picker.Sleep{Asleep: i < tc.asleep})
			}
			s := h.script()
			s.send(tc.messages...)
			if tc.want == "" {
				if code := s.receive().GetImmediateResponse().GetStatus().GetCode(); code != 503 {
					t.Fatalf("status %d, want 503 at once", code)
				}
				return
			}
			eventually(t, "the request is held", func() bool { return h.picker.Stats()[0].Admission.Waiting == 1 })
			all := holding(a, b)
			if err := h.picker.Apply([]picker.Spec{all}); err != nil {
				t.Fatal(err)
			}
			for _, wanted := range []bool{true, false} { // a subset that sleeps is refused as soon as another endpoint serves
				for i := range all.Endpoints {
					if ep := &all.Endpoints[i]; (ep.Address == tc.want) == wanted {
						h.picker.ObserveSleep(ep.ID, time.Now(), picker.Sleep{})
					}
				}
			}
			if d := destinationOf(s.receive()); d != tc.want {
				t.Errorf("destination %q, want %q", d, tc.want)
			}
		})
	}
}
