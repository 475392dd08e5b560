package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

const smallRoute = `apiVersion: kvasir.dev/v1alpha1
kind: ModelRoute
metadata: {name: chat}
spec:
  models: [chat]
  rules:
  - backends:
    - {pool: m, weight: 9}
`

func TestARouteIsApplied(t *testing.T) {
	d := open(t, "pool.yaml", smallPool, "route.yaml", smallRoute)
	s, problems := load(t, d)
	wantNoProblem(t, problems)
	if len(s.RouteSpecs) != 1 || len(s.Routes) != 1 || !s.Routes[0].Served {
		t.Fatalf("routes %+v", s.Routes)
	}
	r := s.RouteSpecs[0]
	if b := r.Rules[0].Backends[0]; r.Models[0] != "chat" || !r.Rules[0].Sticky || b.Pool != "default/m" || b.Weight != 9 {
		t.Errorf("route %+v", r)
	}
}

func TestWrongRoutesAreRefused(t *testing.T) {
	long := strings.Repeat("x", 10<<10)
	for name, tc := range map[string]struct {
		old, new string
		problem  []string
	}{
		"no models":         {"models: [chat]", "models: []", []string{"spec.models", "at least 1"}},
		"a name twice":      {"models: [chat]", "models: [chat, chat]", []string{"spec.models[1]", "Duplicate"}},
		"a long name":       {"models: [chat]", "models: [" + long + "]", []string{"spec.models[0]", "Too long"}},
		"a blank in a name": {"models: [chat]", "models: [a b]", []string{"spec.models[0]", "should match"}},
		"no backends": {"backends:\n    - {pool: m, weight: 9}", "sticky: None",
			[]string{"spec.rules[0].backends", "Required"}},
		"no weight":         {"weight: 9", "weight: 0", []string{"spec.rules[0].backends", "all weights are 0"}},
		"a negative weight": {"weight: 9", "weight: -1", []string{"spec.rules[0].backends[0].weight", "greater than or equal to 0"}},
		"a large weight":    {"weight: 9", "weight: 1000001", []string{"spec.rules[0].backends[0].weight", "less than or equal to 1000000"}},
		"a backend twice": {"- {pool: m, weight: 9}", "- {pool: m}\n    - {pool: m}",
			[]string{"spec.rules[0].backends", "the same pool and the same modelName"}},
		"a pool of another space": {"pool: m", "pool: other/m", []string{"spec.rules[0].backends[0].pool"}},
		"an unknown field":        {"weight: 9", "weights: 9", []string{"spec.rules[0].backends[0].weights", `did you mean "weight"?`}},
		"stickiness":              {"- backends:", "- sticky: Always\n    backends:", []string{"spec.rules[0].sticky", `"Session"`}},
		"an empty match": {"- backends:", "- matches: [{}]\n    backends:",
			[]string{"spec.rules[0].matches[0]", "a tenant or headers"}},
		"a header's name": {"- backends:", "- matches: [{headers: [{name: a b, value: c}]}]\n    backends:",
			[]string{"spec.rules[0].matches[0].headers[0].name"}},
		"a header twice": {"- backends:", "- matches: [{headers: [{name: a, value: c}, {name: A, value: d}]}]\n    backends:",
			[]string{"spec.rules[0].matches[0].headers", "the same name"}},
		"a time-out":        {"  rules:", "  timeouts: {requestSeconds: -1}\n  rules:", []string{"spec.timeouts.requestSeconds"}},
		"a fallback's pool": {"- backends:", "- fallback: [{pool: A_B}]\n    backends:", []string{"spec.rules[0].fallback[0].pool"}},
		"a fallback twice": {"- backends:", "- fallback: [{pool: m}, {pool: m}]\n    backends:",
			[]string{"spec.rules[0].fallback", "the same pool and the same modelName"}},
		"a mirror that is the backend": {"- backends:", "- mirrors: [{pool: m}]\n    backends:",
			[]string{"spec.rules[0].mirrors", "the same engines twice"}},
		"a percentage": {"- backends:", "- mirrors: [{pool: x, percent: 101}]\n    backends:",
			[]string{"spec.rules[0].mirrors[0].percent", "less than or equal to 100"}},
		"a limit of none": {"  rules:", "  limits: {maxConcurrent: 0}\n  rules:", []string{"spec.limits"}},
		"a cause": {"- backends:", "- fallback: [{pool: m}]\n    fallbackOn: [Slow]\n    backends:",
			[]string{"spec.rules[0].fallbackOn[0]", `"Cold"`}},
		"causes without pools": {"- backends:", "- fallbackOn: [Full]\n    backends:", []string{"spec.rules[0].fallback", "Required"}},
		"a long budget": {"- backends:", "- fallback: [{pool: m}]\n    fallbackWithinMilliseconds: 600001\n    backends:",
			[]string{"spec.rules[0].fallbackWithinMilliseconds"}},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(smallRoute, tc.old, tc.new, 1)
			if text == smallRoute {
				t.Fatal("nothing was replaced")
			}
			d := open(t, "pool.yaml", smallPool, "route.yaml", text)
			s, problems := load(t, d)
			wantProblem(t, problems, append(tc.problem, "ModelRoute default/chat", "route.yaml")...)
			if len(s.RouteSpecs) != 0 || len(strings.Join(problems, "")) > 2000 {
				t.Errorf("applied: %v; problems %.300q", s.RouteSpecs, problems)
			}
			write(t, d.file("route.yaml"), smallRoute)
			_, problems = load(t, d)
			wantNoProblem(t, problems)
			write(t, d.file("route.yaml"), text)
			s, problems = load(t, d)
			wantProblem(t, problems, "the last good state stays in force")
			if len(s.RouteSpecs) != 1 {
				t.Error("the last good state does not stay")
			}
		})
	}
}

// TestARouteWithAMissingPoolServesTheOthers: as in Gateway API, only the requests for that pool fail.
func TestARouteWithAMissingPoolServesTheOthers(t *testing.T) {
	d := open(t, "pool.yaml", strings.Replace(smallPool, "{name: m}, sel", "{name: m, adapters: {discovery: Disabled}}, sel", 1),
		"route.yaml", smallRoute+"    - {pool: mm}\n    - {pool: m, modelName: other}\n")
	s, problems := load(t, d)
	wantProblem(t, problems, "ModelRoute default/chat", "spec.rules[0].backends[1].pool", "Not found", `did you mean "m"?`)
	wantProblem(t, problems, "spec.rules[0].backends[2].modelName", "other")
	if len(s.RouteSpecs) != 1 {
		t.Error("the route is not applied")
	}
}

// TestANameBelongsToOneRoute: the one that had it keeps it, and the other one says whose it is.
func TestANameBelongsToOneRoute(t *testing.T) {
	d := open(t, "pool.yaml", smallPool, "route.yaml", smallRoute)
	load(t, d)
	write(t, d.file("another.yaml"), strings.Replace(smallRoute, "name: chat", "name: another", 1))
	s, problems := load(t, d)
	wantProblem(t, problems, "ModelRoute default/another", "spec.models[0]", "chat, a name of ModelRoute default/chat")
	if len(s.RouteSpecs) != 1 || s.RouteSpecs[0].Name != "chat" {
		t.Errorf("routes %+v", s.RouteSpecs)
	}
	if s.Routes[0].Served || len(s.Routes[0].Problems) != 1 {
		t.Errorf("state %+v", s.Routes[0])
	}
}

// TestTheStatusOfARouteSaysWhetherItIsAppliedAndItsPoolsAreThere, with the conditions that a cluster has.
func TestTheStatusOfARouteSaysWhetherItIsAppliedAndItsPoolsAreThere(t *testing.T) {
	d := open(t, "pool.yaml", smallPool, "a.yaml", smallRoute,
		"b.yaml", strings.NewReplacer("name: chat", "name: second").Replace(smallRoute),
		"c.yaml", strings.NewReplacer("name: chat", "name: third", "[chat]", "[talk]", "pool: m", "pool: missing").Replace(smallRoute),
		"d.yaml", strings.NewReplacer("name: chat", "name: mirrored", "[chat]", "[mirror]", "- backends", "- mirrors: [{pool: missing}]\n    backends").Replace(smallRoute))
	s, _ := load(t, d)
	got := map[string]string{}
	for _, item := range NewBoard().Update(time.Unix(0, 0), s, Live{}).Items {
		if r, ok := item.(*v1alpha1.ModelRoute); ok {
			for _, c := range r.Status.Conditions {
				got[r.Name] += c.Type + " " + c.Reason + "; "
			}
		}
	}
	want := map[string]string{
		"chat": "Accepted Accepted; ResolvedRefs ResolvedRefs; ", "second": "Accepted NameTaken; ",
		"third":    "Accepted Accepted; ResolvedRefs ReferenceNotFound; ",
		"mirrored": "Accepted Accepted; ResolvedRefs ReferenceNotFound; ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
