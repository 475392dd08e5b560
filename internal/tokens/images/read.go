package images

import (
	"context"
	"encoding/base64"
	"strings"
	"sync"
	"unsafe"
)

// Image is what the engine makes of an image.
type Image struct {
	// Key by which the engine's events name the image: 64 hexadecimal digits.
	Key string
	// Width and Height in pixels, as the image is displayed.
	Width, Height int
}

const (
	// maxFile bounds a file, in bytes.
	maxFile = 64 << 20
	// maxSide bounds the sides, in pixels.
	maxSide = 1 << 16
	// pieceBytes is how much of a file is in memory at a time. The size of an image, and its orientation, must be in the first piece, but
	// for PNG files, which are followed to their end.
	pieceBytes = 96 << 10
)

// pieces are buffers of pieceBytes.
var pieces = sync.Pool{New: func() any { return new([pieceBytes]byte) }}

// Read reads an image of a data URL with base64, which is where most clients put images. model is the name of the model in the engine,
// which is part of the key. Files of other kinds than PNG, JPEG and WebP, links, and what only an image library can read are refused with
// an error that wraps ErrUnsupported; ctx bounds the time.
func Read(ctx context.Context, url, model string) (Image, error) {
	spec, data, ok := strings.Cut(url, ",")
	if !ok || !strings.HasPrefix(spec, "data:") || !strings.HasSuffix(spec, ";base64") {
		return Image{}, unsupported("links to images")
	}
	return ReadBase64(ctx, data, model)
}

// ReadBase64 is Read for the data of an image without a URL.
func ReadBase64(ctx context.Context, data, model string) (Image, error) {
	size, ok := decodedLen(data)
	if !ok || size > maxFile {
		return Image{}, unsupported("data of this size or form")
	}
	piece, _ := pieces.Get().(*[pieceBytes]byte) // always
	defer pieces.Put(piece)
	encoded := unsafe.Slice(unsafe.StringData(data), len(data)) // only read
	var f format
	var h hasher
	for at := 0; at < size; {
		if err := ctx.Err(); err != nil {
			return Image{}, err
		}
		n, err := base64.StdEncoding.Decode(piece[:], encoded[:min(pieceBytes/3*4, len(encoded))])
		if err != nil || n == 0 || n > size-at {
			return Image{}, unsupported("data that is no base64")
		}
		encoded = encoded[min(pieceBytes/3*4, len(encoded)):]
		if at == 0 {
			if err := f.begin(piece[:n], size); err != nil {
				return Image{}, err
			}
			h.begin(size, f.converted)
		}
		f.follow(piece[:n])
		_, _ = h.Write(piece[:n])
		at += n
	}
	width, height, err := f.end()
	if err != nil {
		return Image{}, err
	}
	return Image{Key: h.end(model), Width: width, Height: height}, nil
}

// decodedLen is the length of what base64 encodes, without line breaks, which the engine refuses.
func decodedLen(data string) (n int, ok bool) {
	if data == "" || len(data)%4 != 0 || strings.ContainsAny(data, "\r\n") {
		return 0, false
	}
	padding := 2 - len(strings.TrimRight(data[len(data)-2:], "="))
	return len(data)/4*3 - padding, true
}
