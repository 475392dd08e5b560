package extproc

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// asSent sends bytes as they are.
type asSent struct{}

func (asSent) Marshal(v any) ([]byte, error)     { return v.([]byte), nil }
func (asSent) Unmarshal(raw []byte, v any) error { *v.(*[]byte) = bytes.Clone(raw); return nil }
func (asSent) Name() string                      { return "proto" }

func encoded(t *testing.T, m proto.Message) []byte {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// withEmptyHeaders adds headers of two bytes each to a message, in the field that has a HttpHeaders.
func withEmptyHeaders(raw []byte, field protowire.Number, n int) []byte {
	headers := bytes.Repeat([]byte{1<<3 | byte(protowire.BytesType), 0}, n)
	return nested(bytes.Clone(raw), field, nested(nil, 1, headers))
}

func heapNow() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestWhatMessagesTakeIsCounted: streams whose bodies are outstanding hold no more than the budget, however their messages were made.
func TestWhatMessagesTakeIsCounted(t *testing.T) {
	const streams, limit = 8, 12 << 20
	head := requestHead(false, post...)
	addresses := make([]string, 180_000)
	for i := range addresses {
		addresses[i] = fmt.Sprintf("%x", i)
	}
	subset := encoded(t, withSubset(&pb.ProcessingRequest{}, structpb.NewStringValue(strings.Join(addresses, ","))))
	for name, tc := range map[string]struct {
		messages [][]byte
		keeps    bool // what they take, until the stream ends
	}{
		"a header of many fields":      {[][]byte{withEmptyHeaders(encoded(t, head), 2, 1<<19-1000)}, false},
		"a header of fewer fields":     {[][]byte{withEmptyHeaders(encoded(t, head), 2, 25_000)}, true},
		"too many endpoints of a hint": {[][]byte{encoded(t, head), append(encoded(t, requestPiece("x", false)), subset...)}, false},
		"a header of an answer, before a pick": {
			[][]byte{encoded(t, head), withEmptyHeaders(nil, 3, 1<<19-1000)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := budget.New(limit, time.Now)
			h := newHouse(t, Options{Budget: b}, ServeOptions{}, spec("127.0.0.1:1"))
			most := int64(0)
			before := heapNow()
			refused := 0
			for range streams {
				s := h.script(plain, grpc.WithDefaultCallOptions(grpc.ForceCodec(asSent{})))
				held, shed := b.Held(budget.Streams), b.Stats().Shed[budget.Streams]
				for _, raw := range tc.messages {
					if err := s.stream.(grpc.ClientStream).SendMsg(raw); err != nil {
						break
					}
				}
				ended, answered := make(chan error, 1), make(chan struct{}, 10)
				go func() {
					var raw []byte
					for {
						if err := s.stream.(grpc.ClientStream).RecvMsg(&raw); err != nil {
							ended <- err
							return
						}
						answered <- struct{}{}
					}
				}()
				// Its messages were handled if the stream has ended or was answered, or if it, or one that was shed, has what they take.
				eventually(t, "its messages are handled", func() bool {
					return len(ended)+len(answered) > 0 ||
						tc.keeps && (b.Held(budget.Streams) > held+1<<20 || b.Stats().Shed[budget.Streams] > shed)
				})
				if len(ended) > 0 && status.Code(<-ended) == codes.ResourceExhausted {
					refused++
				}
				most = max(most, heapNow()-before)
			}
			if most > limit+8<<20 {
				t.Errorf("%d streams hold %d MiB, the budget is %d MiB", streams, most>>20, limit>>20)
			}
			if s := b.Stats(); refused == 0 && s.Shed[budget.Streams] == 0 {
				t.Error("none was refused, and none shed")
			}
		})
	}
}

// TestManyHeadersPass: of an ordinary length, as many as gateways can be configured to take.
func TestManyHeadersPass(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"))
	s := h.script()
	pairs := post
	for i := range 1000 {
		pairs = append(pairs[:len(pairs):len(pairs)], fmt.Sprintf("x-%d", i), strings.Repeat("v", 100))
	}
	s.send(requestHead(false, pairs...), requestPiece(completion, true))
	if d := destinationOf(s.receive()); d != "127.0.0.1:1" {
		t.Errorf("destination %q", d)
	}
}

// TestEndpointsOfHintsDrawOnTheBudget: until the request has its endpoint.
func TestEndpointsOfHintsDrawOnTheBudget(t *testing.T) {
	const endpoints = 8000
	addresses := []string{"127.0.0.1:1"}
	for i := range endpoints {
		addresses = append(addresses, fmt.Sprintf("10.0.%d.%d:8000", i/256, i%256))
	}
	b := budget.New(64<<20, time.Now)
	h := newHouse(t, Options{Budget: b}, ServeOptions{}, spec("127.0.0.1:1"))
	s := h.script()
	s.send(requestHead(false, post...), requestPiece(completion[:1], false))
	eventually(t, "the request is held", func() bool { return b.Held(budget.Streams) > 0 })
	before := b.Held(budget.Streams)
	for range 3 { // one takes the place of another
		s.send(withSubset(requestPiece("", false), structpb.NewStringValue(strings.Join(addresses, ","))))
	}
	enough := func() bool { return b.Held(budget.Streams) >= before+endpoints*subsetCost }
	eventually(t, "the endpoints are counted", enough)
	s.send(requestPiece(completion[1:], true))
	if d := destinationOf(s.receive()); d != "127.0.0.1:1" {
		t.Errorf("destination %q", d)
	}
	eventually(t, "what they took is given back", func() bool { return b.Held(budget.Streams) <= before })

	few := newHouse(t, Options{Budget: budget.New(2*endpoints*subsetCost, time.Now)}, ServeOptions{}, spec("127.0.0.1:1")).script()
	few.send(requestHead(false, post...), withSubset(requestPiece("", false), structpb.NewStringValue(strings.Join(addresses, ","))))
	if _, err := few.stream.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("without room for them: %v", err)
	}
}

// TestHintsHaveSoManyEndpointsAtMost: as many as maxSubset pass.
func TestHintsHaveSoManyEndpointsAtMost(t *testing.T) {
	for n, want := range map[int]bool{maxSubset: true, maxSubset + 1: false} {
		hint := ","
		for i := range n {
			hint += fmt.Sprintf("%x,", i)
		}
		if s, _, _ := subsetOf(withSubset(&pb.ProcessingRequest{}, structpb.NewStringValue(hint)).GetMetadataContext()); (s != nil) != want {
			t.Errorf("%d endpoints: %v, want %v", n, s != nil, want)
		}
	}
}

// TestLargePiecesPassWithMetadata: gateways that have no limit of pieces can send a body as one, with metadata before or behind it.
func TestLargePiecesPassWithMetadata(t *testing.T) {
	const a, b = "127.0.0.1:1", "127.0.0.1:2"
	body := `{"model":"m","prompt":"` + strings.Repeat("x", 2*maxHead) + `"}`
	hint, piece := encoded(t, withSubset(&pb.ProcessingRequest{}, list(b))), encoded(t, requestPiece(body, true))
	for name, raw := range map[string][]byte{"before": slices.Concat(hint, piece), "behind": slices.Concat(piece, hint)} {
		h := newHouse(t, Options{}, ServeOptions{}, spec(a, b))
		s := h.script(plain, grpc.WithDefaultCallOptions(grpc.ForceCodec(asSent{})))
		for _, m := range [][]byte{encoded(t, requestHead(false, post...)), raw} {
			if err := s.stream.(grpc.ClientStream).SendMsg(m); err != nil {
				t.Fatal(err)
			}
		}
		var answer []byte
		if err := s.stream.(grpc.ClientStream).RecvMsg(&answer); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var m pb.ProcessingResponse
		if err := proto.Unmarshal(answer, &m); err != nil || destinationOf(&m) != b {
			t.Errorf("%s: destination %q, want %q; %v", name, destinationOf(&m), b, err)
		}
	}
}

// TestIDsOfPromptsDrawOnTheBudget: a prompt of ids takes more than its bytes.
func TestIDsOfPromptsDrawOnTheBudget(t *testing.T) {
	for prompt, refused := range map[string]bool{
		`"` + strings.Repeat("0 ", 256<<10) + `"`:  false,
		`[0` + strings.Repeat(",0", 256<<10) + `]`: true,
	} {
		h := newHouse(t, Options{Budget: budget.New(3<<20, time.Now)}, ServeOptions{}, spec("127.0.0.1:1"))
		s := h.script()
		s.send(requestHead(false, post...), requestPiece(`{"model":"m","prompt":`+prompt+`}`, true))
		if got := s.receive().GetImmediateResponse().GetStatus().GetCode() == 503; got != refused {
			t.Errorf("%d bytes that begin with %.9s: refused %v, want %v", len(prompt), prompt, got, refused)
		}
	}
}
