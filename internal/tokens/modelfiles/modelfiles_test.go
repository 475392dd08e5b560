package modelfiles

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func dirWith(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestReadTakesWhatMatters(t *testing.T) {
	for name, tc := range map[string]struct {
		files    map[string]string
		template string
		want     []string
		err      string
	}{
		"no weights":             {map[string]string{"tokenizer.json": "{}", "config.json": "{}", "model.safetensors": "x"}, "", []string{"config.json", "tokenizer.json"}, ""},
		"a template below":       {map[string]string{"tokenizer.json": "{}", "t/chat.jinja": "x"}, "t/chat.jinja", []string{"t/chat.jinja", "tokenizer.json"}, ""},
		"a template of the list": {map[string]string{"tokenizer.json": "{}", "chat_template.jinja": "x"}, "chat_template.jinja", []string{"chat_template.jinja", "tokenizer.json"}, ""},
		"templates by the way":   {map[string]string{"tokenizer.json": "{}", "a.jinja": "x", "d/b.jinja": "x"}, "", []string{"a.jinja", "tokenizer.json"}, ""},
		"no tokenizer":           {map[string]string{"config.json": "{}"}, "", nil, "no such file"},
		"no template":            {map[string]string{"tokenizer.json": "{}"}, "t.jinja", nil, "no such file"},
		"a way out":              {map[string]string{"tokenizer.json": "{}"}, "../t.jinja", nil, "no name"},
		"a directory":            {map[string]string{"tokenizer.json": "{}", "config.json/a": ""}, "", nil, "no regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := Read(dirWith(t, tc.files), tc.template)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := slices.Sorted(maps.Keys(set)); !slices.Equal(got, tc.want) {
				t.Errorf("files %q, want %q", got, tc.want)
			}
			for name, data := range set {
				if read, err := fs.ReadFile(set, name); err != nil || string(read) != string(data) || string(data) != tc.files[name] {
					t.Errorf("%s: %q, %v", name, read, err)
				}
			}
		})
	}
	if _, err := Read(t.TempDir(), ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty directory: %v", err)
	}
}

func TestReadIsBounded(t *testing.T) {
	dir := dirWith(t, map[string]string{"tokenizer.json": "{}"})
	if err := os.Truncate(filepath.Join(dir, "tokenizer.json"), MaxBytes+1); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir, ""); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("error %v", err)
	}
}

func TestLinksAreFollowed(t *testing.T) {
	dir := dirWith(t, map[string]string{"data/tokenizer.json": "{}"})
	if err := os.Symlink(filepath.Join("data", "tokenizer.json"), filepath.Join(dir, "tokenizer.json")); err != nil {
		t.Fatal(err)
	}
	if set, err := Read(dir, ""); err != nil || string(set["tokenizer.json"]) != "{}" {
		t.Errorf("%v, %v", set, err)
	}
}

// TestTheHashIsOfNamesAndBytes: what moves between names, or between files, is another content.
func TestTheHashIsOfNamesAndBytes(t *testing.T) {
	sets := []Set{{}, {"a": nil}, {"a": []byte("b")}, {"ab": nil}, {"a": []byte("bc")}, {"ab": []byte("c")}, {"a": []byte("b"), "c": nil}, {"a": nil, "c": []byte("b")}}
	seen := map[string]int{}
	for i, s := range sets {
		if j, again := seen[s.Hash()]; again || s.Hash() != maps.Clone(s).Hash() {
			t.Errorf("sets %d and %d have one hash", i, j)
		}
		seen[s.Hash()] = i
	}
}

func TestCheck(t *testing.T) {
	many := Set{}
	for i := range MaxFiles + 1 {
		many[strings.Repeat("a", i+1)] = nil
	}
	for name, s := range map[string]Set{
		"a way out": {"../a": nil}, "an absolute name": {"/a": nil}, "no name": {"": nil}, "the directory": {".": nil},
		"a long name": {strings.Repeat("a", 256): nil}, "too many": many, "too large": {"a": make([]byte, MaxBytes), "b": make([]byte, 1)},
	} {
		if s.Check() == nil {
			t.Errorf("%s is let through", name)
		}
	}
	if err := (Set{"a/b": []byte("x")}).Check(); err != nil {
		t.Error(err)
	}
}

func TestTheStampChangesWithTheFiles(t *testing.T) {
	dir := dirWith(t, map[string]string{"tokenizer.json": "{}"})
	before := Stamp(dir, "")
	if before != Stamp(dir, "") || before == "" {
		t.Fatal("the stamp changes by itself")
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if Stamp(dir, "") == before {
		t.Error("a new file, and the same stamp")
	}
}
