package sim

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// MessagePack for what the encoder of the simulated engine cannot say.

func packString(b []byte, s string) []byte { return append(append(b, 0xa0|byte(len(s))), s...) }

// rawTierCleared is an AllBlocksCleared of one tier, as engines other than vLLM send it.
func rawTierCleared(medium string) []byte {
	return packString(packString([]byte{0x92}, "AllBlocksCleared"), medium)
}

// strangers are events of future releases, and some invalid ones.
var strangers = [][]byte{
	append(packString([]byte{0x93}, "BlockTeleported"), 0x91, 0x07, 0xc0),
	append(packString(packString([]byte{0x82}, "type"), "BlockTeleported"), 0xa1, 'x', 0x01),
	packString([]byte{0x91}, "BlocksStored"),
	{0x07},
	{0x80},
}

// murky are events of known kinds that cannot be read.
var murky = [][]byte{
	packString([]byte{0x91}, "BlockStored"),
	packString(append(packString([]byte{0x92}, "BlockRemoved"), 0x91), "seven"),
	packString(packString(packString(packString([]byte{0x82}, "block_hashes"), "seven"), "type"), "BlockRemoved"),
}

// eventsAt is where the array of events begins in a batch that is an array: after its header and the time.
const eventsAt = 1 + 9

// encode is the step's batch on the wire. Its time is its number, by which the batch is found again.
func (e *engine) encode() []byte {
	w := e.w
	raw := e.raw
	if n := len(e.events); e.murky && n > 0 && w.rng.IntN(16) == 0 {
		i := w.rng.IntN(n)
		e.events = slices.Delete(e.events, i, i+1)
		raw = append(raw, murky[w.rng.IntN(len(murky))])
		e.unread = true
		w.count("unreadable event")
	}
	payload := e.encoder.AppendBatch(nil, w.batchTime(e), e.events)
	if e.newer && w.rng.IntN(3) == 0 {
		raw = append(raw, strangers[w.rng.IntN(len(strangers))])
		w.count("unknown event")
	}
	if len(raw) > 0 {
		payload = e.insert(payload, raw)
	}
	if e.outerMap {
		payload = e.asMap(payload)
	}
	return payload
}

// insert puts further events behind the first ones; there are few enough for the short form of an array, or it leaves
// the batch as it is.
func (e *engine) insert(payload []byte, raw [][]byte) []byte {
	n := len(e.events)
	head, body, tail := payload[:eventsAt], payload[eventsAt:], []byte(nil)
	if e.layout >= vllmsim.Layout091 {
		body, tail = body[:len(body)-1], body[len(body)-1:] // the rank is a small number
	}
	switch {
	case n < 16:
		body = body[1:]
	case n < 1<<16:
		body = body[3:]
	}
	out := append([]byte(nil), head...)
	out = append(out, 0xdc, byte((n+len(raw))>>8), byte(n+len(raw)))
	out = append(out, body...)
	for _, r := range raw {
		out = append(out, r...)
	}
	return append(out, tail...)
}

// asMap makes the batch a map, as one revision did that was never released.
func (e *engine) asMap(payload []byte) []byte {
	body, pairs := payload[eventsAt:], byte(2)
	if e.layout >= vllmsim.Layout091 {
		body, pairs = body[:len(body)-1], 3
	}
	out := packString([]byte{0x80 | pairs}, "ts")
	out = append(out, payload[1:eventsAt]...)
	out = append(packString(out, "events"), body...)
	if pairs == 3 {
		out = append(packString(out, "data_parallel_rank"), 0)
	}
	return out
}

// spoil is a payload that cannot be decoded: cut short, not MessagePack, or of a layout that does not exist.
func (w *world) spoil(payload []byte) []byte {
	switch w.rng.IntN(3) {
	case 0:
		w.count("truncated")
		return payload[:w.rng.IntN(len(payload))]
	case 1:
		w.count("garbled")
		return []byte{0xc1, 0xff}
	}
	w.count("unknown layout")
	return packString(packString([]byte{0x81}, "hello"), "world")
}

// batchTime is the time of the next batch of an engine: a number, in seconds.
func (w *world) batchTime(e *engine) float64 {
	w.batches = append(w.batches, e.life)
	return float64(len(w.batches))
}

// lifeOf is the life that a batch of that time belongs to.
func (w *world) lifeOf(time float64) int {
	n := int(math.Round(time))
	if n < 1 || n > len(w.batches) {
		w.fail("a batch of time %v was never published", time)
	}
	return w.batches[n-1]
}

func number(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }
