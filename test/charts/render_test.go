package charts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"

	"sigs.k8s.io/yaml"
)

// render executes a template of the chart as Helm does, for release r in namespace n, with values over the chart's own.
// A value that does not exist is an error.
func render(t *testing.T, name, values string) string {
	t.Helper()
	var about struct {
		Name, Version, AppVersion string
	}
	readYAML(t, chart+"/Chart.yaml", &about)
	var all map[string]any
	readYAML(t, chart+"/values.yaml", &all)
	var over map[string]any
	if err := yaml.UnmarshalStrict([]byte(values), &over); err != nil {
		t.Fatal(err)
	}
	merge(all, over)

	set := template.New("chart").Option("missingkey=error")
	set.Funcs(functions).Funcs(template.FuncMap{"include": func(name string, data any) (string, error) {
		var b strings.Builder
		err := set.ExecuteTemplate(&b, name, data)
		return b.String(), err
	}})
	files, err := filepath.Glob(chart + "/templates/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := set.New(filepath.Base(file)).Parse(string(text)); err != nil {
			t.Fatal(err)
		}
	}
	var b strings.Builder
	err = set.ExecuteTemplate(&b, name, map[string]any{
		"Values":  all,
		"Chart":   about,
		"Release": map[string]string{"Name": "r", "Namespace": "n", "Service": "Helm"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func readYAML(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// merge puts values over others; maps are merged.
func merge(into, over map[string]any) {
	for key, value := range over {
		if below, ok := value.(map[string]any); ok {
			if old, ok := into[key].(map[string]any); ok {
				merge(old, below)
				continue
			}
		}
		into[key] = value
	}
}

// functions of Helm's that the templates use, as Helm has them.
var functions = template.FuncMap{
	"quote":      func(s string) string { return `"` + strings.ReplaceAll(s, `"`, `\"`) + `"` },
	"replace":    func(old, with, s string) string { return strings.ReplaceAll(s, old, with) },
	"trimSuffix": func(suffix, s string) string { return strings.TrimSuffix(s, suffix) },
	"trunc":      func(n int, s string) string { return s[:min(n, len(s))] },
	"nindent": func(n int, s string) string {
		pad := strings.Repeat(" ", n)
		return "\n" + pad + strings.ReplaceAll(s, "\n", "\n"+pad)
	},
	"default": func(fallback, s string) string {
		if s == "" {
			return fallback
		}
		return s
	},
	"add": func(numbers ...float64) int {
		sum := 0.0
		for _, n := range numbers {
			sum += n
		}
		return int(sum)
	},
	"toYaml": func(v any) (string, error) {
		text, err := yaml.Marshal(v)
		return strings.TrimSuffix(string(text), "\n"), err
	},
}
