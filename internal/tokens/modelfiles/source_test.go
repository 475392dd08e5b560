package modelfiles

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// write writes a file, with its directories.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.Symlink(target, path)); err != nil {
		t.Fatal(err)
	}
}

const aCommit = "0123456789abcdef0123456789abcdef01234567"

// TestASourceReadsWhatReadDoes: the listing is that of the set, and what is sent is the set.
func TestASourceReadsWhatReadDoes(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/tokenizer.json", strings.Repeat("0123456789", partBytes/4))
	write(t, dir+"/chat_template.jinja", "")
	write(t, dir+"/other.jinja", "x")
	write(t, dir+"/model.safetensors", "weights")
	set, err := Read(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	s := Source{Dir: dir}
	l, state, err := s.List()
	if err != nil || l.Hash != set.Hash() || strings.Join(l.Names, " ") != "chat_template.jinja other.jinja tokenizer.json" {
		t.Fatalf("%+v, %v; want %+v", l, err, set.List())
	}
	var sent bytes.Buffer
	if err := s.Send(&l, func(part []byte) error {
		if len(part) > partBytes {
			t.Errorf("a part of %d bytes", len(part))
		}
		sent.Write(part)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	if err := set.Send(&l, func(part []byte) error { want.Write(part); return nil }); err != nil || !bytes.Equal(sent.Bytes(), want.Bytes()) {
		t.Errorf("%d bytes were sent, want %d; %v", sent.Len(), want.Len(), err)
	}
	if now, err := s.State(); err != nil || !now.Equal(state) {
		t.Errorf("the state changes by itself: %v", err)
	}
	refused := errors.New("refused")
	if err := s.Send(&l, func([]byte) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("after a refusal: %v", err)
	}
}

// TestLinksLeadNowhereElse: those of a volume are followed, and nothing outside of it is read.
func TestLinksLeadNowhereElse(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(t *testing.T, volume, outside string) Source
		want string // of the error; empty for none
	}{
		"a Kubernetes volume": {func(t *testing.T, volume, _ string) Source {
			write(t, volume+"/..2026/tokenizer.json", "{}")
			link(t, "..2026", volume+"/..data")
			link(t, "..data/tokenizer.json", volume+"/tokenizer.json")
			return Source{Dir: volume}
		}, ""},
		"to elsewhere on the volume": {func(t *testing.T, volume, _ string) Source {
			write(t, volume+"/store/t", "{}")
			link(t, "../store/t", volume+"/m/tokenizer.json")
			return Source{Dir: volume + "/m", Root: volume}
		}, ""},
		"an absolute one on the volume": {func(t *testing.T, volume, _ string) Source {
			write(t, volume+"/v2/tokenizer.json", "{}")
			link(t, volume+"/v2", volume+"/current")
			return Source{Dir: volume + "/current", Root: volume}
		}, ""},
		"a cache of a hub": {func(t *testing.T, volume, _ string) Source {
			of := volume + "/models--org--m"
			write(t, of+"/refs/main", aCommit+"\n")
			write(t, of+"/blobs/b", "{}")
			link(t, "../../blobs/b", of+"/snapshots/"+aCommit+"/tokenizer.json")
			return Source{Cache: volume, Repository: Repository{Name: "org/m"}}
		}, ""},
		"a snapshot of such a cache": {func(t *testing.T, volume, _ string) Source {
			of := volume + "/models--org--m"
			write(t, of+"/blobs/b", "{}")
			link(t, "../../blobs/b", of+"/snapshots/"+aCommit+"/tokenizer.json")
			return Source{Dir: of + "/snapshots/" + aCommit}
		}, ""},
		"out of the directory": {func(t *testing.T, volume, _ string) Source {
			write(t, volume+"/store/t", "{}")
			link(t, "../store/t", volume+"/m/tokenizer.json")
			return Source{Dir: volume + "/m"}
		}, "leads out of"},
		"out of the volume": {func(t *testing.T, volume, outside string) Source {
			link(t, outside+"/secret", volume+"/m/tokenizer.json")
			return Source{Dir: volume + "/m", Root: volume}
		}, "leads out of"},
		"out of the volume, by steps": {func(t *testing.T, volume, outside string) Source {
			write(t, volume+"/m/tokenizer.json", "{}")
			link(t, "..", volume+"/m/up")
			link(t, "up/../"+filepath.Base(outside)+"/secret", volume+"/m/chat_template.jinja")
			return Source{Dir: volume + "/m", Root: volume}
		}, "leads out of"},
		"a directory out of the volume": {func(t *testing.T, volume, outside string) Source {
			link(t, outside, volume+"/m")
			return Source{Dir: volume + "/m", Root: volume}
		}, "leads out of"},
		"a directory beside the volume": {func(_ *testing.T, volume, outside string) Source {
			return Source{Dir: outside, Root: volume}
		}, "is not below"},
		"a ref out of the cache": {func(t *testing.T, volume, outside string) Source {
			link(t, outside+"/secret", volume+"/models--org--m/refs/main")
			return Source{Cache: volume, Repository: Repository{Name: "org/m"}}
		}, "leads out of"},
		"a ref that is no commit": {func(t *testing.T, volume, _ string) Source {
			write(t, volume+"/models--org--m/refs/main", "../../..")
			return Source{Cache: volume, Repository: Repository{Name: "org/m"}}
		}, "names no commit"},
		"a repository that is a path": {func(_ *testing.T, volume, _ string) Source {
			return Source{Cache: volume, Repository: Repository{Name: "../m"}}
		}, "no name of a repository"},
		"an endless one": {func(t *testing.T, volume, _ string) Source {
			link(t, "tokenizer.json", volume+"/tokenizer.json")
			return Source{Dir: volume}
		}, "more than 40 links"},
		"a pipe": {func(t *testing.T, volume, _ string) Source {
			if err := syscall.Mkfifo(volume+"/tokenizer.json", 0o600); err != nil {
				t.Fatal(err)
			}
			return Source{Dir: volume}
		}, "no regular file"},
		"a directory as a file": {func(t *testing.T, volume, _ string) Source {
			write(t, volume+"/tokenizer.json/x", "")
			return Source{Dir: volume}
		}, "no regular file"},
		"no tokenizer": {func(t *testing.T, volume, _ string) Source {
			write(t, volume+"/config.json", "{}")
			return Source{Dir: volume}
		}, "tokenizer.json: no such file"},
		"a file of 5 GB": {func(t *testing.T, volume, _ string) Source {
			write(t, volume+"/tokenizer.json", "")
			if err := os.Truncate(volume+"/tokenizer.json", 5<<30); err != nil {
				t.Fatal(err)
			}
			return Source{Dir: volume}
		}, "more than 67108864 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			all := t.TempDir()
			volume, outside := all+"/volume", all+"/outside"
			write(t, outside+"/secret", "secret")
			write(t, outside+"/tokenizer.json", "secret")
			if err := os.Mkdir(volume, 0o700); err != nil {
				t.Fatal(err)
			}
			s := tc.make(t, volume, outside)
			l, _, err := s.List()
			switch {
			case tc.want == "" && (err != nil || len(l.Names) != 1 || l.Sizes[0] != 2):
				t.Errorf("%+v, %v", l, err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// TestChangesWhileReadingAreNoticed: what is listed and sent is of one state of the files.
func TestChangesWhileReadingAreNoticed(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, dir string){
		"a file grows":   func(t *testing.T, dir string) { write(t, dir+"/m/tokenizer.json", "{}  ") },
		"a file shrinks": func(t *testing.T, dir string) { write(t, dir+"/m/tokenizer.json", "") },
		"a file appears": func(t *testing.T, dir string) { write(t, dir+"/m/chat_template.jinja", "x") },
		"a file is gone": func(t *testing.T, dir string) { _ = os.Remove(dir + "/m/config.json") },
		"a file replaced": func(t *testing.T, dir string) {
			write(t, dir+"/new", "[]")
			_ = os.Rename(dir+"/new", dir+"/m/config.json")
		},
		"the directory is another one": func(t *testing.T, dir string) {
			write(t, dir+"/next/tokenizer.json", "{}")
			write(t, dir+"/next/config.json", "{}")
			if err := errors.Join(os.Rename(dir+"/m", dir+"/old"), os.Rename(dir+"/next", dir+"/m")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir+"/m/tokenizer.json", "{}")
			write(t, dir+"/m/config.json", "{}")
			s := Source{Dir: dir + "/m"}
			before, state, err := s.List()
			if err != nil {
				t.Fatal(err)
			}
			changed := false
			err = s.Send(&before, func([]byte) error {
				if !changed {
					changed = true
					change(t, dir)
				}
				return nil
			})
			if !errors.Is(err, ErrChanged) && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("while it was sent: %v", err)
			}
			if now, err := s.State(); err == nil && now.Equal(state) {
				t.Error("the state is the same as before")
			}
		})
	}
	dir := t.TempDir()
	write(t, dir+"/tokenizer.json", "{}")
	s := Source{Dir: dir}
	l, _, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(dir + "/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/tokenizer.json", "[]")
	if err := os.Chtimes(dir+"/tokenizer.json", time.Time{}, info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&l, func([]byte) error { return nil }); !errors.Is(err, ErrChanged) {
		t.Errorf("other contents of the same size and time: %v", err)
	}
}
