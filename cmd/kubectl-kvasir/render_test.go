package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const templates = "../../internal/tokens/chattemplate/testdata"

// TestRenderGoldens renders what Python's Jinja2 has rendered.
func TestRenderGoldens(t *testing.T) {
	type golden struct {
		Template string          `json:"tmpl"`
		Context  json.RawMessage `json:"ctx"`
		Out      *string         `json:"out"`
		Err      string          `json:"err"`
	}
	cases := map[string][]golden{}
	texts, errs := 0, 0
	for line := range bytes.Lines(unzip(t, filepath.Join(templates, "golden.jsonl.gz"))) {
		var g golden
		if err := json.Unmarshal(line, &g); err != nil {
			t.Fatal(err)
		}
		cases[g.Template] = append(cases[g.Template], g)
		if g.Out != nil {
			texts++
		} else {
			errs++
		}
	}
	if len(cases) < 5 || texts < 50 || errs < 10 {
		t.Fatalf("%d templates, %d texts, %d errors", len(cases), texts, errs)
	}
	for name, list := range cases {
		var input, want strings.Builder
		out := newPrinter(&want)
		for _, g := range list {
			input.Write(g.Context)
			input.WriteByte('\n')
			var v any = raised{Err: true, Message: g.Err}
			if g.Out != nil {
				v = rendered{*g.Out}
			}
			if err := out.print(v); err != nil {
				t.Fatal(err)
			}
		}
		if err := out.flush(); err != nil {
			t.Fatal(err)
		}
		status, stdout, stderr := exec(t, input.String(), "render", "--template", filepath.Join(templates, name), "--now", "2026-11-20T08:00:00Z")
		if status != 0 || stderr != "" {
			t.Errorf("%s: status is %d, said %q", name, status, stderr)
		}
		if diff := cmp.Diff(want.String(), stdout); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestRender(t *testing.T) {
	for name, tc := range map[string]struct {
		template, args, input string
		want                  string // a star stands for the rest of a line
	}{
		"the time": {
			`{{ strftime_now("%Y-%m-%d %H") }}`, "--now 2026-11-20T23:30:00+01:00", "{}\n", `{"out":"2026-11-20 23"}`,
		},
		"variables of one line are gone in the next": {
			"{{ a }}{{ b }}", "", `{"a":1}` + "\n" + `{"b":"<é"}` + "\n", `{"out":"1"}` + "\n" + `{"out":"<é"}`,
		},
		"what is no JSON": {
			"x", "", "{\n" + "{}\n", `{"err":true,"message":"invalid JSON *` + "\n" + `{"out":"x"}`,
		},
		"what is no object": {
			"x", "", "[]\n", `{"err":true,"message":"the variables must be a JSON object"}`,
		},
		"a template that is none": {
			"a\n{% if %}", "", "{}\n{}\n", `{"err":true,"message":"template line 2: *` + "\n" + `{"err":true,"message":"template line 2: *`,
		},
		"an exception": {
			`{{ raise_exception("no") }}`, "", "{}\n", `{"err":true,"message":"TemplateError: no"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "t.jinja")
			if err := os.WriteFile(path, []byte(tc.template), 0o600); err != nil {
				t.Fatal(err)
			}
			status, stdout, stderr := exec(t, tc.input, append([]string{"render", "--template", path}, strings.Fields(tc.args)...)...)
			if status != 0 || stderr != "" {
				t.Errorf("status is %d, said %q", status, stderr)
			}
			want, got := strings.Split(tc.want+"\n", "\n"), strings.Split(stdout, "\n")
			for i := range min(len(want), len(got)) {
				if prefix, ok := strings.CutSuffix(want[i], "*"); ok && strings.HasPrefix(got[i], prefix) {
					got[i] = want[i]
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
