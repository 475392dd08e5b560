package config

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// testRoot is a key root.
var testRoot = bytes.Repeat([]byte{7}, 32)

const (
	smallPool = `apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: m}
spec: {model: {name: m}, selector: {matchLabels: {app: m}}}
`
	smallSlice = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: m-a, labels: {kvasir.dev/pool: m}}
addressType: IPv4
ports: [{name: http, port: 8001}, {name: kv-events, port: 6001}, {name: kv-replay, port: 7001}]
endpoints:
- {addresses: [127.0.0.1], targetRef: {kind: Pod, name: m-0, uid: u0}}
`
	smallPolicy = `apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: p}
spec: {targetRefs: [{name: m}], strategy: {type: LeastLoad}}
`
)

// open opens a directory with files, whose names alternate with their contents.
func open(t testing.TB, files ...string) *Directory {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		write(t, filepath.Join(dir, files[i]), files[i+1])
	}
	return openAt(t, dir)
}

// admitter is shared, because it takes a while to make.
var admitter = sync.OnceValues(crdadmission.New)

func openAt(t testing.TB, dir string) *Directory {
	t.Helper()
	a, err := admitter()
	if err != nil {
		t.Fatal(err)
	}
	d, err := newDirectory(dir, a, Settings{ModelRoot: "/models", Root: testRoot}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// write replaces a file as editors do, by a rename.
func write(t testing.TB, path, content string) {
	t.Helper()
	temporary := filepath.Join(filepath.Dir(path), ".new")
	if err := os.WriteFile(temporary, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temporary, path); err != nil {
		t.Fatal(err)
	}
}

func (d *Directory) file(name string) string { return filepath.Join(d.path, name) }

// load loads the directory and returns its state with the problems as text.
func load(t *testing.T, d *Directory) (State, []string) {
	t.Helper()
	s, _ := d.Load(context.Background())
	var texts []string
	for i := range s.Problems {
		texts = append(texts, s.Problems[i].Error())
	}
	return s, texts
}

// only is the only pool of a state.
func only(t *testing.T, s State) *picker.Spec {
	t.Helper()
	if len(s.Specs) != 1 {
		t.Fatalf("%d pools are served, want 1", len(s.Specs))
	}
	return &s.Specs[0]
}

// wantProblem fails unless there is a problem that contains all of parts.
func wantProblem(t *testing.T, problems []string, parts ...string) {
	t.Helper()
	if !slices.ContainsFunc(problems, func(problem string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(problem, part) })
	}) {
		t.Fatalf("no problem with all of %q among %q", parts, problems)
	}
}

func wantNoProblem(t *testing.T, problems []string) {
	t.Helper()
	if len(problems) > 0 {
		t.Fatalf("problems %q, want none", problems)
	}
}

// states collects what Follow tells.
type states struct {
	mu   sync.Mutex
	last State
	n    int
	news chan struct{}
}

func (s *states) take(state State) {
	s.mu.Lock()
	s.last, s.n = state, s.n+1
	s.mu.Unlock()
	select {
	case s.news <- struct{}{}:
	default:
	}
}
