package routinghistory

import (
	"runtime"
	"testing"
)

// TestAMemoryIsAsLargeAsItSays: full ones take at most 60 bytes a chunk, and no more however much is routed.
func TestAMemoryIsAsLargeAsItSays(t *testing.T) {
	const chunks, memories = 31_250, 16
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	all := make([]*Memory, memories)
	next := Chunk(0)
	for i := range all {
		all[i] = NewMemory(chunks)
		for range 4 * chunks / 250 {
			chain := make([]Chunk, 250)
			for j := range chain {
				next++
				chain[j] = next * 0x9e3779b97f4a7c15
			}
			all[i].Record(chain)
		}
	}
	perChunk := float64(heap()-before) / chunks / memories
	t.Logf("%.1f bytes a chunk", perChunk)
	if perChunk > 60 {
		t.Errorf("%.1f bytes a chunk, want at most 60", perChunk)
	}
	for _, m := range all {
		m.Clear()
		if m.Len() != 0 {
			t.Error("holds something after it was cleared")
		}
	}
	if left := float64(heap()-before) / chunks / memories; left > 1 {
		t.Errorf("%.1f bytes a chunk are left after all was cleared", left)
	}
	runtime.KeepAlive(all)
}
