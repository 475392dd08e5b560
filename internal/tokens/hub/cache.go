package hub

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

// cache is a directory in the layout of the Hugging Face cache (HF_HUB_CACHE), so that `hf download` can fill it for a picker that
// reaches no hub:
//
//	models--ORGANIZATION--NAME/refs/REVISION            the commit of a branch or a tag
//	models--ORGANIZATION--NAME/snapshots/COMMIT/FILE
//	models--ORGANIZATION--NAME/.no_exist/COMMIT/FILE    the commit has no such file
//
// Files that are written here are regular files; others' can be links. Each appears whole or not at all. The ref is written last.
type cache struct {
	dir string
	max int64 // bytes of snapshots; see makeRoom
	// whole: a commit is complete only when each of its files is there or known to be absent. Caches that others have filled do not say
	// that; they are complete as they are.
	whole bool
}

const (
	// temporary files are removed when they are older than staleAfter, which no update takes.
	temporary  = "kvasir-download-"
	staleAfter = 2 * updateTimeout
	// keptFor is how long a snapshot stays that another process might use: processes touch those that they use with each update.
	keptFor = 6 * pollEvery
	maxRef  = 256
)

func (c *cache) model(r *modelfiles.Repository) string {
	return filepath.Join(c.dir, "models--"+strings.ReplaceAll(r.Name, "/", "--"))
}

func (c *cache) snapshot(r *modelfiles.Repository, commit string) string {
	return filepath.Join(c.model(r), "snapshots", commit)
}

// current is the commit that the cache has for a revision; empty if it has none. A ref is written when all files are there; a commit
// has none.
func (c *cache) current(r *modelfiles.Repository) string {
	commit := r.At()
	pinned := modelfiles.IsCommit(commit)
	if !pinned {
		f, err := os.Open(filepath.Join(c.model(r), "refs", filepath.FromSlash(commit)))
		if err != nil {
			return ""
		}
		defer f.Close()
		text := make([]byte, maxRef)
		n, _ := f.Read(text) // of an empty file, nothing
		commit = strings.TrimSpace(string(text[:n]))
	}
	if !modelfiles.IsCommit(commit) {
		return ""
	}
	for _, name := range r.Wanted() {
		if size, known := c.has(r, commit, name); size < 0 && r.Required(name) || pinned && c.whole && !known {
			return ""
		}
	}
	return commit
}

// has is the size of a file in bytes, -1 if there is none. known reports whether it is certain that the commit has it, or has it not.
func (c *cache) has(r *modelfiles.Repository, commit, name string) (size int64, known bool) {
	name = filepath.FromSlash(name)
	if info, err := os.Stat(filepath.Join(c.snapshot(r, commit), name)); err == nil && info.Mode().IsRegular() {
		return info.Size(), true
	}
	_, err := os.Stat(filepath.Join(c.model(r), ".no_exist", commit, name))
	return -1, err == nil
}

// put adds a file, which write writes. Its error is returned as it is.
func (c *cache) put(r *modelfiles.Repository, commit, name string, write func(*os.File) error) (size int64, err error) {
	return c.replace(filepath.Join(c.snapshot(r, commit), filepath.FromSlash(name)), write)
}

// lacks records that the commit has no such file.
func (c *cache) lacks(r *modelfiles.Repository, commit, name string) error {
	_, err := c.replace(filepath.Join(c.model(r), ".no_exist", commit, filepath.FromSlash(name)), func(*os.File) error { return nil })
	return err
}

// use records that a snapshot is used.
func (c *cache) use(snapshot string) {
	now := time.Now()
	_ = os.Chtimes(snapshot, now, now) // of a directory of others that cannot be written, not needed
}

// point records the commit of a revision.
func (c *cache) point(r *modelfiles.Repository, commit string) error {
	if c.current(r) == commit {
		return nil
	}
	_, err := c.replace(filepath.Join(c.model(r), "refs", filepath.FromSlash(r.At())), func(f *os.File) error {
		_, err := f.WriteString(commit)
		return err
	})
	return err
}

// replace writes a file elsewhere, and moves it to its place.
func (c *cache) replace(path string, write func(*os.File) error) (size int64, err error) {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return 0, err
	}
	f, err := os.CreateTemp(c.dir, temporary+"*")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name()) // when it has not been moved
	defer f.Close()
	if err := write(f); err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	// A machine that fails must not leave an empty file under the name.
	if err := errors.Join(f.Sync(), f.Close(), os.MkdirAll(filepath.Dir(path), 0o700)); err != nil {
		return 0, err
	}
	return info.Size(), os.Rename(f.Name(), path)
}

// kept is a snapshot in the cache.
type kept struct {
	path  string
	bytes int64
	used  time.Time
}

// makeRoom removes the least recently used snapshots until there is room for another model: all together must not have more than
// max bytes. It leaves those in use, those of the last hour, and those that were not made here: with links, or
// with more bytes than the files of a tokenizer have.
func (c *cache) makeRoom(used map[string]bool) error {
	now := time.Now()
	leftovers, _ := filepath.Glob(filepath.Join(escaped(c.dir), temporary+"*")) // the pattern is right
	for _, path := range leftovers {
		if info, err := os.Lstat(path); err == nil && now.Sub(info.ModTime()) > staleAfter {
			_ = os.Remove(path)
		}
	}
	paths, _ := filepath.Glob(filepath.Join(escaped(c.dir), "models--*", "snapshots", "*"))
	var all []kept
	total := int64(modelfiles.MaxBytes)
	for _, path := range paths {
		if one, ours := measure(path); ours {
			all = append(all, one)
			total += one.bytes
		}
	}
	slices.SortFunc(all, func(a, b kept) int { return a.used.Compare(b.used) })
	for _, one := range all {
		if total <= c.max {
			return nil
		}
		if used[one.path] || now.Sub(one.used) < keptFor {
			continue
		}
		if err := remove(one.path); err != nil {
			return fmt.Errorf("making room in the cache: %w", err)
		}
		total -= one.bytes
	}
	if total > c.max {
		return fmt.Errorf("the cache %s has no room: its limit is %d MiB, all of it in use", c.dir, c.max>>20)
	}
	return nil
}

// escaped is a directory's name as a pattern.
func escaped(dir string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(dir)
}

// measure reports how large a snapshot is, and whether it was made here.
func measure(path string) (one kept, ours bool) {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() {
		return kept{}, false
	}
	one = kept{path: path, used: info.ModTime()}
	err = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		one.bytes += info.Size()
		if !info.Mode().IsRegular() || one.bytes > modelfiles.MaxBytes {
			return fs.ErrInvalid
		}
		return nil
	})
	return one, err == nil
}

// remove removes a snapshot, and its model when it was the last one.
func remove(path string) error {
	snapshots, commit := filepath.Split(filepath.Clean(path))
	model := filepath.Dir(filepath.Clean(snapshots))
	err := cmp.Or(os.RemoveAll(path), os.RemoveAll(filepath.Join(model, ".no_exist", commit)))
	if err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(model, "blobs")); err == nil { // others' files
		return nil
	}
	if os.Remove(snapshots) == nil { // it is empty
		return os.RemoveAll(model)
	}
	return nil
}
