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
	for name, tc := range map[string][][]byte{
		"a header of many fields":              {withEmptyHeaders(encoded(t, head), 2, 1<<19-1000)},
		"a header of fewer fields":             {withEmptyHeaders(encoded(t, head), 2, 25_000)},
		"many endpoints of a hint":             {encoded(t, head), append(encoded(t, requestPiece("x", false)), subset...)},
		"a header of an answer, before a pick": {encoded(t, head), withEmptyHeaders(nil, 3, 1<<19-1000)},
	} {
		t.Run(name, func(t *testing.T) {
			b := budget.New(limit, time.Now)
			h := newHouse(t, Options{Budget: b}, ServeOptions{}, spec("127.0.0.1:1"))
			most := int64(0)
			before := heapNow()
			refused := 0
			for range streams {
				s := h.script(plain, grpc.WithDefaultCallOptions(grpc.ForceCodec(asSent{})))
				for _, raw := range tc {
					if err := s.stream.(grpc.ClientStream).SendMsg(raw); err != nil {
						break
					}
				}
				ended := make(chan error, 1)
				go func() {
					var raw []byte
					for {
						if err := s.stream.(grpc.ClientStream).RecvMsg(&raw); err != nil {
							ended <- err
							return
						}
					}
				}()
				select {
				case err := <-ended:
					if status.Code(err) == codes.ResourceExhausted {
						refused++
					}
				case <-time.After(200 * time.Millisecond):
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
