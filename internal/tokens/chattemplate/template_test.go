package chattemplate

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestContentFormat(t *testing.T) {
	const (
		loop     = `{% for m in messages %}`
		parts    = `{% for c in m.content %}{{ c.text }}{% endfor %}`
		indexed  = `{% for c in m['content'] %}{{ c.text }}{% endfor %}`
		endLoop  = `{% endfor %}`
		contents = `{{ m.content }}`
	)
	tests := map[string]struct {
		source string
		want   ContentFormat
	}{
		"no loop over messages":            {`{{ messages[0].content }}`, ContentString},
		"content as it is":                 {loop + contents + endLoop, ContentString},
		"a loop over content":              {loop + parts + endLoop, ContentParts},
		"by a subscript":                   {loop + indexed + endLoop, ContentParts},
		"in a condition":                   {loop + `{% if m.content is string %}x{% else %}` + parts + `{% endif %}` + endLoop, ContentParts},
		"over a filtered list":             {loop + `{% for c in m.content | selectattr('type', 'eq', 'text') %}{% endfor %}` + endLoop, ContentParts},
		"over a slice":                     {loop + `{% for c in m.content[1:] %}{% endfor %}` + endLoop, ContentParts},
		"over part of the messages":        {`{% for m in messages[1:] %}` + parts + endLoop, ContentParts},
		"over renamed messages":            {`{% set rest = messages[1:] %}{% set more = rest %}{% for m in more %}` + parts + endLoop, ContentParts},
		"over renamed content":             {loop + `{% set content = m.content %}{% for c in content %}{% endfor %}` + endLoop, ContentString},
		"over the content of a message":    {`{% for c in messages[0].content %}{% endfor %}`, ContentString},
		"over another member":              {loop + `{% for c in m.tool_calls %}{% endfor %}` + endLoop, ContentString},
		"with several names for a message": {`{% for i, m in messages|items %}` + parts + endLoop, ContentString},
		"into a namespace":                 {`{% set ns.m = messages %}` + loop + parts + endLoop, ContentString},
		"in a macro":                       {`{% macro x(m) %}` + loop + parts + endLoop + `{% endmacro %}`, ContentParts},
		"names that hold each other":       {`{% set a = messages %}{% set b = a %}{% set a = b %}` + loop + contents + endLoop, ContentString},
		"a name that holds itself":         {`{% set messages = messages[1:] %}` + loop + parts + endLoop, ContentParts},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			template, err := Parse(tc.source)
			if err != nil {
				t.Fatal(err)
			}
			if got := template.ContentFormat(); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestParseTellsErrorsApart(t *testing.T) {
	tests := map[string]struct {
		source      string
		unsupported bool // else an error of syntax
	}{
		"an unknown tag":              {"{% foo %}", false},
		"a tag that Jinja has":        {"{% include 'x' %}", true},
		"a block":                     {"{% block a %}{% endblock %}", true},
		"an import":                   {"{% import 'x' as y %}", true},
		"a recursive loop":            {"{% for x in y recursive %}{% endfor %}", true},
		"an unknown filter":           {"{{ x|wordwrap }}", true},
		"an unknown test":             {"{{ x is foo }}", true},
		"an unknown function":         {"{{ lipsum() }}", true},
		"the variable self":           {"{{ self.x() }}", true},
		"a number beyond 64 bits":     {"{{ 99999999999999999999 }}", true},
		"a number of base 16":         {"{{ 0x10 }}", true},
		"an open tag":                 {"{% if x", false},
		"an open block":               {"{% if x %}", false},
		"an open string":              {"{{ 'x }}", false},
		"a loop over nothing":         {"{% for x %}{% endfor %}", false},
		"break outside of a loop":     {"{% break %}", false},
		"an assignment to a constant": {"{% set none = 1 %}", false},
		"a name beyond ASCII":         {"{{ é }}", true},
		"half a surrogate pair":       {`{{ '\ud800' }}`, true},
		// What has no variables where they matter is evaluated when Jinja compiles, by other rules.
		"a slice of a constant":        {"{{ (not true)[1:] }}", true},
		"a slice of what is constant":  {"{{ (0 and x)[1:] }}", true},
		"a slice of a chosen constant": {"{{ (1 if 2 else x)[1:] }}", true},
		"a constant that is no key":    {"{{ x or {'a': 1, ['b']: 2} }}", true},
		"a tuple that is no key":       {"{{ x or {('a', [1]): 2} }}", true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(tc.source)
			var syntax *SyntaxError
			if err == nil || errors.Is(err, ErrUnsupported) != tc.unsupported || errors.As(err, &syntax) == tc.unsupported {
				t.Errorf("got %v, want it to be unsupported: %v", err, tc.unsupported)
			}
		})
	}
}

func TestSyntaxErrorsTellTheLine(t *testing.T) {
	_, err := Parse("a\n{% if x %}\nb\n{{ 1 + }}\n{% endif %}")
	var syntax *SyntaxError
	if !errors.As(err, &syntax) || syntax.Line != 4 || !strings.Contains(err.Error(), "line 4") {
		t.Errorf("got %v", err)
	}
}

func TestFunctionsMayBeReplaced(t *testing.T) {
	template, err := Parse(`{{ range }}{{ namespace is defined }}`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := render(template, []byte(`{"range": 1}`))
	if err != nil || got != "1True" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestTheLastOfEqualVariablesCounts(t *testing.T) {
	template, err := Parse(`{{ x }}`)
	if err != nil {
		t.Fatal(err)
	}
	var a Arena
	out, err := template.Render(t.Context(), nil, &a, &Input{Vars: []Var{{"x", Int(1)}, {"x", Int(2)}}})
	if err != nil || string(out) != "2" {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestTheClock(t *testing.T) {
	const source = `{{ strftime_now("%Y-%m-%d %H:%M") }}`
	template, err := Parse(source)
	if err != nil || !template.UsesClock() {
		t.Fatal(err, template.UsesClock())
	}
	var a Arena
	if _, err := template.Render(t.Context(), nil, &a, &Input{}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("without a clock: %v", err)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("x", 3600))
	out, err := template.Render(t.Context(), nil, &a, &Input{Now: now})
	if err != nil || string(out) != "2026-01-02 03:04" {
		t.Errorf("got %q, %v", out, err)
	}
	if other, err := Parse(`x`); err != nil || other.UsesClock() {
		t.Error("a template without the time uses the clock")
	}
}

// TestManyGoroutines: all goldens again, a template shared by goroutines, each with one Arena for everything.
func TestManyGoroutines(t *testing.T) {
	templates := map[string]*Template{}
	paths, err := filepath.Glob("testdata/*.jinja")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if templates[filepath.Base(path)], err = Parse(string(source)); err != nil {
			t.Fatal(err)
		}
	}
	cases := readGoldens(t, "testdata/golden.jsonl.gz")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var a Arena
			var out []byte
			for range 3 {
				for _, g := range cases {
					a.Reset()
					v, err := a.DecodeJSON(g.Context)
					if err != nil {
						t.Error(err)
						return
					}
					in := Input{Now: clock}
					for i := range v.Dict().Len() {
						key, value := v.Dict().At(i)
						in.Vars = append(in.Vars, Var{key.Text(), value})
					}
					out, err = templates[g.Template].Render(context.Background(), out[:0], &a, &in)
					if g.Out != nil && (err != nil || string(out) != *g.Out) || g.Out == nil && err == nil {
						t.Errorf("%s, case %s: got %q, %v", g.Template, g.Case, out, err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

// chatContext is a conversation with a tool, as the benchmark and the allocation test use it.
func chatContext(turns int) []byte {
	var b strings.Builder
	b.WriteString(`{"add_generation_prompt": true, "bos_token": "<s>", "tools": [{"type": "function", "function": {"name": "f", `)
	b.WriteString(`"description": "Does \"it\".", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}], "messages": [`)
	for i := range turns {
		if i > 0 {
			b.WriteString(", ")
		}
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		b.WriteString(`{"role": "` + role + `", "content": "` + strings.Repeat(`Some words, and a line.\n`, 40) + `"}`)
	}
	b.WriteString("]}")
	return []byte(b.String())
}

func readTemplate(t testing.TB, name string) *Template {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	template, err := Parse(string(source))
	if err != nil {
		t.Fatal(err)
	}
	return template
}

func TestAllocations(t *testing.T) {
	template := readTemplate(t, "turns.jinja")
	data := chatContext(24)
	var a Arena
	var out []byte
	in := Input{}
	got := testing.AllocsPerRun(100, func() {
		a.Reset()
		v, err := a.DecodeJSON(data)
		if err != nil {
			t.Fatal(err)
		}
		in.Vars = in.Vars[:0]
		for i := range v.Dict().Len() {
			key, value := v.Dict().At(i)
			in.Vars = append(in.Vars, Var{key.Text(), value})
		}
		if out, err = template.Render(context.Background(), out[:0], &a, &in); err != nil {
			t.Fatal(err)
		}
	})
	if got > 6 {
		t.Errorf("%v allocations for 24 messages", got)
	}
}

// BenchmarkRender decodes a context and renders it: 24 messages and a tool.
func BenchmarkRender(b *testing.B) {
	for _, name := range []string{"turns.jinja", "tools.jinja", "thinking.jinja"} {
		b.Run(name, func(b *testing.B) {
			template := readTemplate(b, name)
			data := chatContext(24)
			var a Arena
			var out []byte
			in := Input{}
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				a.Reset()
				v, err := a.DecodeJSON(data)
				if err != nil {
					b.Fatal(err)
				}
				in.Vars = in.Vars[:0]
				for i := range v.Dict().Len() {
					key, value := v.Dict().At(i)
					in.Vars = append(in.Vars, Var{key.Text(), value})
				}
				if out, err = template.Render(context.Background(), out[:0], &a, &in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
