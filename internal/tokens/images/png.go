package images

import (
	"bytes"
	"encoding/binary"
)

// signature begins a PNG file.
const signature = "\x89PNG\r\n\x1a\n"

// png reads the first chunk of a PNG file.
func (f *format) png(head []byte, size int) error {
	const trueColour = 2
	first, ok := span(head, len(signature), 8+13)
	if !ok || string(first[:8]) != "\x00\x00\x00\x0dIHDR" {
		return unsupported("files of an unusual form")
	}
	f.width, f.height = int(binary.BigEndian.Uint32(first[8:])), int(binary.BigEndian.Uint32(first[12:]))
	f.converted = first[17] != trueColour
	f.chunks = &chunks{left: size, skip: len(signature), need: chunkHead}
	return nil
}

// chunks follows the chunks of a PNG file to its end, because the orientation of the image can be behind the pixels.
type chunks struct {
	left int // bytes of the file that are yet to come
	skip int // bytes that do not matter
	need int // how many bytes got is waiting for
	got  []byte
	data bool // got is the beginning of a chunk's data, and not its head

	kind   string
	length int // of the chunk's data
	turned bool
	ended  bool
	err    error
}

const (
	chunkHead  = 8
	chunkCheck = 4 // bytes behind the data
	// maxExif bounds the data with an orientation, in bytes.
	maxExif = 64 << 10
	// keywordBytes is enough to recognise the keyword of a text.
	keywordBytes = 32
)

func (c *chunks) follow(piece []byte) {
	for len(piece) > 0 && c.err == nil && !c.ended {
		if c.skip > 0 {
			n := min(c.skip, len(piece))
			piece = piece[n:]
			c.skip -= n
			c.left -= n
			continue
		}
		n := min(c.need-len(c.got), len(piece))
		c.got = append(c.got, piece[:n]...)
		piece = piece[n:]
		c.left -= n
		if len(c.got) == c.need {
			c.take()
		}
	}
}

// take reads the head of a chunk, or the data that were waited for.
func (c *chunks) take() {
	got := c.got
	c.got = c.got[:0]
	if c.data {
		c.data, c.skip = false, c.length-c.need+chunkCheck
		c.read(got)
		c.need = chunkHead
		return
	}
	c.length, c.kind = int(binary.BigEndian.Uint32(got)), string(got[4:])
	if c.length > c.left-chunkCheck {
		c.err = unsupported("files that are cut off")
		return
	}
	wanted := 0
	switch c.kind {
	case "IEND":
		c.ended = true
	case "acTL":
		c.err = unsupported("animations")
	case "tEXt", "zTXt", "iTXt":
		wanted = min(c.length, keywordBytes)
	case "eXIf":
		if wanted = c.length; wanted > maxExif {
			c.err = unsupported("Exif data of this size")
		}
	}
	if wanted == 0 {
		c.skip = c.length + chunkCheck
		return
	}
	c.data, c.need = true, wanted
}

// read reads the data of a chunk, or the beginning of a text.
func (c *chunks) read(data []byte) {
	switch {
	case c.kind == "eXIf":
		c.turned, c.err = turns(data)
	case bytes.HasPrefix(data, []byte("XML:com.adobe.xmp")), bytes.HasPrefix(data, []byte("Raw profile type")):
		c.err = unsupported("texts with an orientation")
	}
}

// end fails if something in the file is left to the engine.
func (c *chunks) end() error {
	if c.err == nil && !c.ended {
		return unsupported("files that are cut off")
	}
	return c.err
}
