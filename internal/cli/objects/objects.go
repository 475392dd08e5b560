// Package objects checks files with InferencePools, RoutingPolicies and ModelRoutes before they are applied.
package objects

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/cli/console"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// Findings are what a check has found.
type Findings struct {
	Valid bool `json:"valid"`
	// Pools, Policies and Routes are the numbers of objects that could be read.
	Pools    int `json:"pools"`
	Policies int `json:"policies"`
	Routes   int `json:"routes"`
	// Problems name the file, the document in it, the object and the field.
	Problems []string `json:"problems"`
}

// Summary is the result in a sentence.
func (f *Findings) Summary() string {
	text := console.Count(f.Pools, "pool", "pools") + ", " + console.Count(f.Policies, "policy", "policies") + ", "
	if f.Routes > 0 {
		text += console.Count(f.Routes, "route", "routes") + ", "
	}
	text += console.Count(len(f.Problems), "problem", "problems")
	if f.Pools+f.Policies+f.Routes == 0 && len(f.Problems) == 0 {
		text += ": nothing in it is an InferencePool, a RoutingPolicy or a ModelRoute"
	}
	return text
}

// stdin is the name under which standard input is checked.
const stdin = "stdin.yaml"

// Check reads files and directories, - for in, and checks all objects in them together: they can refer to each other.
// An error reports what could not be read.
func Check(ctx context.Context, in io.Reader, modelRoot string, paths []string) (*Findings, error) {
	dir, err := os.MkdirTemp("", "kvasir-validate-")
	if err != nil {
		return nil, fmt.Errorf("making a directory for the objects: %w", err)
	}
	defer os.RemoveAll(dir)
	for _, path := range paths {
		if err := gather(in, dir, path); err != nil {
			return nil, err
		}
	}
	settings := config.Settings{ModelRoot: modelRoot, Root: bytes.Repeat([]byte{1}, kvblock.MinSeedBytes)}
	directory, err := config.NewDirectory(dir, settings, logr.Discard())
	if err != nil {
		return nil, err
	}
	state, _ := directory.Load(ctx)
	found := &Findings{Pools: len(state.Pools), Policies: len(state.Policies), Routes: len(state.Routes), Problems: []string{}}
	for i := range state.Problems {
		found.Problems = append(found.Problems, state.Problems[i].Error())
	}
	found.Valid = len(found.Problems) == 0 && found.Pools+found.Policies+found.Routes > 0
	return found, nil
}

// gather puts a file, or the files of a directory, into dir.
func gather(in io.Reader, dir, path string) error {
	if path == "-" {
		content, err := io.ReadAll(in)
		if err != nil {
			return fmt.Errorf("reading standard input: %w", err)
		}
		return put(dir, stdin, content)
	}
	info, err := os.Stat(path)
	if err != nil {
		return unreadable(path, err)
	}
	if !info.IsDir() {
		return copyFile(dir, path)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return unreadable(path, err)
	}
	n := 0
	for _, e := range entries {
		if e.IsDir() || e.Name()[0] == '.' || !slices.Contains(extensions, filepath.Ext(e.Name())) {
			continue
		}
		if err := copyFile(dir, filepath.Join(path, e.Name())); err != nil {
			return err
		}
		n++
	}
	if n == 0 {
		return fmt.Errorf("the directory %s has no file *.yaml, *.yml or *.json", path)
	}
	return nil
}

// unreadable is the error of a file or directory that cannot be read. Errors of package os name the path, and the call, which says
// nothing to a user.
func unreadable(path string, err error) error {
	if of := (*os.PathError)(nil); errors.As(err, &of) {
		err = of.Err
	}
	return fmt.Errorf("reading %s: %w", path, err)
}

// extensions are those that pickers read.
var extensions = []string{".yaml", ".yml", ".json"}

func copyFile(dir, path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return unreadable(path, err)
	}
	name := filepath.Base(path)
	if !slices.Contains(extensions, filepath.Ext(name)) {
		name += ".yaml"
	}
	return put(dir, name, content)
}

func put(dir, name string, content []byte) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if os.IsExist(err) {
		return fmt.Errorf("two files are called %s: check them one by one", name)
	}
	if err != nil {
		return fmt.Errorf("copying %s: %w", name, err)
	}
	if _, err := f.Write(content); err != nil {
		_ = f.Close() // the write says more
		return fmt.Errorf("copying %s: %w", name, err)
	}
	return f.Close()
}
