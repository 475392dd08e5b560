package decisionlog

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	current  = "decisions.jsonl"
	saltFile = "salt"
	// waiting is how many records can wait to be written; more are dropped and counted.
	waiting = 1024
)

// Options of a Writer.
type Options struct {
	// Dir holds the log: decisions.jsonl, older files decisions-TIME.jsonl, and the salt.
	Dir string
	// FileBytes is the size at which a file is ended; Files is how many are kept, the present one included.
	FileBytes int64
	Files     int
	// Now is the clock; time.Now when nil.
	Now func() time.Time
}

// Writer writes records to files of bounded size and number. Its methods can be called from any goroutine.
type Writer struct {
	options Options
	salt    Salt
	records chan *Record
	stop    chan struct{}
	done    chan struct{}
	once    sync.Once
	written atomic.Int64
	dropped atomic.Int64
	failed  atomic.Pointer[error]
}

// Open begins or continues a log. It fails when the directory cannot be made or written.
func Open(o Options) (*Writer, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.FileBytes < 1<<10 || o.Files < 1 {
		return nil, fmt.Errorf("a decision log of %d files of %d bytes: want at least one, of 1 KiB", o.Files, o.FileBytes)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("decision log: %w", err)
	}
	salt, err := readSalt(filepath.Join(o.Dir, saltFile))
	if err != nil {
		return nil, fmt.Errorf("decision log: %w", err)
	}
	f, size, err := openFile(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("decision log: %w", err)
	}
	w := &Writer{options: o, salt: salt, records: make(chan *Record, waiting), stop: make(chan struct{}), done: make(chan struct{})}
	go w.run(f, size)
	return w, nil
}

// Salt of the log.
func (w *Writer) Salt() Salt { return w.salt }

// Write passes a record to the writer, which owns it from then on, and drops it when too many wait. It never blocks.
// Records that arrive after Close are not written.
func (w *Writer) Write(r *Record) {
	select {
	case w.records <- r:
	default:
		w.dropped.Add(1)
	}
}

// Stats are the records written and dropped; err is why the last one could not be written.
func (w *Writer) Stats() (written, dropped int64, err error) {
	if p := w.failed.Load(); p != nil {
		err = *p
	}
	return w.written.Load(), w.dropped.Load(), err
}

// Copy writes the records of all files to dst, those of the oldest file first. A record that is written meanwhile can be
// missing; none is cut or repeated. It fails when a file cannot be read, or dst not written.
func (w *Writer) Copy(dst io.Writer) error {
	// The present file is opened first: if it is renamed afterwards, it is among the old ones too, and recognized there.
	last, err := os.Open(filepath.Join(w.options.Dir, current))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading the decision log: %w", err)
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
	names, err := filepath.Glob(filepath.Join(w.options.Dir, "decisions-*.jsonl")) // sorted, by time
	if err != nil {
		return fmt.Errorf("reading the decision log: %w", err)
	}
	for _, name := range names {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since
		}
		if err != nil {
			return fmt.Errorf("reading the decision log: %w", err)
		}
		files = append(files, f)
		if last != nil && same(f, last) {
			continue
		}
		if err := copyLines(dst, f); err != nil {
			return err
		}
	}
	if last == nil {
		return nil
	}
	return copyLines(dst, last)
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
		return fmt.Errorf("reading the decision log: %w", err)
	}
	lines := bufio.NewReaderSize(io.NewSectionReader(f, 0, info.Size()), 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // what has no end is still being written
		}
		if err != nil {
			return fmt.Errorf("reading the decision log: %w", err)
		}
		if _, err := dst.Write(line); err != nil {
			return fmt.Errorf("sending the decision log: %w", err)
		}
	}
}

// Close writes what waits and ends the log.
func (w *Writer) Close() {
	w.once.Do(func() { close(w.stop) })
	<-w.done
}

// run writes until the log is closed and nothing waits.
func (w *Writer) run(f *os.File, size int64) {
	defer close(w.done)
	out := &output{Writer: w, file: f, size: size}
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
type output struct {
	*Writer
	file *os.File // nil after a fault
	size int64
	line bytes.Buffer
}

// write writes a record. A fault of the disk drops it; the next one tries again.
func (o *output) write(r *Record) {
	o.line.Reset()
	err := json.NewEncoder(&o.line).Encode(r)
	if err == nil && o.file != nil && o.size > 0 && o.size+int64(o.line.Len()) > o.options.FileBytes {
		err = errors.Join(o.end(), o.rotate())
	}
	if err == nil && o.file == nil {
		o.file, o.size, err = openFile(o.options.Dir)
	}
	if err == nil {
		var whole bool
		if o.size, whole, err = appendLine(o.file, o.size, o.line.Bytes()); !whole {
			_ = o.end() // opening it again ends the line
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
func (o *output) end() error {
	if o.file == nil {
		return nil
	}
	err := o.file.Close()
	o.file = nil
	return err
}

// rotate renames the present file, and removes the oldest ones.
func (w *Writer) rotate() error {
	old, err := filepath.Glob(filepath.Join(w.options.Dir, "decisions-*.jsonl")) // sorted, by time
	if err != nil {
		return err
	}
	name := w.next(old)
	if err := os.Rename(filepath.Join(w.options.Dir, current), name); err != nil {
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
func (w *Writer) next(old []string) string {
	at := w.options.Now().UTC()
	if len(old) > 0 {
		text := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(old[len(old)-1]), "decisions-"), ".jsonl")
		if last, err := time.Parse(stamp, text); err == nil && !at.After(last) {
			at = last.Add(1)
		}
	}
	return filepath.Join(w.options.Dir, "decisions-"+at.Format(stamp)+".jsonl")
}

func openFile(dir string) (*os.File, int64, error) {
	f, err := os.OpenFile(filepath.Join(dir, current), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
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

// readSalt reads the log's salt, or makes one.
func readSalt(name string) (Salt, error) {
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		b = make([]byte, 8)
		_, _ = rand.Read(b) // cannot fail
		err = os.WriteFile(name, b, 0o600)
	}
	if err != nil {
		return 0, err
	}
	if len(b) != 8 {
		return 0, fmt.Errorf("%s: a salt has 8 bytes, this one %d", name, len(b))
	}
	return Salt(binary.LittleEndian.Uint64(b)), nil
}
