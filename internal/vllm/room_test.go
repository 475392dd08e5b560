package vllm

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// TestDecodingDrawsOnALimit: what a payload takes when it is decoded is taken before it is allocated, and the first part without room ends
// the decoding.
func TestDecodingDrawsOnALimit(t *testing.T) {
	batch := func(events ...any) []byte { return enc(nil).value([]any{1.0, events, nil}) }
	zeros := slices.Repeat([]any{uint64(0)}, 60_000)
	small := slices.Repeat([]any{[]any{"AllBlocksCleared"}}, 30_000)
	keys := []any{slices.Repeat([]any{[]any{"key", int64(1)}}, 30_000)}
	for name, payload := range map[string][]byte{
		"hashes":      batch([]any{"BlockRemoved", zeros}),
		"tokens":      batch([]any{"BlockStored", []any{uint64(1)}, nil, zeros, uint64(16)}),
		"events":      batch(small...),
		"items":       batch([]any{"BlockStored", []any{uint64(1)}, nil, zeros[:16], uint64(16), nil, nil, nil, keys}),
		"a long name": batch([]any{"BlockStored", []any{uint64(1)}, nil, zeros[:16], uint64(16), nil, strings.Repeat("m", 60_000)}),
		"a long digest": batch([]any{"BlockStored", []any{uint64(1)}, nil, zeros[:16], uint64(16), nil, nil, nil,
			[]any{[]any{[]byte(strings.Repeat("d", 255))}}}),
	} {
		t.Run(name, func(t *testing.T) {
			taken, most := 0, 1<<40
			d, b := NewDecoder("VLLM"), kvevent.Batch{}
			d.Limit(func(n int) bool {
				if taken+n > most {
					return false
				}
				taken += n
				return true
			})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if err := d.Decode(payload, &b); err != nil {
				t.Fatal(err)
			}
			runtime.ReadMemStats(&after)
			if used := int(after.TotalAlloc - before.TotalAlloc); used > 4*taken+64<<10 { // what grows is copied
				t.Errorf("%d bytes are allocated and %d taken", used, taken)
			}
			whole := taken
			if err := d.Decode(payload, &b); err != nil || name != "a long name" && name != "a long digest" && taken != whole {
				t.Errorf("again: %v, and %d bytes more", err, taken-whole)
			}
			for _, limit := range []int{0, whole / 2, whole - 1} {
				d, taken, most, b = NewDecoder("VLLM"), 0, limit, kvevent.Batch{}
				d.Limit(func(n int) bool { taken += n; return taken <= most })
				if err := d.Decode(payload, &b); !errors.Is(err, ErrRoom) || len(b.Events) > 0 {
					t.Errorf("with %d of %d bytes: %v, and %d events", limit, whole, err, len(b.Events))
				}
			}
		})
	}
}
