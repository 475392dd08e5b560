package floors

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	maxFileLines     = 500
	maxMainLines     = 60 // of main.go: what a program does is in its other files
	maxFunctionLines = 80
	maxFields        = 25
)

// TestNothingIsTooLongToRead: what a reader must take in at once has a bound. Tests and generated files have none.
func TestNothingIsTooLongToRead(t *testing.T) {
	root, files := filepath.Join("..", ".."), 0
	for _, dir := range []string{"api", "cmd", "internal", "hack"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && entry.Name() == "testdata":
				return filepath.SkipDir
			case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			files++
			return tooLong(t, path)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 300 {
		t.Errorf("only %d files were looked at", files)
	}
}

// tooLong reports what of a file is too long.
func tooLong(t *testing.T, path string) error {
	source, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, source, parser.ParseComments)
	if err != nil || ast.IsGenerated(file) {
		return err
	}
	most := maxFileLines
	if strings.HasPrefix(path, filepath.Join("..", "..", "cmd")) && filepath.Base(path) == "main.go" {
		most = maxMainLines
	}
	if lines := bytes.Count(source, []byte("\n")); lines > most {
		t.Errorf("%s has %d lines, more than %d", path, lines, most)
	}
	for _, declaration := range file.Decls {
		if types, ok := declaration.(*ast.GenDecl); ok {
			tooWide(t, set, types)
		}
		f, ok := declaration.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if lines := set.Position(f.End()).Line - set.Position(f.Pos()).Line + 1; lines > maxFunctionLines {
			t.Errorf("%s: %s has %d lines, more than %d", set.Position(f.Pos()), f.Name.Name, lines, maxFunctionLines)
		}
	}
	return nil
}

// tooWide reports structs with many fields whose comments do not say why.
func tooWide(t *testing.T, set *token.FileSet, types *ast.GenDecl) {
	for _, spec := range types.Specs {
		named, ok := spec.(*ast.TypeSpec)
		if !ok {
			continue
		}
		structure, ok := named.Type.(*ast.StructType)
		if !ok {
			continue
		}
		why := types.Doc.Text() + named.Doc.Text()
		if n := structure.Fields.NumFields(); n > maxFields && !strings.Contains(why, "It has many fields because") {
			t.Errorf("%s: %s has %d fields, more than %d, and its comment does not say why", set.Position(named.Pos()), named.Name.Name, n, maxFields)
		}
	}
}
