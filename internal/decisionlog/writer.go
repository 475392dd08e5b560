package decisionlog

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/kvasir-dev/kvasir/internal/linefile"
)

const (
	fileName = "decisions"
	saltFile = "salt"
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
	*linefile.Writer[Record]
	salt Salt
}

// Open begins or continues a log. It fails when the directory cannot be made or written, except because the disk is full: then
// records are dropped until there is room.
func Open(o Options) (*Writer, error) {
	name := filepath.Join(o.Dir, saltFile)
	salt, saved, err := readSalt(name)
	if err != nil {
		return nil, fmt.Errorf("decision log: %w", err)
	}
	lines := linefile.Options{Title: "decision log", Dir: o.Dir, Name: fileName, FileBytes: o.FileBytes, Files: o.Files, Now: o.Now}
	if !saved {
		lines.Prepare = func() error { return salt.save(name) }
	}
	w, err := linefile.Open[Record](lines)
	if err != nil {
		return nil, err
	}
	return &Writer{w, salt}, nil
}

// Salt of the log.
func (w *Writer) Salt() Salt { return w.salt }

// readSalt reads the log's salt, or makes one, which is to be saved. A file with fewer bytes than a salt has is what an earlier
// process left on a full disk.
func readSalt(name string) (s Salt, saved bool, err error) {
	const size = 8
	b, err := os.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && len(b) < size:
		b = make([]byte, size)
		_, _ = rand.Read(b) // cannot fail
	case err != nil:
		return 0, false, err
	case len(b) > size:
		return 0, false, fmt.Errorf("%s: a salt has %d bytes, this one %d", name, size, len(b))
	default:
		saved = true
	}
	return Salt(binary.LittleEndian.Uint64(b)), saved, nil
}

// save writes the salt to a file as a whole, or not at all.
func (s Salt) save(name string) error {
	part := name + ".new"
	if err := os.WriteFile(part, binary.LittleEndian.AppendUint64(nil, uint64(s)), 0o600); err != nil {
		_ = os.Remove(part)
		return err
	}
	return os.Rename(part, name)
}
