package protosize

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvasir-dev/kvasir/internal/peerpb"
	"github.com/kvasir-dev/kvasir/internal/reportpb"
)

// in nests bytes in fields, the innermost last.
func in(raw []byte, fields ...protowire.Number) []byte {
	for i := len(fields) - 1; i >= 0; i-- {
		raw = protowire.AppendBytes(protowire.AppendTag(nil, fields[i], protowire.BytesType), raw)
	}
	return raw
}

// many repeats a field of bytes up to a size.
func many(field protowire.Number, raw []byte) []byte {
	one := in(raw, field)
	return bytes.Repeat(one, (256<<10)/len(one))
}

// TestNoMessageTakesMoreThanIsEstimated: of the kinds that take most in relation to their bytes.
func TestNoMessageTakesMoreThanIsEstimated(t *testing.T) {
	extProc := func() proto.Message { return new(pb.ProcessingRequest) }
	value := func() proto.Message { return new(structpb.Value) }
	report := func() proto.Message { return new(reportpb.ReporterMessage) }
	peer := func() proto.Message { return new(peerpb.PeerMessage) }
	for name, tc := range map[string]struct {
		message func() proto.Message
		raw     []byte
	}{
		"empty headers":                   {extProc, in(many(1, nil), 2, 1)},
		"headers of one byte":             {extProc, in(many(1, in([]byte("a"), 1)), 2, 1)},
		"headers with values":             {extProc, in(many(1, append(in([]byte("a"), 1), in([]byte("b"), 3)...)), 2, 1)},
		"long headers":                    {extProc, in(many(1, append(in([]byte("name"), 1), in(make([]byte, 1000), 3)...)), 2, 1)},
		"a malformed end":                 {extProc, in(append(many(1, nil), 0xff), 2, 1)},
		"empty values of metadata":        {value, in(many(1, nil), 6)},
		"empty strings of metadata":       {value, in(many(1, in(nil, 3)), 6)},
		"structs of one entry":            {value, in(many(1, in(nil, 5, 1)), 6)},
		"structs of one entry of a value": {value, in(many(1, in(in(nil, 3), 5, 1, 2)), 6)},
		"unknown fields":                  {extProc, bytes.Repeat([]byte{0xf8, 0x06, 0}, 1<<17)},
		"a flag as bytes":                 {extProc, many(10, bytes.Repeat([]byte{0x80}, 1000))},
		"a flag as a number of 8 bytes":   {extProc, bytes.Repeat(append([]byte{10<<3 | 1}, make([]byte, 8)...), 1<<15)},
		"a flag as a group":               {extProc, bytes.Repeat([]byte{10<<3 | 3, 10<<3 | 4}, 1<<17)},
		"empty changes":                   {report, in(many(2, nil), 4)},
		"changes of one key":              {report, in(many(2, in(make([]byte, 8), 5)), 4)},
		"changes with a window":           {report, in(many(2, in(nil, 6)), 4)},
		"changes of keys not packed":      {report, in(many(2, bytes.Repeat([]byte{5<<3 | 1, 1, 2, 3, 4, 5, 6, 7, 8}, 100)), 4)},
		"many keys":                       {report, in(in(make([]byte, 512<<10), 2, 5), 4)},
		"empty sections":                  {report, in(many(2, nil), 5)},
		"empty buckets":                   {report, in(many(2, nil), 6)},
		"empty loads":                     {peer, in(many(3, nil), 2)},
		"empty usages":                    {peer, in(many(7, nil), 2)},
		"withdrawn":                       {peer, in(in(make([]byte, 512<<10), 6), 2)},
		"withdrawn not packed":            {peer, in(bytes.Repeat([]byte{6 << 3, 1}, 1<<18), 2)},
	} {
		t.Run(name, func(t *testing.T) {
			m := tc.message()
			shape := Of(m)
			estimate, within := shape.Decoded(tc.raw, 1<<40)
			if !within {
				t.Fatal("it is over the limit")
			}
			before := heap()
			_ = proto.Unmarshal(tc.raw, m) // also what was decoded of a malformed one
			took := heap() - before
			runtime.KeepAlive(m)
			if took > estimate+64<<10 {
				t.Errorf("%d bytes take %d, the estimate is %d", len(tc.raw), took, estimate)
			}
			if estimate > 4*took+64<<10 && took > 0 && name != "a malformed end" {
				t.Errorf("%d bytes take %d, and the estimate is %d", len(tc.raw), took, estimate)
			}
			if n, within := shape.Decoded(tc.raw, 1000); within || n > 1000+packedCost<<20 {
				t.Errorf("with a limit of 1000 it is %d", n)
			}
		})
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestDeepMessagesAreNotCounted: what is nested without end is over every limit.
func TestDeepMessagesAreNotCounted(t *testing.T) {
	raw := []byte(nil)
	for range 1000 {
		raw = in(raw, 6, 1)
	}
	if n, within := Of(new(structpb.Value)).Decoded(raw, 1<<40); within {
		t.Errorf("it is %d bytes", n)
	}
}

// TestAnyBytesAreCounted: without a panic.
func TestAnyBytesAreCounted(t *testing.T) {
	shape, random := Of(new(pb.ProcessingRequest)), rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		raw := make([]byte, random.IntN(64))
		for i := range raw {
			raw[i] = byte(random.IntN(32))
		}
		shape.Decoded(raw, 1<<20)
	}
}

// BenchmarkHeaders counts the header that Envoy sends with a request.
func BenchmarkHeaders(b *testing.B) {
	header := append(in([]byte("x-forwarded-proto"), 1), in([]byte("https, or something that is longer"), 3)...)
	raw := in(bytes.Repeat(in(header, 1), 20), 2, 1)
	shape := Of(new(pb.ProcessingRequest))
	b.Run("count", func(b *testing.B) {
		for b.Loop() {
			shape.Decoded(raw, 1<<20)
		}
	})
	b.Run("decode", func(b *testing.B) {
		for b.Loop() {
			if err := proto.Unmarshal(raw, new(pb.ProcessingRequest)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
