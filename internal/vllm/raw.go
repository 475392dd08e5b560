package vllm

import (
	"encoding/hex"
	"strconv"

	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// Raw holds the hashes of a batch as the engine wrote them, for people; the batch has only 64 bits of each.
type Raw struct {
	// Events lie beside those of the batch, one for one.
	Events []RawEvent
}

// RawEvent is the hashes of one event.
type RawEvent struct {
	// Hashes lie beside those of the event, one for one.
	Hashes []RawHash
	// Parent is set if the event's HasParent is.
	Parent RawHash
}

// RawHash is a hash as the engine wrote it: an integer, signed or not, or a digest of at least 8 bytes.
type RawHash struct {
	// Digest lies in the payload; nil for integers.
	Digest []byte
	// Value is the integer, in two's complement if Negative.
	Value    uint64
	Negative bool
}

// String is the integer in decimal digits, or 0x and the digest in hexadecimal ones.
func (h RawHash) String() string {
	switch {
	case h.Digest != nil:
		return "0x" + hex.EncodeToString(h.Digest)
	case h.Negative:
		return strconv.FormatInt(int64(h.Value), 10)
	}
	return strconv.FormatUint(h.Value, 10)
}

// DecodeRaw is Decode that fills raw too. The digests in raw are parts of payload.
func (d *Decoder) DecodeRaw(payload []byte, b *kvevent.Batch, raw *Raw) error {
	raw.Events = raw.Events[:0]
	d.raw = raw
	err := d.Decode(payload, b)
	d.raw = nil
	raw.Events = raw.Events[:len(b.Events)]
	for i := range b.Events {
		e, r := &b.Events[i], &raw.Events[i]
		r.Hashes = r.Hashes[:len(e.Hashes)] // cleared events keep none, whatever they said
		if !e.HasParent {
			r.Parent = RawHash{}
		}
	}
	return err
}

// next makes room for event i of the batch, emptied.
func (raw *Raw) next(i int) {
	raw.Events = raw.Events[:min(i, len(raw.Events))]
	if i < cap(raw.Events) {
		raw.Events = raw.Events[:i+1]
	} else {
		raw.Events = append(raw.Events, RawEvent{})
	}
	raw.Events[i] = RawEvent{Hashes: raw.Events[i].Hashes[:0]}
}

// last is the event being read.
func (raw *Raw) last() *RawEvent { return &raw.Events[len(raw.Events)-1] }

// hashes reads n hashes from r, which were found sound.
func (raw *Raw) hashes(r reader, n int) {
	e := raw.last()
	e.Hashes = e.Hashes[:0]
	for range n {
		e.Hashes = append(e.Hashes, rawHash(&r))
	}
}

func rawHash(r *reader) RawHash {
	if digest, ok := r.bin(); ok {
		return RawHash{Digest: digest}
	}
	v, negative, _ := r.integer()
	return RawHash{Value: v, Negative: negative}
}
