package request

import (
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/test/race"
)

// TestIDsOfPromptsAreCounted: at least as many bytes as they take once the body is parsed.
func TestIDsOfPromptsAreCounted(t *testing.T) {
	ids := strings.Repeat("0,", 1<<19) + "0"
	for name, tc := range map[string]struct {
		route openai.Route
		body  string
	}{
		"a prompt":         {openai.Completions, `{"model":"m","prompt":[` + ids + `]}`},
		"many prompts":     {openai.Completions, `{"model":"m","prompt":[` + strings.Repeat("["+ids[:2001]+"],", 500) + `[0]]}`},
		"an input":         {openai.Embeddings, `{"model":"m","input":[` + ids + `]}`},
		"a long list last": {openai.Embeddings, `{"model":"m","input":[[0],[` + ids + `]]}`},
	} {
		t.Run(name, func(t *testing.T) {
			held := int64(0)
			take := func(more int64) bool { held += more; return held < 1<<30 }
			var b Buffer
			if !b.Grow(take, len(tc.body)) {
				t.Fatal("there is no room")
			}
			b.Bytes = append(b.Bytes, tc.body...)
			body := held
			if !b.TakeIDs(take, tc.route) {
				t.Fatal("there is no room")
			}
			counted := held - body
			before := heap()
			var r openai.Request
			if err := openai.Parse(tc.route, b.Bytes, &r); err != nil {
				t.Fatal(err)
			}
			if took := heap() - before; took > counted+64<<10 {
				t.Errorf("the ids take %d bytes, and %d are counted", took, counted)
			}
			runtime.KeepAlive(&r)
			if got := b.Free(); got != held {
				t.Errorf("%d bytes are given back, want %d", got, held)
			}
		})
	}
	b := Buffer{Bytes: []byte(`{"model":"m","prompt":[` + ids + `]}`)}
	if b.TakeIDs(func(int64) bool { return false }, openai.Completions) {
		t.Error("there is room where there is none")
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestABufferIsCountedBeforeItGrows: what a buffer takes is never more than what was counted for it, and Free returns all of it once.
func TestABufferIsCountedBeforeItGrows(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		limit, held := r.Int64N(4<<10), int64(0)
		take := func(more int64) bool {
			if held+more > limit {
				return false
			}
			held += more
			return true
		}
		var b Buffer
		var want string
		for range 8 {
			piece := make([]byte, r.IntN(1<<10))
			switch keep := r.IntN(len(want) + 1); r.IntN(3) {
			case 0:
				if b.Grow(take, len(b.Bytes)+len(piece)) {
					b.Bytes = append(b.Bytes, piece...)
					want += string(piece)
				}
			case 1:
				if b.End(take, keep, piece) {
					want = want[:keep] + string(piece)
				}
			default:
				if b.Replace(take, piece) {
					want = string(piece)
				}
			}
			if string(b.Bytes) != want {
				t.Fatalf("%d bytes are there, want %d", len(b.Bytes), len(want))
			}
			if int64(cap(b.Bytes)) > held && len(want) > 0 {
				t.Fatalf("%d bytes are taken, and %d counted", cap(b.Bytes), held)
			}
		}
		if n := b.Free(); n != held {
			t.Fatalf("%d bytes are given back of %d", n, held)
		}
		if n := b.Free(); n != 0 {
			t.Fatalf("%d bytes are given back again", n)
		}
	}
}

// TestASmallRequestIsNotChargedForALargeOne: buffers are used again, and their users are charged for them.
func TestASmallRequestIsNotChargedForALargeOne(t *testing.T) {
	all := func(int64) bool { return true }
	for _, size := range []int{1, 700, 16 << 10, 60 << 10, 200 << 10, 300 << 10} {
		for i := range 200 { // the pool drops some
			var large, small Buffer
			large.Grow(all, []int{KeepBuffer, min(KeepBuffer, 3*size)}[i%2])
			large.Free()
			small.Grow(all, size)
			if counted, most := small.Free(), int64(max(KeepBuffer>>6, 2*size)); counted > most {
				t.Fatalf("a request of %d bytes is charged for %d, want at most %d", size, counted, most)
			}
		}
	}
}

// TestLargeBodiesAllocateLittle: a body whose size shows only as it arrives takes buffers that others have left, of each size.
func TestLargeBodiesAllocateLittle(t *testing.T) {
	all := func(int64) bool { return true }
	arrives := func() {
		var b Buffer
		for size := 16 << 10; size <= 512<<10; size *= 2 {
			b.Fill(all, size)
			b.Bytes = b.Bytes[:size]
		}
		b.Free()
	}
	arrives()
	most := uint64(1 << 20) // without them it is 1008 KiB each time
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 20 {
		arrives()
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 10*most && !race.Enabled { // the race detector has pools drop some
		t.Errorf("%d bytes were allocated for 20 bodies", took)
	}
}
