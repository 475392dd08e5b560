// Package mutants puts bugs into the code, those that peers had among them, and expects a test to notice each. The
// code itself has no switches for that: the go command compiles a changed copy of one file in place of the real one.
package mutants

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

var run = flag.Bool("mutants", false, "run the tests with each of the bugs; it takes minutes")

// root is the repository's, from here.
const root = "../.."

// mutate is the file with the bug in it.
func mutate(m *mutant) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return "", fmt.Errorf("%s has %d places, not one, that read %q: bring the mutant up to date", m.file, n, m.old)
	}
	return strings.Replace(string(text), m.old, m.new, 1), nil
}

// Every bug must still have its place.
func TestMutantsApply(t *testing.T) {
	names := map[string]bool{}
	for i := range mutants {
		m := &mutants[i]
		if names[m.name] || m.test == "" || m.old == m.new {
			t.Errorf("%q is there twice, or changes nothing, or is noticed by no test", m.name)
		}
		names[m.name] = true
		if _, err := mutate(m); err != nil {
			t.Errorf("%q: %v", m.name, err)
		}
	}
}

// The tests that the documentation names must be there.
func TestDocumentedTestsExist(t *testing.T) {
	there := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		code, err := os.ReadFile(path)
		for _, name := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(code, -1) {
			there[string(name[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"docs/architecture-event-plane.md", "docs/gateways.md"} {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile("`(Test\\w+)`").FindAllSubmatch(text, -1)
		if len(names) < 30 {
			t.Errorf("%s names only %d tests", page, len(names))
		}
		for _, name := range names {
			if !there[string(name[1])] {
				t.Errorf("%s names %s, which is not there", page, name[1])
			}
		}
	}
}

// limit is the time that a test with a bug can take.
const limit = 10 * time.Minute

// gotest runs the test of a mutant, with a file in place of another if overlay is not empty.
func gotest(t *testing.T, m *mutant, overlay string) (output string, err error) {
	t.Helper()
	args := []string{"test", "-count=1", "-vet=off", "-timeout", limit.String(), "-run", "^(" + m.test + ")$"}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	args = append(args, m.pkg)
	if m.test == simulation {
		args = append(args, "-sim.seeds=400", "-sim.failures=1")
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit+time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// noticed finds the tests that failed, also by a panic, which ends the process.
var noticed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\w+)`)

func TestMutantsAreNoticed(t *testing.T) {
	if !*run {
		t.Skip("not asked for: -mutants")
	}
	sound := map[string]func() (string, error){} // by package and test: what it says without a bug, asked once
	for i := range mutants {
		m := &mutants[i]
		if sound[m.pkg+" "+m.test] == nil {
			sound[m.pkg+" "+m.test] = sync.OnceValues(func() (string, error) { return gotest(t, m, "") })
		}
	}
	for i := range mutants {
		m := &mutants[i]
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			key := m.pkg + " " + m.test
			if m.test != simulation { // which has a target of its own
				if out, err := sound[key](); err != nil {
					t.Fatalf("%s fails without the bug: %v\n%s", key, err, out)
				}
			}
			out, err := gotest(t, m, overlay(t, m))
			switch failed := noticed.FindStringSubmatch(out); {
			case err == nil:
				t.Errorf("%s in %s does not notice it", m.test, m.pkg)
			case failed == nil:
				t.Fatalf("it cannot be tried: %v\n%s", err, tail(out))
			default:
				t.Logf("%s: %s", failed[1], cause(out))
			}
		})
	}
}

// overlay writes the changed file, and says in whose place it is.
func overlay(t *testing.T, m *mutant) string {
	t.Helper()
	text, err := mutate(m)
	if err != nil {
		t.Fatal(err)
	}
	file, err := filepath.Abs(filepath.Join(root, m.file))
	if err != nil {
		t.Fatal(err)
	}
	changed := filepath.Join(t.TempDir(), filepath.Base(m.file))
	list, err := json.Marshal(map[string]map[string]string{"Replace": {file: changed}})
	if err != nil {
		t.Fatal(err)
	}
	path := changed + ".json"
	for name, data := range map[string][]byte{changed: []byte(text), path: list} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// cause is the first line that a failed test has said.
func cause(out string) string {
	lines := strings.Split(out, "\n")
	for i, line := range lines {
		if noticed.MatchString(line) && i+1 < len(lines) {
			return strings.TrimSpace(lines[i+1])
		}
	}
	return ""
}

func tail(out string) string { return out[max(0, len(out)-2000):] }
