// Package linefile writes records to files of bounded size and number, one JSON object a line.
package linefile

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// waiting is how many records can wait to be written; more are dropped and counted.
const waiting = 1024

// Options of a Writer.
type Options struct {
	// Title of the log in errors.
	Title string
	// Dir holds the files: NAME.jsonl, and older ones, NAME-TIME.jsonl, by the Name.
	Dir, Name string
	// FileBytes is the size at which a file is ended; Files is how many are kept, the present one included.
	FileBytes int64
	Files     int
	// Now is the clock; time.Now when nil.
	Now func() time.Time
	// Prepare is called before a file is opened, until it succeeds; nil is not called.
	Prepare func() error
}

// present is the file that is written.
func (o *Options) present() string { return filepath.Join(o.Dir, o.Name+".jsonl") }

// old are the ended files, the oldest first. Others, such as what a person has copied there, are left alone.
func (o *Options) old() ([]string, error) {
	names, err := filepath.Glob(filepath.Join(o.Dir, o.Name+"-*.jsonl")) // sorted, by time
	return slices.DeleteFunc(names, func(name string) bool {
		_, err := o.ended(name)
		return err != nil
	}), err
}

// ended is the time in the name of an ended file.
func (o *Options) ended(name string) (time.Time, error) {
	return time.Parse(stamp, strings.TrimSuffix(strings.TrimPrefix(filepath.Base(name), o.Name+"-"), ".jsonl"))
}

// Writer writes records to files of bounded size and number. Its methods can be called from any goroutine.
type Writer[T any] struct {
	options Options
	records chan *T
	stop    chan struct{}
	done    chan struct{}
	once    sync.Once
	written atomic.Int64
	dropped atomic.Int64
	failed  atomic.Pointer[error]
}

// Open begins or continues a log. It fails when the directory cannot be made or written, except because the disk is full: then
// records are dropped until there is room.
func Open[T any](o Options) (*Writer[T], error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.FileBytes < 1<<10 || o.Files < 1 {
		return nil, fmt.Errorf("a %s of %d files of %d bytes: want at least one, of 1 KiB", o.Title, o.Files, o.FileBytes)
	}
	w := &Writer[T]{options: o, records: make(chan *T, waiting), stop: make(chan struct{}), done: make(chan struct{})}
	out := &output[T]{Writer: w, prepared: o.Prepare == nil}
	if err := out.open(); full(err) {
		w.failed.Store(&err)
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Title, err)
	}
	go w.run(out)
	return w, nil
}

// full reports whether an error is that of a disk, or of a quota, without room.
func full(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// Write passes a record to the writer, which owns it from then on, and drops it when too many wait. It never blocks.
// Records that arrive after Close are not written.
func (w *Writer[T]) Write(r *T) {
	select {
	case w.records <- r:
	default:
		w.dropped.Add(1)
	}
}

// Stats are the records written and dropped; err is why the last one could not be written.
func (w *Writer[T]) Stats() (written, dropped int64, err error) {
	if p := w.failed.Load(); p != nil {
		err = *p
	}
	return w.written.Load(), w.dropped.Load(), err
}

// Copy writes the records of all files to dst, those of the oldest file first. A record that is written meanwhile can be
// missing; none is cut or repeated. It fails when a file cannot be read, or dst not written.
func (w *Writer[T]) Copy(dst io.Writer) error {
	// The present file is opened first: if it is renamed afterwards, it is among the old ones too, and recognized there.
	reading := func(err error) error { return fmt.Errorf("reading the %s: %w", w.options.Title, err) }
	last, err := os.Open(w.options.present())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return reading(err)
	}
	var files []*os.File
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	if last != nil {
		files = append(files, last)
	}
	names, err := w.options.old()
	if err != nil {
		return reading(err)
	}
	for _, name := range names {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since
		}
		if err != nil {
			return reading(err)
		}
		files = append(files, f)
		if last != nil && same(f, last) {
			continue
		}
		if err := copyLines(dst, f); err != nil {
			return reading(err)
		}
	}
	if last == nil {
		return nil
	}
	if err := copyLines(dst, last); err != nil {
		return reading(err)
	}
	return nil
}

func same(a, b *os.File) bool {
	infoA, errA := a.Stat()
	infoB, errB := b.Stat()
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// copyLines copies the complete lines that a file has now.
func copyLines(dst io.Writer, f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	lines := bufio.NewReaderSize(io.NewSectionReader(f, 0, info.Size()), 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // what has no end is still being written
		}
		if err != nil {
			return err
		}
		if _, err := dst.Write(line); err != nil {
			return fmt.Errorf("sending a record: %w", err)
		}
	}
}

// Close writes what waits and ends the log.
func (w *Writer[T]) Close() {
	w.once.Do(func() { close(w.stop) })
	<-w.done
}

// run writes until the log is closed and nothing waits.
func (w *Writer[T]) run(out *output[T]) {
	defer close(w.done)
	defer func() { _ = out.end() }()
	for {
		select {
		case r := <-w.records:
			out.write(r)
			continue
		case <-w.stop:
		}
		select {
		case r := <-w.records:
			out.write(r)
		default:
			return
		}
	}
}

// output is the file that is written.
type output[T any] struct {
	*Writer[T]
	prepared bool
	file     *os.File // nil after a fault
	size     int64
	line     bytes.Buffer
}

// open opens the present file of a log that is prepared.
func (o *output[T]) open() (err error) {
	if err := os.MkdirAll(o.options.Dir, 0o700); err != nil {
		return err
	}
	if !o.prepared {
		if err := o.options.Prepare(); err != nil {
			return err
		}
		o.prepared = true
	}
	o.file, o.size, err = openFile(o.options.present())
	return err
}

// write writes a record. A fault of the disk drops it; the next one tries again.
func (o *output[T]) write(r *T) {
	o.line.Reset()
	err := json.NewEncoder(&o.line).Encode(r)
	if err == nil && o.file != nil && o.size > 0 && o.size+int64(o.line.Len()) > o.options.FileBytes {
		err = errors.Join(o.end(), o.rotate())
	}
	if err == nil && o.file == nil {
		err = o.open()
	}
	if err == nil {
		// After a fault the file is opened again: that ends an incomplete line, and finds that a person has removed the file to make
		// room, which an open file keeps.
		var whole bool
		if o.size, whole, err = appendLine(o.file, o.size, o.line.Bytes()); err != nil || !whole {
			_ = o.end()
		}
	}
	if err != nil {
		o.dropped.Add(1)
		o.failed.Store(&err)
		return
	}
	o.written.Add(1)
}

// appendLine appends a line to a file of a size, and returns the new size. If a line does not fit on the disk, it removes
// the part that was written; whole is false if it cannot.
func appendLine(f interface {
	io.Writer
	Truncate(size int64) error
}, size int64, line []byte) (after int64, whole bool, err error) {
	n, err := f.Write(line)
	if err == nil || n == 0 {
		return size + int64(n), true, err
	}
	return size, f.Truncate(size) == nil, err
}

// end closes the file.
func (o *output[T]) end() error {
	if o.file == nil {
		return nil
	}
	err := o.file.Close()
	o.file = nil
	return err
}

// rotate renames the present file, and removes the oldest ones.
func (w *Writer[T]) rotate() error {
	old, err := w.options.old()
	if err != nil {
		return err
	}
	name := w.next(old)
	if err := os.Rename(w.options.present(), name); err != nil {
		return err
	}
	old = append(old, name)
	for i := 0; i <= len(old)-w.options.Files; i++ {
		err = errors.Join(err, os.Remove(old[i]))
	}
	return err
}

// stamp is the form of times in names of files.
const stamp = "20060102T150405.000000000"

// next is a name for the present file, behind those of the old ones, however the clock was set since: files are removed and read
// in the order of their names.
func (w *Writer[T]) next(old []string) string {
	at := w.options.Now().UTC()
	if len(old) > 0 {
		if last, err := w.options.ended(old[len(old)-1]); err == nil && !at.After(last) {
			at = last.Add(1)
		}
	}
	return filepath.Join(w.options.Dir, w.options.Name+"-"+at.Format(stamp)+".jsonl")
}

func openFile(name string) (*os.File, int64, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, 0, err
	}
	size, err := endLine(f)
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return f, size, nil
}

// endLine ends an incomplete line, and returns the file's size.
func endLine(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return 0, err
	}
	last := make([]byte, 1)
	r, err := os.Open(f.Name())
	if err != nil {
		return 0, err
	}
	defer func() { _ = r.Close() }()
	if _, err := r.ReadAt(last, info.Size()-1); err != nil || last[0] == '\n' {
		return info.Size(), err
	}
	n, err := f.WriteString("\n")
	return info.Size() + int64(n), err
}
