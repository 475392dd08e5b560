package metrics

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// fixed are the labels whose values are words of the code.
var fixed = []string{"outcome", "reason", "source", "state"}

// present have a series for the value that holds now, and none for the others.
var present = map[string]bool{"`state` of `kvasir_events_state`": true, "`state` of `kvasir_report_state`": true}

// Alerts are written by the table of label values in docs/metrics.md: it has those that there are, all of them.
func TestTheValuesOfLabelsAreDocumented(t *testing.T) {
	seed, err := kvblock.NewSeed(make([]byte, kvblock.MinSeedBytes))
	if err != nil {
		t.Fatal(err)
	}
	p := picker.New(picker.Options{})
	spec := picker.Spec{Namespace: "a", Name: "chat", Model: "m", BlockTokens: 16, Seed: seed}
	spec.Policy.Strategy.Type = policy.RoundRobin
	if err := p.Apply([]picker.Spec{spec}); err != nil {
		t.Fatal(err)
	}
	from := sources()
	from.Pools = p.Stats
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewCollector(from), NewRequests(request.ProxyReasons, request.GatewayReasons))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]map[string]bool{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if !slices.Contains(fixed, l.GetName()) {
					continue
				}
				key := "`" + l.GetName() + "` of `" + family.GetName() + "`"
				if family.GetName() == "kvasir_requests_total" || l.GetName() == "source" { // a row for all of this label
					key = "`" + l.GetName() + "`"
				}
				if shown[key] == nil {
					shown[key] = map[string]bool{}
				}
				shown[key][l.GetValue()] = true
			}
		}
	}
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for key, values := range shown {
		row := regexp.MustCompile(`(?m)^\| ` + key + ` \| (.*) \|$`).FindSubmatch(text)
		if row == nil {
			t.Errorf("docs/metrics.md has no row for %s: %v", key, slices.Sorted(maps.Keys(values)))
			continue
		}
		var documented []string
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllSubmatch(row[1], -1) {
			documented = append(documented, string(m[1]))
		}
		if present[key] {
			documented = slices.DeleteFunc(documented, func(value string) bool { return !values[value] })
		}
		slices.Sort(documented)
		if diff := cmp.Diff(slices.Sorted(maps.Keys(values)), documented); diff != "" {
			t.Errorf("%s (-code +docs/metrics.md):\n%s", key, diff)
		}
	}
	if len(shown) < 10 {
		t.Errorf("there are %d labels with fixed values", len(shown))
	}
}
