package images

import (
	"encoding/binary"
	"encoding/hex"
	"unsafe"

	"lukechampine.com/blake3"
)

// The kinds of values in what the engine hashes (vllm/multimodal/hasher.py, from the release on that frames its input).
const (
	tagSequence = 1
	tagMapping  = 2
	tagLeaf     = 3
)

// hasher makes the engine's key of an image: a BLAKE3 hash of the file, of how it is read, and of the model's name.
type hasher struct {
	*blake3.Hasher
	word [8]byte
	byte [1]byte
}

// begin starts the key of a file of a number of bytes, which follow by Write. converted is whether the engine changes the colours of the
// image to RGB.
func (h *hasher) begin(size int, converted bool) {
	h.Hasher = blake3.New(32, nil)
	h.text("image")
	h.tag(tagLeaf)
	h.text("image")
	if converted {
		h.mapping(2)
		h.text("io_config")
		h.mapping(2)
		h.text("image_mode")
		h.tag(tagLeaf)
		h.text("RGB")
		h.text("rgba_background_color")
		h.tag(tagSequence)
		h.number(3)
		for range 3 { // white, as integers of 8 bytes
			h.tag(tagLeaf)
			h.number(len(h.word))
			h.number(255)
		}
		h.text("data")
	}
	h.tag(tagLeaf)
	h.number(size)
}

// end returns the key.
func (h *hasher) end(model string) string {
	h.text("model_id")
	h.tag(tagLeaf)
	h.text(model)
	return hex.EncodeToString(h.Sum(nil))
}

func (h *hasher) number(n int) {
	binary.LittleEndian.PutUint64(h.word[:], uint64(n)) // not negative
	_, _ = h.Write(h.word[:])
}

func (h *hasher) tag(tag byte) {
	h.byte[0] = tag
	_, _ = h.Write(h.byte[:])
}

func (h *hasher) mapping(n int) {
	h.tag(tagMapping)
	h.number(n)
}

func (h *hasher) text(s string) {
	h.number(len(s))
	_, _ = h.Write(unsafe.Slice(unsafe.StringData(s), len(s))) // which only reads
}
