package real

import (
	_ "embed"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

//go:embed laws.txt
var lawsText string

// TestEachLawHasTests: what laws.txt names exists, so that a law whose test is removed or renamed is noticed.
func TestEachLawHasTests(t *testing.T) {
	laws, tests := 0, 0
	sources := map[string]string{} // of the tests in a directory
	for line := range strings.Lines(lawsText) {
		line = strings.TrimSuffix(line, "\n")
		named, ok := strings.CutPrefix(line, "\t")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
			continue
		case !ok:
			if laws > 0 && tests == 0 {
				t.Errorf("the law before %q has no test", line)
			}
			laws, tests = laws+1, 0
			continue
		}
		tests++
		dir, name, ok := strings.Cut(named, " ")
		if !ok {
			t.Errorf("%q is no directory and test", line)
			continue
		}
		if _, read := sources[dir]; !read {
			sources[dir] = testsIn(t, dir)
		}
		if !strings.Contains(sources[dir], "\nfunc "+name+"(t *testing.T) {") {
			t.Errorf("%s has no %s", dir, name)
		}
	}
	if laws < 20 || tests == 0 {
		t.Errorf("%d laws, the last with %d tests", laws, tests)
	}
}

// testsIn is the text of the tests in a directory, seen from the root of the repository.
func testsIn(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Errorf("%s has %d files of tests, %v", dir, len(files), err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
