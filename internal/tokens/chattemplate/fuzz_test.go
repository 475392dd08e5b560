package chattemplate

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// FuzzRender: whatever the template, parsing and rendering end, within their limits and with an error of a known kind.
func FuzzRender(f *testing.F) {
	paths, err := filepath.Glob("testdata/*.jinja")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range paths {
		source, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(source))
	}
	readLines(f, "testdata/snippets.jsonl.gz", func(line []byte) {
		var s snippet
		if err := json.Unmarshal(line, &s); err != nil {
			f.Fatal(err)
		}
		f.Add(s.Source)
	})
	variables, err := os.ReadFile("testdata/context.json")
	if err != nil {
		f.Fatal(err)
	}
	limits := Limits{Steps: 100_000, Memory: 4 << 20, Output: 1 << 20}
	f.Fuzz(func(t *testing.T, source string) {
		template, err := Parse(source)
		var syntax *SyntaxError
		if err != nil {
			if !errors.As(err, &syntax) && !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrLimit) {
				t.Fatalf("unexpected error of Parse: %v", err)
			}
			return
		}
		template.ContentFormat()
		var a Arena
		v, err := a.DecodeJSON(variables)
		if err != nil {
			t.Fatal(err)
		}
		in := Input{Now: clock, Limits: limits}
		for i := range v.Dict().Len() {
			key, value := v.Dict().At(i)
			in.Vars = append(in.Vars, Var{key.Text(), value})
		}
		before := a.Size()
		out, err := template.Render(context.Background(), nil, &a, &in)
		var raised *RaisedError
		switch {
		case err == nil && len(out) > 2*limits.Output:
			t.Errorf("a text of %d bytes", len(out))
		case err != nil && !errors.As(err, &raised) && !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrLimit):
			t.Errorf("unexpected error of Render: %v", err)
		case a.Size()-before > 4*limits.Memory:
			t.Errorf("%d bytes of memory", a.Size()-before)
		}
		// The same again gives the same.
		again, err2 := template.Render(context.Background(), nil, &a, &in)
		if string(again) != string(out) || (err == nil) != (err2 == nil) && !errors.Is(err2, ErrLimit) {
			t.Errorf("got %q, %v and then %q, %v", out, err, again, err2)
		}
	})
}

func FuzzDecodeJSON(f *testing.F) {
	for _, seed := range jsonSeeds {
		f.Add([]byte(seed))
	}
	f.Fuzz(checkJSON)
}
