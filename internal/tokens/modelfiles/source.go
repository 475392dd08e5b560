package modelfiles

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Source is where a machine has the files of a model: a directory, or a repository in the cache of a model hub.
type Source struct {
	// Dir is the model's directory; empty with a Cache.
	Dir string
	// Cache has the layout of the Hugging Face cache (HF_HUB_CACHE), and Repository is what it has the files of.
	Cache      string
	Repository Repository
	// Root is what files must lie in after all links; empty for the model's directory. In the layout of the Hugging Face cache that is
	// the directory of all snapshots, because these consist of links.
	Root string
}

// Named reports whether the source names anything.
func (s *Source) Named() bool { return s.Dir != "" || s.Cache != "" }

// ErrChanged means that files changed while they were read, so that parts could be of different revisions.
var ErrChanged = errors.New("the files changed while they were read")

const (
	// maxLinks bounds the links on the way to one file, and maxEntries the names that are read of a directory.
	maxLinks   = 40
	maxEntries = 4096
	// partBytes is how much of a file is held in memory at a time.
	partBytes = 1 << 20
	maxRef    = 256
)

// Snapshot is where a Hugging Face cache has the files of a repository now, and the directory of all its snapshots.
func Snapshot(cache string, r *Repository) (dir, root string, err error) {
	if err := r.Check(); err != nil {
		return "", "", err
	}
	root = filepath.Join(cache, "models--"+strings.ReplaceAll(r.Name, "/", "--"))
	commit := r.At()
	if !IsCommit(commit) {
		text, err := readRef(root, commit)
		if err != nil {
			return "", "", fmt.Errorf("the cache has no revision %s of %s: %w", r.At(), r.Name, err)
		}
		if commit = strings.TrimSpace(text); !IsCommit(commit) {
			return "", "", fmt.Errorf("the cache names no commit for revision %s of %s", r.At(), r.Name)
		}
	}
	return filepath.Join(root, "snapshots", commit), root, nil
}

func readRef(root, revision string) (string, error) {
	o, err := newTree(root, root)
	if err != nil {
		return "", err
	}
	defer o.close()
	f, err := o.open("refs/" + revision)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxRef))
	return string(text), err
}

// tree opens files below a directory, whose links must not lead out of a root.
type tree struct {
	root *os.Root
	base string // of the root
	dir  string // below the root, with slashes
}

// open opens the directory of the source.
func (s *Source) open() (*tree, error) {
	dir, root := s.Dir, s.Root
	if s.Cache != "" {
		snapshot, all, err := Snapshot(s.Cache, &s.Repository)
		if err != nil {
			return nil, err
		}
		dir = snapshot
		if root == "" {
			root = all
		}
	}
	dir = filepath.Clean(dir)
	if root == "" {
		root = dir
		if commit := filepath.Base(dir); IsCommit(commit) && filepath.Base(filepath.Dir(dir)) == "snapshots" {
			root = filepath.Dir(filepath.Dir(dir))
		}
	}
	return newTree(root, dir)
}

func newTree(root, dir string) (*tree, error) {
	root = filepath.Clean(root)
	below, err := filepath.Rel(root, dir)
	if err != nil || !filepath.IsLocal(below) {
		return nil, fmt.Errorf("%s is not below %s", dir, root)
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	return &tree{root: r, base: root, dir: filepath.ToSlash(below)}, nil
}

func (o *tree) close() { _ = o.root.Close() } // nothing was written

// resolve follows the links of a path below the directory. os.Root refuses what leads out of it; it also refuses absolute links, and
// those of a volume can lead to elsewhere on the same volume.
func (o *tree) resolve(name string) (string, error) {
	left := strings.Split(o.dir+"/"+name, "/")
	at, links := ".", 0
	for len(left) > 0 {
		part := left[0]
		left = left[1:]
		if part == "" || part == "." {
			continue
		}
		next := filepath.Join(at, part) // at has no links: ".." is what it says
		if !filepath.IsLocal(next) {
			return "", fmt.Errorf("%s leads out of %s", name, o.base)
		}
		info, err := o.root.Lstat(next)
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("%s: more than %d links", name, maxLinks)
		}
		target, err := o.root.Readlink(next)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(target) {
			if target, err = filepath.Rel(o.base, filepath.Clean(target)); err != nil || !filepath.IsLocal(target) {
				return "", fmt.Errorf("%s leads out of %s", name, o.base)
			}
			at = "."
		}
		left = append(strings.Split(filepath.ToSlash(target), "/"), left...)
	}
	return at, nil
}

// open opens a file below the directory. One that is a pipe or a device does not make the caller wait.
func (o *tree) open(name string) (*os.File, error) {
	at, err := o.resolve(name)
	if err != nil {
		return nil, err
	}
	return o.root.OpenFile(at, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// names are those of the files that are wanted: see Read.
func (o *tree) names() ([]string, error) {
	dir, err := o.open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.Readdirnames(maxEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	templates := slices.DeleteFunc(entries, func(name string) bool { return !strings.HasSuffix(name, ".jinja") || len(name) > maxName })
	slices.Sort(templates)
	all := append(slices.Clone(names), templates[:min(len(templates), maxTemplates)]...)
	slices.Sort(all)
	return slices.Compact(all), nil
}

// mark identifies the state of a file without its contents.
type mark struct {
	name string
	info fs.FileInfo
}

// State identifies the state of a source without the contents of its files.
type State struct{ marks []mark }

// Equal reports whether two states are the same, as far as names, files, sizes and times show it.
func (s State) Equal(other State) bool {
	return slices.EqualFunc(s.marks, other.marks, func(a, b mark) bool {
		return a.name == b.name && os.SameFile(a.info, b.info) && a.info.Size() == b.info.Size() && a.info.ModTime().Equal(b.info.ModTime())
	})
}

// State returns the present state of the source. The error wraps fs.ErrNotExist when there is no tokenizer.json.
func (s *Source) State() (State, error) {
	files, err := s.files()
	if err != nil {
		return State{}, err
	}
	files.close()
	return files.state, nil
}

// opened are the files of a source, in the order of their names.
type opened struct {
	state State
	files []*os.File
}

func (o *opened) close() {
	for _, f := range o.files {
		_ = f.Close() // only read
	}
}

// files opens all files of the source.
func (s *Source) files() (_ *opened, err error) {
	t, err := s.open()
	if err != nil {
		return nil, fmt.Errorf("reading the files of a model: %w", err)
	}
	defer t.close()
	all := &opened{}
	defer func() {
		if err != nil {
			all.close()
			err = fmt.Errorf("reading the files of a model: %w", err)
		}
	}()
	names, err := t.names()
	if err != nil {
		return nil, err
	}
	total := int64(0)
	for _, name := range names {
		f, err := t.open(name)
		if errors.Is(err, fs.ErrNotExist) && name != required {
			continue
		}
		if err != nil {
			return nil, err
		}
		all.files = append(all.files, f)
		info, err := f.Stat()
		switch {
		case err != nil:
			return nil, err
		case !info.Mode().IsRegular():
			return nil, fmt.Errorf("%s is no regular file", name)
		}
		if total += min(info.Size(), MaxBytes+1); total > MaxBytes {
			return nil, fmt.Errorf("%s: the files have more than %d bytes", name, MaxBytes)
		}
		all.state.marks = append(all.state.marks, mark{name, info})
	}
	return all, nil
}

// List describes the files without keeping them in memory, and the state that they have. The error wraps ErrChanged if they change
// meanwhile.
func (s *Source) List() (Listing, State, error) {
	h := sha256.New()
	l := Listing{}
	state, err := s.read(func(name string, size int64) {
		l.Names, l.Sizes = append(l.Names, name), append(l.Sizes, int(size))
		h.Write(header(name, int(size)))
	}, func(part []byte) error {
		h.Write(part)
		return nil
	})
	if err != nil {
		return Listing{}, State{}, err
	}
	l.Hash = hex.EncodeToString(h.Sum(nil))
	return l, state, nil
}

// Send passes the contents of the files of a listing to put, in its order and in parts. The error wraps ErrChanged if they are not those
// that were listed; then put has got some of them.
func (s *Source) Send(l *Listing, put func([]byte) error) error {
	h := sha256.New()
	at := 0
	if _, err := s.read(func(name string, size int64) {
		h.Write(header(name, int(size)))
		if at < len(l.Names) && l.Names[at] == name && l.Sizes[at] == int(size) {
			at++
		} else {
			at = len(l.Names) + 1
		}
	}, func(part []byte) error {
		if at > len(l.Names) {
			return ErrChanged
		}
		h.Write(part)
		return put(part)
	}); err != nil {
		return err
	}
	if at != len(l.Names) || hex.EncodeToString(h.Sum(nil)) != l.Hash {
		return ErrChanged
	}
	return nil
}

// read reads all files: file is called before the parts of each.
func (s *Source) read(file func(name string, size int64), put func([]byte) error) (State, error) {
	all, err := s.files()
	if err != nil {
		return State{}, err
	}
	defer all.close()
	part := make([]byte, partBytes)
	for i, f := range all.files {
		m := all.state.marks[i]
		file(m.name, m.info.Size())
		for left := m.info.Size(); left > 0; {
			n, err := f.Read(part[:min(left, partBytes)])
			if err == nil || n > 0 {
				left -= int64(n)
				err = put(part[:n])
			} else if errors.Is(err, io.EOF) {
				err = fmt.Errorf("%s: %w", m.name, ErrChanged)
			}
			if err != nil {
				return State{}, err
			}
		}
	}
	now, err := s.State()
	if err == nil && !now.Equal(all.state) {
		err = ErrChanged
	}
	return all.state, err
}

// Send passes the contents of the files of a listing to put, in its order and in parts.
func (s Set) Send(l *Listing, put func([]byte) error) error {
	for _, name := range l.Names {
		for part := range slices.Chunk(s[name], partBytes) {
			if err := put(part); err != nil {
				return err
			}
		}
	}
	return nil
}
