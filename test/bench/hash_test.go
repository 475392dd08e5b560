package bench

import (
	"crypto/sha256"
	"encoding/binary"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// BenchmarkHash makes the 512 keys of 8,192 tokens. naive is a chain of SHA-256, as engines make by default.
func BenchmarkHash(b *testing.B) {
	tokens := make([]uint32, promptBlocks*blockTokens)
	for i := range tokens {
		tokens[i] = uint32(i*2654435761) % vocabulary
	}
	for name, hash := range map[string]func(dst []kvblock.Key) []kvblock.Key{
		"fast":  func(dst []kvblock.Key) []kvblock.Key { return kvblock.AppendKeys(dst, 1, tokens, blockTokens) },
		"naive": func(dst []kvblock.Key) []kvblock.Key { return naiveKeys(dst, tokens) },
	} {
		b.Run("impl="+name+"/tokens=8192", func(b *testing.B) {
			var keys []kvblock.Key
			keys = hash(keys)
			start := processCPU()
			b.ReportAllocs()
			for b.Loop() {
				keys = hash(keys[:0])
			}
			b.ReportMetric(float64(processCPU()-start)/float64(b.N), "cpu-ns/op")
			if len(keys) != promptBlocks {
				b.Fatalf("%d keys", len(keys))
			}
		})
	}
}

func naiveKeys(dst []kvblock.Key, tokens []uint32) []kvblock.Key {
	var parent [sha256.Size]byte
	buf := make([]byte, 0, sha256.Size+4*blockTokens)
	for ; len(tokens) > 0; tokens = tokens[blockTokens:] {
		buf = append(buf[:0], parent[:]...)
		for _, t := range tokens[:blockTokens] {
			buf = binary.LittleEndian.AppendUint32(buf, t)
		}
		parent = sha256.Sum256(buf)
		dst = append(dst, kvblock.Key(binary.LittleEndian.Uint64(parent[:])))
	}
	return dst
}
