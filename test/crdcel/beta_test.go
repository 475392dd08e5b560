package crdcel

import (
	"maps"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/config/crd"
)

// changedSince has the fields that have been added to v1alpha1 since storedByUsers.
const changedSince = `
kind: InferencePool
metadata: {name: changed}
spec:
  model: {name: m}
  paused: All
  replicas: 2
  engine:
    type: VLLM
    flags: Inject
    clientAuth: PassThrough
    apiKey: {name: key, key: token}
    networkPolicy: {mode: Closed, from: [{podSelector: {matchLabels: {app: prometheus}}}, {ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]}
    events: {source: Reporter, reporter: {batchMilliseconds: 20, resources: {limits: {cpu: "1", memory: 128Mi}}}}
  placement: {islands: [{name: here, latencyMilliseconds: 5}, {name: away}]}
  rollout: {maxSurge: 0, maxUnavailable: 1, progressDeadlineSeconds: 900}
  drain: {deadlineSeconds: 120, onCordon: Keep, nodeNotReadySeconds: 120}
  picker:
    replicas: 2
    island: here
    compatibilityMetrics: Enabled
    decisionLog: {size: 8Mi}
    usageRecords: {file: {size: 8Mi}}
    tracing: {endpoint: "https://collector:4317", samplePercent: 10}
  template: {spec: {containers: [{name: vllm, image: "vllm/vllm-openai:v0.24.0", args: [--model, m]}]}}
---
kind: RoutingPolicy
metadata: {name: changed}
spec:
  targetRefs: [{name: changed}]
  fallback: {retryOn: [ConnectFailure, Reset, Stall, BrokenStream]}
  admission: {holdSeconds: 20, waitBudgetMilliseconds: 250}
  decisions: {answerHeaders: Always, logPercent: 100}
`

// statusOfPool has what conversions between versions must keep of the states that operators have written.
const statusOfPool = `
conditions: [{type: Accepted, status: "False", reason: NameTaken, message: Pod m-x-0, lastTransitionTime: "2026-11-01T00:00:00Z", observedGeneration: 1}]
observedGeneration: 1
desiredReplicas: 2
replicas: 1
selector: kvasir.dev/pool=m,!kvasir.dev/drain
injected: [reporter, readinessProbe]
islands: [{name: spot, replicas: 1, readyReplicas: 0, pendingReplicas: 1, state: Available}]
pods: [{name: m-x-1, stage: Ended, reason: OOMKilled, message: exit code 137, since: "2026-11-01T00:00:00Z"}]
`

// The plan of docs/api-stability.md: v1beta1 has the schema of v1alpha1, and the API server changes nothing but the version. The
// definitions have a group of their own here, so that the others stay as they are.
var _ = Describe("A version v1beta1 beside v1alpha1", Ordered, func() {
	const group = "next.kvasir.dev"
	alpha, beta := schema.GroupVersion{Group: group, Version: "v1alpha1"}, schema.GroupVersion{Group: group, Version: "v1beta1"}
	contents := map[string]map[string]any{} // of each object at the beginning, without metadata and version
	kinds := map[string]bool{}

	content := func(o *unstructured.Unstructured) map[string]any {
		out := maps.Clone(o.Object)
		for _, field := range []string{"metadata", "apiVersion"} {
			delete(out, field)
		}
		return out
	}
	// all returns the objects in a version, by kind and name. They must have the contents that they had at the beginning.
	all := func(ctx SpecContext, version schema.GroupVersion) []*unstructured.Unstructured {
		GinkgoHelper()
		var out []*unstructured.Unstructured
		got := map[string]map[string]any{}
		for kind := range kinds {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(version.WithKind(kind + "List"))
			Expect(server.List(ctx, list)).To(Succeed())
			for i := range list.Items {
				o := &list.Items[i]
				Expect(o.GroupVersionKind()).To(Equal(version.WithKind(kind)))
				out = append(out, o)
				got[kind+" "+o.GetName()] = content(o)
			}
		}
		Expect(got).To(Equal(contents))
		return out
	}
	// store makes a version the one that objects are stored in.
	store := func(ctx SpecContext, version string) {
		GinkgoHelper()
		definitions, err := crd.Definitions()
		Expect(err).NotTo(HaveOccurred())
		for _, definition := range definitions {
			definition.Name, definition.Spec.Group = definition.Spec.Names.Plural+"."+group, group
			next := definition.Spec.Versions[0].DeepCopy()
			next.Name = beta.Version
			definition.Spec.Versions = append(definition.Spec.Versions, *next)
			for i := range definition.Spec.Versions {
				definition.Spec.Versions[i].Storage = definition.Spec.Versions[i].Name == version
			}
			object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(definition)
			Expect(err).NotTo(HaveOccurred())
			o := &unstructured.Unstructured{Object: object}
			o.SetAPIVersion("apiextensions.k8s.io/v1")
			o.SetKind("CustomResourceDefinition")
			Expect(server.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("test"), client.ForceOwnership)).To(Succeed())
			Eventually(func(g Gomega) {
				g.Expect(server.Get(ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
				stored, _, _ := unstructured.NestedStringSlice(o.Object, "status", "storedVersions")
				g.Expect(stored).To(ContainElement(version))
				for _, served := range []schema.GroupVersion{alpha, beta} {
					list := &unstructured.UnstructuredList{}
					list.SetGroupVersionKind(served.WithKind(definition.Spec.Names.Kind + "List"))
					g.Expect(server.List(ctx, list)).To(Succeed())
				}
			}).WithTimeout(time.Minute).Should(Succeed())
		}
	}
	// rewrite has each object written in a version, with a label that says so.
	rewrite := func(ctx SpecContext, version schema.GroupVersion, round string) {
		GinkgoHelper()
		for _, o := range all(ctx, version) {
			o.SetLabels(map[string]string{"round": round})
			Expect(server.Update(ctx, o)).To(Succeed(), "%s %s", o.GetKind(), o.GetName())
		}
	}

	BeforeAll(func(ctx SpecContext) {
		store(ctx, alpha.Version)
		var status map[string]any
		Expect(yaml.Unmarshal([]byte(statusOfPool), &status)).To(Succeed())
		for _, o := range append(read(storedByUsers), read(changedSince)...) {
			o.SetGroupVersionKind(alpha.WithKind(o.GetKind()))
			unstructured.RemoveNestedField(o.Object, "spec", "role") // it was removed before
			Expect(server.Create(ctx, o)).To(Succeed(), "%s %s", o.GetKind(), o.GetName())
			if o.GetKind() == "InferencePool" {
				o.Object["status"] = runtime.DeepCopyJSONValue(status)
				Expect(server.Status().Update(ctx, o)).To(Succeed())
			}
			kinds[o.GetKind()] = true
			contents[o.GetKind()+" "+o.GetName()] = content(o)
		}
	})

	It("keeps each field when objects are written in it, stored in it, and written in v1alpha1 again", func(ctx SpecContext) {
		rewrite(ctx, beta, "1")
		store(ctx, beta.Version)
		rewrite(ctx, alpha, "2")
		all(ctx, beta)
	})
})
