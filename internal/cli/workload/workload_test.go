package workload

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files")

// options find the pool of the tests in the cluster.
func options(t testing.TB) Options {
	return Options{
		Name: "llama", Namespace: "llm", Version: "v1",
		Image: func(context.Context) (string, error) { return "kvasir/reporter:v1", nil },
		Pool: func(_ context.Context, name types.NamespacedName) (*v1alpha1.InferencePool, error) {
			if name != (types.NamespacedName{Namespace: "llm", Name: "llama"}) {
				t.Errorf("asked for %s", name)
			}
			return pool(t), nil
		},
	}
}

func pool(t testing.TB) *v1alpha1.InferencePool {
	p, err := admitted(t.Context(), document{raw: []byte(`{"apiVersion":"kvasir.dev/v1alpha1","kind":"InferencePool",
		"metadata":{"name":"llama","namespace":"llm"},"spec":{"model":{"name":"m"},"selector":{"matchLabels":{"app":"llama"}}}}`)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestGolden compares complete manifests, and the report about them.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			o := options(t)
			if strings.Contains(string(text), "kind: InferencePool") {
				o.Name, o.Pool = "", nil // it is in the file
			}
			var out bytes.Buffer
			results, err := Inject(t.Context(), bytes.NewReader(text), &out, o)
			if err != nil {
				t.Fatal(err)
			}
			got := out.String()
			again := bytes.Buffer{}
			if _, err = Inject(t.Context(), &out, &again, o); err != nil || again.String() != got {
				t.Errorf("the second time: %v, %s", err, cmp.Diff(got, again.String()))
			}
			for _, r := range results {
				got += fmt.Sprintf("# %s\n# added: %s\n", r.Object, strings.Join(r.Added, ", "))
				for _, n := range r.Notes {
					got += "# note: " + n + "\n"
				}
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestWhatIsRefused: nothing is written then.
func TestWhatIsRefused(t *testing.T) {
	deployment := func(more string) string {
		return `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"template":{"spec":{"containers":[{"name":"vllm"}]` + more + `}}}}`
	}
	for name, tc := range map[string]struct {
		text   string
		change func(*Options, *v1alpha1.InferencePool)
		want   string
	}{
		"no workload":                 {`{"apiVersion":"v1","kind":"Service"}`, nil, "no workload"},
		"nothing":                     {``, nil, "no workload"},
		"no YAML":                     {"a: [", nil, "document 1"},
		"a field that is unknown":     {deployment(`,"hostNetwrk":true`), nil, "hostNetwrk"},
		"another namespace":           {strings.Replace(deployment(""), `"d"`, `"d","namespace":"other"`, 1), nil, `namespace "other"`},
		"no template":                 {`{"apiVersion":"apps/v1","kind":"Deployment","spec":{}}`, nil, "no template"},
		"no engine":                   {deployment(""), func(_ *Options, p *v1alpha1.InferencePool) { p.Spec.Engine.ContainerName = "engine" }, `container "engine"`},
		"a pool that is not told":     {deployment(""), func(o *Options, _ *v1alpha1.InferencePool) { o.Name = "" }, "--pool"},
		"a pool that owns its pods":   {deployment(""), func(_ *Options, p *v1alpha1.InferencePool) { p.Spec.Selector = v1alpha1.PodSelector{} }, "makes its pods itself"},
		"a pool that hears none":      {deployment(""), func(_ *Options, p *v1alpha1.InferencePool) { p.Spec.Engine.Events.Source = v1alpha1.EventsSubscribe }, "Subscribe"},
		"two pools and none is named": {poolText("a") + "---\n" + poolText("b") + "---\n" + deployment(""), func(o *Options, _ *v1alpha1.InferencePool) { o.Name = "" }, "more than one"},
	} {
		t.Run(name, func(t *testing.T) {
			o, p := options(t), pool(t)
			p.ObjectMeta = metav1.ObjectMeta{Name: "llama", Namespace: "llm"}
			if tc.change != nil {
				tc.change(&o, p)
			}
			o.Pool = func(context.Context, types.NamespacedName) (*v1alpha1.InferencePool, error) { return p, nil }
			var out bytes.Buffer
			_, err := Inject(t.Context(), strings.NewReader(tc.text), &out, o)
			if err == nil || !strings.Contains(err.Error(), tc.want) || out.Len() > 0 {
				t.Errorf("error %v, output %q", err, out.String())
			}
		})
	}
}

func poolText(name string) string {
	return `{"apiVersion":"kvasir.dev/v1alpha1","kind":"InferencePool","metadata":{"name":"` + name + `","namespace":"llm"},"spec":{"model":{"name":"m"},"selector":{"matchLabels":{"app":"x"}}}}` + "\n"
}
