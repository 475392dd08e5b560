package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// apart is the namespace of testdata/roles.yaml.
const apart = "apart"

// two is the spec of a pool with so many pods that prefill, and so many that decode.
func two(prefill, decode int) string {
	return fmt.Sprintf(`{"spec": {"replicas": null, "roles": [{"name": "Prefill", "replicas": %d}, {"name": "Decode", "replicas": %d}]}}`, prefill, decode)
}

// roles: a pool whose pods prefill and decode apart.
func roles() {
	Context("with roles", Ordered, func() {
		var a *world
		BeforeAll(func(ctx SpecContext) {
			w.kubectl(ctx, "apply", "-f", "testdata/roles.yaml")
			DeferCleanup(func(ctx SpecContext) {
				a.empty(ctx, apart)
				w.kubectl(ctx, "delete", "namespace", apart, "--ignore-not-found", "--timeout=3m")
			})
			a = w.in(apart)
			a.hasRoles(ctx, 0, 0, 3)
		})

		It("splits the pods of a pool into two roles without a failure, and hands prompts over", func(ctx SpecContext) {
			Expect(a.underLoad(ctx, poolName, func() {
				a.patch(ctx, "%s", two(1, 2))
				a.hasRoles(ctx, 1, 2, 0)
			})).To(BeEmpty())
			Expect(a.underLoad(ctx, poolName, func() { a.handsOver(ctx) })).To(BeEmpty())
			Expect(a.did(ctx, "status", poolName)).To(ContainSubstring("roles: Prefill 1/1, Decode 2/2"))
		})

		It("scales each role without a failure", func(ctx SpecContext) {
			before := names(a.engines(ctx, poolName))
			Expect(a.underLoad(ctx, poolName, func() {
				a.patch(ctx, "%s", two(2, 3))
				a.hasRoles(ctx, 2, 3, 0)
				for _, name := range before {
					Expect(names(a.engines(ctx, poolName))).To(ContainElement(name), "a size is no rollout")
				}
				a.patch(ctx, "%s", two(1, 2))
				a.hasRoles(ctx, 1, 2, 0)
			})).To(BeEmpty())
		})

		It("rolls both roles out without a failure, and keeps pairs", func(ctx SpecContext) {
			before := names(a.engines(ctx, poolName))
			watched, stop := context.WithCancel(ctx)
			alone := make(chan []string, 1)
			go func() { alone <- a.withoutPartners(watched) }()
			failures := a.underLoad(ctx, poolName, func() {
				a.patch(ctx, `{"spec": {"template": {"metadata": {"annotations": {"example.com/edition": "2"}}}}}`)
				a.hasRoles(ctx, 1, 2, 0)
				a.handsOver(ctx)
			})
			stop()
			Expect(<-alone).To(BeEmpty(), "no revision had a pair")
			Expect(failures).To(BeEmpty())
			for _, name := range names(a.engines(ctx, poolName)) {
				Expect(before).NotTo(ContainElement(name), "an old pod is still there")
			}
		})

		It("loses nothing when an engine that only prefills is killed", func(ctx SpecContext) {
			Expect(a.underLoad(ctx, poolName, func() {
				all := a.engines(ctx, poolName)
				i := slices.IndexFunc(all, func(p corev1.Pod) bool { return p.Labels[v1alpha1.LabelRole] == "prefill" })
				before := restarts(&all[i], "vllm")
				processes := a.processes(&all[i], "--served-model-name=")
				Expect(processes).To(HaveLen(1))
				kill(processes[0])
				Eventually(func() int32 {
					var p corev1.Pod
					Expect(w.Get(ctx, client.ObjectKeyFromObject(&all[i]), &p)).To(Succeed())
					return restarts(&p, "vllm")
				}).Should(BeNumerically(">", before))
				a.hasRoles(ctx, 1, 2, 0)
				a.handsOver(ctx)
			})).To(BeEmpty(), "requests are sent again or served alone")
		})

		It("makes pods without roles of them again without a failure", func(ctx SpecContext) {
			Expect(a.underLoad(ctx, poolName, func() {
				a.patch(ctx, `{"spec": {"roles": null, "replicas": 3}}`)
				a.hasRoles(ctx, 0, 0, 3)
			})).To(BeEmpty())
		})
	})
}

// hasRoles waits until the pool has so many pods that prefill, that decode, and without a role, which are of its newest revision and all
// serve.
func (w *world) hasRoles(ctx context.Context, prefill, decode, whole int) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		p, got := w.pool(ctx), map[string]int{}
		pods := w.engines(ctx, poolName)
		for i := range pods {
			g.Expect(serves(&pods[i])).To(BeTrue(), pods[i].Name)
			g.Expect(pods[i].Name).To(HavePrefix(p.Status.UpdateRevision))
			g.Expect(pods[i].Labels).NotTo(HaveKey(v1alpha1.LabelDrain))
			got[pods[i].Labels[v1alpha1.LabelRole]]++
		}
		g.Expect([]int{got["prefill"], got["decode"], got[""], len(pods)}).To(Equal([]int{prefill, decode, whole, prefill + decode + whole}))
		g.Expect(p.Status.ObservedGeneration).To(Equal(p.Generation))
		g.Expect(p.Status.CurrentRevision).To(Equal(p.Status.UpdateRevision))
		g.Expect(synced(&p.Status, int32(len(pods)))).To(BeTrue())
		text, err := json.Marshal(p.Status.Roles)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(strings.Contains(string(text), "Prefill")).To(Equal(prefill > 0), "%s", text)
	}).Should(Succeed())
}

// handsOver waits until more prompts have been handed over.
func (w *world) handsOver(ctx context.Context) {
	GinkgoHelper()
	before := w.handedOver(ctx)
	Eventually(func() int { return w.handedOver(ctx) }).Should(BeNumerically(">", before+5), "no prompts are handed over")
}

// handedOver is how many hand-offs the pickers have completed.
func (w *world) handedOver(ctx context.Context) int {
	GinkgoHelper()
	n := 0
	token := w.kubectl(ctx, "create", "token", "metrics", "--namespace="+w.namespace)
	for _, p := range w.ready(ctx, pickers) {
		for line := range strings.Lines(fetch(ctx, "https://"+p.Status.PodIP+":9090/metrics", token)) {
			if strings.HasPrefix(line, "kvasir_handoffs_total{") && strings.Contains(line, `outcome="completed"`) {
				var one float64
				_, err := fmt.Sscan(line[strings.LastIndexByte(line, ' '):], &one)
				Expect(err).NotTo(HaveOccurred())
				n += int(one)
			}
		}
	}
	return n
}

// withoutPartners looks at the pool until ctx ends, and returns each state in which no revision had both pods that decode and pods that
// prefill.
func (w *world) withoutPartners(ctx context.Context) (found []string) {
	for ; ctx.Err() == nil; pause(ctx, interval) {
		var list corev1.PodList
		if w.List(ctx, &list, client.InNamespace(w.namespace), client.MatchingLabels{v1alpha1.LabelPool: poolName}) != nil {
			continue
		}
		decode, prefill := map[string]int{}, map[string]int{}
		for i := range list.Items {
			p := &list.Items[i]
			if _, drains := p.Labels[v1alpha1.LabelDrain]; drains || !serves(p) {
				continue
			}
			if p.Labels[v1alpha1.LabelRole] == "prefill" {
				prefill[p.Labels[v1alpha1.LabelRevision]]++
			} else {
				decode[p.Labels[v1alpha1.LabelRevision]]++
			}
		}
		pairs := 0
		for revision := range decode {
			if prefill[revision] > 0 {
				pairs++
			}
		}
		if len(decode) > 0 && pairs == 0 {
			found = append(found, fmt.Sprintf("decode %v, prefill %v", decode, prefill))
		}
	}
	return found
}
