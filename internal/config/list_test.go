package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/internal/policy"
)

// listOf makes a list of objects in YAML.
func listOf(apiVersion, kind string, items ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: %s\nkind: %s\nmetadata: {resourceVersion: \"\"}\nitems:\n", apiVersion, kind)
	for _, item := range items {
		b.WriteString("- " + strings.ReplaceAll(strings.TrimSpace(item), "\n", "\n  ") + "\n")
	}
	return b.String()
}

func TestTheItemsOfAListAreObjects(t *testing.T) {
	for name, text := range map[string]string{
		"a List":                listOf("v1", "List", smallPool, smallSlice, smallPolicy),
		"a list of a kind each": listOf("kvasir.dev/v1alpha1", "InferencePoolList", smallPool) + "---\n" + listOf("kvasir.dev/v1alpha1", "RoutingPolicyList", smallPolicy) + "---\n" + listOf("discovery.k8s.io/v1", "EndpointSliceList", smallSlice),
		"a list among others":   smallSlice + "---\n" + listOf("v1", "List", smallPolicy) + "---\n" + smallPool,
	} {
		t.Run(name, func(t *testing.T) {
			s, problems := load(t, open(t, "all.yaml", text))
			wantNoProblem(t, problems)
			if spec := only(t, s); spec.Policy.Name != "p" || len(spec.Endpoints) != 1 {
				t.Errorf("policy %q and %d endpoints, want p and one", spec.Policy.Name, len(spec.Endpoints))
			}
		})
	}
}

func TestAWrongItemDoesNotTouchItsNeighbours(t *testing.T) {
	const aMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n---\n"
	d := open(t, "all.yaml", aMap+listOf("v1", "List", smallPool, smallPolicy))
	_, problems := load(t, d)
	wantNoProblem(t, problems)

	write(t, d.file("all.yaml"), aMap+listOf("v1", "List", smallPool, strings.Replace(smallPolicy, "LeastLoad", "Best", 1), smallSlice))
	s, problems := load(t, d)
	wantProblem(t, problems, ": RoutingPolicy default/p: spec.strategy.type", "all.yaml:", "last good")
	if spec := only(t, s); spec.Policy.Strategy.Type != policy.LeastLoad || len(spec.Endpoints) != 1 {
		t.Errorf("strategy %s and %d endpoints, want the last good one and one", spec.Policy.Strategy.Type, len(spec.Endpoints))
	}
}

func TestListsThatAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"a list in a list":       {listOf("v1", "List", smallPolicy, listOf("v1", "List", smallPool)), []string{"all.yaml:9:3: a list in a list"}},
		"an item without a name": {listOf("v1", "List", "apiVersion: v1\nkind: Secret\nmetadata: {}\n"), []string{"all.yaml:5:3: metadata.name is required"}},
		"an item that is none":   {listOf("v1", "List", "7"), []string{"all.yaml:5:3: not an object of an API: it cannot be a number"}},
		"items that are none":    {"apiVersion: v1\nkind: List\nitems: {a: b}\n", []string{"all.yaml:1:1: reading the list: items must be a list"}},
		"another version":        {listOf("v2", "List", smallPolicy), []string{"all.yaml:1:1: ", `kind "List" of "v2" is not read here`}},
		"a list of other kinds":  {listOf("apps/v1", "DeploymentList"), []string{"all.yaml:1:1: ", `kind "DeploymentList" of "apps/v1" is not read here`}},
		"too many items":         {"apiVersion: v1\nkind: List\nitems: [" + strings.Repeat("7,", maxDocuments) + "7]\n", []string{"all.yaml", "more than"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, problems := load(t, open(t, "all.yaml", tc.text, "pool.yaml", smallPool))
			wantProblem(t, problems, tc.want...)
			only(t, s)
		})
	}
	t.Run("items twice in JSON", func(t *testing.T) {
		_, problems := load(t, open(t, "all.json", `{"apiVersion":"v1","kind":"List","items":[],"items":[]}`))
		wantProblem(t, problems, "all.json:1:1: ", `duplicate field "items"`)
	})
}

// What the status prints can be put into a directory again, and means the same.
func TestTheStatusCanBeReadAgain(t *testing.T) {
	first, problems := load(t, open(t, "all.yaml", smallPool+"---\n"+smallPolicy))
	wantNoProblem(t, problems)
	text, err := yaml.Marshal(NewBoard().Update(time.Unix(1, 0), first, Live{}))
	if err != nil {
		t.Fatal(err)
	}
	again, problems := load(t, open(t, "status.yaml", string(text)))
	wantNoProblem(t, problems)
	if diff := cmp.Diff(first.Specs[0].Policy, only(t, again).Policy); diff != "" {
		t.Errorf("policy (-first +again):\n%s", diff)
	}
}
