package crdadmission

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// admitter is shared by all tests, as by all parts of a program.
var admitter = sync.OnceValues(New)

func newAdmitter(t testing.TB) *Admitter {
	t.Helper()
	a, err := admitter()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs, refresh it with -update (-want +got):\n%s", path, diff)
	}
}

// samples returns the example objects of the repository by file name.
func samples(t testing.TB) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob("../../../config/samples/p*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) < 5 {
		t.Fatalf("there are only %d samples", len(paths))
	}
	files := map[string][]byte{}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files[filepath.Base(path)] = raw
	}
	return files
}

func mustAdmit(t testing.TB, raw []byte, old *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	obj, err := newAdmitter(t).Admit(t.Context(), raw, old)
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

func TestSamplesAreAdmittedAndConvert(t *testing.T) {
	for name, raw := range samples(t) {
		t.Run(name, func(t *testing.T) {
			obj := mustAdmit(t, raw, nil)
			switch obj.GetKind() {
			case v1alpha1.KindInferencePool:
				pool, err := Pool(obj)
				if err != nil {
					t.Fatal(err)
				}
				sameAsJSON(t, obj, pool)
			case v1alpha1.KindRoutingPolicy:
				policy, err := Policy(obj)
				if err != nil {
					t.Fatal(err)
				}
				sameAsJSON(t, obj, policy)
			}
		})
	}
}

// sameAsJSON checks that the typed object loses nothing of the admitted one.
func sameAsJSON(t *testing.T, obj *unstructured.Unstructured, typed any) {
	t.Helper()
	raw, err := json.Marshal(typed)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if raw, err = json.Marshal(obj.Object); err != nil {
		t.Fatal(err)
	}
	var want map[string]any
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	withoutEmptyMetadata(want)
	withoutEmptyMetadata(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the typed object differs (-admitted +typed):\n%s", diff)
	}
}

// withoutEmptyMetadata removes the empty creation time that types of Kubernetes write into a template's metadata.
func withoutEmptyMetadata(object map[string]any) {
	template, ok, _ := unstructured.NestedMap(object, "spec", "template", "metadata")
	if ok && template["creationTimestamp"] == nil {
		unstructured.RemoveNestedField(object, "spec", "template", "metadata", "creationTimestamp")
	}
}

func TestTheSmallestObjectsGetAllDefaults(t *testing.T) {
	for _, name := range []string{"pool_smallest.yaml", "policy_smallest.yaml"} {
		t.Run(name, func(t *testing.T) {
			got, err := yaml.Marshal(mustAdmit(t, samples(t)[name], nil).Object)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name, got)
		})
	}
}

func TestTheDefaultPolicyIsTheSmallestOne(t *testing.T) {
	got, err := newAdmitter(t).DefaultPolicy()
	if err != nil {
		t.Fatal(err)
	}
	want, err := Policy(mustAdmit(t, samples(t)["policy_smallest.yaml"], nil))
	if err != nil {
		t.Fatal(err)
	}
	want.Spec.TargetRefs = nil
	if diff := cmp.Diff(want.Spec, got.Spec); diff != "" {
		t.Errorf("(-smallest +default):\n%s", diff)
	}
	if got.Name != "" || got.Generation != 0 {
		t.Errorf("the default policy has the name %q and the generation %d", got.Name, got.Generation)
	}
}

func TestAdmittingTheResultChangesNothing(t *testing.T) {
	for name, raw := range samples(t) {
		once := mustAdmit(t, raw, nil)
		text, err := yaml.Marshal(once.Object)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(once, mustAdmit(t, text, once)); diff != "" {
			t.Errorf("%s (-once +twice):\n%s", name, diff)
		}
	}
}

const smallest = `
apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: m}
spec: {model: {name: m}, selector: {matchLabels: {app: m}}}
`

func TestTheNamespaceIsDefaultWhereNoneIsNamed(t *testing.T) {
	if got := mustAdmit(t, []byte(smallest), nil).GetNamespace(); got != "default" {
		t.Errorf("the namespace is %q", got)
	}
}

func TestNullsAreTheSameAsAbsentFields(t *testing.T) {
	nulls := strings.Replace(smallest, "{model:", "{engine: null, drain: {deadlineSeconds: null}, replicas: null, keySpace: {secretRef: null}, model:", 1)
	if diff := cmp.Diff(mustAdmit(t, []byte(smallest), nil), mustAdmit(t, []byte(nulls), nil)); diff != "" {
		t.Errorf("(-absent +null):\n%s", diff)
	}
}

func TestTheGenerationCountsChangesOfSpec(t *testing.T) {
	first := mustAdmit(t, []byte(smallest), nil)
	labelled := mustAdmit(t, []byte(strings.Replace(smallest, "{name: m}", "{name: m, labels: {a: b}}", 1)), first)
	defaultsWritten := mustAdmit(t, []byte(strings.Replace(smallest, "{model:", "{drain: {deadlineSeconds: 600}, model:", 1)), labelled)
	changed := mustAdmit(t, []byte(strings.Replace(smallest, "{model:", "{drain: {deadlineSeconds: 0}, model:", 1)), defaultsWritten)
	var got []int64
	for _, obj := range []*unstructured.Unstructured{first, labelled, defaultsWritten, changed} {
		got = append(got, obj.GetGeneration())
	}
	if diff := cmp.Diff([]int64{1, 1, 1, 2}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestStatusIsNotTakenFromTheText(t *testing.T) {
	withStatus := []byte(smallest + "status: {replicas: 3}\n")
	obj := mustAdmit(t, withStatus, nil)
	if _, ok := obj.Object["status"]; ok {
		t.Error("a new object has a status")
	}
	old := obj.DeepCopy()
	old.Object["status"] = map[string]any{"replicas": int64(5)}
	if got := mustAdmit(t, withStatus, old).Object["status"]; !cmp.Equal(got, old.Object["status"]) {
		t.Errorf("the status is %v, want the old one", got)
	}
}

func TestArgumentsAreNotChanged(t *testing.T) {
	old := mustAdmit(t, []byte(smallest), nil)
	before := old.DeepCopy()
	raw := []byte(strings.Replace(smallest, "app: m", "app: other", 1))
	text := slices.Clone(raw)
	mustAdmit(t, raw, old)
	if diff := cmp.Diff(before, old); diff != "" {
		t.Errorf("the old object was changed (-before +after):\n%s", diff)
	}
	if !slices.Equal(text, raw) {
		t.Error("the text was changed")
	}
}

func TestTheOldStateOfAnotherObjectIsNotAccepted(t *testing.T) {
	old := mustAdmit(t, []byte(strings.Replace(smallest, "{name: m}", "{name: other}", 1)), nil)
	_, err := newAdmitter(t).Admit(t.Context(), []byte(smallest), old)
	var refused *Error
	if err == nil || errors.As(err, &refused) {
		t.Errorf("got %v, want an error that is not the object's fault", err)
	}
}

func TestObjectsOfOtherKindsAreNotKnown(t *testing.T) {
	a := newAdmitter(t)
	if !a.Knows(v1alpha1.GroupVersion.WithKind(v1alpha1.KindInferencePool)) {
		t.Error("InferencePool is not known")
	}
	if a.Knows(schema.GroupVersionKind{Version: "v1", Kind: "Secret"}) {
		t.Error("Secret is known")
	}
}

func TestConvertingTheWrongKindFails(t *testing.T) {
	obj := mustAdmit(t, []byte(smallest), nil)
	if _, err := Policy(obj); err == nil {
		t.Error("a pool became a policy")
	}
}

func TestAnAdmitterServesManyAtOnce(t *testing.T) {
	files := samples(t)
	a := newAdmitter(t)
	var group sync.WaitGroup
	for range 4 {
		for name, raw := range files {
			group.Go(func() {
				first, err := a.Admit(context.Background(), raw, nil)
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				if _, err := a.Admit(context.Background(), raw, first); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	}
	group.Wait()
}

// An admission takes milliseconds; run it with -fuzzminimizetime 5x, or minimizing takes all the time.
func FuzzAdmit(f *testing.F) {
	for _, raw := range samples(f) {
		f.Add(raw)
	}
	for _, tc := range texts {
		f.Add([]byte(tc.text))
	}
	a := newAdmitter(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		obj, err := a.Admit(t.Context(), raw, nil)
		if err != nil {
			var refused *Error
			if !errors.As(err, &refused) || len(refused.Problems) == 0 {
				t.Fatalf("an error without a problem: %v", err)
			}
			return
		}
		text, err := json.Marshal(obj.Object)
		if err != nil {
			t.Fatal(err)
		}
		again, err := a.Admit(t.Context(), text, obj)
		if err != nil {
			t.Fatalf("what was admitted is refused: %v", err)
		}
		if diff := cmp.Diff(obj, again); diff != "" {
			t.Fatalf("(-once +twice):\n%s", diff)
		}
	})
}

func BenchmarkAdmit(b *testing.B) {
	a := newAdmitter(b)
	raw := samples(b)["pool_owned.yaml"]
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.Admit(context.Background(), raw, nil); err != nil {
			b.Fatal(err)
		}
	}
}
