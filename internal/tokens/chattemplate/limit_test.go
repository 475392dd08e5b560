package chattemplate

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// renderWith renders a source with a few variables.
func renderWith(ctx context.Context, t testing.TB, source string, limits Limits) (string, error) {
	t.Helper()
	template, err := Parse(source)
	if err != nil {
		return "", err
	}
	var a Arena
	items := make([]Value, 5)
	for i := range items {
		items[i] = Int(int64(i))
	}
	out, err := template.Render(ctx, []byte("before"), &a, &Input{
		Vars:   []Var{{"text", String("some text")}, {"list", List(items)}},
		Limits: limits,
	})
	if err != nil && string(out) != "before" {
		t.Errorf("%q is left in the text beside %v", out, err)
	}
	return strings.TrimPrefix(string(out), "before"), err
}

func TestLimits(t *testing.T) {
	const (
		forever  = `{% for a in range(100000) %}{% for b in range(100000) %}`
		ends     = `{% endfor %}{% endfor %}`
		growing  = `{% set ns = namespace(x=[text], y=[text]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}`
		tuples   = `{% set ns = namespace(x=(1, 2)) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}`
		megabyte = `{% set big = 'abcdefgh' * 131072 %}`
	)
	// A render stays below the default limits for about a second; these need less.
	limits := Limits{Steps: 1_000_000, Memory: 16 << 20, Output: 4 << 20}
	tests := map[string]string{
		"loops":                          forever + ends,
		"loops with a body":              forever + `x` + ends,
		"loops with a test":              `{% for a in range(100000) %}{% for b in range(100000) if b < 0 %}{% endfor %}{% endfor %}`,
		"a long text":                    forever + `{{ text }}` + ends,
		"a text repeated":                `{{ 'x' * 1000000000 }}`,
		"a text repeated beyond 64 bits": `{{ 'xx' * 9223372036854775807 }}`,
		"a list repeated":                `{{ [1, 2] * 1000000000 }}`,
		"a text doubled":                 `{% set ns = namespace(s=text) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}`,
		"a text doubled by ~":            `{% set ns = namespace(s=text) %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}`,
		"a text doubled in a block":      `{% set ns = namespace(s=text) %}{% for i in range(100) %}{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}{% endfor %}`,
		"a text grown by replace":        `{% set ns = namespace(s=text) %}{% for i in range(100) %}{% set ns.s = ns.s.replace('', ns.s) %}{% endfor %}`,
		"a text grown by join":           `{% set ns = namespace(s=text) %}{% for i in range(100) %}{% set ns.s = ns.s.join(list|map('string')) %}{% endfor %}`,
		"a text grown by a filter":       `{% set ns = namespace(s=text) %}{% for i in range(100) %}{% set ns.s = list|join(ns.s) %}{% endfor %}`,
		"a text grown by format":         `{% set ns = namespace(s=text) %}{% for i in range(100) %}{% set ns.s = '%s%s' % (ns.s, ns.s) %}{% endfor %}`,
		"a text grown by fields":         `{% set ns = namespace(s=text) %}{% for i in range(100) %}{% set ns.s = '{0}{0}'.format(ns.s) %}{% endfor %}`,
		"a text grown by escapes":        `{% set ns = namespace(s='<') %}{% for i in range(100) %}{% set ns.s = ns.s|tojson|tojson %}{% endfor %}`,
		"a text grown by indents":        `{% set ns = namespace(s='a\nb\n') %}{% for i in range(100000) %}{% set ns.s = ns.s|indent(1000) %}{% endfor %}`,
		"a list doubled":                 `{% set ns = namespace(s=list) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}`,
		"a list of lists printed":        growing + `{{ ns.x }}`,
		"a list of lists dumped":         growing + `{{ ns.x|tojson }}`,
		"lists of lists compared":        growing + `{{ ns.x == ns.y }}`,
		"lists of lists ordered":         growing + `{{ ns.x < ns.y }}`,
		"a list of lists as a text":      growing + `{{ ns.x|string|length }}`,
		"a tuple of tuples as a key":     tuples + `{{ {ns.x: 1} }}`,
		"a list in itself printed":       `{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}`,
		"a list in itself dumped":        `{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x|tojson }}`,
		"lists in themselves compared":   `{% set ns = namespace(x=[], y=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x == ns.y }}`,
		"a namespace in itself":          `{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}`,
		"a macro that calls itself":      `{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}`,
		"macros that call each other":    `{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a()|upper }}{% endmacro %}{{ a() }}`,
		"a caller that calls":            `{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}`,
		"generators in generators":       `{% set ns = namespace(g=list) %}{% for i in range(100000) %}{% set ns.g = ns.g|map('string') %}{% endfor %}{{ ns.g|list }}`,
		"text searched again and again":  megabyte + forever + `{{ 'x' in big }}` + ends,
		"text compared again and again":  megabyte + `{% set other = 'abcdefgh' * 131072 %}` + forever + `{% if big == other %}{% endif %}` + ends,
		"text split again and again":     megabyte + forever + `{% set x = big.split('a') %}` + ends,
		"text stripped again and again":  megabyte + `{% set big = ' ' * 1000000 %}` + forever + `{% set x = big|trim %}` + ends,
		"text stripped of many":          megabyte + forever + `{% set x = big.strip('hgfedcba0123456789') %}` + ends,
		"text measured again and again":  megabyte + forever + `{% if big|length %}{% endif %}` + ends,
		"text indexed again and again":   megabyte + forever + `{% if big[-1] %}{% endif %}` + ends,
		"a key looked up again":          megabyte + `{% set d = {big: 1} %}{% set key = 'abcdefgh' * 131072 %}` + forever + `{% if d[key] %}{% endif %}` + ends,
		"a split into very many":         `{{ ('a,' * 4000000).split(',')|length }}`,
		"lines very many":                `{{ ('\n' * 8000000).splitlines()|length }}`,
		"fields very many":               `{{ ('a ' * 4000000).split()|length }}`,
		"characters very many":           `{{ ('abcd' * 2000000)|list|length }}`,
		"a sort of many":                 forever + `{% set x = range(100000)|sort %}` + ends,
		"unique of many":                 `{% set x = range(100000)|unique|list %}`,
		"a dict of many numbers":         `{% set x = dict(range(100000)|map('string')|map('list')) %}` + forever + ends,
		"deep parentheses":               strings.Repeat("{{ "+strings.Repeat("(", 2000)+"1"+strings.Repeat(")", 2000)+" }}", 1),
		"deep lists":                     "{{ " + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + " }}",
		"deep negations":                 "{{ " + strings.Repeat("not ", 2000) + "x }}",
		"deep signs":                     "{{ " + strings.Repeat("- ", 2000) + "1 }}",
		"deep conditions":                strings.Repeat("{% if text %}", 2000) + strings.Repeat("{% endif %}", 2000),
		"deep calls":                     "{{ " + strings.Repeat("f(", 2000) + strings.Repeat(")", 2000) + " }}",
		"deep subscripts":                "{{ " + strings.Repeat("f[", 2000) + "1" + strings.Repeat("]", 2000) + " }}",
		"deep thens":                     "{{ 1 " + strings.Repeat("if 1 else 1 ", 2000) + " }}",
		"a long sum":                     "{{ 1 " + strings.Repeat("+ 1 ", 5000) + " }}",
		"a long chain of filters":        "{{ text " + strings.Repeat("|upper ", 5000) + " }}",
		"a long chain of attributes":     "{{ text" + strings.Repeat(".x", 5000) + " }}",
		"a long chain of comparisons":    "{{ 1 " + strings.Repeat("< 1 ", 5000) + " }}",
		"a source too long":              strings.Repeat("x", MaxSource+1),
	}
	for name, source := range tests {
		t.Run(name, func(t *testing.T) {
			out, err := renderWith(t.Context(), t, source, limits)
			if !errors.Is(err, ErrLimit) {
				t.Errorf("got %.100q, %v, want a limit", out, err)
			}
		})
	}
}

// TestBelowLimits: what is common is far from any limit.
func TestBelowLimits(t *testing.T) {
	tests := map[string]string{
		"a long loop":      `{% for i in range(100000) %}{{ i }}{% endfor %}`,
		"a long text":      `{{ ('x' * 1000000)|length }}`,
		"deep conditions":  strings.Repeat("{% if text %}", 40) + strings.Repeat("{% endif %}", 40),
		"deep parentheses": `{{ ` + strings.Repeat("(", 20) + `1` + strings.Repeat(")", 20) + ` }}`,
		"a long sum":       "{{ 1 " + strings.Repeat("+ 1 ", 1000) + " }}",
		"macros":           `{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(100) }}`,
	}
	for name, source := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := renderWith(t.Context(), t, source, Limits{}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRenderEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	source := `{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}`
	if _, err := renderWith(ctx, t, source, Limits{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestErrorsDropTheText: an error leaves the caller's buffer as it was, and the next render is not disturbed.
func TestErrorsDropTheText(t *testing.T) {
	template, err := Parse(`{% macro m() %}a{{ x.y }}b{% endmacro %}{{ m() }}{{ m() }}`)
	if err != nil {
		t.Fatal(err)
	}
	var a Arena
	for i := range 10 {
		in := &Input{}
		want := ""
		if i%2 == 0 {
			d := a.NewDict(1)
			d.Set("y", Int(int64(i)))
			in.Vars = []Var{{"x", d.Value()}}
			want = strings.Repeat("a"+string('0'+rune(i))+"b", 2)
		}
		out, err := template.Render(t.Context(), []byte("-"), &a, in)
		if string(out) != "-"+want || (err == nil) != (want != "") {
			t.Errorf("render %d: got %q, %v", i, out, err)
		}
		a.Reset()
	}
}
