// Package modelfiles holds the small files of a model that its prompts are made with: tokenizer, configuration and chat
// template, and no weights. Their source is a directory, a ConfigMap, a reporter or a model hub, and they are identified by
// their content.
package modelfiles

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// MaxBytes bounds the files of a model together.
	MaxBytes = 64 << 20
	// MaxFiles bounds their number.
	MaxFiles = 32
	// maxName bounds a name, in bytes.
	maxName = 255
	// required is the file without which there are no tokens.
	required = "tokenizer.json"
)

// names are the relevant files; of those that only show how a model's prompts are made, the presence counts.
var names = []string{
	required, "tokenizer_config.json", "config.json", "chat_template.jinja", "chat_template.json",
	"preprocessor_config.json", "processor_config.json", "tekken.json", "tekken.json.gz", "tiktoken.model",
}

// Set is the files of a model by name: paths with slashes, below the model's directory. It is not changed once made.
type Set map[string][]byte

// Read reads the files of a directory that matter, templates (*.jinja) in it among them, and template, a file below it,
// unless it is empty. Names that lead
// out of the directory are refused, but links are followed: mounted volumes consist of them. The error wraps
// fs.ErrNotExist when there is no tokenizer.json.
func Read(dir, template string) (Set, error) {
	set := Set{}
	left := int64(MaxBytes)
	for _, name := range wanted(dir, template) {
		data, err := readFile(dir, name, left)
		if errors.Is(err, fs.ErrNotExist) && name != required && name != template {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading the files of a model: %w", err)
		}
		left -= int64(len(data))
		set[name] = data
	}
	return set, set.Check()
}

// maxTemplates bounds the templates that are taken without being named.
const maxTemplates = 8

func wanted(dir, template string) []string {
	all := slices.Clone(names)
	templates, _ := filepath.Glob(filepath.Join(escaped(dir), "*.jinja")) // the pattern is right
	for _, path := range templates[:min(len(templates), maxTemplates)] {
		all = append(all, filepath.Base(path))
	}
	if template != "" {
		all = append(all, template)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// escaped is a directory's name as a pattern.
func escaped(dir string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(dir)
}

func readFile(dir, name string, limit int64) ([]byte, error) {
	if !fs.ValidPath(name) {
		return nil, fmt.Errorf("%q is no name of a file below the model's directory", name)
	}
	// A pipe does not make the caller wait.
	f, err := os.OpenFile(filepath.Join(dir, filepath.FromSlash(name)), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", name)
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("%s: the files have more than %d bytes", name, MaxBytes)
	}
	data := make([]byte, 0, info.Size()+1)
	b := bytes.NewBuffer(data)
	if _, err := b.ReadFrom(io.LimitReader(f, limit+1)); err != nil {
		return nil, err
	}
	if int64(b.Len()) > limit {
		return nil, fmt.Errorf("%s: the files have more than %d bytes", name, MaxBytes)
	}
	return b.Bytes(), nil
}

// Stamp detects without reading the files whether they might have changed: by names, sizes and times.
func Stamp(dir, template string) string {
	var b strings.Builder
	for _, name := range wanted(dir, template) {
		info, err := os.Stat(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil {
			continue
		}
		fmt.Fprintf(&b, "%s %d %d\n", name, info.Size(), info.ModTime().UnixNano())
	}
	return b.String()
}

// Check reports whether the set is within its bounds, with names that lie below a directory.
func (s Set) Check() error {
	total := 0
	for name, data := range s {
		if !fs.ValidPath(name) || name == "." || len(name) > maxName {
			return fmt.Errorf("%q is no name of a file of a model", name)
		}
		total += len(data)
	}
	if len(s) > MaxFiles || total > MaxBytes {
		return fmt.Errorf("%d files with %d bytes; the limit is %d files with %d bytes", len(s), total, MaxFiles, MaxBytes)
	}
	return nil
}

// Hash names the content: names and bytes, in 64 hexadecimal digits.
func (s Set) Hash() string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(s)) {
		h.Write(header(name, len(s[name])))
		h.Write(s[name])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// header is what precedes the contents of a file in a hash.
func header(name string, size int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(name)))
	b = binary.LittleEndian.AppendUint64(b, uint64(size))
	return append(b, name...)
}

// Listing describes a set, without the contents.
type Listing struct {
	// Hash of the set.
	Hash string
	// Names of the files, sorted, and their sizes in bytes.
	Names []string
	Sizes []int
}

// List returns the listing of the set.
func (s Set) List() Listing {
	l := Listing{Hash: s.Hash(), Names: slices.Sorted(maps.Keys(s))}
	for _, name := range l.Names {
		l.Sizes = append(l.Sizes, len(s[name]))
	}
	return l
}

// Bytes is the size of all files together.
func (s Set) Bytes() (n int) {
	for _, data := range s {
		n += len(data)
	}
	return n
}

// Open is for fs.FS.
func (s Set) Open(name string) (fs.File, error) {
	data, ok := s[name]
	if !ok || !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return &file{Reader: *bytes.NewReader(data), name: path.Base(name), size: int64(len(data))}, nil
}

// file is an open file of a set.
type file struct {
	bytes.Reader
	name string
	size int64
}

func (f *file) Stat() (fs.FileInfo, error) { return info{f.name, f.size}, nil }
func (f *file) Close() error               { return nil }

type info struct {
	name string
	size int64
}

func (i info) Name() string     { return i.name }
func (i info) Size() int64      { return i.size }
func (info) Mode() fs.FileMode  { return 0o444 }
func (info) ModTime() time.Time { return time.Time{} }
func (info) IsDir() bool        { return false }
func (info) Sys() any           { return nil }
