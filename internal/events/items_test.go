package events

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// TestPromptsWithItemsHaveTheKeysOfTheirEvents: an engine announces the items of each of its blocks as vLLM 0.19 and newer do
// (_gen_mm_extra_hash_keys): each item that has a token in the block, with its offset from the block's start. The keys that a
// mirror makes of that are those of the prompt, and other items, or the same elsewhere, have other keys from there on.
func TestPromptsWithItemsHaveTheKeysOfTheirEvents(t *testing.T) {
	const ours = 4
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		size := ours * (1 + random.IntN(4))
		tokens := make([]uint32, random.IntN(10*size))
		var items []kvblock.Item
		for at := random.IntN(20); at < len(tokens); at += random.IntN(20) {
			item := kvblock.Item{Key: strconv.Itoa(random.IntN(5)), Offset: at, Length: 1 + random.IntN(min(30, len(tokens)-at))}
			items = append(items, item)
			at += item.Length
		}
		e := &kvevent.Event{Kind: kvevent.Stored, BlockSize: size}
		for start := 0; start+size <= len(tokens); start += size {
			for _, item := range items {
				if item.Offset < start+size && item.Offset+item.Length > start {
					e.Items = append(e.Items, kvevent.Item{Block: len(e.Hashes), Key: item.Key, Offset: int64(item.Offset - start)})
				}
			}
			e.Hashes = append(e.Hashes, kvevent.Hash(start+1))
		}
		e.Tokens = tokens[:len(e.Hashes)*size]
		m := &mirror{feed: &Feed{Keys: Keys{BlockTokens: ours}}}
		announced := m.appendKeys(nil, 7, e, 0)
		keys := kvblock.AppendItemKeys(nil, 7, tokens, ours, size, items)
		if len(keys) != len(tokens)/ours || !slices.Equal(keys[:len(announced)], announced) {
			t.Fatalf("blocks of %d, %d tokens, items %+v: keys %x, announced %x", size, len(tokens), items, keys, announced)
		}
		if len(items) == 0 || len(keys) == 0 {
			continue
		}
		other := slices.Clone(items)
		changed := random.IntN(len(items))
		other[changed].Key += "'"
		same := min(len(keys), other[changed].Offset/size*(size/ours))
		for i, key := range kvblock.AppendItemKeys(nil, 7, tokens, ours, size, other) {
			if (key == keys[i]) != (i < same) {
				t.Fatalf("blocks of %d, items %+v: key %d of another item %d: equal %t", size, items, i, changed, key == keys[i])
			}
		}
	}
}
