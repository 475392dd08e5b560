package bench

import (
	"encoding/binary"
	"math"

	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// message builds the payload of one message of an engine, in the layout of vLLM v0.24 and later: events as maps.
type message struct {
	events int
	body   []byte
}

// payload is what was built, of one data-parallel rank.
func (m *message) payload() []byte {
	out := append(make([]byte, 0, len(m.body)+24), 0x93, 0xcb)
	out = binary.BigEndian.AppendUint64(out, math.Float64bits(1.5)) // seconds since 1970
	out = appendArray(out, m.events)
	out = append(out, m.body...)
	return append(out, 0) // the rank
}

// stored appends the event of a chain of blocks in the GPU's memory. parent is 0 for none.
func (m *message) stored(parent kvevent.Hash, hashes []kvevent.Hash, tokens []uint32) {
	m.begin(11, "BlockStored", hashes)
	b := appendString(m.body, "parent_block_hash")
	if parent == 0 {
		b = append(b, 0xc0)
	} else {
		b = appendUint(b, uint64(parent))
	}
	b = appendArray(appendString(b, "token_ids"), len(tokens))
	for _, t := range tokens {
		b = appendUint(b, uint64(t))
	}
	b = appendUint(appendString(b, "block_size"), uint64(len(tokens)/len(hashes)))
	b = append(appendString(b, "lora_id"), 0xc0)
	b = appendString(appendString(b, "medium"), "GPU")
	b = append(appendString(b, "lora_name"), 0xc0)
	b = appendArray(appendString(b, "extra_keys"), len(hashes))
	for range hashes {
		b = append(b, 0xc0)
	}
	b = append(appendString(b, "group_idx"), 0)
	m.body = appendString(appendString(b, "kv_cache_spec_kind"), "full_attention")
}

// offloaded appends the event of blocks that were copied to the CPU's memory: it names them by hash alone.
func (m *message) offloaded(hashes []kvevent.Hash) {
	m.begin(8, "BlockStored", hashes)
	b := append(appendString(m.body, "parent_block_hash"), 0xc0)
	b = appendArray(appendString(b, "token_ids"), 0)
	b = append(appendString(b, "block_size"), 0)
	b = append(appendString(b, "lora_id"), 0xc0)
	b = appendString(appendString(b, "medium"), "CPU")
	m.body = append(appendString(b, "lora_name"), 0xc0)
}

// removed appends the event of blocks that have left the GPU's memory.
func (m *message) removed(hashes []kvevent.Hash) {
	m.begin(4, "BlockRemoved", hashes)
	b := appendString(appendString(m.body, "medium"), "GPU")
	m.body = append(appendString(b, "group_idx"), 0)
}

// cleared appends the event that everything has gone.
func (m *message) cleared() {
	m.events++
	m.body = appendString(appendString(append(m.body, 0x81), "type"), "AllBlocksCleared")
}

// begin appends the first two of an event's fields.
func (m *message) begin(fields byte, kind string, hashes []kvevent.Hash) {
	m.events++
	b := appendString(appendString(append(m.body, 0x80|fields), "type"), kind)
	b = appendArray(appendString(b, "block_hashes"), len(hashes))
	for _, h := range hashes {
		b = appendUint(b, uint64(h))
	}
	m.body = b
}

func appendArray(b []byte, n int) []byte {
	return binary.BigEndian.AppendUint32(append(b, 0xdd), uint32(n))
}

func appendString(b []byte, s string) []byte { return append(append(b, 0xa0|byte(len(s))), s...) }

// appendUint appends a number in its shortest form, as engines do.
func appendUint(b []byte, v uint64) []byte {
	switch {
	case v < 1<<7:
		return append(b, byte(v))
	case v < 1<<8:
		return append(b, 0xcc, byte(v))
	case v < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(v))
	case v < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), v)
}
