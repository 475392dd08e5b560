package vllm

import (
	"encoding/hex"

	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// identity determines what distinguishes the blocks of a BlockStored besides their tokens: adapter, salt, items, and
// whether the engine published it at all.
//
// vLLM lists, per block, untyped extra keys in a fixed order: adapter name, multimodal items, the salt (first block
// of a prompt only), a digest of prompt embeddings. Items are (identifier, offset) pairs from v0.19; in v0.17 and
// v0.18 they are bare strings, which in the first block of a prompt look like a salt: the last bare string there is
// taken for the salt. In those two releases an image in the very first block therefore reads as a salt, which costs hits
// and never gives false ones.
//
// Events with tokens are Unkeyed when
//   - an adapter is in use and the event does not name it (before v0.14);
//   - they come from an offload tier of vLLM without extra keys, which there means "not known", not "none";
//   - an extra key is not understood, or the list does not fit the blocks.
//
// On the GPU, no extra keys means none. Before v0.17 the field does not exist, salted and multimodal blocks cannot be
// distinguished from plain ones and are treated as plain. SGLang has no extra keys; what its metadata says holds on every tier.
// Announcements without tokens are never Unkeyed for their tier: their key is that of the same hash, seen before.
func (d *Decoder) identity(b *kvevent.Batch, e *kvevent.Event, f *fields) {
	if !e.HasParent {
		e.Salt = f.salt
	}
	if f.adapterID && e.Adapter == "" {
		e.Unkeyed = true
	}
	if len(f.extra) == 0 {
		if len(e.Tokens) > 0 && !d.sglang && !onGPU(e.Medium) {
			e.Unkeyed = true
		}
		return
	}
	r := reader{data: f.extra}
	n, ok := r.array()
	if !ok {
		e.Unkeyed = true
		b.Skipped++
		return
	}
	if n != 0 && n != len(e.Hashes) {
		e.Unkeyed = true
		b.Skipped++
		return
	}
	for block := range n {
		// The field was walked once already, so its extents are right.
		if r.isNil() {
			continue
		}
		keys, ok := r.array()
		if !ok {
			e.Unkeyed = true
			unknown(&r, b, 1)
			continue
		}
		d.blockKeys(&r, b, e, block, keys)
	}
}

// blockKeys reads the n extra keys of one block.
func (d *Decoder) blockKeys(r *reader, b *kvevent.Batch, e *kvevent.Event, block, n int) {
	salt := -1 // index into e.Items of what might be the salt
	for i := range n {
		if d.full {
			return
		}
		if r.isNil() {
			continue
		}
		start := r.at
		if s, ok := r.str(); ok {
			if i == 0 && e.Adapter != "" && string(s) == e.Adapter {
				continue
			}
			if block == 0 && !e.HasParent {
				salt = len(e.Items)
			}
			d.item(e, kvevent.Item{Block: block, Key: d.name(s)})
			continue
		}
		if digest, ok := r.bin(); ok {
			d.item(e, kvevent.Item{Block: block, Key: d.hex(digest)})
			continue
		}
		r.at = start
		if item, ok := d.pair(r); ok {
			item.Block = block
			d.item(e, item)
			continue
		}
		r.at = start
		e.Unkeyed = true
		unknown(r, b, 1)
	}
	if salt >= 0 && salt < len(e.Items) {
		e.Salt = e.Items[salt].Key
		e.Items = append(e.Items[:salt], e.Items[salt+1:]...)
	}
}

// item adds an item, if there is room.
func (d *Decoder) item(e *kvevent.Event, item kvevent.Item) {
	if n := len(e.Items); n == cap(e.Items) {
		more := max(4, n/2)
		if !d.room(more * itemBytes) {
			return
		}
		e.Items = append(make([]kvevent.Item, 0, n+more), e.Items...)
	}
	e.Items = append(e.Items, item)
}

// pair reads an (identifier, offset) tuple.
func (d *Decoder) pair(r *reader) (kvevent.Item, bool) {
	n, ok := r.array()
	if !ok || n != 2 {
		return kvevent.Item{}, false
	}
	s, ok := r.str()
	if !ok {
		return kvevent.Item{}, false
	}
	v, negative, ok := r.integer()
	if !ok || !negative && v > 1<<62 {
		return kvevent.Item{}, false
	}
	return kvevent.Item{Key: d.name(s), Offset: int64(v)}, true
}

// hex is name for bytes, in hexadecimal digits.
func (d *Decoder) hex(b []byte) string {
	if 2*len(b) > maxInternedBytes {
		if !d.room(2 * len(b)) {
			return ""
		}
		return hex.EncodeToString(b)
	}
	d.scratch = hex.AppendEncode(d.scratch[:0], b)
	return d.name(d.scratch)
}
