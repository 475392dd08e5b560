package inferencepool

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// word is how conditions, their reasons and events are named.
var word = regexp.MustCompile(`^[A-Z][A-Za-z]+$`)

// sayers are the functions that make conditions and events: such words in their arguments reach users.
var sayers = []string{"True", "False", "Unknown", "no", "not", "changed", "recordEvent"}

// wordsOf a source file: what it lets the sayers say, and its constants of the given prefixes.
func wordsOf(t *testing.T, file string, prefixes ...string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	literal := func(e ast.Expr) {
		if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if s, err := strconv.Unquote(l.Value); err == nil && (word.MatchString(s) || strings.HasPrefix(s, "kvasir.dev/")) {
				words = append(words, s)
			}
		}
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			name := ""
			switch f := n.Fun.(type) {
			case *ast.Ident:
				name = f.Name
			case *ast.SelectorExpr:
				name = f.Sel.Name
			}
			switch {
			case name == "Eventf" && len(n.Args) > 3: // the next one is the action
				literal(n.Args[3])
			case slices.Contains(sayers, name):
				for _, arg := range n.Args {
					literal(arg)
				}
			}
		case *ast.ValueSpec:
			for i, name := range n.Names {
				if i < len(n.Values) && slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name.Name, p) }) {
					literal(n.Values[i])
				}
			}
		}
		return true
	})
	return words
}

func TestTheDocumentationNamesEveryConditionReasonAndEvent(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]string{
		"../../../../api/v1alpha1/names.go": {"Condition"},
		"../../lifecycle/pod.go":            {"ImagePullFailed", "Unschedulable", "CrashLooping", "SlowStart", "Unready", "NodeNotReady"},
		"../../../config/condition.go":      nil,
		"../../../status/reason.go":         {"Reason"},
		"../../scaling/scaling.go":          nil,
	}
	for _, pattern := range []string{"*.go", "../routingpolicy/*.go"} {
		sources, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range sources {
			if !strings.HasSuffix(file, "_test.go") {
				files[file] = nil
			}
		}
	}
	n := 0
	for file, prefixes := range files {
		for _, name := range wordsOf(t, file, prefixes...) {
			n++
			if !strings.Contains(string(text), "`"+name+"`") {
				t.Errorf("docs/operations.md says nothing of %s (%s)", name, file)
			}
		}
	}
	if n < 100 {
		t.Errorf("only %d words were found: the test shows little", n)
	}
}
