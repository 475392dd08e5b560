package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v4"
)

const head = `# The chart of Kvasir

The operator for pools of LLM engines: its Deployment, rights, network policies, metrics, alerts and dashboards, and the
definitions of ` + "`InferencePool` and `RoutingPolicy`" + `. [docs/install.md](../../docs/install.md) describes how to install, upgrade and
uninstall it.

    helm install kvasir charts/kvasir --namespace kvasir-system --create-namespace --set images.registry=registry.example.com

Pools, policies and their definitions stay when the chart is uninstalled.

## Values

` + "`hack/generate.sh` makes this table from `values.yaml`; `values.schema.json` refuses what is not in it." + `

| value | default | meaning |
|---|---|---|
`

// readme is the chart's page: a line for each value, in the order of the file.
func readme(text string) (string, error) {
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(text), &document); err != nil {
		return "", fmt.Errorf("reading: %w", err)
	}
	if len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		return "", errors.New("want a map of values")
	}
	b := &strings.Builder{}
	b.WriteString(head)
	if err := rows(b, "", document.Content[0]); err != nil {
		return "", err
	}
	return b.String(), nil
}

// rows writes the values of a map. A map that is written in one line is one value.
func rows(b *strings.Builder, path string, values *yaml.Node) error {
	for i := 0; i+1 < len(values.Content); i += 2 {
		key, value := values.Content[i], values.Content[i+1]
		name, comment := path+key.Value, meaning(key.HeadComment)
		if value.Kind == yaml.MappingNode && len(value.Content) > 0 && value.Style&yaml.FlowStyle == 0 {
			if comment != "" {
				fmt.Fprintf(b, "| `%s` | | %s |\n", name, comment)
			}
			if err := rows(b, name+".", value); err != nil {
				return err
			}
			continue
		}
		var plain any
		if err := value.Decode(&plain); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		shown, err := json.Marshal(plain)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Fprintf(b, "| `%s` | `%s` | %s |\n", name, shown, comment)
	}
	return nil
}

// meaning is a comment as a sentence of a table.
func meaning(comment string) string {
	lines := strings.Split(comment, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(strings.TrimPrefix(lines[i], "#"))
	}
	return strings.ReplaceAll(strings.TrimSpace(strings.Join(lines, " ")), "|", `\|`)
}
