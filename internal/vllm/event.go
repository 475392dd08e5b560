package vllm

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// fields is the content of an event that has no place in kvevent.Event, or that can be understood only after the entire
// event was read: the keys of a map have no fixed order.
type fields struct {
	kind      kvevent.Kind
	hashes    bool   // block_hashes was there
	adapterID bool   // lora_id was there and not nil
	extra     []byte // raw extra_keys; empty when nil or absent
	salt      string // SGLang's, from its metadata
	spec      spec   // kv_cache_spec_kind
	window    int    // kv_cache_spec_sliding_window, 0 when it is absent
}

func kindOf(tag []byte) kvevent.Kind {
	switch string(tag) {
	case "BlockStored":
		return kvevent.Stored
	case "BlockRemoved":
		return kvevent.Removed
	case "AllBlocksCleared":
		return kvevent.Cleared
	}
	return 0
}

// tagged reports whether the event at r, whose extent is right, has a known tag.
func tagged(r reader) bool {
	if n, ok := r.array(); ok {
		tag, ok := r.str()
		return n > 0 && ok && kindOf(tag) != 0
	}
	n, _ := r.mapping()
	for range n {
		key, _ := r.key()
		start := r.at
		if tag, ok := r.str(); ok && string(key) == "type" && kindOf(tag) != 0 {
			return true
		}
		r.at = start
		r.skip()
	}
	return false
}

// fields reads an event in either form.
func (d *Decoder) fields(r *reader, b *kvevent.Batch, e *kvevent.Event, f *fields) bool {
	if n, ok := r.array(); ok {
		return d.positions(r, b, e, f, n)
	}
	n, ok := r.mapping()
	if !ok {
		return false
	}
	for range n {
		key, ok := r.key()
		if !ok || !d.keyed(r, b, e, f, key) {
			return false
		}
	}
	return true
}

// positions reads the n elements of an event in array form.
func (d *Decoder) positions(r *reader, b *kvevent.Batch, e *kvevent.Event, f *fields, n int) bool {
	if n == 0 {
		return false
	}
	tag, ok := r.str()
	if !ok {
		return false
	}
	f.kind = kindOf(tag)
	switch f.kind {
	case kvevent.Stored:
		if n < 5 {
			return false
		}
	case kvevent.Removed:
		if n < 2 {
			return false
		}
	case kvevent.Cleared:
	default:
		return false
	}
	for i := 1; i < n; i++ {
		switch f.kind {
		case kvevent.Stored:
			ok = d.storedAt(r, b, e, f, i)
		case kvevent.Removed:
			ok = d.removedAt(r, b, e, f, i)
		default:
			ok = d.clearedAt(r, b, e, i)
		}
		if !ok {
			return false
		}
	}
	return true
}

// storedAt reads element i of a BlockStored.
func (d *Decoder) storedAt(r *reader, b *kvevent.Batch, e *kvevent.Event, f *fields, i int) bool {
	switch i {
	case 1:
		return d.hashes(r, e, f)
	case 2:
		return d.parent(r, e)
	case 3:
		return d.tokens(r, e)
	case 4:
		return blockSize(r, e)
	case 5:
		return adapterID(r, f)
	case 6:
		return d.text(r, &e.Medium)
	case 7:
		return d.adapterOrMetadata(r, b, e, f)
	case 8:
		return extraKeys(r, f)
	case 9:
		return group(r, e)
	case 10:
		return specKind(r, b, f)
	case 11:
		return window(r, b, f)
	}
	return unknown(r, b, 1)
}

func (d *Decoder) removedAt(r *reader, b *kvevent.Batch, e *kvevent.Event, f *fields, i int) bool {
	switch i {
	case 1:
		return d.hashes(r, e, f)
	case 2:
		return d.text(r, &e.Medium)
	case 3:
		return group(r, e)
	}
	return unknown(r, b, 1)
}

func (d *Decoder) clearedAt(r *reader, b *kvevent.Batch, e *kvevent.Event, i int) bool {
	if i == 1 {
		return d.text(r, &e.Medium)
	}
	return unknown(r, b, 1)
}

// keyed reads the value of one key of an event in map form, whatever the event's tag, which can be last.
func (d *Decoder) keyed(r *reader, b *kvevent.Batch, e *kvevent.Event, f *fields, key []byte) bool {
	switch string(key) {
	case "type":
		tag, ok := r.str()
		f.kind = kindOf(tag)
		return ok && f.kind != 0
	case "block_hashes":
		return d.hashes(r, e, f)
	case "parent_block_hash":
		return d.parent(r, e)
	case "token_ids":
		return d.tokens(r, e)
	case "block_size":
		return blockSize(r, e)
	case "lora_id":
		return adapterID(r, f)
	case "medium":
		return d.text(r, &e.Medium)
	case "lora_name":
		return d.text(r, &e.Adapter)
	case "extra_keys":
		return extraKeys(r, f)
	case "group_idx":
		return group(r, e)
	case "kv_cache_spec_kind":
		return specKind(r, b, f)
	case "kv_cache_spec_sliding_window":
		return window(r, b, f)
	case "lookahead_token_ids":
		return lookahead(r, e)
	case "metadata":
		if d.sglang {
			return d.metadata(r, b, f)
		}
	case "locality", "ownership", "session_id":
		return r.skip() // understood, and not needed here
	}
	return unknown(r, b, 1)
}

// finish checks that the event is complete and settles what depends on more than one field.
func (d *Decoder) finish(b *kvevent.Batch, e *kvevent.Event, f *fields) bool {
	e.Kind = f.kind
	switch f.kind {
	case kvevent.Stored:
		if !f.hashes {
			return false
		}
		f.rule(e)
		d.identity(b, e, f)
		return !d.full
	case kvevent.Removed:
		// Only the fields of a removal, in case a map has more.
		*e = kvevent.Event{Kind: e.Kind, Hashes: e.Hashes, Tokens: e.Tokens[:0], Items: e.Items, Medium: e.Medium, Group: e.Group}
		return f.hashes
	case kvevent.Cleared:
		*e = kvevent.Event{Kind: e.Kind, Hashes: e.Hashes[:0], Tokens: e.Tokens[:0], Items: e.Items, Medium: e.Medium}
		return true
	}
	return false
}

// hash reads one block hash: an integer, or at least the last 8 bytes of a digest.
func hash(r *reader) (kvevent.Hash, bool) {
	start := r.at
	if digest, ok := r.bin(); ok {
		if len(digest) < 8 {
			return 0, false
		}
		return kvevent.Hash(binary.BigEndian.Uint64(digest[len(digest)-8:])), true
	}
	r.at = start // what is cut short of a digest is no integer
	v, _, ok := r.integer()
	return kvevent.Hash(v), ok
}

func (d *Decoder) hashes(r *reader, e *kvevent.Event, f *fields) bool {
	n, ok := r.array()
	if !ok {
		return false
	}
	if f.hashes = true; !d.room(8 * (n - cap(e.Hashes))) {
		return false
	}
	e.Hashes = slices.Grow(e.Hashes[:0], n)
	start := *r
	for range n {
		h, ok := hash(r)
		if !ok {
			return false
		}
		e.Hashes = append(e.Hashes, h)
	}
	if d.raw != nil {
		d.raw.hashes(start, n)
	}
	return true
}

// parent reads the parent's hash. The integer 0 means none: engines written in languages without nil send it, and no digest
// is 0 in practice.
func (d *Decoder) parent(r *reader, e *kvevent.Event) bool {
	e.Parent, e.HasParent = 0, false
	if r.isNil() {
		return true
	}
	start := *r
	h, ok := hash(r)
	e.Parent, e.HasParent = h, h != 0
	if ok && d.raw != nil {
		d.raw.last().Parent = rawHash(&start)
	}
	return ok
}

// tokens reads token ids, nearly all of the bytes of an event. The loop knows the forms that an engine sends; the
// rest goes the general way.
func (d *Decoder) tokens(r *reader, e *kvevent.Event) bool {
	e.Tokens = e.Tokens[:0]
	if r.isNil() {
		return true
	}
	n, ok := r.array()
	if !ok {
		return false
	}
	if !d.room(4 * (n - cap(e.Tokens))) {
		return false
	}
	out := slices.Grow(e.Tokens, n)[:n]
	e.Tokens = out
	data, at := r.data, r.at
	for i := range out {
		if at+5 <= len(data) {
			p := data[at : at+5 : at+5]
			switch c := p[0]; {
			case c == 0xcd:
				out[i] = uint32(p[1])<<8 | uint32(p[2])
				at += 3
				continue
			case c == 0xce:
				out[i] = binary.BigEndian.Uint32(p[1:])
				at += 5
				continue
			case c < 0x80:
				out[i] = uint32(c)
				at++
				continue
			}
		}
		r.at = at
		v, negative, ok := r.integer()
		if !ok || negative || v > math.MaxUint32 {
			return false
		}
		out[i] = uint32(v)
		at = r.at
	}
	r.at = at
	return true
}

func blockSize(r *reader, e *kvevent.Event) bool {
	e.BlockSize = 0
	if r.isNil() {
		return true
	}
	n, ok := r.count()
	e.BlockSize = n
	return ok
}

// adapterID notes whether there is an adapter. Its number means nothing outside the engine.
func adapterID(r *reader, f *fields) bool {
	f.adapterID = false
	if r.isNil() {
		return true
	}
	f.adapterID = true
	return r.skip()
}

// text reads a string or nil.
func (d *Decoder) text(r *reader, into *string) bool {
	*into = ""
	if r.isNil() {
		return true
	}
	s, ok := r.str()
	if ok {
		*into = d.name(s)
	}
	return ok
}

// adapterOrMetadata reads position 7: vLLM's adapter name or SGLang's metadata.
func (d *Decoder) adapterOrMetadata(r *reader, b *kvevent.Batch, e *kvevent.Event, f *fields) bool {
	if c := r.peek(); c&0xf0 == 0x80 || c == 0xde || c == 0xdf {
		if d.sglang {
			return d.metadata(r, b, f)
		}
		return unknown(r, b, 1)
	}
	return d.text(r, &e.Adapter)
}

// metadata reads SGLang's map of what it knows of the request.
func (d *Decoder) metadata(r *reader, b *kvevent.Batch, f *fields) bool {
	f.salt = ""
	if r.isNil() {
		return true
	}
	n, ok := r.mapping()
	if !ok {
		return false
	}
	for range n {
		key, ok := r.str()
		if !ok {
			return false
		}
		switch string(key) {
		case "cache_salt":
			ok = d.text(r, &f.salt)
		case "session_id":
			ok = r.skip()
		default:
			ok = unknown(r, b, 1)
		}
		if !ok {
			return false
		}
	}
	return true
}

// extraKeys remembers the field for later.
func extraKeys(r *reader, f *fields) bool {
	f.extra = nil
	if r.isNil() {
		return true
	}
	start := r.at
	if !r.skip() {
		return false
	}
	f.extra = r.data[start:r.at]
	return true
}

func group(r *reader, e *kvevent.Event) bool {
	e.Group = 0
	if r.isNil() {
		return true
	}
	n, ok := r.count()
	e.Group = n
	return ok
}

// spec is a kind of KV cache group, by what a hit needs of it.
type spec uint8

const (
	fullSpec    spec = iota // all blocks; also when the engine does not report it
	windowSpec              // the blocks of the last window
	stateSpec               // the last block
	unknownSpec             // nothing is assumed
)

// specKind reads the kind of attention whose blocks these are.
func specKind(r *reader, b *kvevent.Batch, f *fields) bool {
	f.spec = fullSpec
	if r.isNil() {
		return true
	}
	f.spec = unknownSpec
	start := r.at
	kind, ok := r.str()
	if !ok {
		r.at = start
		return unknown(r, b, 1)
	}
	switch string(kind) {
	case "full_attention", "mla_attention", "sink_full_attention":
		f.spec = fullSpec
	case "sliding_window", "sliding_window_mla":
		f.spec = windowSpec
	case "mamba":
		f.spec = stateSpec
	}
	return true
}

// window reads the size of a sliding window in tokens.
func window(r *reader, b *kvevent.Batch, f *fields) bool {
	f.window = 0
	if r.isNil() {
		return true
	}
	start := r.at
	n, ok := r.count()
	if !ok {
		r.at = start
		return unknown(r, b, 1)
	}
	f.window = n
	return true
}

// rule settles what a hit needs of the event's group. A window of w tokens attends to the w-1 before the next one.
func (f *fields) rule(e *kvevent.Event) {
	e.Tail, e.Partial = 0, false
	switch f.spec {
	case windowSpec:
		if e.Partial = f.window == 0; !e.Partial {
			e.Tail = max(1, f.window-1)
		}
	case stateSpec:
		e.Tail = 1
	case unknownSpec:
		e.Partial = true
	}
}

// lookahead reads the tokens after the blocks that the blocks' hashes cover, too; which ones does not matter here.
func lookahead(r *reader, e *kvevent.Event) bool {
	e.Lookahead = false
	if r.isNil() {
		return true
	}
	start := r.at
	n, ok := r.array()
	r.at = start
	e.Lookahead = ok && n > 0
	return r.skip()
}

// onGPU reports whether a medium is the engine's first tier.
func onGPU(medium string) bool { return medium == "" || strings.EqualFold(medium, "GPU") }
