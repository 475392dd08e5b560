package config

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
)

// routeAt is a route that was created at a second, of a pool.
func routeAt(name string, second int64, pool v1alpha1.PoolName, models ...v1alpha1.ModelName) *v1alpha1.ModelRoute {
	r := &v1alpha1.ModelRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, CreationTimestamp: metav1.Unix(second, 0)}}
	r.Spec.Models = models
	r.Spec.Rules = []v1alpha1.ModelRouteRule{{Backends: []v1alpha1.ModelRouteBackend{{Pool: pool}}}}
	return r
}

// acceptedRoutes are the names of the routes that are not refused, in order.
func acceptedRoutes(routes []*v1alpha1.ModelRoute, held map[v1alpha1.ModelName]types.NamespacedName) string {
	refused := RefusedRoutes(routes, held)
	var names []string
	for _, r := range byName(routes) {
		if len(refused[r]) == 0 {
			names = append(names, r.Name)
		}
	}
	return strings.Join(names, " ")
}

func TestTheOldestRouteHasAName(t *testing.T) {
	for name, tc := range map[string]struct {
		routes []*v1alpha1.ModelRoute
		held   map[v1alpha1.ModelName]types.NamespacedName
		want   string
	}{
		"the older one":                   {[]*v1alpha1.ModelRoute{routeAt("a", 2, "m", "x"), routeAt("b", 1, "m", "x")}, nil, "b"},
		"of the same second by name":      {[]*v1alpha1.ModelRoute{routeAt("b", 1, "m", "x"), routeAt("a", 1, "m", "x")}, nil, "a"},
		"whatever a picker had before":    {[]*v1alpha1.ModelRoute{routeAt("b", 1, "m", "x"), routeAt("a", 2, "m", "x")}, map[v1alpha1.ModelName]types.NamespacedName{"x": {Namespace: "default", Name: "a"}}, "b"},
		"a refused route takes no name":   {[]*v1alpha1.ModelRoute{routeAt("a", 1, "m", "x"), routeAt("b", 2, "m", "x", "y"), routeAt("c", 3, "m", "y")}, nil, "a c"},
		"one name in common is enough":    {[]*v1alpha1.ModelRoute{routeAt("a", 1, "m", "x", "y"), routeAt("b", 2, "m", "z", "y")}, nil, "a"},
		"files: the one that had it":      {[]*v1alpha1.ModelRoute{routeAt("a", 0, "m", "x"), routeAt("b", 0, "m", "x")}, map[v1alpha1.ModelName]types.NamespacedName{"x": {Namespace: "default", Name: "b"}}, "b"},
		"files: an edit takes no name":    {[]*v1alpha1.ModelRoute{routeAt("a", 0, "m", "x", "y"), routeAt("b", 0, "m", "y")}, map[v1alpha1.ModelName]types.NamespacedName{"x": {Namespace: "default", Name: "a"}, "y": {Namespace: "default", Name: "b"}}, "b"},
		"files: otherwise the first name": {[]*v1alpha1.ModelRoute{routeAt("b", 0, "m", "x"), routeAt("a", 0, "m", "x")}, nil, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, r := range tc.routes {
				if r.CreationTimestamp.Unix() == 0 {
					r.CreationTimestamp = metav1.Time{}
				}
			}
			if got := acceptedRoutes(tc.routes, tc.held); got != tc.want {
				t.Errorf("accepted %q, want %q", got, tc.want)
			}
		})
	}
}

// TestRoutesAreRefusedInAnyOrderAlike, and each refused one names an older route that is accepted and has a name of it.
func TestRoutesAreRefusedInAnyOrderAlike(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	conflicts := 0
	for range 300 {
		var routes []*v1alpha1.ModelRoute
		for i := range 1 + random.IntN(10) {
			var models []v1alpha1.ModelName
			for len(models) < 1+random.IntN(3) {
				if m := v1alpha1.ModelName(fmt.Sprint(random.IntN(8))); !slices.Contains(models, m) {
					models = append(models, m)
				}
			}
			routes = append(routes, routeAt(fmt.Sprint(i), 1+random.Int64N(3), "m", models...))
		}
		want := acceptedRoutes(routes, nil)
		for range 3 {
			random.Shuffle(len(routes), func(i, j int) { routes[i], routes[j] = routes[j], routes[i] })
			if got := acceptedRoutes(routes, nil); got != want {
				t.Fatalf("accepted %q in one order and %q in another", want, got)
			}
		}
		refused := RefusedRoutes(routes, nil)
		for _, r := range routes {
			shares, older := false, false
			for _, o := range routes {
				common := slices.ContainsFunc(r.Spec.Models, func(m v1alpha1.ModelName) bool { return slices.Contains(o.Spec.Models, m) })
				if o != r && common && len(refused[o]) == 0 {
					shares = true
					older = older || !r.CreationTimestamp.Before(&o.CreationTimestamp)
				}
			}
			if is := len(refused[r]) > 0; is != older || is != shares {
				t.Fatalf("route %s: refused %v; an accepted route has a name of it: %t, an older one: %t", r.Name, refused[r], shares, older)
			}
			conflicts += len(refused[r])
		}
	}
	if conflicts < 100 {
		t.Errorf("only %d conflicts", conflicts)
	}
}

// TestManyRoutesAreBounded: of 10,000, the oldest are applied, and what is said of the others is bounded.
func TestManyRoutesAreBounded(t *testing.T) {
	a, err := crdadmission.New()
	if err != nil {
		t.Fatal(err)
	}
	defaults, err := a.DefaultPolicy()
	if err != nil {
		t.Fatal(err)
	}
	translator, err := NewTranslator(Settings{}, defaults)
	if err != nil {
		t.Fatal(err)
	}
	const many = 10_000
	var routes []*v1alpha1.ModelRoute
	for i := range many {
		name := fmt.Sprintf("r%05d", i)
		routes = append(routes, routeAt(name, int64(many-i), v1alpha1.PoolName("missing-"+name), v1alpha1.ModelName(name)))
	}
	for range 2 { // the second time, all names are known
		s := translator.Translate(Objects{Routes: routes})
		if len(s.RouteSpecs) != MaxRoutes || s.RouteSpecs[0].Name != "r09000" {
			t.Fatalf("%d routes from %s on, want the oldest %d", len(s.RouteSpecs), s.RouteSpecs[0].Name, MaxRoutes)
		}
		if len(s.Problems) > MaxRoutes+maxRefusals {
			t.Errorf("%d problems", len(s.Problems))
		}
		if last := s.Routes[0]; len(s.Routes) != many || last.Served || !strings.Contains(last.Problems[0].Detail, "at most 1000") {
			t.Errorf("%d routes have a state; the first has %+v", len(s.Routes), last)
		}
	}
}

// TestRoutesOfPoolsElsewhere: a picker of a fleet applies the routes of its pools, also those that name one elsewhere, which say so, and
// those whose pools do not exist yet; routes of other pickers' pools are not its business.
func TestRoutesOfPoolsElsewhere(t *testing.T) {
	a, err := crdadmission.New()
	if err != nil {
		t.Fatal(err)
	}
	defaults, err := a.DefaultPolicy()
	if err != nil {
		t.Fatal(err)
	}
	translator, err := NewTranslator(Settings{Root: []byte(strings.Repeat("r", 32))}, defaults)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := a.Admit(t.Context(), []byte(`{"apiVersion":"kvasir.dev/v1alpha1","kind":"InferencePool","metadata":{"name":"here"},`+
		`"spec":{"model":{"name":"here"},"selector":{"matchLabels":{"app":"m"}}}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	here, err := crdadmission.Pool(raw)
	if err != nil {
		t.Fatal(err)
	}
	both := routeAt("both", 1, "here", "both")
	both.Spec.Rules[0].Fallback = []v1alpha1.ModelRouteFallback{{Pool: "there"}}
	s := translator.Translate(Objects{
		Pools: []*v1alpha1.InferencePool{here}, Elsewhere: map[types.NamespacedName]string{{Namespace: "default", Name: "there"}: "it is of another fleet"},
		Routes: []*v1alpha1.ModelRoute{both, routeAt("early", 1, "coming", "early"), routeAt("there", 1, "there", "there")},
	})
	var got []string
	for i := range s.RouteSpecs {
		got = append(got, s.RouteSpecs[i].Name)
	}
	if strings.Join(got, " ") != "both early" || len(s.Routes) != 2 {
		t.Errorf("routes %q, and %d states", got, len(s.Routes))
	}
	var problems []string
	for i := range s.Problems {
		problems = append(problems, s.Problems[i].Error())
	}
	slices.Sort(problems)
	if len(problems) != 2 || !strings.Contains(problems[0], `both: spec.rules[0].fallback[0].pool: Invalid value: "there": it is of another fleet`) ||
		!strings.Contains(problems[1], "early: spec.rules[0].backends[0].pool: Not found") {
		t.Errorf("problems %q", problems)
	}
}

// BenchmarkRoutes is the translation of as many routes as are applied, of one backend each.
func BenchmarkRoutes(b *testing.B) {
	var routes []*v1alpha1.ModelRoute
	for i := range MaxRoutes {
		name := fmt.Sprintf("r%05d", i)
		routes = append(routes, routeAt(name, time.Now().Unix(), "m", v1alpha1.ModelName(name)))
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, r := range routes {
			route(r)
		}
		RefusedRoutes(routes, nil)
	}
}
