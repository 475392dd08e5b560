// Command promcheck reads the queries of alerts and dashboards with Prometheus's own parser, and the dashboards' variables
// put in as Grafana would. Dashboards are read by Grafana's own schema: each field must be one that Grafana knows. It is a
// module of its own, as parser and schema are wanted for nothing else.
//
// Usage: promcheck FILE..., PrometheusRules (.yaml) and Grafana dashboards (.json)
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "promcheck:", err)
		os.Exit(1)
	}
}

func run(files []string) error {
	if len(files) == 0 {
		return errors.New("no file given")
	}
	p, count := parser.NewParser(parser.Options{}), 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		queries, err := alerts(text)
		if strings.HasSuffix(file, ".json") {
			queries, err = panels(text)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for name, query := range queries {
			if _, err := p.ParseExpr(query); err != nil {
				return fmt.Errorf("%s: %s: %w", file, name, err)
			}
			count++
		}
	}
	if count == 0 {
		return errors.New("no queries")
	}
	return nil
}

// alerts are the queries of a PrometheusRule, by their names.
func alerts(text []byte) (map[string]string, error) {
	var rule struct {
		Spec struct {
			Groups []struct {
				Rules []struct{ Alert, Expr, For string }
			}
		}
	}
	if err := yaml.Unmarshal(text, &rule); err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, group := range rule.Spec.Groups {
		for _, r := range group.Rules {
			if _, err := time.ParseDuration(r.For); err != nil {
				return nil, fmt.Errorf("%s: %w", r.Alert, err)
			}
			all[r.Alert] = r.Expr
		}
	}
	return all, nil
}

// variables of dashboards, as Grafana puts them in.
var variables = strings.NewReplacer("$__rate_interval", "5m", "$namespace", ".*", "$pool", ".*")

// schema reads a dashboard strictly, the options of its panels and its queries included.
func schema(text []byte) error {
	plugins.RegisterDefaultPlugins()
	var read dashboard.Dashboard
	if err := read.UnmarshalJSONStrict(text); err != nil {
		return err
	}
	return read.Validate()
}

// panels are the queries of a dashboard, by their panels.
func panels(text []byte) (map[string]string, error) {
	if err := schema(text); err != nil {
		return nil, err
	}
	var file struct {
		Panels []struct {
			Title   string
			Targets []struct{ RefID, Expr string }
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, panel := range file.Panels {
		for _, target := range panel.Targets {
			all[panel.Title+" "+target.RefID] = variables.Replace(target.Expr)
		}
	}
	return all, nil
}
