package images

import (
	"bytes"
	"encoding/binary"
)

// format reads what a file says of its image: the size in pixels, and whether its colours are RGB. Whatever is unusual is left to the
// engine, whose library (Pillow) reads more than is read here.
type format struct {
	width, height int
	// converted: the colours are not RGB already, so that the engine changes them.
	converted bool
	// turned: the image is displayed with its sides exchanged.
	turned bool
	chunks *chunks // of a PNG file
}

// begin reads the head of a file of a number of bytes.
func (f *format) begin(head []byte, size int) (err error) {
	switch {
	case bytes.HasPrefix(head, []byte(signature)):
		err = f.png(head, size)
	case bytes.HasPrefix(head, []byte("\xff\xd8\xff")):
		err = f.jpeg(head)
	case len(head) >= 30 && string(head[:4]) == "RIFF" && string(head[8:12]) == "WEBP":
		err = f.webp(head[12:30])
	default:
		err = unsupported("files of this kind")
	}
	if err == nil && (f.width <= 0 || f.height <= 0 || f.width > maxSide || f.height > maxSide) {
		err = unsupported("images of this size")
	}
	return err
}

// follow gets the whole file, piece by piece.
func (f *format) follow(piece []byte) {
	if f.chunks != nil {
		f.chunks.follow(piece)
	}
}

// end returns the size of the image as it is displayed.
func (f *format) end() (width, height int, err error) {
	if f.chunks != nil {
		if err := f.chunks.end(); err != nil {
			return 0, 0, err
		}
		f.turned = f.chunks.turned
	}
	if f.turned {
		return f.height, f.width, nil
	}
	return f.width, f.height, nil
}

// span returns n bytes of data from an offset on; not ok if there are fewer.
func span(data []byte, offset, n int) (b []byte, ok bool) {
	if offset < 0 || n < 0 || offset > len(data) || n > len(data)-offset {
		return nil, false
	}
	return data[offset : offset+n], true
}

var errHead = unsupported("files whose size or orientation comes late")

// jpeg reads the segments of a JPEG file up to its pixels.
func (f *format) jpeg(head []byte) (err error) {
	exif := false
	for at := 2; ; {
		m, ok := span(head, at, 4)
		if !ok {
			return errHead
		}
		n := int(binary.BigEndian.Uint16(m[2:]))
		switch kind := m[1]; {
		case m[0] != 0xff || kind == 0xff || kind >= 0xd0 && kind <= 0xd9 || n < 2:
			return unsupported("segments of an unusual form")
		case kind == 0xda: // the pixels
			return nil
		case kind >= 0xc0 && kind <= 0xcf && kind != 0xc4 && kind != 0xc8 && kind != 0xcc:
			frame, ok := span(head, at+4, 6)
			if !ok || f.width != 0 || frame[0] != 8 || kind > 0xc2 {
				return unsupported("frames of an unusual form")
			}
			f.height, f.width = int(binary.BigEndian.Uint16(frame[1:])), int(binary.BigEndian.Uint16(frame[3:]))
			f.converted = frame[5] != 3
		case kind == 0xe1:
			data, ok := span(head, at+4, n-2)
			switch {
			case !ok:
				return errHead
			case bytes.HasPrefix(data, []byte("Exif\x00\x00")) && !exif:
				exif = true
				if f.turned, err = turns(data[6:]); err != nil {
					return err
				}
			case bytes.HasPrefix(data, []byte("Exif")), bytes.Contains(data, []byte("tiff:Orientation")):
				return unsupported("an orientation in another place")
			}
		}
		at += 2 + n
	}
}

// webp reads the first chunk of a WebP file. Files with an animation, or with texts that can have an orientation, are left to the engine.
func (f *format) webp(chunk []byte) error {
	const alpha = 0x10
	frame := chunk[8:] // 10 bytes
	switch string(chunk[:4]) {
	case "VP8 ":
		if string(frame[3:6]) != "\x9d\x01\x2a" {
			return unsupported("frames of an unusual form")
		}
		f.width, f.height = int(binary.LittleEndian.Uint16(frame[6:])&0x3fff), int(binary.LittleEndian.Uint16(frame[8:])&0x3fff)
	case "VP8L":
		bits := binary.LittleEndian.Uint32(frame[1:])
		if frame[0] != 0x2f {
			return unsupported("frames of an unusual form")
		}
		f.width, f.height = int(bits&0x3fff)+1, int(bits>>14&0x3fff)+1
		f.converted = bits>>28&1 != 0
	case "VP8X":
		if frame[0] != alpha { // without it, a frame can have transparency nevertheless
			return unsupported("animations, profiles and texts in files of this kind")
		}
		f.width, f.height = 1+(int(frame[4])|int(frame[5])<<8|int(frame[6])<<16), 1+(int(frame[7])|int(frame[8])<<8|int(frame[9])<<16)
		f.converted = true
	default:
		return unsupported("files of this kind")
	}
	return nil
}

// turns reports whether the orientation in Exif data exchanges the sides of an image.
func turns(exif []byte) (bool, error) {
	var order binary.ByteOrder
	switch {
	case bytes.HasPrefix(exif, []byte("II*\x00")):
		order = binary.LittleEndian
	case bytes.HasPrefix(exif, []byte("MM\x00*")):
		order = binary.BigEndian
	default:
		return false, unsupported("Exif data of an unusual form")
	}
	b, ok := span(exif, 4, 4)
	if !ok {
		return false, unsupported("Exif data that is cut off")
	}
	at := int(order.Uint32(b))
	b, ok = span(exif, at, 2)
	if !ok {
		return false, unsupported("Exif data that is cut off")
	}
	const orientation, short, entry = 0x0112, 3, 12
	n := int(order.Uint16(b))
	for i := range n {
		b, ok = span(exif, at+2+i*entry, entry)
		if !ok {
			return false, unsupported("Exif data that is cut off")
		}
		if order.Uint16(b) != orientation {
			continue
		}
		if order.Uint16(b[2:]) != short || order.Uint32(b[4:]) != 1 {
			return false, unsupported("an orientation of an unusual form")
		}
		v := order.Uint16(b[8:])
		return v >= 5 && v <= 8, nil
	}
	return false, nil
}
