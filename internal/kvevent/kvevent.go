// Package kvevent holds what an engine publishes about its KV cache, free of any wire format.
//
// Codecs (internal/vllm) fill a Batch, internal/events applies it to the index.
package kvevent

// Hash is an engine's own name of a block: opaque, unique only within one endpoint, epoch and group. Integer hashes
// are taken as they are (signed ones in two's complement), byte hashes by their last 8 bytes, big-endian, which is
// what the same engine sends in integer form.
type Hash uint64

// Kind is what happened.
type Kind uint8

// The kinds of event.
const (
	Stored  Kind = iota + 1 // blocks entered a tier
	Removed                 // one copy of each block left a tier
	Cleared                 // everything is gone
)

// Event is one change. Slices belong to the Batch that contains it and are reused with it.
type Event struct {
	Kind Kind
	// Hashes of the blocks, in chain order for Stored.
	Hashes []Hash
	// Parent of the first block; meaningless unless HasParent.
	Parent    Hash
	HasParent bool
	// Tokens of the blocks, BlockSize each. Empty for announcements that carry only hashes.
	Tokens []uint32
	// BlockSize in tokens; 0 for announcements that carry only hashes.
	BlockSize int
	// Medium is the engine's word for the tier; empty means the GPU.
	Medium string
	// Adapter is the LoRA adapter's name; empty is the base model.
	Adapter string
	// Salt is the cache salt; only blocks without a parent carry one.
	Salt string
	// Items are the multimodal items and embeddings in the blocks, by block.
	Items []Item
	// Group is the KV cache group of hybrid models, 0 else.
	Group int
	// Tail is how many tokens before a hit's end the group must hold, for groups that do not need all of them (sliding
	// window, Mamba); 0 for groups that do.
	Tail int
	// Partial marks groups whose conditions for a hit are not known: not indexed.
	Partial bool
	// Lookahead says that the blocks' hashes also cover tokens that follow the block (EAGLE-like speculative decoding).
	Lookahead bool
	// Unkeyed marks an engine that does not publish what distinguishes its blocks (adapter id without a name, offload tiers
	// without extra keys): such blocks have no block key.
	Unkeyed bool
}

// Item is something in a block that is not a token.
type Item struct {
	Block  int    // index into Hashes
	Key    string // the item's identifier
	Offset int64  // position of the item relative to the block's start, tokens
}

// Batch is one message of an engine: everything that changed in one of its steps.
type Batch struct {
	// Time is the engine's clock at publishing, seconds since 1970.
	Time float64
	// Rank is the data-parallel rank, -1 when the engine does not say.
	Rank   int
	Events []Event
	// Skipped counts events and fields of events that were not understood and skipped.
	Skipped int
	// Unread counts the skipped events of a known kind: something has changed, but the change is unknown.
	Unread int
}

// Lookahead reports whether some block's hash also covers tokens that follow the block.
func (b *Batch) Lookahead() bool {
	for i := range b.Events {
		if e := &b.Events[i]; e.Kind == Stored && e.Lookahead {
			return true
		}
	}
	return false
}
