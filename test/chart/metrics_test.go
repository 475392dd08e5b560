package chart

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/yaml"

	_ "sigs.k8s.io/controller-runtime/pkg/controller" // registers the metrics of controllers
)

// metric is what the alerts and dashboards can query.
type metric struct {
	histogram bool
	labels    []string // nil where any is allowed
}

var (
	row   = regexp.MustCompile("(?m)^\\| `(kvasir_[a-z0-9_]+)` \\| (counter|gauge|histogram) \\| (.*)$")
	label = regexp.MustCompile("`([a-z]+)`")
)

// exported are the metrics of pickers and operator. The tables of docs/metrics.md are held against the code by
// internal/metrics and the test below; others' are asked of their registry.
func exported(t *testing.T) map[string]metric {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]metric{"up": {}}
	pickers, operators, found := strings.Cut(string(text), "\n## The operator's metrics\n")
	if !found {
		t.Fatal("docs/metrics.md has no chapter on the operator's metrics")
	}
	for _, m := range row.FindAllStringSubmatch(pickers, -1) {
		labels := []string{"namespace", "pod", "job"}
		for _, l := range label.FindAllStringSubmatch(strings.SplitN(m[3], " | ", 2)[0], -1) {
			labels = append(labels, l[1])
		}
		all[m[1]] = metric{histogram: m[2] == "histogram", labels: labels}
	}
	for _, m := range row.FindAllStringSubmatch(operators, -1) {
		all[m[1]] = metric{labels: []string{"namespace", "pool", "role", "job", "pod"}}
	}
	if len(all) < 50 {
		t.Fatalf("docs/metrics.md has %d metrics", len(all))
	}
	described := make(chan *prometheus.Desc, 1000)
	for _, c := range []any{metrics.Registry, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		c.(prometheus.Collector).Describe(described)
	}
	close(described)
	name := regexp.MustCompile(`fqName: "([^"]*)"`)
	for d := range described {
		if m := name.FindStringSubmatch(d.String()); m != nil {
			all[m[1]] = metric{histogram: strings.HasSuffix(m[1], "_seconds")}
		}
	}
	return all
}

// The operator's own metrics are in the documentation as the code names them.
func TestTheOperatorsMetricsAreDocumented(t *testing.T) {
	code, err := os.ReadFile(filepath.Join(root, "internal", "operator", "controller", "autoscaling", "metrics.go"))
	if err != nil {
		t.Fatal(err)
	}
	var in []string
	for _, m := range regexp.MustCompile(`"(kvasir_pool_[a-z0-9_]+)"`).FindAllStringSubmatch(string(code), -1) {
		in = append(in, m[1])
	}
	all := exported(t)
	for _, name := range in {
		if _, ok := all[name]; !ok {
			t.Errorf("docs/metrics.md does not have %s", name)
		}
	}
	if len(in) == 0 {
		t.Error("the operator has no metrics")
	}
}

// expressions are those of all alerts and panels, by where they stand.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, alert := range alerts(t) {
		all["alert "+name] = alert.Expr
	}
	files, err := filepath.Glob(filepath.Join(root, "config", "monitoring", "dashboards", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no dashboards (%v)", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var dashboard struct {
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
			Templating struct {
				List []struct {
					Name  string
					Query any
				}
			}
		}
		if err := json.Unmarshal(text, &dashboard); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, panel := range dashboard.Panels {
			for i, target := range panel.Targets {
				all[filepath.Base(file)+" "+panel.Title+string(rune('A'+i))] = target.Expr
			}
		}
		for _, variable := range dashboard.Templating.List {
			if query, ok := variable.Query.(map[string]any); ok {
				text, _ := query["query"].(string)
				all[filepath.Base(file)+" $"+variable.Name] = text
			}
		}
	}
	return all
}

// labelValues are those that docs/metrics.md has for a label of a metric; nil where they are the users'. The table is held
// against the code by internal/metrics.
func labelValues(t *testing.T) func(metric, label string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| (`(?:reason|state|outcome|source)`(?: of `[a-z_]+`)?) \\| (.*) \\|$").FindAllStringSubmatch(string(text), -1) {
		for _, value := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(m[2], -1) {
			rows[m[1]] = append(rows[m[1]], value[1])
		}
	}
	if len(rows) < 10 {
		t.Fatalf("docs/metrics.md has %d labels with fixed values", len(rows))
	}
	return func(metric, label string) []string {
		if own, ok := rows["`"+label+"` of `"+metric+"`"]; ok {
			return own
		}
		return rows["`"+label+"`"]
	}
}

type alert struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func alerts(t *testing.T) map[string]alert {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "config", "monitoring", "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var rule struct {
		Spec struct{ Groups []struct{ Rules []alert } }
	}
	if err := yaml.Unmarshal(text, &rule); err != nil {
		t.Fatal(err)
	}
	all := map[string]alert{}
	for _, group := range rule.Spec.Groups {
		for _, a := range group.Rules {
			all[a.Alert] = a
		}
	}
	return all
}

var (
	selector = regexp.MustCompile(`\b([a-z][a-z0-9_]*_[a-z0-9_]+|up)\b(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-z]+)(?:=~|!~|!=|=)"([^"]*)"`)
	by       = regexp.MustCompile(`by \(([^)]*)\)`)
)

// words of the query language that look like a metric.
var words = []string{"histogram_quantile", "label_values"}

func TestAlertsAndDashboardsAskForWhatThereIs(t *testing.T) {
	all, values := exported(t), labelValues(t)
	for where, expr := range expressions(t) {
		var known []string // labels that the metrics of the expression have
		anything, asked := false, 0
		for _, m := range selector.FindAllStringSubmatch(expr, -1) {
			name, matchers := m[1], m[2]
			if slices.Contains(words, name) {
				continue
			}
			asked++
			of, ok := all[name]
			if !ok {
				for _, suffix := range []string{"_bucket", "_sum", "_count"} {
					if base, cut := strings.CutSuffix(name, suffix); cut && all[base].histogram {
						of, ok = all[base], true
					}
				}
				known = append(known, "le")
			} else if of.histogram {
				t.Errorf("%s: %s is a histogram", where, name)
			}
			if !ok {
				t.Errorf("%s: nothing exports %s", where, name)
				continue
			}
			if of.labels == nil {
				anything = true
				continue
			}
			known = append(known, of.labels...)
			for _, l := range matcher.FindAllStringSubmatch(matchers, -1) {
				if !slices.Contains(of.labels, l[1]) {
					t.Errorf("%s: %s has no label %s", where, name, l[1])
				}
				for value := range strings.SplitSeq(l[2], "|") {
					if known := values(name, l[1]); known != nil && !strings.HasPrefix(value, "$") && !slices.Contains(known, value) {
						t.Errorf("%s: %s of %s is never %s, but one of %v", where, l[1], name, value, known)
					}
				}
			}
		}
		if asked == 0 {
			t.Errorf("%s asks for nothing: %s", where, expr)
		}
		for _, m := range by.FindAllStringSubmatch(expr, -1) {
			for l := range strings.SplitSeq(m[1], ", ") {
				if !anything && !slices.Contains(known, l) {
					t.Errorf("%s: by %s, which nothing there has", where, l)
				}
			}
		}
	}
}

// runbooks is where the sections of docs/alerts.md are read on the web.
const runbooks = "https://github.com/kvasir-dev/kvasir/blob/main/docs/alerts.md#"

func TestAlertsAreExplained(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "alerts.md"))
	if err != nil {
		t.Fatal(err)
	}
	all, sections := alerts(t), map[string]string{}
	for section := range strings.SplitSeq(string(text), "\n## ") {
		name, body, _ := strings.Cut(section, "\n")
		sections[name] = body
	}
	for name, a := range all {
		for _, part := range []string{"**for clients:**", "**look", "do:**"} {
			if !strings.Contains(strings.ToLower(sections[name]), part) {
				t.Errorf("docs/alerts.md has no section %s with %q", name, part)
			}
		}
		if want := runbooks + strings.ToLower(name); a.Annotations["runbook_url"] != want {
			t.Errorf("the runbook of %s is at %q, want %q", name, a.Annotations["runbook_url"], want)
		}
		if a.For == "" || a.Annotations["summary"] == "" || !slices.Contains([]string{"warning", "critical"}, a.Labels["severity"]) {
			t.Errorf("%s: %+v", name, a)
		}
		if labels := regexp.MustCompile(`\$labels\.([a-z]+)`).FindAllStringSubmatch(a.Annotations["summary"], -1); strings.Contains(a.Expr, "by (") {
			for _, l := range labels {
				if !strings.Contains(by.FindString(a.Expr), l[1]) {
					t.Errorf("%s mentions %s, which its result does not have", name, l[1])
				}
			}
		}
	}
	for name := range sections {
		if _, ok := all[name]; !ok && strings.HasPrefix(name, "Kvasir") {
			t.Errorf("docs/alerts.md has %s, which is no alert; there are %v", name, slices.Sorted(maps.Keys(all)))
		}
	}
}
