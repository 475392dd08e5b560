package budget

import (
	"bytes"
	"errors"
	"io"
)

// ErrFull means that there is no room for what is read or made of it.
var ErrFull = errors.New("the memory for what engines send is full")

// Memory is where a holder takes bytes from and gives them back: a Share, or a part of one.
type Memory interface {
	// Take takes n bytes and reports whether there was room.
	Take(n int) bool
	Put(n int)
}

// firstRead is the first size of a buffer, in bytes.
const firstRead = 8 << 10

// Read appends everything up to the end to buf, which doubles when it is full. What it grows by stays taken from the memory. It fails
// with ErrFull, or with the error of the reader; buf then has what was read before.
func Read(buf *bytes.Buffer, from io.Reader, memory Memory) error {
	for {
		if free := buf.AvailableBuffer(); cap(free) > 0 {
			n, err := from.Read(free[:cap(free)])
			buf.Write(free[:n])
			switch {
			case errors.Is(err, io.EOF):
				return nil
			case err != nil:
				return err
			}
			continue
		}
		before, after := buf.Cap(), max(firstRead, 2*buf.Cap())
		if !memory.Take(after) {
			return ErrFull
		}
		grown := bytes.NewBuffer(make([]byte, 0, after))
		grown.Write(buf.Bytes())
		*buf = *grown
		memory.Put(before)
	}
}
