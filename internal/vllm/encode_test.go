package vllm

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
)

// enc builds MessagePack by hand.
type enc []byte

func (b enc) arr(n int) enc  { return append(b, 0xdc, byte(n>>8), byte(n)) }
func (b enc) dict(n int) enc { return append(b, 0xde, byte(n>>8), byte(n)) }
func (b enc) str(s string) enc {
	return append(append(b, 0xda, byte(len(s)>>8), byte(len(s))), s...)
}
func (b enc) bin(s []byte) enc { return append(append(b, 0xc4, byte(len(s))), s...) }
func (b enc) null() enc        { return append(b, 0xc0) }
func (b enc) u64(v uint64) enc { return binary.BigEndian.AppendUint64(append(b, 0xcf), v) }
func (b enc) i64(v int64) enc  { return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v)) }
func (b enc) f64(v float64) enc {
	return binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(v))
}

// value encodes a generic value.
func (b enc) value(v any) enc {
	switch v := v.(type) {
	case nil:
		return b.null()
	case bool:
		if v {
			return append(b, 0xc3)
		}
		return append(b, 0xc2)
	case int:
		return b.i64(int64(v))
	case int64:
		return b.i64(v)
	case uint64:
		return b.u64(v)
	case uint32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), v)
	case float64:
		return b.f64(v)
	case string:
		return b.str(v)
	case []byte:
		return b.bin(v)
	case []any:
		b = b.arr(len(v))
		for _, item := range v {
			b = b.value(item)
		}
		return b
	case pairs:
		b = b.dict(len(v))
		for _, p := range v {
			b = b.value(p.key).value(p.value)
		}
		return b
	}
	panic("no encoding")
}

// randomStored is the fields of a BlockStored, in order of position.
func randomStored(rng *rand.Rand) []any {
	blocks, size := 1+rng.IntN(4), 1+rng.IntN(5)
	hashes, ids, extra := []any{}, []any{}, []any{}
	anyHash := func() any {
		switch rng.IntN(3) {
		case 0:
			return rng.Uint64()
		case 1:
			return int64(rng.Uint64())
		}
		digest := make([]byte, []int{8, 16, 32}[rng.IntN(3)])
		for i := range digest {
			digest[i] = byte(rng.Uint32())
		}
		return digest
	}
	some := func(v any) any {
		if rng.IntN(2) == 0 {
			return nil
		}
		return v
	}
	for range blocks {
		hashes = append(hashes, anyHash())
		keys := []any{}
		for range rng.IntN(4) {
			keys = append(keys, []any{"ad", "salt", []byte{1, 2}, []any{"img", int64(-3)}, true}[rng.IntN(5)])
		}
		extra = append(extra, some(keys))
	}
	for range blocks * size {
		ids = append(ids, rng.Uint32()>>rng.IntN(32))
	}
	kinds := []any{"full_attention", "mla_attention", "mamba", "sink_full_attention", "sliding_window", nil}
	return []any{"BlockStored", hashes, some(anyHash()), ids, int64(size), some(int64(3)),
		some([]string{"GPU", "cpu"}[rng.IntN(2)]), some("ad"), some(extra), some(int64(rng.IntN(3))),
		kinds[rng.IntN(len(kinds))], some(int64(1024))}
}
