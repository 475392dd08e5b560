package cluster

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// watched is what the pool's engines were seen to be over a time.
type watched struct {
	// fewest that served at once, without a drain mark.
	fewest int
	made   map[types.UID]string // all that were there, with their names
	marked map[types.UID]bool   // of these, those that had the drain mark
}

// watch looks at the pool's engines again and again until it is stopped.
func (w *world) watch(ctx context.Context) (stop func() watched) {
	GinkgoHelper()
	ctx, cancel := context.WithCancel(ctx)
	seen := watched{fewest: math.MaxInt, made: map[types.UID]string{}, marked: map[types.UID]bool{}}
	served := map[types.UID]bool{}
	var done sync.WaitGroup
	done.Go(func() {
		for ; ctx.Err() == nil; pause(ctx, interval) {
			var list corev1.PodList
			if err := w.List(ctx, &list, engines); err != nil {
				continue // the next look will tell
			}
			stay := 0
			for i := range list.Items {
				p := &list.Items[i]
				if p.Namespace != w.namespace {
					continue
				}
				seen.made[p.UID] = p.Name
				_, marked := p.Labels[v1alpha1.LabelDrain]
				if marked {
					seen.marked[p.UID] = true
				}
				served[p.UID] = served[p.UID] || serves(p)
				if !marked && (serves(p) || served[p.UID] && missesProbes(p)) {
					stay++
				}
			}
			seen.fewest = min(seen.fewest, stay)
		}
	})
	return func() watched {
		cancel()
		done.Wait()
		return seen
	}
}

// missesProbes reports whether a pod has stopped to be ready a moment ago: on a busy machine, an engine can be too slow for its probes.
func missesProbes(p *corev1.Pod) bool {
	return p.DeletionTimestamp.IsZero() && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && time.Since(c.LastTransitionTime.Time) < missedFor
	})
}

// missedFor is how long a pod can miss its probes on a busy machine.
const missedFor = 20 * time.Second

// disruptions: what administrators and autoscalers do to nodes, as docs/disruption.md promises it, and to pools.
func disruptions() {
	It("loses nothing when a node is drained of an autoscaled pool, of three pods or of one", func(ctx SpecContext) {
		Expect(underLoad(ctx, func() {
			for _, size := range []int32{3, 1} {
				w.patch(ctx, `{"spec": {"replicas": null, "autoscaling": {"minReplicas": %d, "maxReplicas": %d}}}`, size, size)
				w.settled(ctx, size)
				node := w.ready(ctx, engines)[0].Spec.NodeName
				stop := w.watch(ctx)
				w.drain(ctx, node)
				w.settled(ctx, size)
				w.kubectl(ctx, "uncordon", node)
				Expect(stop().fewest).To(Equal(int(size)), "a pod was evicted before its replacement served")
			}
			w.patch(ctx, `{"spec": {"replicas": 3, "autoscaling": null}}`)
			w.settled(ctx, 3)
		})).To(BeEmpty())
	})

	for _, sign := range []struct {
		what, taint string
		first       bool // replacements serve before their pods get the mark
	}{
		{"Karpenter removes a node", "karpenter.sh/disrupted:NoSchedule", true},
		{"Cluster Autoscaler removes a node", "ToBeDeletedByClusterAutoscaler=1:NoSchedule", true},
		{"a spot node gets its notice", "aws-node-termination-handler/spot-itn=notice:NoSchedule", false},
	} {
		It("loses nothing when "+sign.what, func(ctx SpecContext) {
			node := w.ready(ctx, engines)[0].Spec.NodeName
			untaint := func(ctx SpecContext) { _, _ = w.program(ctx, "kube/kubectl", "taint", "node", node, sign.taint+"-") }
			DeferCleanup(untaint)
			there := on(node, w.pods(ctx, engines))
			Expect(underLoad(ctx, func() {
				stop := w.watch(ctx)
				w.kubectl(ctx, "taint", "node", node, sign.taint)
				if !sign.first {
					Eventually(func() int {
						return len(slices.DeleteFunc(on(node, w.pods(ctx, engines)), func(p corev1.Pod) bool { return p.Labels[v1alpha1.LabelDrain] != "" }))
					}).Should(BeZero(), "pods of a node that ends within minutes are marked at once")
				}
				Eventually(func() []corev1.Pod { return on(node, w.pods(ctx, engines)) }).Should(BeEmpty(), "they stay on the node")
				w.settled(ctx, 3)
				seen := stop()
				for _, p := range there {
					Expect(seen.marked).To(HaveKey(p.UID), "%s had no drain mark", p.Name)
				}
				if sign.first {
					Expect(seen.fewest).To(Equal(3), "a pod went before its replacement served")
				}
				untaint(ctx)
			})).To(BeEmpty())
		})
	}

	for _, way := range []struct {
		what, spec, undo string
	}{
		{"pods are replaced without surge", `{"rollout": {"maxSurge": 0, "maxUnavailable": 1}}`, `{"rollout": null}`},
		{"cordons are ignored", `{"drain": {"onCordon": "Keep"}}`, `{"drain": {"onCordon": null}}`},
	} {
		It("loses nothing when a node is drained and "+way.what, func(ctx SpecContext) {
			node := w.ready(ctx, engines)[0].Spec.NodeName
			DeferCleanup(func(ctx SpecContext) { w.kubectl(ctx, "uncordon", node) })
			DeferCleanup(func(ctx SpecContext) { w.patch(ctx, `{"spec": %s}`, way.undo) })
			w.patch(ctx, `{"spec": %s}`, way.spec)
			w.settled(ctx, 3)
			Expect(underLoad(ctx, func() {
				stop := w.watch(ctx)
				w.drain(ctx, node)
				w.settled(ctx, 3)
				Expect(stop().fewest).To(BeNumerically(">=", 2), "more than one pod was away at once")
			})).To(BeEmpty())
		})
	}

	It("keeps the engines of a node that is cordoned, if the pool says so", func(ctx SpecContext) {
		node := w.ready(ctx, engines)[0].Spec.NodeName
		before := names(w.pods(ctx, engines))
		DeferCleanup(func(ctx SpecContext) { w.patch(ctx, `{"spec": {"drain": {"onCordon": null}}}`) })
		DeferCleanup(func(ctx SpecContext) { w.kubectl(ctx, "uncordon", node) })
		w.patch(ctx, `{"spec": {"drain": {"onCordon": "Keep"}}}`)
		w.settled(ctx, 3)
		stop := w.watch(ctx)
		w.kubectl(ctx, "cordon", node)
		pause(ctx, 10*time.Second)
		Expect(stop().marked).To(BeEmpty())
		Expect(names(w.pods(ctx, engines))).To(Equal(before))
	})

	It("loses nothing when the object of a node is deleted, and the node comes back", func(ctx SpecContext) {
		w.renewPickers(ctx, "4")
		node := w.ready(ctx, engines)[0].Spec.NodeName
		there := on(node, w.pods(ctx, engines))
		DeferCleanup(func(ctx SpecContext) { w.register(ctx, node) })
		Expect(underLoad(ctx, func() {
			stop := w.watch(ctx)
			w.kubectl(ctx, "delete", "node", node)
			Eventually(func() []corev1.Pod { return on(node, w.pods(ctx, engines)) }).Should(BeEmpty(), "they stay there")
			w.settled(ctx, 3)
			seen := stop()
			for i := range there {
				Expect(seen.marked).To(HaveKey(there[i].UID), "%s had no drain mark", there[i].Name)
			}
			w.register(ctx, node)
			w.settled(ctx, 3)
		})).To(BeEmpty())
	})

	It("loses nothing when a kubelet hangs, and replaces the engines of its node first", func(ctx SpecContext) {
		// Pods of a node that does not answer are not ready, although they serve. The pickers must not all be there.
		w.renewPickers(ctx, "3")
		node := w.ready(ctx, engines)[0].Spec.NodeName
		Expect(on(node, w.pods(ctx, pickers))).To(HaveLen(1), "the pickers of a rollout do not spread")
		there := on(node, w.pods(ctx, engines))
		hung := w.kubelet(node)
		Expect(hung).To(BeNumerically(">", 1))
		DeferCleanup(func() { _ = syscall.Kill(hung, syscall.SIGCONT) })
		Expect(underLoad(ctx, func() {
			Expect(syscall.Kill(hung, syscall.SIGSTOP)).To(Succeed())
			w.kubectl(ctx, "wait", "--for=condition=Ready=Unknown", "node/"+node, "--timeout=4m")
			Eventually(func() int {
				return len(slices.DeleteFunc(w.ready(ctx, engines), func(p corev1.Pod) bool { return p.Spec.NodeName == node }))
			}).Should(Equal(3), "there are not 3 on the other node")
			Expect(syscall.Kill(hung, syscall.SIGCONT)).To(Succeed())
			w.kubectl(ctx, "wait", "--for=condition=Ready", "node/"+node, "--timeout=4m")
			w.settled(ctx, 3)
		})).To(BeEmpty())
		for _, name := range names(there) {
			Expect(names(w.pods(ctx, engines))).NotTo(ContainElement(name))
		}
	})

	It("loses nothing when the pool is deleted with --cascade=orphan and made again", func(ctx SpecContext) {
		pods, before, old := slices.Concat(names(w.pods(ctx, engines)), names(w.pods(ctx, pickers))), w.restarts(ctx), w.pool(ctx)
		Expect(underLoad(ctx, func() {
			w.kubectl(ctx, "delete", "kvpool", poolName, "-n", namespace, "--cascade=orphan", "--timeout=2m")
			Expect(w.Create(ctx, &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: poolName}, Spec: old.Spec})).To(Succeed())
			w.settled(ctx, 3)
			for _, p := range w.pods(ctx, engines) {
				Expect(metav1.GetControllerOf(&p)).To(HaveField("UID", w.pool(ctx).UID), "%s is not the new pool's", p.Name)
			}
		})).To(BeEmpty())
		Expect(slices.Concat(names(w.pods(ctx, engines)), names(w.pods(ctx, pickers)))).To(Equal(pods))
		Expect(w.restarts(ctx)).To(Equal(before), "a container was started again")
	})
}

// renewPickers rolls the pool's pickers out, after which they spread over the nodes. Each call needs another edition.
func (w *world) renewPickers(ctx context.Context, edition string) {
	GinkgoHelper()
	before := names(w.pods(ctx, pickers))
	w.patch(ctx, `{"spec": {"picker": {"pod": {"annotations": {"example.com/edition": %q}}}}}`, edition)
	Eventually(func() bool {
		return slices.ContainsFunc(names(w.pods(ctx, pickers)), func(name string) bool { return slices.Contains(before, name) })
	}).Should(BeFalse(), "old pickers are still there")
	w.settled(ctx, 3)
}

// register has a node's kubelet make the node's object where it does not exist: kubelets do so when they start.
func (w *world) register(ctx context.Context, node string) {
	GinkgoHelper()
	if slices.Contains(w.nodes(ctx), node) {
		return
	}
	kill(w.kubelet(node))
	Eventually(func() []string { return w.nodes(ctx) }).Should(ContainElement(node))
	w.kubectl(ctx, "wait", "--for=condition=Ready", "node/"+node, "--timeout=3m")
}

// drain has kubectl drain a node, until none of the pool's pods is there.
func (w *world) drain(ctx context.Context, node string) {
	GinkgoHelper()
	w.kubectl(ctx, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=4m")
	Expect(on(node, slices.Concat(w.pods(ctx, engines), w.pods(ctx, pickers)))).To(BeEmpty(), "they are still there")
}

func on(node string, pods []corev1.Pod) []corev1.Pod {
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName != node })
}

// condition of the pool, as "STATUS REASON: MESSAGE".
func (w *world) condition(ctx context.Context, kind string) string {
	GinkgoHelper()
	for _, c := range w.pool(ctx).Status.Conditions {
		if c.Type == kind {
			return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
		}
	}
	return ""
}
