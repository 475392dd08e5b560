// Command chart writes the parts of the Helm chart that have their source elsewhere: the definitions as templates, the
// rules of all roles, alerts and dashboards, and the table of values.
//
// Usage: chart -definitions DIR -out DIR, in the root of the repository. Below -out are written
//
//	templates/crds/*.yaml   the definitions in -definitions, kept when the chart is uninstalled
//	files/roles/ROLE.yaml   the rules of each Role and ClusterRole of config/rbac, with their comments
//	files/rules.yaml        the alerts of config/monitoring
//	files/dashboards/*.json the dashboards of config/monitoring
//	README.md               the values of charts/kvasir/values.yaml, with their comments
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	roles      = "config/rbac/*.yaml"
	alerts     = "config/monitoring/rules.yaml"
	dashboards = "config/monitoring/dashboards/*.json"
	values     = "charts/kvasir/values.yaml"
)

func main() {
	definitions := flag.String("definitions", "config/crd/bases", "`directory` of the definitions")
	out := flag.String("out", "charts/kvasir", "`directory` to write below")
	flag.Parse()
	if err := run(*definitions, *out); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

func run(definitions, out string) error {
	files := map[string]string{}
	if err := each(filepath.Join(definitions, "*.yaml"), func(name, text string) error {
		template, err := definition(text)
		files["templates/crds/"+name] = template
		return err
	}); err != nil {
		return err
	}
	if err := each(roles, func(_, text string) error { return rules(text, files) }); err != nil {
		return err
	}
	if err := each(alerts, func(_, text string) error {
		_, spec, found := strings.Cut(text, "\nspec:\n")
		if !found {
			return errors.New("no spec")
		}
		files["files/rules.yaml"] = spec
		return nil
	}); err != nil {
		return err
	}
	if err := each(dashboards, func(name, text string) error {
		files["files/dashboards/"+name] = text
		return nil
	}); err != nil {
		return err
	}
	text, err := os.ReadFile(values)
	if err != nil {
		return err
	}
	if files["README.md"], err = readme(string(text)); err != nil {
		return fmt.Errorf("%s: %w", values, err)
	}
	for name, text := range files {
		name = filepath.Join(out, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// each calls take with the name and text of every file of a pattern; there must be one.
func each(pattern string, take func(name, text string) error) error {
	names, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return fmt.Errorf("no files %s", pattern)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := take(filepath.Base(name), string(text)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// definition makes a template of a CustomResourceDefinition.
func definition(text string) (string, error) {
	const annotations = "\n  annotations:\n"
	before, after, found := strings.Cut(escape(strings.TrimPrefix(text, "---\n")), annotations)
	if !found {
		return "", errors.New("the definition has no annotations to add one to")
	}
	return "{{- if .Values.crds.install }}\n" + before + annotations + "    helm.sh/resource-policy: keep\n" + after + "{{- end }}\n", nil
}

// escape keeps what looks like a template as it is.
func escape(text string) string { return strings.ReplaceAll(text, "{{", `{{ "{{" }}`) }

// rules adds the rules of each role in a file of objects: the text below its last field, rules.
func rules(text string, files map[string]string) error {
	for object := range strings.SplitSeq(text, "\n---\n") {
		var role struct {
			Kind     string
			Metadata struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(object), &role); err != nil {
			return fmt.Errorf("reading: %w", err)
		}
		if role.Kind != "Role" && role.Kind != "ClusterRole" {
			continue
		}
		_, list, found := strings.Cut(object, "\nrules:\n")
		if !found || !strings.HasPrefix(list, "- ") {
			return fmt.Errorf("the rules of %s are not at its end", role.Metadata.Name)
		}
		files["files/roles/"+role.Metadata.Name+".yaml"] = strings.TrimSuffix(list, "\n")
	}
	return nil
}
