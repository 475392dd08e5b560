package crdcel

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/test/kube"
)

// What users have stored with the first chart of the operator: few fields, and many.
const storedByUsers = `
kind: InferencePool
metadata: {name: few}
spec:
  model: {name: m}
  selector: {matchLabels: {app: m}}
---
kind: InferencePool
metadata: {name: many}
spec:
  role: Both
  model: {name: m, aliases: [alias], tokenizer: {type: Reporter, reporter: {path: /models/m}}}
  engine:
    type: VLLM
    ports: {http: 8001, events: 6000, replay: 6100}
    apiKey: {name: key, key: token}
    dataParallel: {ranks: 2, addressing: PortPerRank}
    events: {source: Reporter, reporter: {drainPort: 9555}}
  autoscaling:
    mode: Active
    minReplicas: 1
    maxReplicas: 5
    schedules: [{name: day, start: "0 8 * * 1-5", timeZone: Europe/Berlin, durationSeconds: 36000, minReplicas: 3}]
  placement:
    islandLabel: example.com/island
    islands: [{name: spot, maxReplicas: 3, nodeSelector: {capacity: spot}}, {name: base, minReplicas: 1}]
  rollout: {type: RollingUpdate, maxSurge: 25%, maxUnavailable: 1}
  drain: {deadlineSeconds: 300}
  template: {spec: {containers: [{name: vllm, image: "vllm/vllm-openai:v0.24.0", args: [--model, m]}]}}
---
kind: RoutingPolicy
metadata: {name: few}
spec:
  targetRefs: [{name: few}]
---
kind: RoutingPolicy
metadata: {name: many}
spec:
  targetRefs: [{name: many}]
  fallback: {retryOn: [ConnectFailure, ServerError]}
  admission: {holdSeconds: 20, waitBudgetMilliseconds: 5000}
`

var _ = Describe("Objects of users", Ordered, func() {
	kinds := map[string]client.Object{"InferencePool": &v1alpha1.InferencePool{}, "RoutingPolicy": &v1alpha1.RoutingPolicy{}}
	var before, now []*unstructured.Unstructured // the definitions
	var stored []*unstructured.Unstructured      // what users have made

	// define replaces the definitions, and waits until they are in force: a field shows it that only they have.
	define := func(ctx SpecContext, definitions []*unstructured.Unstructured, field string, value any) {
		GinkgoHelper()
		for _, definition := range definitions {
			live := definition.DeepCopy()
			Eventually(func(g Gomega) {
				g.Expect(server.Get(ctx, client.ObjectKeyFromObject(definition), live)).To(Succeed())
				live.Object["spec"] = definition.Object["spec"]
				g.Expect(server.Update(ctx, live)).To(Succeed())
			}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
		}
		probe := read("kind: InferencePool\nmetadata: {name: probe}\nspec: {model: {name: m}, selector: {matchLabels: {app: probe}}}")[0]
		Expect(unstructured.SetNestedField(probe.Object, value, "spec", field)).To(Succeed())
		Eventually(func() error { return server.Create(ctx, probe.DeepCopy(), client.DryRunAll) }).WithTimeout(time.Minute).Should(Succeed())
	}
	// usable is whether an object can be edited by users and by the operator.
	usable := func(ctx SpecContext, o *unstructured.Unstructured, round string) *unstructured.Unstructured {
		GinkgoHelper()
		live := o.DeepCopy()
		Expect(server.Get(ctx, client.ObjectKeyFromObject(o), live)).To(Succeed())
		live.SetLabels(map[string]string{"round": round})
		Expect(server.Update(ctx, live)).To(Succeed(), "a label of %s %s", o.GetKind(), o.GetName())
		if o.GetKind() == "InferencePool" {
			Expect(server.Status().Patch(ctx, live, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"observedGeneration":1}}`)))).
				To(Succeed(), "the status of %s", o.GetName())
		}
		return live
	}

	BeforeAll(func(ctx SpecContext) {
		before = definitionsOf(filepath.Join(kube.Root(), "test", "chart", "testdata", "kvasir-0.2.0.tgz"))
		for _, definition := range before {
			live := definition.DeepCopy()
			Expect(server.Get(ctx, client.ObjectKeyFromObject(definition), live)).To(Succeed())
			now = append(now, live)
		}
		define(ctx, before, "role", "Both")
	})
	AfterAll(func(ctx SpecContext) {
		define(ctx, now, "paused", "All")
		for _, o := range stored {
			Expect(client.IgnoreNotFound(server.Delete(ctx, o))).To(Succeed())
		}
	})

	It("that were stored with the first definitions are whole after an upgrade, and can be edited", func(ctx SpecContext) {
		stored = read(storedByUsers)
		for _, o := range stored {
			Expect(server.Create(ctx, o)).To(Succeed(), o.GetName())
		}
		define(ctx, now, "paused", "All")
		for _, o := range stored {
			live := usable(ctx, o, "upgraded")
			want, _, _ := unstructured.NestedMap(o.Object, "spec")
			delete(want, "role") // no program read it
			got, _, _ := unstructured.NestedMap(live.Object, "spec")
			for field, value := range want {
				Expect(holds(got[field], value)).To(BeTrue(), "%s %s: %s was %v and is %v", o.GetKind(), o.GetName(), field, value, got[field])
			}
			typed := kinds[o.GetKind()].DeepCopyObject()
			Expect(runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(live.Object, typed, true)).To(Succeed(), "the types have each field")
			back, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
			Expect(err).NotTo(HaveOccurred())
			Expect(holds(back["spec"], live.Object["spec"])).To(BeTrue(), "%s %s through its type: %v", o.GetKind(), o.GetName(), back["spec"])
		}
	})

	It("can be read and edited after the definitions were rolled back, also those that are newer", func(ctx SpecContext) {
		newer := read("kind: InferencePool\nmetadata: {name: newer}\nspec: {model: {name: m}, selector: {matchLabels: {app: newer}}, paused: All}\n---\n" +
			"kind: RoutingPolicy\nmetadata: {name: newer}\nspec: {targetRefs: [{name: newer}]}")
		for _, o := range newer {
			Expect(server.Create(ctx, o)).To(Succeed())
			stored = append(stored, o)
		}
		define(ctx, before, "role", "Both")
		for _, o := range stored {
			live := usable(ctx, o, "rolled-back")
			if o.GetKind() == "InferencePool" && o.GetName() != "many" {
				Expect(unstructured.SetNestedField(live.Object, int64(120), "spec", "drain", "deadlineSeconds")).To(Succeed())
				Expect(server.Update(ctx, live)).To(Succeed(), "the spec of %s", o.GetName())
			}
		}
	})

	It("can be edited after the definitions were upgraded again", func(ctx SpecContext) {
		define(ctx, now, "paused", "All")
		for _, o := range stored {
			usable(ctx, o, "upgraded-again")
		}
	})
})

// holds reports whether a value has everything of another, which can lack defaults.
func holds(got, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		got, ok := got.(map[string]any)
		for k, v := range want {
			ok = ok && holds(got[k], v)
		}
		return ok || len(want) == 0
	case []any:
		got, ok := got.([]any)
		ok = ok && len(got) == len(want)
		for i := range want {
			ok = ok && holds(got[i], want[i])
		}
		return ok
	}
	return got == want
}

// read returns the objects of a text, in the default namespace.
func read(text string) (out []*unstructured.Unstructured) {
	GinkgoHelper()
	for document := range strings.SplitSeq(text, "\n---\n") {
		o, err := decode([]byte(document))
		Expect(err).NotTo(HaveOccurred())
		o.SetGroupVersionKind(schema.GroupVersionKind{Group: "kvasir.dev", Version: "v1alpha1", Kind: o.GetKind()})
		o.SetNamespace("default")
		out = append(out, o)
	}
	return out
}

// definitionsOf returns the definitions in a packaged chart, whose templates have nothing to render but a condition around.
func definitionsOf(file string) (out []*unstructured.Unstructured) {
	GinkgoHelper()
	f, err := os.Open(file)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = f.Close() }()
	unzipped, err := gzip.NewReader(f)
	Expect(err).NotTo(HaveOccurred())
	files := tar.NewReader(unzipped)
	for {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			Expect(out).To(HaveLen(2))
			return out
		}
		Expect(err).NotTo(HaveOccurred())
		if !strings.Contains(header.Name, "/templates/crds/") {
			continue
		}
		text, err := io.ReadAll(files)
		Expect(err).NotTo(HaveOccurred())
		var lines []string
		for line := range strings.Lines(string(text)) {
			if !strings.Contains(line, "{{") {
				lines = append(lines, line)
			}
		}
		o := &unstructured.Unstructured{}
		Expect(yaml.Unmarshal([]byte(strings.Join(lines, "")), &o.Object)).To(Succeed())
		out = append(out, o)
	}
}
