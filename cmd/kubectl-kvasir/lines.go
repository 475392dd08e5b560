package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxLine is the longest line of input, in bytes.
const maxLine = 256 << 20

var errLine = fmt.Errorf("the line is longer than %d MiB", maxLine>>20)

// failure is the answer to a line that cannot be answered.
type failure struct {
	Error string `json:"error"`
}

func fail(err error) any { return failure{err.Error()} }

// eachLine answers every line of std.In with one line of JSON on std.Out: the value that answer returns, or what
// refuse makes of its error. Lines are trimmed and valid only during the call. Answers wait for others only while
// there is more to read. It ends with the input, with ctx between two lines, or with an error of input or output.
func eachLine(ctx context.Context, std stdio, answer func(line []byte) (any, error), refuse func(error) any) error {
	in, out := bufio.NewReaderSize(std.In, 64<<10), newPrinter(std.Out)
	var buf []byte
	for ctx.Err() == nil {
		line, err := readLine(in, buf[:0], maxLine)
		buf = line
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return out.flush()
		}
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, errLine) {
			return fmt.Errorf("reading: %w", err)
		}
		var v any
		if errors.Is(err, errLine) {
			v = refuse(err)
		} else if v, err = answer(bytes.TrimSpace(line)); err != nil {
			v = refuse(err)
		}
		if err := out.print(v); err != nil {
			return err
		}
		if in.Buffered() == 0 {
			if err := out.flush(); err != nil {
				return err
			}
		}
	}
	return out.flush()
}

// readLine appends the next line to buf, its end included. It returns errLine for a line longer than limit, which it has
// skipped, and io.EOF with the last line if that has no end.
func readLine(in *bufio.Reader, buf []byte, limit int) ([]byte, error) {
	tooLong := false
	for {
		part, err := in.ReadSlice('\n')
		if len(buf)+len(part) > limit {
			tooLong = true
		}
		if !tooLong {
			buf = append(buf, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if tooLong && (err == nil || errors.Is(err, io.EOF)) {
			err = errLine
		}
		return buf, err
	}
}

// printer writes lines of JSON.
type printer struct {
	buf  *bufio.Writer
	json *json.Encoder
}

func newPrinter(w io.Writer) *printer {
	p := &printer{buf: bufio.NewWriterSize(w, 64<<10)}
	p.json = json.NewEncoder(p.buf)
	p.json.SetEscapeHTML(false)
	return p
}

func (p *printer) print(v any) error {
	if err := p.json.Encode(v); err != nil {
		return fmt.Errorf("writing: %w", err)
	}
	return nil
}

func (p *printer) flush() error {
	if err := p.buf.Flush(); err != nil {
		return fmt.Errorf("writing: %w", err)
	}
	return nil
}
