package chattemplate

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var moreSnippets = flag.String("snippets", "", "a file with more random snippets")

// snippet is a small template and what Python's Jinja2 makes of it with the variables of context.json.
type snippet struct {
	Source string  `json:"src"`
	Out    *string `json:"out"`
	Err    string  `json:"err"`
	// Names are the variables that it can look up in the context; nil where it is no template.
	Names []string `json:"names"`
}

// class is the exception of a snippet; errors of syntax are all the same.
func (s *snippet) class() string {
	class, _, _ := strings.Cut(s.Err, ":")
	switch class {
	case "TemplateSyntaxError", "TemplateAssertionError", "SyntaxError", "AssertionError":
		return "TemplateSyntaxError"
	}
	return class
}

// outcome is what this package makes of a snippet: a text, or the class of an exception, or "unsupported".
func outcome(source string, context []byte) (text, class string, err error) {
	template, err := Parse(source)
	if err == nil {
		text, err = render(template, context)
	}
	var syntax *SyntaxError
	var raised *RaisedError
	switch {
	case err == nil:
		return text, "", nil
	case errors.Is(err, ErrUnsupported):
		return "", "unsupported", err
	case errors.As(err, &syntax):
		return "", "TemplateSyntaxError", err
	case errors.As(err, &raised):
		return "", raised.Class, err
	}
	return "", "other", err
}

// TestNames: Jinja's rule for what a template looks up decides which arguments of a request reach it.
func TestNames(t *testing.T) {
	functions := []string{"raise_exception", "strftime_now"} // not variables to the engine, but this package separates them
	n := 0
	for _, path := range []string{"testdata/snippets.jsonl.gz", "testdata/random.jsonl.gz"} {
		readLines(t, path, func(line []byte) {
			var s snippet
			if err := json.Unmarshal(line, &s); err != nil {
				t.Fatal(err)
			}
			template, err := Parse(s.Source)
			if err != nil || s.Names == nil {
				return
			}
			n++
			got := []string{}
			for _, name := range template.context {
				if template.Uses(name) && !slices.Contains(functions, name) {
					got = append(got, name)
				}
			}
			slices.Sort(got)
			want := slices.DeleteFunc(s.Names, func(name string) bool { return slices.Contains(functions, name) })
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s\n%s", s.Source, diff)
			}
		})
	}
	if n < 1000 {
		t.Errorf("only %d templates", n)
	}
}

// TestSnippets is the law of this package: a text is Python's to the byte, an exception is raised where Python raises
// it, and everything else is refused.
func TestSnippets(t *testing.T) {
	context, err := os.ReadFile("testdata/context.json")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		path        string
		unsupported int // percent that can be refused
	}{
		"written by hand": {"testdata/snippets.jsonl.gz", 4},
		"random":          {"testdata/random.jsonl.gz", 5},
		"more":            {*moreSnippets, 5},
	}
	for name, tc := range tests {
		if tc.path == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			var all, refused, wrong, messages, raised int
			readLines(t, tc.path, func(line []byte) {
				var s snippet
				if err := json.Unmarshal(line, &s); err != nil {
					t.Fatal(err)
				}
				all++
				text, class, err := outcome(s.Source, context)
				switch {
				case class == "unsupported":
					refused++
					t.Logf("refused: %q: %v (%.80q %s)", s.Source, err, str(s.Out), s.Err)
				case s.Out != nil && (class != "" || text != *s.Out):
					wrong++
					t.Errorf("%s\n got %.300q %v\nwant %.300q", s.Source, text, err, *s.Out)
				case s.Out == nil && class != s.class():
					wrong++
					t.Errorf("%s\n got %.300q %v\nwant %s", s.Source, text, err, s.Err)
				case s.Out == nil:
					raised++
					if err.Error() == s.Err || class == "TemplateSyntaxError" {
						messages++
					}
				}
			})
			if refused*100 > all*tc.unsupported || all < 100 {
				t.Errorf("%d of %d refused", refused, all)
			}
			t.Logf("%d snippets, %d wrong, %d refused; %d of %d messages are the same", all, wrong, refused, messages, raised)
		})
	}
}

func str(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
