package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
)

const (
	// maxFileBytes is the largest file that is read, and maxFiles the most of them.
	maxFileBytes = 16 << 20
	maxFiles     = 10_000
)

// Directory reads the objects of a directory: its files *.yaml, *.yml and *.json, each with any number of objects, but
// not those below it and none whose name begins with a dot.
//
// Deleting a file deletes its objects. If a file cannot be read or has no object any more, or objects in it are refused,
// the last good objects stay applied. It is not safe for concurrent use.
type Directory struct {
	path       string
	admitter   *crdadmission.Admitter
	translator *Translator
	settle     time.Duration
	poll       time.Duration
	log        logr.Logger
	// list reads the files of the directory, or what stands for them.
	list func(context.Context) (map[string]reading, error)

	read    map[string]reading // files as last loaded
	parsed  map[string]parsed  // what was found in them
	failure string             // why the directory could not be read
	objects map[ObjectKey]*object
	loaded  bool
	state   State
}

// parsed is a file cut into documents.
type parsed struct {
	documents []document
	err       error
}

// reading is a file as it was read.
type reading struct {
	content []byte
	err     string // why it could not be read
}

func (r reading) equal(o reading) bool { return r.err == o.err && bytes.Equal(r.content, o.content) }

// NewDirectory returns the directory at path, which must exist. It does not read it yet.
func NewDirectory(path string, settings Settings, log logr.Logger) (*Directory, error) {
	admitter, err := crdadmission.New()
	if err != nil {
		return nil, fmt.Errorf("loading the definitions: %w", err)
	}
	return newDirectory(path, admitter, settings, log)
}

func newDirectory(path string, admitter *crdadmission.Admitter, settings Settings, log logr.Logger) (*Directory, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("opening the directory of objects: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("opening the directory of objects: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("opening the directory of objects: %s is not a directory", path)
	}
	d, err := newReader(admitter, settings, log)
	if err != nil {
		return nil, err
	}
	d.path, d.list = path, d.readAll
	return d, nil
}

// newReader returns a Directory that lists nothing yet.
func newReader(admitter *crdadmission.Admitter, settings Settings, log logr.Logger) (*Directory, error) {
	defaults, err := admitter.DefaultPolicy()
	if err != nil {
		return nil, err
	}
	translator, err := NewTranslator(settings, defaults)
	if err != nil {
		return nil, err
	}
	return &Directory{
		admitter: admitter.Unmanaged(), translator: translator,
		settle: defaultSettle, poll: defaultPoll, log: log,
		read: map[string]reading{}, parsed: map[string]parsed{}, objects: map[ObjectKey]*object{},
	}, nil
}

// Load reads the directory and returns its state, and whether anything has changed since the last Load.
func (d *Directory) Load(ctx context.Context) (State, bool) {
	files, err := d.list(ctx)
	if err == nil && d.loaded && d.failure == "" && maps.EqualFunc(files, d.read, reading.equal) {
		return d.state, false
	}
	if err != nil {
		if d.loaded && d.failure == err.Error() {
			return d.state, false
		}
		d.failure = err.Error()
		files = d.read
	} else {
		d.failure = ""
	}
	problems := d.admitAll(ctx, files)
	if d.failure != "" {
		problems = append(problems, Problem{Detail: d.failure, Kept: len(d.objects) > 0})
	}
	d.read, d.loaded = files, true
	d.state = d.translator.Translate(d.collect())
	d.forgetUnserved()
	d.state.Problems = append(d.state.Problems, problems...)
	if len(files) == 0 && d.path != "" {
		d.state.Empty = d.emptiness()
	}
	d.locate(d.state.Problems)
	explainMissing(d.state.Problems)
	sortProblems(d.state.Problems)
	return d.state, true
}

// forgetUnserved makes pools that have never been served free to change what a pool that is served cannot: nothing
// hangs on it yet.
func (d *Directory) forgetUnserved() {
	for i := range d.state.Pools {
		if p := &d.state.Pools[i]; !p.Served {
			key := ObjectKey{Kind: v1alpha1.KindInferencePool, Namespace: p.Object.Namespace, Name: p.Object.Name}
			d.objects[key].admitted = nil
		}
	}
}

// changed reports whether the files differ from what was last loaded.
func (d *Directory) changed(ctx context.Context) bool {
	files, err := d.list(ctx)
	if err != nil {
		return d.failure != err.Error()
	}
	return d.failure != "" || !maps.EqualFunc(files, d.read, reading.equal)
}

// readAll reads the files. It fails when the directory itself cannot be read.
func (d *Directory) readAll(context.Context) (map[string]reading, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, fmt.Errorf("reading the directory: %w", err)
	}
	files := map[string]reading{}
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasPrefix(name, ".") || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
			continue
		}
		if len(files) == maxFiles {
			return nil, fmt.Errorf("reading the directory: more than %d files", maxFiles)
		}
		content, err := readFile(filepath.Join(d.path, name))
		switch {
		case errors.Is(err, errNotFile):
		case err != nil:
			files[name] = reading{err: err.Error()}
		default:
			files[name] = reading{content: content}
		}
	}
	return files, nil
}

// emptiness says that the directory has no file that is read, and which others it has.
func (d *Directory) emptiness() string {
	text := d.path + " has no file *.yaml, *.yml or *.json"
	entries, err := os.ReadDir(d.path)
	var others []string
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), ".") && len(others) < 3 {
			others = append(others, entry.Name())
		}
	}
	if err == nil && len(others) > 0 {
		text += "; not read: " + strings.Join(others, ", ")
	}
	return text
}

// errNotFile is for directories, which are skipped whatever their names.
var errNotFile = errors.New("a directory")

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, plain(err)
	case info.IsDir():
		return nil, errNotFile
	case !info.Mode().IsRegular():
		return nil, errors.New("not a regular file")
	case info.Size() > maxFileBytes:
		return nil, fmt.Errorf("%d bytes are too many, at most %d", info.Size(), maxFileBytes)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, plain(err)
	}
	content, err := io.ReadAll(io.LimitReader(f, maxFileBytes))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, plain(err)
	}
	return content, nil
}

// plain drops the path from an error: the file is named beside it.
func plain(err error) error {
	if pathErr := (*os.PathError)(nil); errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}
