package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// A row of a walk: step, function, link to its file.
var walkRow = regexp.MustCompile("(?m)^\\| (\\d+) \\| `([A-Za-z.]+)` \\| \\[`[^`]+`\\]\\(([^)]+)\\) \\|")

// TestWalksNameFunctionsThatExist checks the two walks through the code in docs/architecture.md: each function is declared in
// the file that the row links to, and the walks stay short enough to follow.
func TestWalksNameFunctionsThatExist(t *testing.T) {
	const page = "docs/architecture.md"
	text := pages(t)[page]
	for heading, most := range map[string]int{
		"## From bytes to a pod, function by function":         40,
		"## From a sample to a deletion, function by function": 30,
	} {
		_, walk, found := strings.Cut(text, "\n"+heading+"\n")
		if !found {
			t.Errorf("%s has no section %q", page, heading)
			continue
		}
		walk, _, _ = strings.Cut(walk, "\n## ")
		rows := walkRow.FindAllStringSubmatch(walk, -1)
		if len(rows) < most/2 || len(rows) > most {
			t.Errorf("%s, %q: %d functions, want %d to %d", page, heading, len(rows), most/2, most)
		}
		for i, row := range rows {
			if row[1] != strconv.Itoa(i+1) {
				t.Errorf("%s, %q: step %s is number %d", page, heading, row[1], i+1)
			}
			file := filepath.Join(root, "docs", row[3])
			if !declared(t, file)[row[2]] {
				t.Errorf("%s, %q: %s does not declare %s", page, heading, row[3], row[2])
			}
		}
	}
}

// declared returns the functions of a Go file, as Name or Receiver.Name.
func declared(t *testing.T, file string) map[string]bool {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Errorf("reading a file of a walk: %v", err)
		return nil
	}
	names := map[string]bool{}
	for _, decl := range parsed.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		name := f.Name.Name
		if f.Recv != nil {
			receiver := f.Recv.List[0].Type
			if pointer, ok := receiver.(*ast.StarExpr); ok {
				receiver = pointer.X
			}
			if id, ok := receiver.(*ast.Ident); ok {
				name = id.Name + "." + name
			}
		}
		names[name] = true
	}
	return names
}
