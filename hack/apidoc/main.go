// Command apidoc writes the reference of the API objects, docs/api.md, from their CustomResourceDefinitions:
//
//	apidoc CRD.yaml... > docs/api.md
package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	out := bufio.NewWriter(os.Stdout)
	err := write(out, os.Args[1:])
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "apidoc:", err)
		os.Exit(1)
	}
}

const preface = `# API reference

Made from the definitions in [config/crd/bases](../config/crd/bases) by ` + "`hack/generate.sh`" + `; do not edit. What a field is for in the
larger picture: [operations](operations.md), [policies](policies.md), [admission](admission.md), [routing](routing.md).

**required** fields must be set; a default stands where there is one. Limits: numbers, lengths in characters, items of lists.
`

func write(w io.Writer, paths []string) error {
	if len(paths) == 0 {
		return fmt.Errorf("no definitions are given")
	}
	fmt.Fprint(w, preface)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			return fmt.Errorf("reading %s: %w", path, err)
		}
		for i := range crd.Spec.Versions {
			v := &crd.Spec.Versions[i]
			fmt.Fprintf(w, "\n## %s\n\n`%s/%s`, %s; short name `%s`.\n", crd.Spec.Names.Kind, crd.Spec.Group, v.Name,
				strings.ToLower(string(crd.Spec.Scope)), strings.Join(crd.Spec.Names.ShortNames, "`, `"))
			if d := text1(v.Schema.OpenAPIV3Schema.Description); d != "" {
				fmt.Fprintf(w, "\n%s\n", d)
			}
			for _, part := range []string{"spec", "status"} {
				if s, ok := v.Schema.OpenAPIV3Schema.Properties[part]; ok {
					section(w, part, &s)
				}
			}
		}
	}
	return nil
}

// foreign are objects of Kubernetes' own API, which its own reference describes.
var foreign = map[string]string{
	"spec.template": "a pod template of Kubernetes", "spec.picker.pod.affinity": "an affinity of Kubernetes",
}

// section writes a table of an object's fields, and then one for each object in it.
func section(w io.Writer, path string, s *apiextensionsv1.JSONSchemaProps) {
	fmt.Fprintf(w, "\n### %s\n", path)
	if d := text1(s.Description); d != "" {
		fmt.Fprintf(w, "\n%s\n", d)
	}
	for i, rule := range s.XValidations {
		if i == 0 {
			fmt.Fprint(w, "\nRules:\n\n")
		}
		fmt.Fprintf(w, "- %s\n", cell(cmp.Or(rule.Message, rule.Rule)))
	}
	names := make([]string, 0, len(s.Properties))
	for name := range s.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	fmt.Fprint(w, "\n| field | type | default | limits | |\n|---|---|---|---|---|\n")
	type inner struct {
		path   string
		schema apiextensionsv1.JSONSchemaProps
	}
	var more []inner
	for _, name := range names {
		f := s.Properties[name]
		at := path + "." + name
		value := "–"
		switch {
		case f.Default != nil:
			value = "`" + cell(string(f.Default.Raw)) + "`"
		case slices.Contains(s.Required, name):
			value = "**required**"
		}
		kind, object, suffix := typeOf(&f)
		what := text1(f.Description)
		if known, ok := foreign[at]; ok {
			kind, object, what = known, nil, cmp.Or(what, "See the reference of Kubernetes.")
		}
		if object != nil {
			more = append(more, inner{at + suffix, *object})
			kind = fmt.Sprintf("[%s](#%s)", kind, anchor(at+suffix))
		}
		fmt.Fprintf(w, "| `%s` | %s | %s | %s | %s |\n", name, kind, value, cell(limits(&f)), cell(what))
	}
	for i := range more {
		section(w, more[i].path, &more[i].schema)
	}
}

// typeOf names a field's type, and returns the object that it is, holds or lists, with the continuation of its path.
func typeOf(f *apiextensionsv1.JSONSchemaProps) (kind string, object *apiextensionsv1.JSONSchemaProps, suffix string) {
	switch {
	case f.XIntOrString:
		return "number or string", nil, ""
	case f.Type == "array" && f.Items != nil && f.Items.Schema != nil:
		kind, object, suffix = typeOf(f.Items.Schema)
		return "list of " + kind, object, "[]" + suffix
	case f.Type == "object" && f.AdditionalProperties != nil && f.AdditionalProperties.Schema != nil:
		kind, object, suffix = typeOf(f.AdditionalProperties.Schema)
		return "map to " + kind, object, "{}" + suffix
	case f.Type == "object" && len(f.Properties) > 0:
		return "object", f, ""
	case len(f.Enum) > 0:
		var values []string
		for _, v := range f.Enum {
			values = append(values, "`"+strings.Trim(string(v.Raw), `"`)+"`")
		}
		return strings.Join(values, ", "), nil, ""
	case f.Format == "date-time":
		return "time", nil, ""
	}
	return cmp.Or(f.Type, "any"), nil, ""
}

// limits of a field's value.
func limits(f *apiextensionsv1.JSONSchemaProps) string {
	var all []string
	add := func(format string, a ...any) { all = append(all, fmt.Sprintf(format, a...)) }
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	if f.Minimum != nil {
		add("≥ %s", number(*f.Minimum))
	}
	if f.Maximum != nil {
		add("≤ %s", number(*f.Maximum))
	}
	if f.MultipleOf != nil {
		add("multiple of %s", number(*f.MultipleOf))
	}
	if f.MinLength != nil && *f.MinLength > 0 {
		add("length ≥ %d", *f.MinLength)
	}
	if f.MaxLength != nil {
		add("length ≤ %d", *f.MaxLength)
	}
	if f.MinItems != nil && *f.MinItems > 0 {
		add("items ≥ %d", *f.MinItems)
	}
	if f.MaxItems != nil {
		add("items ≤ %d", *f.MaxItems)
	}
	if f.MaxProperties != nil {
		add("entries ≤ %d", *f.MaxProperties)
	}
	if f.Pattern != "" {
		add("`%s`", f.Pattern)
	}
	for _, rule := range f.XValidations {
		if rule.Message != "" && len(f.Properties) == 0 {
			add("%s", rule.Message)
		}
	}
	return strings.Join(all, ", ")
}

// text1 is a description in one line.
func text1(s string) string { return strings.Join(strings.Fields(s), " ") }

// cell is text that is safe in a table.
func cell(s string) string { return strings.ReplaceAll(text1(s), "|", `\|`) }

// anchor is how a heading is linked to.
func anchor(s string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(".[]{}", r) {
			return -1
		}
		return r
	}, strings.ToLower(s))
}
