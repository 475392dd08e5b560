package kvblock

// Item is something in a prompt that is not text, such as an image. In the prompt's tokens a run of placeholders stands for it.
type Item struct {
	// Key is the engine's name of the item, equal for equal items.
	Key string
	// Offset and Length of its placeholders, in tokens.
	Offset, Length int
}

// ItemExtra folds one item of a block into the extra of the block's key (see Next). Items are folded in their order; the
// offset is the item's position relative to the block's start, in tokens; it is negative for an item that began before.
func ItemExtra(extra uint64, key string, offset int64) uint64 {
	return Digest(extra^uint64(offset), key)
}

// AppendItemKeys is AppendKeys for a prompt with items. Engines announce the items of each of their blocks, which have
// engineTokens tokens, a multiple of blockTokens: each key of such a block has all items of the block. Items are in the
// order of their offsets and do not overlap; without any, engineTokens is not read.
func AppendItemKeys(dst []Key, parent Key, tokens []uint32, blockTokens, engineTokens int, items []Item) []Key {
	if len(items) == 0 {
		return AppendKeys(dst, parent, tokens, blockTokens)
	}
	for at := 0; len(tokens)-at >= blockTokens; {
		end := min(len(tokens), at+engineTokens)
		extra := uint64(0)
		for len(items) > 0 && items[0].Offset+items[0].Length <= at {
			items = items[1:]
		}
		for i := 0; i < len(items) && items[i].Offset < end; i++ {
			extra = ItemExtra(extra, items[i].Key, int64(items[i].Offset-at))
		}
		for ; end-at >= blockTokens; at += blockTokens {
			parent = Next(parent, tokens[at:at+blockTokens:at+blockTokens], extra)
			dst = append(dst, parent)
		}
	}
	return dst
}
