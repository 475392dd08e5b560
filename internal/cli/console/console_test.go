package console

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"
)

func TestColoursAreForTerminalsAlone(t *testing.T) {
	terminal, file, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	defer file.Close()
	plain, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	for name, tc := range map[string]struct {
		out, err    *os.File
		env         map[string]string
		color, live bool
	}{
		"a terminal":              {file, file, nil, true, true},
		"output to a file":        {plain, file, nil, false, true},
		"errors to a file":        {file, plain, nil, true, false},
		"NO_COLOR":                {file, file, map[string]string{"NO_COLOR": "1"}, false, true},
		"NO_COLOR without value":  {file, file, map[string]string{"NO_COLOR": ""}, true, true},
		"a terminal that is dumb": {file, file, map[string]string{"TERM": "dumb"}, false, false},
	} {
		c := Of(file, tc.out, tc.err, func(k string) string { return tc.env[k] })
		if c.Color != tc.color || c.Live != tc.live {
			t.Errorf("%s: colours %v, live %v", name, c.Color, c.Live)
		}
		if painted := c.Paint(Bad, "x") != "x"; painted != tc.color {
			t.Errorf("%s: %q", name, c.Paint(Bad, "x"))
		}
	}
}

func TestColumnsAreAsWideAsTheirTextWithAndWithoutColours(t *testing.T) {
	g := Grid{Header: []string{"NAME", "HIT", "STATUS"}}
	g.Add(Text("qwen"), Number("%d %%", 9), Cell{Text: "Serving", Tone: Good})
	g.Add(Text("llama-é"), Number("%d %%", 100), Cell{Text: "Broken", Tone: Bad})
	g.Add(Text("short"))
	var out bytes.Buffer
	c := Console{Out: &out}
	fmt.Fprintln(&out, strings.Join(g.Lines(&c), "\n"))
	want := "NAME        HIT   STATUS\nqwen        9 %   Serving\nllama-é   100 %   Broken\nshort\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	plain := out.String()
	out.Reset()
	c.Color = true
	fmt.Fprintln(&out, strings.Join(g.Lines(&c), "\n"))
	stripped := out.String()
	for _, code := range []string{"\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[32m"} {
		if !strings.Contains(stripped, code) {
			t.Errorf("no %q in %q", code, out.String())
		}
		stripped = strings.ReplaceAll(stripped, code, "")
	}
	if stripped != plain {
		t.Errorf("with colours\n%s", stripped)
	}
}

func TestProgressIsOneLineOnATerminalAndNewsElsewhere(t *testing.T) {
	work := func(live bool) string {
		var out bytes.Buffer
		c := Console{Err: &out, Live: live}
		p := c.Progress()
		for i := range 101 {
			p.Show(i, 100, "pods", "1 s")
		}
		p.End()
		return out.String()
	}
	live := work(true)
	if strings.Count(live, "\n") != 1 || !strings.HasSuffix(live, "\r["+strings.Repeat("#", 24)+"] 100 of 100 pods, 1 s\x1b[K\n") {
		t.Errorf("on a terminal %q", live)
	}
	if got := work(false); strings.Count(got, "\n") != 11 || strings.ContainsAny(got, "\r\x1b#") || !strings.HasSuffix(got, "\n100 of 100 pods\n") {
		t.Errorf("elsewhere %q", got)
	}
}

type document map[string]any

func (d document) Names() []string { return []string{fmt.Sprint("thing/", d["name"])} }

func TestFormats(t *testing.T) {
	var chosen Format
	f := FormatFlag{Format: &chosen, Also: []Format{Name}}
	for _, wrong := range []string{"xml", "wide", "jsonpath", "jsonpath=", "jsonpath={.a"} {
		if err := f.Set(wrong); err == nil {
			t.Errorf("%s is a format", wrong)
		}
	}
	v := document{"name": "a<b", "n": 1}
	for name, want := range map[string]string{
		"table": "the table\n", "json": "{\n  \"n\": 1,\n  \"name\": \"a<b\"\n}\n", "yaml": "\"n\": 1\nname: a<b\n", "name": "thing/a<b\n",
		"jsonpath={.name}-{.n}": "a<b-1\n", "jsonpath=.n": "1\n", "jsonpath=n": "1\n",
	} {
		if err := f.Set(name); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		c := Console{Out: &out}
		err := c.Print(chosen, v, func() error { _, err := out.WriteString("the table\n"); return err })
		if err != nil || out.String() != want {
			t.Errorf("%s: %v, %q", name, err, out.String())
		}
	}
}

func TestOneIsCountedInTheSingular(t *testing.T) {
	for n, want := range map[int]string{0: "0 policies", 1: "1 policy", 2: "2 policies"} {
		if got := Count(n, "policy", "policies"); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
}
