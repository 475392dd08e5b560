package crdadmission

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// texts are objects that are refused for how they are written.
var texts = map[string]struct {
	text string
	want Error
}{
	"nothing": {
		text: "",
		want: Error{Problems: []Problem{{Detail: "no object"}}},
	},
	"only a comment": {
		text: "---\n# nothing here\n---\n",
		want: Error{Problems: []Problem{{Detail: "no object"}}},
	},
	"null": {
		text: "null",
		want: Error{Problems: []Problem{{Detail: "no object"}}},
	},
	"no kind": {
		text: "apiVersion: kvasir.dev/v1alpha1\nmetadata: {name: m}\n",
		want: Error{Name: "m", Problems: []Problem{{Field: "kind", Detail: "Required value: a string"}}},
	},
	"a version that is not a text": {
		text: "apiVersion: 1\nkind: InferencePool\nmetadata: {name: m}\n",
		want: Error{Kind: "InferencePool", Name: "m", Problems: []Problem{{Field: "apiVersion", Detail: "Required value: a string"}}},
	},
	"no metadata": {
		text: "apiVersion: kvasir.dev/v1alpha1\nkind: InferencePool\n",
		want: Error{Kind: "InferencePool", Problems: []Problem{{Field: "metadata", Detail: "Required value: an object with a name"}}},
	},
	"a kind of another group": {
		text: "apiVersion: v1\nkind: Secret\nmetadata: {name: m, namespace: llm}\n",
		want: Error{Kind: "Secret", Namespace: "llm", Name: "m", Problems: []Problem{{Field: "kind", Detail: `no kind "Secret" is known in version "v1"`}}},
	},
	"a version that is not served": {
		text: "apiVersion: kvasir.dev/v1\nkind: InferencePool\nmetadata: {name: m}\n",
		want: Error{Kind: "InferencePool", Name: "m", Problems: []Problem{{Field: "kind", Detail: `no kind "InferencePool" is known in version "kvasir.dev/v1"`}}},
	},
	"a field twice in JSON": {
		text: `{"apiVersion":"kvasir.dev/v1alpha1","kind":"InferencePool","metadata":{"name":"m"},"spec":{"model":{"name":"m","name":"m"},"selector":{"matchLabels":{"app":"m"}}}}`,
		want: Error{Kind: "InferencePool", Namespace: "default", Name: "m", Problems: []Problem{{Field: "spec.model.name", Detail: `duplicate field "spec.model.name"`}}},
	},
	"a field twice in YAML": {
		text: smallest + "  \nspec: {model: {name: m}, selector: {matchLabels: {app: m}}}\n",
		want: Error{Kind: "InferencePool", Namespace: "default", Name: "m", Problems: []Problem{{Detail: `yaml: unmarshal errors:  line 7: key "spec" already set in map`}}},
	},
	"two unknown fields, one in a pod template's metadata": {
		text: strings.Replace(smallest, "selector: {matchLabels: {app: m}}", "replicas: 1, gpu: 2, template: {metadata: {label: {a: b}}, spec: {containers: [{name: c}]}}", 1),
		want: Error{Kind: "InferencePool", Namespace: "default", Name: "m", Problems: []Problem{
			{Field: "spec.gpu", Detail: `unknown field "spec.gpu"`},
			{Field: "spec.template.metadata.label", Detail: `unknown field "spec.template.metadata.label"`, Meant: "labels"},
		}},
	},
	"an unknown field in metadata": {
		text: strings.Replace(smallest, "{name: m}", "{name: m, label: {a: b}}", 1),
		want: Error{Kind: "InferencePool", Namespace: "default", Name: "m", Problems: []Problem{
			{Field: "metadata.label", Detail: `unknown field "metadata.label"`},
		}},
	},
	"a name that the rule for names refuses": {
		text: strings.Replace(smallest, "{name: m}", "{name: 1a}", 1),
		want: Error{Kind: "InferencePool", Namespace: "default", Name: "1a", Problems: []Problem{
			{Detail: `Invalid value: metadata.name must be a DNS label that starts with a letter, at most 45 characters: the names of pods and Services are derived from it`},
		}},
	},
	"a name that a server would generate": {
		text: "apiVersion: kvasir.dev/v1alpha1\nkind: RoutingPolicy\nmetadata: {generateName: m-}\nspec: {targetRefs: [{name: m}]}\n",
		want: Error{Kind: "RoutingPolicy", Namespace: "default", Problems: []Problem{
			{Field: "metadata.name", Detail: "Required value: name or generateName is required (the rules cannot be checked before this is mended)"},
		}},
	},
	"no name": {
		text: strings.Replace(smallest, "{name: m}", "{}", 1),
		want: Error{Kind: "InferencePool", Namespace: "default", Problems: []Problem{
			{Field: "metadata.name", Detail: "Required value: name or generateName is required (the rules cannot be checked before this is mended)"},
		}},
	},
}

func TestTextsThatAreRefused(t *testing.T) {
	for name, tc := range texts {
		t.Run(name, func(t *testing.T) {
			obj, err := newAdmitter(t).Admit(t.Context(), []byte(tc.text), nil)
			var got *Error
			if !errors.As(err, &got) {
				t.Fatalf("got %v and the error %v, want a refusal", obj, err)
			}
			if diff := cmp.Diff(&tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestProblemsHaveOneOrder: a picker logs each problem once, so a file must not have others when it is read again.
func TestProblemsHaveOneOrder(t *testing.T) {
	text := strings.Replace(smallest, "selector: {matchLabels: {app: m}}", "selector: {matchLabels: 5}, replicas: two, picker: {replicas: x}, drain: 5, gateway: 5", 1)
	admitter, want := newAdmitter(t), ""
	for range 20 {
		_, err := admitter.Admit(t.Context(), []byte(text), nil)
		if err == nil {
			t.Fatal("admitted")
		}
		if want == "" {
			want = err.Error()
		}
		if err.Error() != want {
			t.Fatalf("it says\n%v\nand then\n%s", err, want)
		}
	}
	for _, field := range []string{"spec.drain", "spec.gateway", "spec.picker.replicas", "spec.replicas"} {
		_, rest, found := strings.Cut(want, field+": ")
		if !found {
			t.Fatalf("%s is not the next in\n%s", field, want)
		}
		want = rest
	}
}

func TestDocumentsWithoutContentDoNotCount(t *testing.T) {
	mustAdmit(t, []byte("# head\n---\n"+smallest+"---\n# end\n---\n\n"), nil)
}

func TestBrokenTextsAreRefused(t *testing.T) {
	cases := map[string]string{
		"YAML that does not parse":  "a: [",
		"a list":                    "[1, 2]",
		"a number":                  "7",
		"binary":                    "\x00\x01\xff",
		"two documents":             smallest + "---" + smallest,
		"metadata that is a list":   strings.Replace(smallest, "{name: m}", "[]", 1),
		"a name that is a number":   strings.Replace(smallest, "{name: m}", "{name: 5}", 1),
		"labels that are a list":    strings.Replace(smallest, "{name: m}", "{name: m, labels: [a]}", 1),
		"spec that is a text":       "apiVersion: kvasir.dev/v1alpha1\nkind: InferencePool\nmetadata: {name: m}\nspec: x\n",
		"no spec":                   "apiVersion: kvasir.dev/v1alpha1\nkind: InferencePool\nmetadata: {name: m}\n",
		"more than a server takes":  smallest + strings.Repeat("#", MaxObjectBytes),
		"a name that is no DNS one": strings.Replace(smallest, "{name: m}", "{name: M_}", 1),
		"a generated name":          strings.Replace(smallest, "{name: m}", "{generateName: m-}", 1),
		"aliases that explode":      "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n",
	}
	for name, text := range cases {
		t.Run(name, func(t *testing.T) {
			obj, err := newAdmitter(t).Admit(t.Context(), []byte(text), nil)
			var got *Error
			if !errors.As(err, &got) {
				t.Fatalf("got %v and the error %v, want a refusal", obj, err)
			}
			if len(got.Problems) == 0 || strings.ContainsRune(got.Error(), '\n') {
				t.Errorf("the error is %q, want problems on one line", got)
			}
		})
	}
}

func TestAnErrorNamesTheObjectAndAllProblems(t *testing.T) {
	err := &Error{Kind: "InferencePool", Namespace: "llm", Name: "m", Problems: []Problem{
		{Field: "spec.replicas", Detail: "too many"}, {Detail: "too late"},
	}}
	if got, want := err.Error(), "InferencePool llm/m is refused: spec.replicas: too many; too late"; got != want {
		t.Errorf("the error is %q, want %q", got, want)
	}
	nameless := &Error{Problems: []Problem{{Detail: "no object"}}}
	if got, want := nameless.Error(), "object is refused: no object"; got != want {
		t.Errorf("the error is %q, want %q", got, want)
	}
}
