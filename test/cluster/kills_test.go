package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/internal/cli/doctor"
)

// kills: what dies costs no more than what it was doing.
func kills() {
	// Requests that a process carries when it is killed are lost, and no others: at most one of each client.
	for _, k := range []struct {
		what, container, word string
		labels                client.MatchingLabels
		most                  int
	}{
		{"a picker", "picker", "--pool=", pickers, clients},
		{"the operator", "manager", "--picker-image=", operators, 0},
		{"a reporter", "kvasir-reporter", "--picker-service=", engines, 0},
		{"an engine", "vllm", "--served-model-name=", engines, clients},
	} {
		It(fmt.Sprintf("outlives the kill of %s, at %d requests at most", k.what, k.most), func(ctx SpecContext) {
			victim := w.ready(ctx, k.labels)[0]
			failures := underLoad(ctx, func() {
				before := restarts(&victim, k.container)
				processes := w.processes(&victim, k.word)
				Expect(processes).To(HaveLen(1))
				kill(processes[0])
				Eventually(func() int32 {
					var p corev1.Pod
					Expect(w.Get(ctx, client.ObjectKeyFromObject(&victim), &p)).To(Succeed())
					return restarts(&p, k.container)
				}).Should(BeNumerically(">", before), "the kubelet has not started it again")
				w.settled(ctx, 3)
			})
			Expect(len(failures)).To(BeNumerically("<=", k.most))
			if k.container == "vllm" {
				Expect(slices.DeleteFunc(failures, func(f string) bool { return strings.Contains(f, begun) })).To(BeEmpty(), "they could be sent to another engine")
			}
		})
	}

	It("loses nothing when a kubelet is killed and comes back", func(ctx SpecContext) {
		const node = "kvasir-1"
		before := w.restarts(ctx)
		Expect(underLoad(ctx, func() {
			old := w.kubelet(node)
			kill(old)
			Eventually(func() int { return w.kubelet(node) }).ShouldNot(Or(Equal(0), Equal(old)))
			w.kubectl(ctx, "wait", "--for=condition=Ready", "node/"+node, "--timeout=3m")
			w.settled(ctx, 3)
		})).To(BeEmpty())
		Expect(w.restarts(ctx)).To(Equal(before), "a container was started again")
	})

	It("goes on when the network between a picker and an engine is cut, and heals", func(ctx SpecContext) {
		picker, engine := w.ready(ctx, pickers)[0], w.ready(ctx, engines)[0]
		inside := w.processes(&picker, "--pool=")
		Expect(inside).To(HaveLen(1))
		reached := func() bool { return reaches(ctx, inside[0], engine.Status.PodIP+" 8000") }
		failures := underLoad(ctx, func() {
			Expect(reached()).To(BeTrue(), "before the cut")
			w.cut(ctx, &picker, &engine)
			DeferCleanup(func(ctx SpecContext) { w.heal(ctx, &picker) })
			Expect(reached()).To(BeFalse(), "nothing is cut")
			cut := time.Now()
			pause(ctx, 5*time.Second)
			Eventually(func() []doctor.Result { return unwell(w.doctor(ctx), "events") }).WithTimeout(time.Minute).Should(Not(BeEmpty()), "doctor finds all streams well")
			GinkgoWriter.Printf("doctor has found it after %s\n", time.Since(cut).Round(time.Second))
			w.heal(ctx, &picker)
			Eventually(reached).Should(BeTrue(), "after the cut")
			w.settled(ctx, 3)
		})
		Expect(len(failures)).To(BeNumerically("<=", clients), "only what was under way there may be lost")
		Expect(underLoad(ctx, func() { pause(ctx, 5*time.Second) })).To(BeEmpty(), "after the cut")
	})
}

func restarts(p *corev1.Pod, container string) int32 {
	for _, list := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
		for i := range list {
			if list[i].Name == container {
				return list[i].RestartCount
			}
		}
	}
	return 0
}

// restarts of all containers of the pool, by pod and container.
func (w *world) restarts(ctx context.Context) map[string]int32 {
	GinkgoHelper()
	counts := map[string]int32{}
	for _, labels := range []client.MatchingLabels{engines, pickers} {
		for _, p := range w.pods(ctx, labels) {
			for _, c := range []string{"vllm", "kvasir-reporter", "picker"} {
				counts[string(p.UID)+"/"+c] = restarts(&p, c)
			}
		}
	}
	return counts
}

// cutTable is the table of rules that drop what two pods send each other.
const cutTable = "kvasir_test_cut"

func (w *world) cut(ctx context.Context, picker, engine *corev1.Pod) {
	GinkgoHelper()
	a, b := picker.Status.PodIP, engine.Status.PodIP
	w.onNode(ctx, picker.Spec.NodeName, "nft", strings.Join([]string{
		"add table ip " + cutTable,
		"add chain ip " + cutTable + " forward { type filter hook forward priority -10; }",
		"add rule ip " + cutTable + " forward ip saddr " + a + " ip daddr " + b + " drop",
		"add rule ip " + cutTable + " forward ip saddr " + b + " ip daddr " + a + " drop",
	}, "; "))
}

func (w *world) heal(ctx context.Context, picker *corev1.Pod) {
	GinkgoHelper()
	w.onNode(ctx, picker.Spec.NodeName, "nft", "add table ip "+cutTable+"; delete table ip "+cutTable)
}
