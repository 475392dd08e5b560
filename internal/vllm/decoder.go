// Package vllm reads what vLLM, and engines that copy its formats, publish: KV cache events and metrics.
//
// Events arrive as MessagePack in the third frame of the engine's ZeroMQ publisher. The layout changed with nearly every
// release; all of them are accepted, by position and by name, in any mix:
//
//	batch    array [ts, events, data_parallel_rank] or map {ts, events, data_parallel_rank}
//	event    array, tag first, read by its length, or map with the tag under "type"
//
//	position  BlockStored                       BlockRemoved   AllBlocksCleared
//	1         block_hashes                      block_hashes   medium (not vLLM)
//	2         parent_block_hash                 medium
//	3         token_ids                         group_idx
//	4         block_size
//	5         lora_id
//	6         medium (v0.10.2)
//	7         lora_name (v0.14), SGLang: metadata {cache_salt, session_id}
//	8         extra_keys (v0.17)
//	9         group_idx (v0.20)
//	10, 11    kv_cache_spec_kind, kv_cache_spec_sliding_window (v0.21)
//
// In map form (v0.24) every key but type and block_hashes can be missing, and means the same as nil.
package vllm

import (
	"errors"
	"reflect"

	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// ErrMalformed means that a payload is not MessagePack, or is truncated.
var ErrMalformed = errors.New("malformed event batch")

// ErrLayout means that a payload is MessagePack but no event batch in any known layout.
var ErrLayout = errors.New("unknown layout of event batch")

// ErrRoom means that there is no room for what a payload takes when it is decoded.
var ErrRoom = errors.New("no room for event batch")

// Interned strings: more of them, or longer ones, are allocated again each time.
const (
	maxInterned      = 1024
	maxInternedBytes = 256
)

// What a batch's buffers take for each event and item, in bytes.
var eventBytes, itemBytes = int(reflect.TypeFor[kvevent.Event]().Size()), int(reflect.TypeFor[kvevent.Item]().Size())

// Decoder decodes the event batches of one endpoint. It remembers the strings it has seen, so that engines which
// repeat themselves cost no allocation. A Decoder is for one goroutine at a time.
type Decoder struct {
	sglang  bool
	names   map[string]string
	scratch []byte
	raw     *Raw // to be filled too; nil but in DecodeRaw
	// take reports whether a batch's buffers can have so many more bytes; nil for always. full: they could not.
	take func(bytes int) bool
	full bool
}

// NewDecoder returns a decoder for an engine: "VLLM" or "SGLang", which differ in position 7 of BlockStored. Any
// other name means "VLLM".
func NewDecoder(engine string) *Decoder {
	return &Decoder{sglang: engine == "SGLang", names: make(map[string]string)}
}

// Limit makes Decode fail with ErrRoom if take reports that there is no room for so many more bytes of a batch's buffers. A payload
// can take 20 times its size.
func (d *Decoder) Limit(take func(bytes int) bool) { d.take = take }

// room asks for more bytes of a batch's buffers.
func (d *Decoder) room(bytes int) bool {
	if d.take != nil && bytes > 0 && !d.take(bytes) {
		d.full = true
	}
	return !d.full
}

// Decode reads one payload into b, whose slices are reused. Nothing in b refers to payload afterwards.
//
// Events with an unknown tag, events that cannot be decoded although their extent is known, and unknown fields are skipped
// and counted in b.Skipped; those events whose tag is known in b.Unread, too. An error wraps ErrMalformed, ErrLayout or ErrRoom and
// means that nothing of the payload must be applied; b then holds no events.
func (d *Decoder) Decode(payload []byte, b *kvevent.Batch) error {
	b.Time, b.Rank, b.Skipped, b.Unread, b.Events = 0, -1, 0, 0, b.Events[:0]
	d.full = false
	r := reader{data: payload}
	if !d.batch(&r, b) {
		b.Unread, b.Events = 0, b.Events[:0]
		if d.full {
			return ErrRoom
		}
		if whole := (reader{data: payload}); whole.skip() {
			return ErrLayout
		}
		return ErrMalformed
	}
	if r.left() > 0 {
		b.Skipped++
	}
	return nil
}

// batch reads the outermost array or map.
func (d *Decoder) batch(r *reader, b *kvevent.Batch) bool {
	if n, ok := r.array(); ok {
		if n < 2 || !d.time(r, b) || !d.events(r, b) {
			return false
		}
		if n > 2 && !d.rank(r, b) {
			return false
		}
		return n <= 3 || unknown(r, b, n-3)
	}
	n, ok := r.mapping()
	if !ok {
		return false
	}
	seen := false
	for range n {
		key, ok := r.str()
		if !ok {
			return false
		}
		switch string(key) {
		case "ts":
			ok = d.time(r, b)
		case "events":
			ok, seen = d.events(r, b), true
		case "data_parallel_rank", "attn_dp_rank":
			ok = d.rank(r, b)
		default:
			ok = unknown(r, b, 1)
		}
		if !ok {
			return false
		}
	}
	return seen
}

func (d *Decoder) time(r *reader, b *kvevent.Batch) bool {
	ts, ok := r.number()
	b.Time = ts
	return ok
}

// rank reads the data-parallel rank; an invalid one is ignored.
func (d *Decoder) rank(r *reader, b *kvevent.Batch) bool {
	b.Rank = -1
	if r.isNil() {
		return true
	}
	start := r.at
	if n, ok := r.count(); ok {
		b.Rank = n
		return true
	}
	r.at = start
	return unknown(r, b, 1)
}

// events reads the list of events.
func (d *Decoder) events(r *reader, b *kvevent.Batch) bool {
	b.Unread, b.Events = 0, b.Events[:0]
	n, ok := r.array()
	if !ok {
		return false
	}
	for range n {
		start, skipped := r.at, b.Skipped
		if d.event(r, b) {
			continue
		}
		if d.full {
			return false
		}
		r.at, b.Skipped = start, skipped
		if !unknown(r, b, 1) {
			return false
		}
		if tagged(reader{data: r.data, at: start}) {
			b.Unread++
		}
	}
	return true
}

// event reads one event into the next slot of b. On false the slot was not taken.
func (d *Decoder) event(r *reader, b *kvevent.Batch) bool {
	e := d.nextEvent(b)
	if e == nil {
		return false
	}
	if d.raw != nil {
		d.raw.next(len(b.Events) - 1)
	}
	var f fields
	if !d.fields(r, b, e, &f) || !d.finish(b, e, &f) {
		b.Events = b.Events[:len(b.Events)-1]
		return false
	}
	return true
}

// nextEvent takes the next slot of b.Events, emptied, with the buffers that an earlier batch left in it; nil without room.
func (d *Decoder) nextEvent(b *kvevent.Batch) *kvevent.Event {
	n := len(b.Events)
	if n == cap(b.Events) {
		more := max(4, n/2)
		if !d.room(more * eventBytes) {
			return nil
		}
		b.Events = append(make([]kvevent.Event, 0, n+more), b.Events...)
	}
	b.Events = b.Events[:n+1]
	e := &b.Events[n]
	*e = kvevent.Event{Hashes: e.Hashes[:0], Tokens: e.Tokens[:0], Items: e.Items[:0]}
	return e
}

// unknown skips n objects and counts them.
func unknown(r *reader, b *kvevent.Batch, n int) bool {
	for range n {
		if !r.skip() {
			return false
		}
		b.Skipped++
	}
	return true
}

// name returns b as a string, the same one as last time where it can. It is empty without room.
func (d *Decoder) name(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if s, ok := d.names[string(b)]; ok {
		return s
	}
	if len(b) > maxInternedBytes && !d.room(len(b)) {
		return ""
	}
	s := string(b)
	if len(b) > maxInternedBytes {
		return s
	}
	if len(d.names) >= maxInterned {
		clear(d.names)
	}
	d.names[s] = s
	return s
}
