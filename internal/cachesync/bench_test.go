package cachesync

import (
	"runtime"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// churner is an engine that is full: every prompt of 512 blocks pushes another one out.
type churner struct {
	next  uint32
	live  [][]kvevent.Hash
	batch kvevent.Batch
}

const promptBlocks = 512

func (c *churner) step(most int) *kvevent.Batch {
	c.next++
	stored := kvevent.Event{Kind: kvevent.Stored, BlockSize: 16}
	for b := range uint64(promptBlocks) {
		stored.Hashes = append(stored.Hashes, kvevent.Hash((uint64(c.next)<<16|b)*0x9e3779b97f4a7c15))
		for k := range uint32(16) {
			stored.Tokens = append(stored.Tokens, c.next<<12^uint32(b)<<4^k)
		}
	}
	c.batch = kvevent.Batch{Rank: -1, Events: []kvevent.Event{stored}}
	c.live = append(c.live, stored.Hashes)
	if len(c.live)*promptBlocks > most {
		removed := kvevent.Event{Kind: kvevent.Removed}
		for i := len(c.live[0]) - 1; i >= 0; i-- { // from the tail on
			removed.Hashes = append(removed.Hashes, c.live[0][i])
		}
		c.live = c.live[1:]
		c.batch.Events = append([]kvevent.Event{removed}, stored)
	}
	return &c.batch
}

// BenchmarkMirror applies prompts of 512 blocks to a full mirror of 100,000 blocks; an op is one prompt that is added and
// one that is removed.
func BenchmarkMirror(b *testing.B) {
	const blocks = 100_000
	before := heap()
	m, c := NewMirror(Options{}, nil), &churner{}
	root := testRoot("a", 16)
	m.Begin(false)
	v := m.acquire(&root, true)
	for range blocks / promptBlocks {
		m.Apply(c.step(blocks), events.Position{})
	}
	b.ReportAllocs()
	for b.Loop() {
		m.Apply(c.step(blocks), events.Position{})
	}
	b.ReportMetric(float64(b.N*promptBlocks*2)/b.Elapsed().Seconds(), "blocks/s")
	used := heap() - before
	b.ReportMetric(float64(used)/float64(m.Stats().Blocks), "bytes/block")
	runtime.KeepAlive(v)
	runtime.KeepAlive(m)
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}
