package workload

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// FuzzInject: what is written can be read again, with the same documents, and then nothing is left to be added.
func FuzzInject(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) < 4 {
		f.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("kind: List\nitems: [{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: vllm, image: vllm}]}}, 1, {kind: PodList, items: [{}]}]"))
	f.Add([]byte("apiVersion: apps/v1\nkind: Deployment\nmetadata: []\nspec: {template: {spec: {containers: {}}}}"))
	f.Add([]byte("--- # a comment\n{\"apiVersion\": 1, \"kind\": [\"Pod\"]}\n---\n\n---\nkind: Pod\napiVersion: v1\nspec: null\n"))
	of := pool(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		o := options(t)
		o.Pool = func(context.Context, types.NamespacedName) (*v1alpha1.InferencePool, error) {
			return of.DeepCopy(), nil
		}
		var once, twice bytes.Buffer
		results, err := Inject(t.Context(), bytes.NewReader(text), &once, o)
		if err != nil {
			return
		}
		again, err := Inject(t.Context(), bytes.NewReader(once.Bytes()), &twice, o)
		if err != nil || len(again) != len(results) {
			t.Fatalf("%d results, then %d, %v:\n%s", len(results), len(again), err, &once)
		}
		for i, r := range again {
			if r.Object != results[i].Object || len(r.Added) > 0 {
				t.Errorf("%s was %s, and gets %v the second time:\n%s", r.Object, results[i].Object, r.Added, &once)
			}
		}
		if diff := cmp.Diff(once.String(), twice.String()); diff != "" {
			t.Errorf("the second time (-once +twice):\n%s", diff)
		}
	})
}
