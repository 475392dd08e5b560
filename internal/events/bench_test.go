package events

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/vllm"
)

// BenchmarkApply takes one event of 32 blocks and 512 tokens from its payload to the index and out again: decoding
// twice, keys, mirror and index.
func BenchmarkApply(b *testing.B) {
	for name, book := range map[string]kvindex.Book{"fast": kvindex.NewIndex(kvindex.Options{}), "plain": kvindex.New()} {
		b.Run("impl="+name+"/blocks=32", func(b *testing.B) { benchmarkApply(b, book) })
	}
}

func benchmarkApply(b *testing.B, book kvindex.Book) {
	text, err := os.ReadFile("../vllm/testdata/kv-events/bench_map.hex")
	if err != nil {
		b.Fatal(err)
	}
	payload, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		b.Fatal(err)
	}
	f := testFeed(nil)
	f.Writer, f.Keys.BlockTokens = book.Writer(book.Join()), 16
	c := Config{}.withDefaults()
	m := newMirror(&f, &c, nil, &Stats{})
	decoder := vllm.NewDecoder("VLLM")
	var batch kvevent.Batch
	round := func() {
		for _, kind := range []kvevent.Kind{kvevent.Stored, kvevent.Removed} {
			if err := decoder.Decode(payload, &batch); err != nil {
				b.Fatal(err)
			}
			batch.Events[0].HasParent = false
			batch.Events[0].Kind = kind
			m.apply(&batch)
		}
	}
	round()
	if n := len(batch.Events[0].Hashes); n != 32 || m.stats.Stored.Load() != 32 || m.stats.RemovedUnknown.Load() > 0 {
		b.Fatalf("%d blocks, %d stored, %d removed although unknown", n, m.stats.Stored.Load(), m.stats.RemovedUnknown.Load())
	}
	b.ReportAllocs()
	for b.Loop() {
		round()
	}
}
