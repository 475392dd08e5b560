package kvindex

import (
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// Reader is the side of an index that picks: it asks, and it assumes.
type Reader interface {
	// Match fills out[i] with the match of holders[i]. out must be as long as holders. A holder that has left
	// matches nothing.
	Match(keys []kvblock.Key, holders []Holder, out []Match)
	// Speculate assumes that a holder has blocks, until the guess is withdrawn. keys are those of a request, from
	// its first block on, and must not change before the guess is withdrawn. The guess dies with the holder's present
	// generation: after Clear, Commit or Leave it matches nothing. Without room for it nothing is assumed.
	Speculate(h Holder, keys []kvblock.Key) *Guess
	// Size is the number of blocks: distinct keys, (holder, key) pairs, and speculative (holder, key) pairs.
	Size() (distinct, held, speculative int)
	// Held is the number of distinct blocks that a holder has.
	Held(h Holder) int
	// Sharing reports for each of the holders how many of its blocks no other of them has. Orphans can be left out.
	Sharing(holders []Holder) []Share
}

// Book is an index with both its sides: Table is the plain one, Index the fast one.
type Book interface {
	Reader
	// Join adds a holder that holds nothing.
	Join() Holder
	// Leave removes a holder with all it holds. Later writes for it have no effect, so that a late event cannot bring
	// a dead pod back.
	Leave(h Holder)
	// Writer is the way to change what a holder has. A holder has one writer.
	Writer(h Holder) Writer
}

// MaxGroup is the highest KV cache group that can be indexed. Hybrid models have a handful.
const MaxGroup = 62

// Parent is the block before the first of a chain, by the engine's name and in the same group. The zero value means that
// there is none.
type Parent struct {
	Hash kvevent.Hash
	OK   bool
}

// Block is one that a holder has, as its engine names it.
type Block struct {
	Hash  kvevent.Hash
	Group int
	Key   kvblock.Key
	// Copies of the block by tier; at least one is not 0.
	Copies [kvblock.NumTiers]int
}

// Chain is a list of keys: each follows the one before it, and the first follows Parent; 0 for none.
type Chain struct {
	Parent kvblock.Key
	Keys   []kvblock.Key
}

// Writer changes the blocks of one holder. It knows the holder's blocks by the engine's names, counts their copies per
// (tier, group, hash), and updates the index when the first copy of a key in a tier is stored and when the last is removed.
//
// It is for one goroutine at a time. After its holder has left, all calls have no effect and return nothing.
//
// An engine's block can be several keys long: then there are as many keys per hash. The hash names the last of them,
// the others go by hashes derived from it.
type Writer interface {
	// Store counts one more copy of each block of a chain in a tier. keys[i] must follow keys[i-1] as kvblock.Next
	// makes them, and there must be the same whole number of keys for each hash. A hash that is known keeps the key it has.
	// It returns the number of refused blocks: those of a group, tier or key that the index does not take, and those for
	// which there is no room. A block can arrive before its parent, or without it.
	Store(tier kvblock.Tier, group int, parent Parent, hashes []kvevent.Hash, keys []kvblock.Key) (refused int)
	// StoreWindow is Store for a group whose hits need only its last blocks: keys are those at the blocks' ends, one for
	// each hash. Blocks whose key is 0 are refused, unless they are known.
	StoreWindow(tier kvblock.Tier, group int, rule Window, hashes []kvevent.Hash, keys []kvblock.Key) (refused int)
	// Copy counts one more copy in a tier of blocks that are known, in any tier. It returns how many are not.
	Copy(tier kvblock.Tier, group int, hashes []kvevent.Hash) (unknown int)
	// Drop counts one copy less. It returns how many blocks had none.
	Drop(tier kvblock.Tier, group int, hashes []kvevent.Hash) (unknown int)
	// OnGone sets f to be called for every key of the blocks whose last copy in a tier Drop removes, during that call;
	// other hashes might still have the key. f must not use the index. nil ends it. Shadows have none.
	OnGone(f func(key kvblock.Key))
	// Copies is the number of copies of a block in a tier.
	Copies(tier kvblock.Tier, group int, hash kvevent.Hash) int
	// Followed reports whether the holder has, in a tier and group, a block that follows another one of the group. It can look at
	// all of its blocks.
	Followed(tier kvblock.Tier, group int, hash kvevent.Hash) bool
	// Key is the key of a known block, the last one if it has several.
	Key(group int, hash kvevent.Hash) (kvblock.Key, bool)
	// Len is the number of known (group, hash, key).
	Len() int
	// Each calls f for every known block until it returns false. f must not use the writer. It calls f once per key for
	// blocks that are several keys long.
	Each(f func(Block) bool)
	// Chains returns the keys of the blocks with a copy in a tier, by group, each once, as chains that can be stored again.
	// Parents precede their children where both are present. The names of blocks must be their keys.
	Chains(tier kvblock.Tier, group int) []Chain
	// Digest is the digest of the blocks with a copy in a tier, by group.
	Digest(tier kvblock.Tier, group int) Digest
	// Evicted is the number of blocks of this generation that were taken out or refused for lack of memory. While there are
	// any, the holder's digests cannot be expected to equal its pod's.
	Evicted() int
	// Clear forgets all blocks, and with them all guesses about the holder. For readers it takes effect at once.
	Clear()
	// ClearTier forgets all copies in a tier.
	ClearTier(tier kvblock.Tier)
	// Shadow begins a generation of the holder that no reader sees, with a writer of its own.
	Shadow() Writer
	// Commit makes a shadow the holder's present generation, at once for readers, and forgets the generation before it. The holder's
	// writer continues with the shadow's blocks, and the shadow's writer is spent. On a writer that is no shadow, it has no
	// effect.
	Commit()
	// Discard forgets a shadow. It does nothing elsewhere.
	Discard()
}

// chainOf reports how many keys there are per hash, and how many of the hashes can be indexed: up to the first that has
// a key of zero.
func chainOf(tier kvblock.Tier, group int, hashes []kvevent.Hash, keys []kvblock.Key) (perHash, usable int) {
	if len(hashes) == 0 || len(keys) < len(hashes) || len(keys)%len(hashes) != 0 || !indexable(tier, group) {
		return 0, 0
	}
	perHash = len(keys) / len(hashes)
	for i, key := range keys {
		if key == 0 {
			return perHash, i / perHash
		}
	}
	return perHash, len(hashes)
}

func indexable(tier kvblock.Tier, group int) bool {
	return int(tier) < kvblock.NumTiers && group >= 0 && group <= MaxGroup
}

// leading is the derived name of an earlier key of a block that is several keys long; i counts from 1, backwards from
// the key that the hash itself names.
func leading(hash kvevent.Hash, i int) kvevent.Hash {
	return kvevent.Hash(scramble(uint64(hash) + uint64(i)*0x9e3779b97f4a7c15))
}
