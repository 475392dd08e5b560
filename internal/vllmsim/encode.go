package vllmsim

import (
	"encoding/binary"

	"github.com/kvasir-dev/kvasir/internal/enginemodel"
)

// wireEvent is an event with everything that any layout can say.
type wireEvent struct {
	kind   enginemodel.EventKind
	hashes []enginemodel.Hash
	parent enginemodel.Hash // 0: nil
	tokens []uint32
	// blockSize is in tokens.
	blockSize int
	loraID    int    // 0: nil
	medium    string // "": nil
	loraName  string // "": nil
	// extra has an entry for each hash, or is nil.
	extra [][]extraKey
	group int // -1: nil
	spec  string
	// window is the size of the sliding window in tokens, 0: nil.
	window int
}

// extraKey is what else a block's hash depends on: a name, or an item's identifier with its offset in the block.
type extraKey struct {
	name      string
	offset    int
	hasOffset bool
}

const (
	mediumGPU         = "GPU"
	specFullAttention = "full_attention"
)

// encoder appends batches in one layout.
type encoder struct {
	layout Layout
	rank   int
	// signed makes integer hashes signed, as those of Python's own hash are, the default before v0.10.2.
	signed bool
	// digest, if set, replaces integer hashes.
	digest func(dst []byte, h enginemodel.Hash) []byte
	buf    []byte // scratch of digest
}

// appendBatch appends the batch of a step to dst; ts is in seconds since 1970.
func (e *encoder) appendBatch(dst []byte, ts float64, events []wireEvent) []byte {
	n := 3
	if e.layout < Layout091 {
		n = 2
	}
	dst = appendArray(dst, n)
	dst = appendFloat(dst, ts)
	dst = appendArray(dst, len(events))
	for i := range events {
		if e.layout >= Layout024 {
			dst = e.appendMapEvent(dst, &events[i])
		} else {
			dst = e.appendArrayEvent(dst, &events[i])
		}
	}
	if n == 3 {
		dst = appendUint(dst, uint64(e.rank))
	}
	return dst
}

var tags = map[enginemodel.EventKind]string{
	enginemodel.Stored: "BlockStored", enginemodel.Removed: "BlockRemoved", enginemodel.Cleared: "AllBlocksCleared",
}

// from is 1 if the layout is l or later.
func (e *encoder) from(l Layout) int {
	if e.layout >= l {
		return 1
	}
	return 0
}

// appendArrayEvent writes an event by position: fields without a value are nil, and those of later layouts are absent.
func (e *encoder) appendArrayEvent(dst []byte, ev *wireEvent) []byte {
	switch ev.kind {
	case enginemodel.Cleared:
		return appendString(appendArray(dst, 1), tags[ev.kind])
	case enginemodel.Removed:
		dst = appendArray(dst, 2+e.from(Layout0102)+e.from(Layout020))
		dst = appendString(dst, tags[ev.kind])
		dst = e.appendHashes(dst, ev.hashes)
		if e.layout >= Layout0102 {
			dst = appendName(dst, ev.medium)
		}
		if e.layout >= Layout020 {
			dst = appendNumber(dst, ev.group, -1)
		}
		return dst
	}
	dst = appendArray(dst, 6+e.from(Layout0102)+e.from(Layout014)+e.from(Layout017)+e.from(Layout020)+2*e.from(Layout022))
	dst = appendString(dst, tags[ev.kind])
	dst = e.appendHashes(dst, ev.hashes)
	dst = e.appendParent(dst, ev.parent)
	dst = appendTokens(dst, ev.tokens)
	dst = appendUint(dst, uint64(ev.blockSize))
	dst = appendNumber(dst, ev.loraID, 0)
	if e.layout >= Layout0102 {
		dst = appendName(dst, ev.medium)
	}
	if e.layout >= Layout014 {
		dst = appendName(dst, ev.loraName)
	}
	if e.layout >= Layout017 {
		dst = appendExtra(dst, ev.extra)
	}
	if e.layout >= Layout020 {
		dst = appendNumber(dst, ev.group, -1)
	}
	if e.layout >= Layout022 {
		dst = appendName(dst, ev.spec)
		dst = appendNumber(dst, ev.window, 0)
	}
	return dst
}

// appendMapEvent writes an event by name: the newer fields are absent when they have no value.
func (e *encoder) appendMapEvent(dst []byte, ev *wireEvent) []byte {
	switch ev.kind {
	case enginemodel.Cleared:
		return appendType(appendMap(dst, 1), ev.kind)
	case enginemodel.Removed:
		dst = appendType(appendMap(dst, 3+one(ev.group >= 0)), ev.kind)
		dst = e.appendHashes(appendString(dst, "block_hashes"), ev.hashes)
		dst = appendName(appendString(dst, "medium"), ev.medium)
		if ev.group >= 0 {
			dst = appendUint(appendString(dst, "group_idx"), uint64(ev.group))
		}
		return dst
	}
	dst = appendMap(dst, 8+one(ev.extra != nil)+one(ev.group >= 0)+one(ev.spec != "")+one(ev.window != 0))
	dst = appendType(dst, ev.kind)
	dst = e.appendHashes(appendString(dst, "block_hashes"), ev.hashes)
	dst = e.appendParent(appendString(dst, "parent_block_hash"), ev.parent)
	dst = appendTokens(appendString(dst, "token_ids"), ev.tokens)
	dst = appendUint(appendString(dst, "block_size"), uint64(ev.blockSize))
	dst = appendNumber(appendString(dst, "lora_id"), ev.loraID, 0)
	dst = appendName(appendString(dst, "medium"), ev.medium)
	dst = appendName(appendString(dst, "lora_name"), ev.loraName)
	if ev.extra != nil {
		dst = appendExtra(appendString(dst, "extra_keys"), ev.extra)
	}
	if ev.group >= 0 {
		dst = appendUint(appendString(dst, "group_idx"), uint64(ev.group))
	}
	if ev.spec != "" {
		dst = appendString(appendString(dst, "kv_cache_spec_kind"), ev.spec)
	}
	if ev.window != 0 {
		dst = appendUint(appendString(dst, "kv_cache_spec_sliding_window"), uint64(ev.window))
	}
	return dst
}

func appendType(dst []byte, kind enginemodel.EventKind) []byte {
	return appendString(appendString(dst, "type"), tags[kind])
}

func (e *encoder) appendHashes(dst []byte, hashes []enginemodel.Hash) []byte {
	dst = appendArray(dst, len(hashes))
	for _, h := range hashes {
		dst = e.appendHash(dst, h)
	}
	return dst
}

func (e *encoder) appendHash(dst []byte, h enginemodel.Hash) []byte {
	switch {
	case e.digest != nil:
		e.buf = e.digest(e.buf[:0], h)
		return appendBytes(dst, e.buf)
	case e.signed:
		return appendInt(dst, int64(h))
	}
	return appendUint(dst, uint64(h))
}

func (e *encoder) appendParent(dst []byte, h enginemodel.Hash) []byte {
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
func appendExtra(dst []byte, extra [][]extraKey) []byte {
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
			if k.hasOffset {
				dst = appendInt(appendString(appendArray(dst, 2), k.name), int64(k.offset))
			} else {
				dst = appendString(dst, k.name)
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

// longDigest stretches a hash to the length of the engine's digests, whose last 8 bytes are what it sends as integer.
func longDigest(dst []byte, h enginemodel.Hash) []byte {
	x := uint64(h)
	for range sha256Size/8 - 1 {
		x = x*0x9e3779b97f4a7c15 + 1
		dst = binary.BigEndian.AppendUint64(dst, x)
	}
	return binary.BigEndian.AppendUint64(dst, uint64(h))
}

// wireEvents translates the events of a step; the result is valid until the next call with the same buffer.
func wireEvents(buf []wireEvent, events []enginemodel.Event, blockSize int) []wireEvent {
	buf = buf[:0]
	for i := range events {
		ev := &events[i]
		w := wireEvent{kind: ev.Kind, hashes: ev.Hashes, medium: mediumGPU, group: 0}
		if ev.Kind == enginemodel.Stored {
			w.parent, w.tokens, w.blockSize = ev.Parent, ev.Tokens, blockSize
			w.loraID, w.loraName, w.spec = ev.AdapterID, ev.Adapter, specFullAttention
			w.extra = extraKeys(ev)
		}
		buf = append(buf, w)
	}
	return buf
}

// extraKeys are an adapter's name in each block, and the salt in a first block.
func extraKeys(ev *enginemodel.Event) [][]extraKey {
	extra := make([][]extraKey, len(ev.Hashes))
	for i := range extra {
		if ev.Adapter != "" {
			extra[i] = append(extra[i], extraKey{name: ev.Adapter})
		}
		if ev.Salt != "" && i == 0 && ev.Parent == 0 {
			extra[i] = append(extra[i], extraKey{name: ev.Salt})
		}
	}
	return extra
}
