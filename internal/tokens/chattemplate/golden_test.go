package chattemplate

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var moreGoldens = flag.String("goldens", "", "a directory with more cases: *.jinja and golden.jsonl.gz")

// golden is what Python's Jinja2 makes of a template and a context: a text, or an exception as "Class: message".
type golden struct {
	Template string          `json:"tmpl"`
	Case     string          `json:"case"`
	Context  json.RawMessage `json:"ctx"`
	Out      *string         `json:"out"`
	Err      string          `json:"err"`
}

// clock is the time at which the goldens were made.
var clock = time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)

// readLines calls each for the lines of a compressed file.
func readLines(t testing.TB, path string, each func(line []byte)) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		each(lines.Bytes())
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

func readGoldens(t testing.TB, path string) (cases []golden) {
	t.Helper()
	readLines(t, path, func(line []byte) {
		var g golden
		if err := json.Unmarshal(line, &g); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, g)
	})
	return cases
}

// render renders a template with the variables of a JSON object.
func render(template *Template, variables []byte) (string, error) {
	var a Arena
	v, err := a.DecodeJSON(variables)
	if err != nil {
		return "", err
	}
	in := Input{Now: clock}
	d := v.Dict()
	for i := range d.Len() {
		key, value := d.At(i)
		in.Vars = append(in.Vars, Var{key.Text(), value})
	}
	out, err := template.Render(context.Background(), nil, &a, &in)
	return string(out), err
}

func TestGoldens(t *testing.T) {
	dirs := []string{"testdata"}
	if *moreGoldens != "" {
		dirs = append(dirs, *moreGoldens)
	}
	for _, dir := range dirs {
		t.Run(dir, func(t *testing.T) { testGoldens(t, dir) })
	}
}

func testGoldens(t *testing.T, dir string) {
	templates := map[string]*Template{}
	paths, err := filepath.Glob(filepath.Join(dir, "*.jinja"))
	if err != nil || len(paths) < 5 {
		t.Fatalf("%d templates: %v", len(paths), err)
	}
	for _, path := range paths {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		template, err := Parse(string(source))
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		templates[filepath.Base(path)] = template
	}
	texts, rendered, errs, raised, messages := 0, 0, 0, 0, 0
	for _, g := range readGoldens(t, filepath.Join(dir, "golden.jsonl.gz")) {
		template := templates[g.Template]
		if template == nil {
			continue
		}
		got, err := render(template, g.Context)
		if g.Out != nil {
			texts++
			if err != nil || got != *g.Out {
				t.Errorf("%s, case %s: %v\n got %q\nwant %q", g.Template, g.Case, err, got, *g.Out)
				continue
			}
			rendered++
			continue
		}
		errs++
		var exception *RaisedError
		if !errors.As(err, &exception) {
			t.Errorf("%s, case %s: got %v, want %s\n%q", g.Template, g.Case, err, g.Err, got)
			continue
		}
		raised++
		class, _, _ := strings.Cut(g.Err, ":")
		if exception.Class != class {
			t.Errorf("%s, case %s: got %v, want %s", g.Template, g.Case, err, g.Err)
		}
		if exception.Error() == g.Err {
			messages++
		} else {
			t.Logf("%s, case %s: got %v, want %s", g.Template, g.Case, err, g.Err)
		}
	}
	t.Logf("%d of %d texts, %d of %d exceptions equal, %d with the same message", rendered, texts, raised, errs, messages)
}
