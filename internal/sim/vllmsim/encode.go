package vllmsim

import (
	"encoding/binary"

	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// WireEvent is an event with all fields of any layout.
type WireEvent struct {
	Kind   enginemodel.EventKind
	Hashes []enginemodel.Hash
	Parent enginemodel.Hash // 0: nil
	Tokens []uint32
	// BlockSize is in tokens.
	BlockSize int
	LoRAID    int    // 0: nil
	Medium    string // "": nil
	LoRAName  string // "": nil
	// Extra has an entry for each hash, or is nil.
	Extra [][]ExtraKey
	Group int // -1: nil
	Spec  string
	// Window is the size of the sliding window in tokens, 0: nil.
	Window int
}

// ExtraKey is what else a block's hash depends on: a name, or an item's identifier with its offset in the block.
type ExtraKey struct {
	Name      string
	Offset    int
	HasOffset bool
}

const (
	mediumGPU         = "GPU"
	specFullAttention = "full_attention"
)

// Encoder appends batches in one layout.
type Encoder struct {
	Layout Layout
	Rank   int
	// Signed makes integer hashes signed, as those of Python's own hash are, the default before v0.10.2.
	Signed bool
	// Digest, if set, replaces integer hashes.
	Digest func(dst []byte, h enginemodel.Hash) []byte
	buf    []byte // scratch of Digest
}

// AppendBatch appends the batch of a step to dst; ts is in seconds since 1970.
func (e *Encoder) AppendBatch(dst []byte, ts float64, events []WireEvent) []byte {
	n := 3
	if e.Layout < Layout091 {
		n = 2
	}
	dst = appendArray(dst, n)
	dst = appendFloat(dst, ts)
	dst = appendArray(dst, len(events))
	for i := range events {
		if e.Layout >= Layout024 {
			dst = e.appendMapEvent(dst, &events[i])
		} else {
			dst = e.appendArrayEvent(dst, &events[i])
		}
	}
	if n == 3 {
		dst = appendUint(dst, uint64(e.Rank))
	}
	return dst
}

var tags = map[enginemodel.EventKind]string{
	enginemodel.Stored: "BlockStored", enginemodel.Removed: "BlockRemoved", enginemodel.Cleared: "AllBlocksCleared",
}

// from is 1 if the layout is l or later.
func (e *Encoder) from(l Layout) int {
	if e.Layout >= l {
		return 1
	}
	return 0
}

// appendArrayEvent writes an event by position: fields without a value are nil, and those of later layouts are absent.
func (e *Encoder) appendArrayEvent(dst []byte, ev *WireEvent) []byte {
	switch ev.Kind {
	case enginemodel.Cleared:
		return appendString(appendArray(dst, 1), tags[ev.Kind])
	case enginemodel.Removed:
		dst = appendArray(dst, 2+e.from(Layout0102)+e.from(Layout020))
		dst = appendString(dst, tags[ev.Kind])
		dst = e.appendHashes(dst, ev.Hashes)
		if e.Layout >= Layout0102 {
			dst = appendName(dst, ev.Medium)
		}
		if e.Layout >= Layout020 {
			dst = appendNumber(dst, ev.Group, -1)
		}
		return dst
	}
	dst = appendArray(dst, 6+e.from(Layout0102)+e.from(Layout014)+e.from(Layout017)+e.from(Layout020)+2*e.from(Layout022))
	dst = appendString(dst, tags[ev.Kind])
	dst = e.appendHashes(dst, ev.Hashes)
	dst = e.appendParent(dst, ev.Parent)
	dst = appendTokens(dst, ev.Tokens)
	dst = appendUint(dst, uint64(ev.BlockSize))
	dst = appendNumber(dst, ev.LoRAID, 0)
	if e.Layout >= Layout0102 {
		dst = appendName(dst, ev.Medium)
	}
	if e.Layout >= Layout014 {
		dst = appendName(dst, ev.LoRAName)
	}
	if e.Layout >= Layout017 {
		dst = appendExtra(dst, ev.Extra)
	}
	if e.Layout >= Layout020 {
		dst = appendNumber(dst, ev.Group, -1)
	}
	if e.Layout >= Layout022 {
		dst = appendName(dst, ev.Spec)
		dst = appendNumber(dst, ev.Window, 0)
	}
	return dst
}

// appendMapEvent writes an event by name: the newer fields are absent when they have no value.
func (e *Encoder) appendMapEvent(dst []byte, ev *WireEvent) []byte {
	switch ev.Kind {
	case enginemodel.Cleared:
		return appendType(appendMap(dst, 1), ev.Kind)
	case enginemodel.Removed:
		dst = appendType(appendMap(dst, 3+one(ev.Group >= 0)), ev.Kind)
		dst = e.appendHashes(appendString(dst, "block_hashes"), ev.Hashes)
		dst = appendName(appendString(dst, "medium"), ev.Medium)
		if ev.Group >= 0 {
			dst = appendUint(appendString(dst, "group_idx"), uint64(ev.Group))
		}
		return dst
	}
	dst = appendMap(dst, 8+one(ev.Extra != nil)+one(ev.Group >= 0)+one(ev.Spec != "")+one(ev.Window != 0))
	dst = appendType(dst, ev.Kind)
	dst = e.appendHashes(appendString(dst, "block_hashes"), ev.Hashes)
	dst = e.appendParent(appendString(dst, "parent_block_hash"), ev.Parent)
	dst = appendTokens(appendString(dst, "token_ids"), ev.Tokens)
	dst = appendUint(appendString(dst, "block_size"), uint64(ev.BlockSize))
	dst = appendNumber(appendString(dst, "lora_id"), ev.LoRAID, 0)
	dst = appendName(appendString(dst, "medium"), ev.Medium)
	dst = appendName(appendString(dst, "lora_name"), ev.LoRAName)
	if ev.Extra != nil {
		dst = appendExtra(appendString(dst, "extra_keys"), ev.Extra)
	}
	if ev.Group >= 0 {
		dst = appendUint(appendString(dst, "group_idx"), uint64(ev.Group))
	}
	if ev.Spec != "" {
		dst = appendString(appendString(dst, "kv_cache_spec_kind"), ev.Spec)
	}
	if ev.Window != 0 {
		dst = appendUint(appendString(dst, "kv_cache_spec_sliding_window"), uint64(ev.Window))
	}
	return dst
}

func appendType(dst []byte, kind enginemodel.EventKind) []byte {
	return appendString(appendString(dst, "type"), tags[kind])
}

func (e *Encoder) appendHashes(dst []byte, hashes []enginemodel.Hash) []byte {
	dst = appendArray(dst, len(hashes))
	for _, h := range hashes {
		dst = e.appendHash(dst, h)
	}
	return dst
}

func (e *Encoder) appendHash(dst []byte, h enginemodel.Hash) []byte {
	switch {
	case e.Digest != nil:
		e.buf = e.Digest(e.buf[:0], h)
		return appendBytes(dst, e.buf)
	case e.Signed:
		return appendInt(dst, int64(h))
	}
	return appendUint(dst, uint64(h))
}

func (e *Encoder) appendParent(dst []byte, h enginemodel.Hash) []byte {
	if h == 0 {
		return appendNil(dst)
	}
	return e.appendHash(dst, h)
}

func appendTokens(dst []byte, tokens []uint32) []byte {
	dst = appendArray(dst, len(tokens))
	for _, t := range tokens {
		dst = appendUint(dst, uint64(t))
	}
	return dst
}

// appendExtra writes a list for each block, nil for a block that has no extra keys.
func appendExtra(dst []byte, extra [][]ExtraKey) []byte {
	if extra == nil {
		return appendNil(dst)
	}
	dst = appendArray(dst, len(extra))
	for _, keys := range extra {
		if keys == nil {
			dst = appendNil(dst)
			continue
		}
		dst = appendArray(dst, len(keys))
		for _, k := range keys {
			if k.HasOffset {
				dst = appendInt(appendString(appendArray(dst, 2), k.Name), int64(k.Offset))
			} else {
				dst = appendString(dst, k.Name)
			}
		}
	}
	return dst
}

func appendName(dst []byte, s string) []byte {
	if s == "" {
		return appendNil(dst)
	}
	return appendString(dst, s)
}

// appendNumber writes v, or nil if it is none.
func appendNumber(dst []byte, v, none int) []byte {
	if v == none {
		return appendNil(dst)
	}
	return appendInt(dst, int64(v))
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// sha256Size is the length of a digest of the engine's default hash.
const sha256Size = 32

// LongDigest stretches a hash to the length of the engine's digests, whose last 8 bytes are what it sends as integer.
func LongDigest(dst []byte, h enginemodel.Hash) []byte {
	x := uint64(h)
	for range sha256Size/8 - 1 {
		x = x*0x9e3779b97f4a7c15 + 1
		dst = binary.BigEndian.AppendUint64(dst, x)
	}
	return binary.BigEndian.AppendUint64(dst, uint64(h))
}

// wireEvents translates the events of a step; the result is valid until the next call with the same buffer.
func wireEvents(buf []WireEvent, events []enginemodel.Event, blockSize int) []WireEvent {
	buf = buf[:0]
	for i := range events {
		ev := &events[i]
		w := WireEvent{Kind: ev.Kind, Hashes: ev.Hashes, Medium: mediumGPU, Group: 0}
		if ev.Kind == enginemodel.Stored {
			w.Parent, w.Tokens, w.BlockSize = ev.Parent, ev.Tokens, blockSize
			w.LoRAID, w.LoRAName, w.Spec = ev.AdapterID, ev.Adapter, specFullAttention
			w.Extra = extraKeys(ev)
		}
		buf = append(buf, w)
	}
	return buf
}

// extraKeys are an adapter's name in each block, and the salt in a first block.
func extraKeys(ev *enginemodel.Event) [][]ExtraKey {
	extra := make([][]ExtraKey, len(ev.Hashes))
	for i := range extra {
		if ev.Adapter != "" {
			extra[i] = append(extra[i], ExtraKey{Name: ev.Adapter})
		}
		if ev.Salt != "" && i == 0 && ev.Parent == 0 {
			extra[i] = append(extra[i], ExtraKey{Name: ev.Salt})
		}
	}
	return extra
}
