package v1alpha1_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

func TestTheSchemeKnowsTheKinds(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"InferencePool", "InferencePoolList", "RoutingPolicy", "RoutingPolicyList", "ListOptions"} {
		if gvk := v1alpha1.GroupVersion.WithKind(kind); !scheme.Recognizes(gvk) {
			t.Errorf("the scheme does not know %s", gvk)
		}
	}
	if got, want := v1alpha1.Resource("inferencepools").String(), "inferencepools.kvasir.dev"; got != want {
		t.Errorf("the resource is %s, want %s", got, want)
	}
}

// What a client leaves out must not be sent as a zero, or the schema's defaults would never apply.
func TestFieldsLeftOutAreNotSent(t *testing.T) {
	cases := map[string]struct {
		object any
		want   string
	}{
		"the smallest pool": {
			object: v1alpha1.InferencePool{
				ObjectMeta: metav1.ObjectMeta{Name: "m"},
				Spec: v1alpha1.InferencePoolSpec{
					Model:    v1alpha1.Model{Name: "m"},
					Selector: v1alpha1.PodSelector{MatchLabels: map[string]v1alpha1.LabelValue{"app": "m"}},
				},
			},
			want: `{"metadata":{"name":"m"},"spec":{"model":{"name":"m"},"selector":{"matchLabels":{"app":"m"}}}}`,
		},
		"the smallest policy": {
			object: v1alpha1.RoutingPolicy{
				ObjectMeta: metav1.ObjectMeta{Name: "p"},
				Spec:       v1alpha1.RoutingPolicySpec{TargetRefs: []v1alpha1.PolicyTarget{{Name: "m"}}},
			},
			want: `{"metadata":{"name":"p"},"spec":{"targetRefs":[{"name":"m"}]}}`,
		},
		"a strategy without parameters": {
			object: v1alpha1.Strategy{Type: v1alpha1.StrategyLongestPrefix, LongestPrefix: &v1alpha1.LongestPrefix{}},
			want:   `{"type":"LongestPrefix","longestPrefix":{}}`,
		},
		"a drain deadline of zero, which is not the default": {
			object: v1alpha1.Drain{DeadlineSeconds: new(int32)},
			want:   `{"deadlineSeconds":0}`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := json.Marshal(tc.object)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// filler fills objects at random with values that JSON can hold.
func filler(seed int64) *randfill.Filler {
	return randfill.New().RandSource(rand.NewSource(seed)).NilChance(0.3).NumElements(1, 3).MaxDepth(12).Funcs(
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewQuantity(c.Int63n(1<<40)+1, resource.BinarySI)
		},
		func(at *metav1.Time, c randfill.Continue) { *at = metav1.Unix(c.Int63n(1<<32), 0) },
		func(at *metav1.MicroTime, c randfill.Continue) {
			*at = metav1.NewMicroTime(time.UnixMicro(c.Int63n(1 << 50)))
		},
		func(v *intstr.IntOrString, c randfill.Continue) {
			*v = intstr.FromInt32(c.Int31n(100))
			if c.Bool() {
				*v = intstr.FromString(strconv.Itoa(c.Intn(100)) + "%")
			}
		},
		func(f *metav1.FieldsV1, _ randfill.Continue) { *f = *metav1.NewFieldsV1(`{"f:spec":{}}`) },
	)
}

func TestObjectsSurviveJSONAndTheUnstructuredForm(t *testing.T) {
	for seed := range int64(50) {
		fill := filler(seed)
		pool, policy := &v1alpha1.InferencePool{}, &v1alpha1.RoutingPolicy{}
		fill.Fill(pool)
		fill.Fill(policy)
		roundTrip(t, seed, pool, &v1alpha1.InferencePool{}, &v1alpha1.InferencePool{})
		roundTrip(t, seed, policy, &v1alpha1.RoutingPolicy{}, &v1alpha1.RoutingPolicy{})
	}
}

func roundTrip[T runtime.Object](t *testing.T, seed int64, in, fromJSON, fromMap T) {
	t.Helper()
	raw, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, fromJSON); err != nil {
		t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(in, fromJSON) {
		t.Errorf("seed %d: JSON changed the object:\n%s", seed, cmp.Diff(in, fromJSON))
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(in)
	if err != nil {
		t.Fatal(err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, fromMap); err != nil {
		t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(in, fromMap) {
		t.Errorf("seed %d: the unstructured form changed the object:\n%s", seed, cmp.Diff(in, fromMap))
	}
	if !equality.Semantic.DeepEqual(in, in.DeepCopyObject()) {
		t.Errorf("seed %d: the deep copy differs", seed)
	}
}

// Each enum marker lists exactly the constants of its type.
func TestEnumsAreTheConstants(t *testing.T) {
	const marker = "+kubebuilder:validation:Enum="
	enums, constants := map[string][]string{}, map[string][]string{}
	files, err := filepath.Glob("*_types.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range gen.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					for _, line := range comments(gen.Doc) {
						if list, ok := strings.CutPrefix(line, marker); ok {
							enums[spec.Name.Name] = strings.Split(list, ";")
						}
					}
				case *ast.ValueSpec:
					if kind, ok := spec.Type.(*ast.Ident); ok && len(spec.Values) == 1 {
						literal := spec.Values[0].(*ast.BasicLit)
						if literal.Kind != token.STRING {
							continue
						}
						value, err := strconv.Unquote(literal.Value)
						if err != nil {
							t.Fatal(err)
						}
						constants[kind.Name] = append(constants[kind.Name], value)
					}
				}
			}
		}
	}
	// The tiers below the GPU are written with the constants of Tier.
	constants["LowerTier"] = slices.DeleteFunc(slices.Clone(constants["Tier"]), func(s string) bool { return s == "GPU" })
	if len(enums) < 25 {
		t.Errorf("only %d enums were found", len(enums))
	}
	if diff := cmp.Diff(enums, constants); diff != "" {
		t.Errorf("the markers and the constants differ (-markers +constants):\n%s", diff)
	}
}

func comments(doc *ast.CommentGroup) []string {
	if doc == nil {
		return nil
	}
	var lines []string
	for _, c := range doc.List {
		lines = append(lines, strings.TrimSpace(strings.TrimPrefix(c.Text, "//")))
	}
	return lines
}
