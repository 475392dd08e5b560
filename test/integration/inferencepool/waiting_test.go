package inferencepool_test

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// waiting is a pool whose pods wait for a scheduler, since there is none. This is enough to see what becomes of them at the API server.
type waiting struct{ key types.NamespacedName }

// create creates the pool.
func (w waiting) create(replicas int32, change func(*v1alpha1.InferencePoolSpec)) {
	GinkgoHelper()
	pool := &v1alpha1.InferencePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: w.key.Name},
		Spec: v1alpha1.InferencePoolSpec{
			Model: v1alpha1.Model{Name: "m"}, Replicas: ptr.To(replicas),
			Template: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{{
				Name: "vllm", Image: "vllm/vllm-openai:v0.24.0", Args: []string{"--model", "m"},
			}}}},
		},
	}
	change(&pool.Spec)
	Expect(api.Create(context.Background(), pool)).To(Succeed())
}

func (w waiting) get(g Gomega) *v1alpha1.InferencePool {
	pool := &v1alpha1.InferencePool{}
	g.Expect(api.Get(context.Background(), w.key, pool)).To(Succeed())
	return pool
}

func (w waiting) edit(change func(*v1alpha1.InferencePoolSpec)) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		pool := w.get(g)
		change(&pool.Spec)
		g.Expect(api.Update(context.Background(), pool)).To(Succeed())
	}).Should(Succeed())
}

// pods lists those of the pool, and has the picker know them.
func (w waiting) pods(g Gomega) []corev1.Pod {
	var list corev1.PodList
	g.Expect(api.List(context.Background(), &list, client.InNamespace(w.key.Namespace), client.MatchingLabels{v1alpha1.LabelPool: w.key.Name})).To(Succeed())
	people.see(list.Items)
	return list.Items
}

// says waits until the pool has so many pods, and a condition with a reason and parts of its message.
func (w waiting) says(n int, kind, reason string, parts ...string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(w.pods(g)).To(HaveLen(n))
		c := meta.FindStatusCondition(w.get(g).Status.Conditions, kind)
		g.Expect(c).To(HaveValue(HaveField("Reason", reason)))
		for _, part := range parts {
			g.Expect(c.Message).To(ContainSubstring(part))
		}
	}).Should(Succeed())
}

// quiet waits until the controller writes nothing any more but states, which can come late, also when it looks at the pool again.
func (w waiting) quiet() {
	GinkgoHelper()
	last, since := -1, time.Now()
	Eventually(func(g Gomega) {
		w.pods(g)
		if n := writes.beyondStatus(w.key.Namespace); n != last {
			last, since = n, time.Now()
		}
		g.Expect(time.Since(since)).To(BeNumerically(">", 2*time.Second))
	}).Should(Succeed())
	note := fmt.Appendf(nil, `{"metadata": {"annotations": {"note": "%d"}}}`, last)
	Expect(api.Patch(context.Background(), w.get(Default), client.RawPatch(types.MergePatchType, note))).To(Succeed())
	Consistently(func() int { return writes.beyondStatus(w.key.Namespace) }, "1s").Should(Equal(last))
}

// clear deletes the pool after a spec, and waits until its pods are gone.
func (w waiting) clear() {
	DeferCleanup(func() {
		Expect(api.Delete(context.Background(), w.get(Default))).To(Succeed())
		Eventually(func(g Gomega) { g.Expect(w.pods(g)).To(BeEmpty()) }).Should(Succeed())
	})
}
