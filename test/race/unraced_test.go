package race

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestWhatTheDetectorShortensIsPlayedWhole: each test that is smaller under the race detector, or skipped, is among those that `make unit`
// runs without it. The tests of internal/tokens all are.
func TestWhatTheDetectorShortensIsPlayedWhole(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, line := range regexp.MustCompile(`(?m)^UNRACED := (?:\$\(UNRACED\)\|)?(.+)$`).FindAllSubmatch(makefile, -1) {
		names = append(names, string(line[1]))
	}
	played, err := regexp.Compile(strings.Join(names, "|"))
	if err != nil || len(names) == 0 {
		t.Fatalf("the tests that are played whole are %q: %v", names, err)
	}
	found := 0
	err = filepath.WalkDir("../../internal", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && path == filepath.Join("..", "..", "internal", "tokens") {
			return cmp.Or(err, fs.SkipDir)
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, declaration := range file.Decls {
			f, ok := declaration.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(f.Name.Name, "Test") || !asksForTheDetector(f) {
				continue
			}
			found++
			if !played.MatchString(f.Name.Name) {
				t.Errorf("%s: %s is not in UNRACED of the Makefile", path, f.Name.Name)
			}
		}
		return nil
	})
	if err != nil || found < 10 {
		t.Errorf("%d tests ask for the detector: %v", found, err)
	}
}

func asksForTheDetector(f *ast.FuncDecl) (asks bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if ok && s.Sel.Name == "Enabled" {
			of, ok := s.X.(*ast.Ident)
			asks = asks || ok && of.Name == "race"
		}
		return !asks
	})
	return asks
}
