package config

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

func TestTheSmallestFilesMakeAPool(t *testing.T) {
	d := open(t, "pool.yaml", smallPool, "pods.yml", smallSlice)
	s, problems := load(t, d)
	wantNoProblem(t, problems)
	spec := only(t, s)
	if spec.Namespace != "default" || spec.Name != "m" || spec.Model != "m" || spec.BlockTokens != 16 || spec.NoEvents {
		t.Errorf("unexpected pool %+v", spec)
	}
	want := []endpoint.Endpoint{{
		ID: endpoint.ID{Pod: "u0"}, Pod: "m-0", Namespace: "default", Address: "127.0.0.1:8001",
		EventsAddress: "127.0.0.1:6001", ReplayAddress: "127.0.0.1:7001", RankHeader: -1, Ready: true, Serving: true,
	}}
	if diff := cmp.Diff(want, spec.Endpoints); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
	if spec.Policy.Name != "" || spec.Policy.Strategy.Type != policy.MarginalCost {
		t.Errorf("policy %+v, want the defaults", spec.Policy)
	}
}

func TestABrokenEditKeepsTheLastGoodState(t *testing.T) {
	const broken = "broken.yaml"
	for name, tc := range map[string]struct {
		before, after string
		problem       []string
	}{
		"no YAML at all":       {smallPolicy, "spec: [", []string{"broken.yaml:1:8: reading YAML"}},
		"an unknown field":     {smallPolicy, strings.Replace(smallPolicy, "strategy:", "stratgy:", 1), []string{"RoutingPolicy default/p", "spec.stratgy", "unknown field"}},
		"an unknown value":     {smallPolicy, strings.Replace(smallPolicy, "LeastLoad", "Best", 1), []string{"RoutingPolicy default/p", "spec.strategy.type", `"Best"`}},
		"a duplicate key":      {smallPolicy, strings.Replace(smallPolicy, "spec:", "kind: RoutingPolicy\nspec:", 1), []string{"RoutingPolicy default/p", "broken.yaml:4:1: ", `"kind"`}},
		"another version":      {smallPolicy, strings.Replace(smallPolicy, "v1alpha1", "v9", 1), []string{"RoutingPolicy default/p", "apiVersion", "kvasir.dev/v9"}},
		"no name":              {smallPolicy, strings.Replace(smallPolicy, "name: p", "", 1), []string{"broken.yaml:1:1", "metadata.name"}},
		"another kind instead": {smallPolicy, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: p}\n", []string{`"Deployment"`, "apps/v1"}},
		"an empty file":        {smallPolicy, "", []string{"the file is empty"}},
		"only a comment":       {smallPolicy, "# to come\n", []string{"the file is empty"}},
		"only a blank line":    {smallPolicy, "\n", []string{"the file is empty"}},
		"only a marker":        {smallPolicy, "---\n", []string{"the file is empty"}},
		"an empty List":        {smallPolicy, "apiVersion: v1\nkind: List\nitems: []\n", []string{"the file is empty"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t, "pool.yaml", smallPool, broken, tc.before)
			s, problems := load(t, d)
			wantNoProblem(t, problems)
			before := only(t, s).Policy
			if before.Name != "p" || before.Generation != 1 {
				t.Fatalf("policy %q of generation %d, want p of 1", before.Name, before.Generation)
			}

			write(t, d.file(broken), tc.after)
			s, problems = load(t, d)
			wantProblem(t, problems, append(tc.problem, broken, "the last good state stays in force")...)
			if diff := cmp.Diff(before.Strategy, only(t, s).Policy.Strategy); diff != "" {
				t.Errorf("strategy (-before +after):\n%s", diff)
			}

			write(t, d.file(broken), strings.Replace(smallPolicy, "LeastLoad", "RoundRobin", 1))
			s, problems = load(t, d)
			wantNoProblem(t, problems)
			if got := only(t, s).Policy; got.Strategy.Type != policy.RoundRobin || got.Generation < 2 {
				t.Errorf("policy %+v after the repair, want RoundRobin of a later generation", got)
			}

			if err := os.Remove(d.file(broken)); err != nil {
				t.Fatal(err)
			}
			s, problems = load(t, d)
			wantNoProblem(t, problems)
			if got := only(t, s).Policy; got.Name != "" || got.Strategy.Type != policy.MarginalCost {
				t.Errorf("policy %+v after the file is gone, want the defaults", got)
			}
		})
	}
}

func TestABrokenDocumentDoesNotTouchItsNeighbours(t *testing.T) {
	d := open(t, "all.yaml", smallPool+"---\n"+smallPolicy+"---\n"+smallSlice)
	_, problems := load(t, d)
	wantNoProblem(t, problems)

	write(t, d.file("all.yaml"), "# a comment\n---\n"+smallPool+"---\nkind: [\n---\n"+strings.ReplaceAll(smallSlice, "m-0", "m-1"))
	s, problems := load(t, d)
	wantProblem(t, problems, "all.yaml:8:8: ", "last good")
	spec := only(t, s)
	if spec.Policy.Name != "p" {
		t.Error("the policy is gone, which may be what is broken now")
	}
	if spec.Endpoints[0].Pod != "m-1" {
		t.Errorf("pod %s, want m-1: the slice was changed well", spec.Endpoints[0].Pod)
	}

	write(t, d.file("all.yaml"), smallPool)
	s, problems = load(t, d)
	wantNoProblem(t, problems)
	if spec := only(t, s); spec.Policy.Name != "" || len(spec.Endpoints) != 0 {
		t.Error("objects stay that are not in the file any more")
	}
}

// Only what has a last good state is said to keep it.
func TestWhatWasNeverInForceIsNotSaidToStay(t *testing.T) {
	wrong := strings.NewReplacer("name: p", "name: q", "LeastLoad", "Best").Replace(smallPolicy)
	const stranger = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n"
	badSlice := strings.Replace(smallSlice, "{name: http, port: 8001}", "{name: http-1, port: 8001}", 1)
	for name, files := range map[string][]string{
		"a wrong object in a new file":               {"", wrong},
		"a wrong object beside a good one":           {smallPool, smallPool + "---\n" + wrong},
		"an object of another kind beside a good":    {smallPool, smallPool + "---\n" + stranger},
		"no YAML beside a good object":               {smallPool, smallPool + "---\nkind: [\n"},
		"a slice that never gave endpoints":          {smallPool + "---\n" + badSlice, smallPool + "---\n# again\n" + badSlice},
		"a pool that was never served, now refused":  {poolWith("keySpace: {secretRef: {name: none}}"), poolWith("keySpace: {secretRef: {nam: none}}")},
		"a directory without objects that goes away": {"", "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t, "all.yaml", files[0])
			load(t, d)
			if files[1] == "gone" {
				if err := os.RemoveAll(d.path); err != nil {
					t.Fatal(err)
				}
			} else {
				write(t, d.file("all.yaml"), files[1])
			}
			_, problems := load(t, d)
			if len(problems) == 0 || strings.Contains(strings.Join(problems, "\n"), "last good") {
				t.Errorf("problems %q, want some, and none that says that a last good state stays", problems)
			}
		})
	}
}

func TestAnImmutableFieldKeepsItsValue(t *testing.T) {
	d := open(t, "pool.yaml", smallPool)
	load(t, d)
	write(t, d.file("pool.yaml"), strings.Replace(smallPool, "model: {name: m}", "model: {name: other}", 1))
	s, problems := load(t, d)
	wantProblem(t, problems, "pool.yaml", "InferencePool default/m", "spec.model.name", "immutable")
	if got := only(t, s).Model; got != "m" {
		t.Errorf("model %q, want m", got)
	}
}

func TestAFileThatCannotBeReadKeepsItsObjects(t *testing.T) {
	d := open(t, "pool.yaml", smallPool, "pods.yaml", smallSlice)
	load(t, d)
	if err := os.Remove(d.file("pods.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", d.file("pods.yaml")); err != nil {
		t.Fatal(err)
	}
	s, problems := load(t, d)
	wantProblem(t, problems, "pods.yaml", "no such file")
	if n := len(only(t, s).Endpoints); n != 1 {
		t.Errorf("%d endpoints, want 1", n)
	}
}

func TestADirectoryThatGoesAwayKeepsItsObjects(t *testing.T) {
	d := open(t, "pool.yaml", smallPool)
	load(t, d)
	if err := os.RemoveAll(d.path); err != nil {
		t.Fatal(err)
	}
	s, problems := load(t, d)
	wantProblem(t, problems, "reading the directory", "last good")
	only(t, s)
	if _, changed := d.Load(t.Context()); changed {
		t.Error("the same state is reported twice")
	}
	if err := os.Mkdir(d.path, 0o700); err != nil {
		t.Fatal(err)
	}
	s, problems = load(t, d)
	wantNoProblem(t, problems)
	if len(s.Specs) != 0 {
		t.Error("the pool stays though its directory is back without it")
	}
}

func TestAnObjectStandsInOneFile(t *testing.T) {
	other := strings.Replace(smallPolicy, "LeastLoad", "Random", 1)
	d := open(t, "pool.yaml", smallPool, "b.yaml", smallPolicy)
	load(t, d)
	write(t, d.file("a.yaml"), other)
	s, problems := load(t, d)
	wantProblem(t, problems, "a.yaml:1:1: RoutingPolicy default/p", "b.yaml, line 1")
	if got := only(t, s).Policy.Strategy.Type; got != policy.LeastLoad {
		t.Errorf("strategy %s, want that of the file that was first", got)
	}
	if err := os.Remove(d.file("b.yaml")); err != nil {
		t.Fatal(err)
	}
	s, problems = load(t, d)
	wantNoProblem(t, problems)
	if got := only(t, s).Policy.Strategy.Type; got != policy.Random {
		t.Errorf("strategy %s, want that of the file that is left", got)
	}
}

func TestFilesThatAreNotRead(t *testing.T) {
	d := open(t, "pool.yaml", smallPool, ".hidden.yaml", "kind: [", "pool.yaml~", "kind: [", "notes.txt", "kind: [")
	if err := os.Mkdir(d.file("more.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	s, problems := load(t, d)
	wantNoProblem(t, problems)
	only(t, s)
}

func TestJSONIsReadToo(t *testing.T) {
	d := open(t, "all.json", `{"apiVersion":"kvasir.dev/v1alpha1","kind":"InferencePool","metadata":{"name":"m"},
	"spec":{"model":{"name":"m"},"selector":{"matchLabels":{"app":"m"}}}}
	{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"a":"b"}}`)
	s, problems := load(t, d)
	wantNoProblem(t, problems)
	only(t, s)

	write(t, d.file("all.json"), `{"apiVersion":"kvasir.dev/v1alpha1","kind":"InferencePool","metadata":{"name":"m"},
	"spec":{"model":{"name":"m"},"model":{"name":"n"},"selector":{"matchLabels":{"app":"m"}}}}`)
	_, problems = load(t, d)
	wantProblem(t, problems, "all.json:2:10", "InferencePool default/m", "spec.model", "duplicate")
}

func TestNewDirectoryNeedsADirectory(t *testing.T) {
	d := open(t, "pool.yaml", smallPool)
	for _, path := range []string{d.file("none"), d.file("pool.yaml")} {
		if _, err := NewDirectory(path, Settings{Root: testRoot}, d.log); err == nil {
			t.Errorf("NewDirectory(%s) works", path)
		}
	}
}
