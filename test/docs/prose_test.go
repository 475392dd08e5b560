package docs

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var (
	proseShrink = flag.Bool("prose.shrink", false, "remove from hack/vale/todo.txt the entries that are clean")
	proseCount  = flag.Bool("prose.count", false, "log how many phrases each entry of hack/vale/todo.txt still has")
)

const todoPath = root + "/hack/vale/todo.txt"

// A phrase is an entry of the lists of hack/vale, which Vale reads too.
type phrase struct {
	pattern *regexp.Regexp
	better  string
}

// TestProse applies the phrase lists of hack/vale to pages, Go comments, string literals in Go (log messages, errors, flag
// help, condition messages) and the chart. Vale sees only the first two, and only where there is a C compiler.
// todo.txt lists the units that are not clean yet: a package, a package's tests (DIR/*_test.go), or another file.
func TestProse(t *testing.T) {
	phrases, todo := phraseLists(t), todoList(t)
	found := map[string]int{}
	for _, name := range proseFiles(t) {
		for _, hit := range proseHits(t, name, phrases) {
			unit := proseUnit(name)
			found[unit]++
			if _, listed := todo[unit]; !listed {
				t.Errorf("%s:%d: %q: write %s", name, hit.line, hit.text, hit.better)
			}
		}
	}
	for _, unit := range slices.Sorted(maps.Keys(todo)) {
		if found[unit] == 0 && !*proseShrink {
			t.Errorf("%s has no forbidden phrase: remove it from hack/vale/todo.txt (go test ./test/docs -run TestProse -prose.shrink)", unit)
		}
	}
	if *proseCount {
		for unit, n := range found {
			t.Logf("%5d %s", n, unit)
		}
	}
	if *proseShrink {
		shrinkTodo(t, found)
	}
}

// TestPhrasesMatch keeps the lists working: a pattern that is misspelled would find nothing, forever.
func TestPhrasesMatch(t *testing.T) {
	phrases := phraseLists(t)
	for text, want := range map[string]bool{
		"The engine is told to stop":                       true,
		"Available tells whether the pool serves":          true,
		"Whoever calls it holds the lock":                  true,
		"a request who waits":                              true,
		"Engine metrics are not to be had":                 true,
		"three endpoints, of which two drain":              true,
		"the shadow policy decides nothing":                true,
		"Available reports whether the pool serves":        false,
		"Users whose requests wait see 429":                false,
		"`tells whether` is quoted":                        false,
		"The caller that pinned a view re-reads the value": false,
	} {
		if got := len(textHits(text, 1, phrases)) > 0; got != want {
			t.Errorf("%q: found %v, want %v", text, got, want)
		}
	}
}

func phraseLists(t *testing.T) []phrase {
	t.Helper()
	files, err := filepath.Glob(root + "/hack/vale/styles/Kvasir/*.yml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no phrase lists: %v", err)
	}
	var all []phrase
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var list struct{ Swap map[string]string }
		if err := yaml.Unmarshal(data, &list); err != nil || len(list.Swap) == 0 {
			t.Fatalf("%s: %d phrases, %v", file, len(list.Swap), err)
		}
		for pattern, better := range list.Swap {
			all = append(all, phrase{regexp.MustCompile(`(?i)\b(?:` + pattern + `)\b`), better})
		}
	}
	return all
}

func todoList(t *testing.T) map[string]struct{} {
	t.Helper()
	data, err := os.ReadFile(todoPath)
	if err != nil {
		t.Fatal(err)
	}
	todo := map[string]struct{}{}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			todo[line] = struct{}{}
		}
	}
	return todo
}

// shrinkTodo removes entries only: a unit that was clean stays clean.
func shrinkTodo(t *testing.T, found map[string]int) {
	t.Helper()
	data, err := os.ReadFile(todoPath)
	if err != nil {
		t.Fatal(err)
	}
	var kept strings.Builder
	for line := range strings.Lines(string(data)) {
		if entry := strings.TrimSpace(line); entry == "" || entry[0] == '#' || found[entry] > 0 {
			kept.WriteString(line)
		}
	}
	if err := os.WriteFile(todoPath, []byte(kept.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// proseFiles are the tracked files, except generated ones (docs/api.md is made from the comments in api) and the glossary.
func proseFiles(t *testing.T) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "*.md", "*.go", "*.proto", "charts", "config")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("listing the files with git: %v", err)
	}
	var names []string
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSpace(name)
		switch {
		case strings.Contains(name, "/testdata/"), strings.HasSuffix(name, ".pb.go"), name == "docs/glossary.md", name == "docs/api.md",
			strings.HasPrefix(path.Base(name), "zz_generated"), strings.HasPrefix(name, "config/crd/"), strings.Contains(name, "/crds/"),
			name == "test/docs/prose_test.go":
		case slices.Contains([]string{".go", ".md", ".proto", ".yaml", ".txt", ".tpl"}, path.Ext(name)):
			names = append(names, name)
		}
	}
	if len(names) < 500 {
		t.Fatalf("only %d files", len(names))
	}
	return names
}

func proseUnit(name string) string {
	switch {
	case strings.HasSuffix(name, "_test.go"):
		return path.Dir(name) + "/*_test.go"
	case strings.HasSuffix(name, ".go"):
		return path.Dir(name)
	}
	return name
}

type proseHit struct {
	line         int
	text, better string
}

func proseHits(t *testing.T, name string, phrases []phrase) []proseHit {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	switch path.Ext(name) {
	case ".go":
		return goHits(t, name, data, phrases)
	case ".md":
		data = fenced.ReplaceAllFunc(data, func(block []byte) []byte { // the lines keep their numbers
			return []byte(strings.Repeat("\n", strings.Count(string(block), "\n")))
		})
	}
	return textHits(string(data), 1, phrases)
}

func goHits(t *testing.T, name string, data []byte, phrases []phrase) (hits []proseHit) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, data, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, "// Code generated") {
				return nil
			}
		}
		hits = append(hits, textHits(commentText(group), set.Position(group.Pos()).Line, phrases)...)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil && strings.Contains(text, " ") {
				hits = append(hits, textHits(text, set.Position(n.Pos()).Line, phrases)...)
			}
		}
		return true
	})
	return hits
}

// commentText is the text of a group with one line for each of the source.
func commentText(group *ast.CommentGroup) string {
	lines := make([]string, 0, len(group.List))
	for _, c := range group.List {
		lines = append(lines, strings.TrimPrefix(strings.TrimPrefix(c.Text, "//"), " "))
	}
	return strings.Join(lines, "\n")
}

var (
	fenced = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```[ \t]*$")
	quoted = regexp.MustCompile("`[^`\n]*`")
	spaces = regexp.MustCompile(`\s`)
)

// textHits finds phrases in text that begins at a line. Phrases can span lines; text between backticks is code.
func textHits(text string, line int, phrases []phrase) (hits []proseHit) {
	text = quoted.ReplaceAllStringFunc(text, func(code string) string { return strings.Repeat("`", len(code)) })
	flat := spaces.ReplaceAllString(text, " ")
	for _, p := range phrases {
		for _, at := range p.pattern.FindAllStringIndex(flat, -1) {
			hits = append(hits, proseHit{line + strings.Count(text[:at[0]], "\n"), flat[at[0]:at[1]], p.better})
		}
	}
	return hits
}
