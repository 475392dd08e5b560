package cluster

import (
	"context"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
)

// underLoad does something while clients ask the pool of most scenarios, and a little longer, and returns what failed.
func underLoad(ctx context.Context, do func()) []string {
	GinkgoHelper()
	return w.underLoad(ctx, poolName, do)
}

// underLoad asks the pool of a name, which serves a model of the same name.
func (w *world) underLoad(ctx context.Context, pool string, do func()) []string {
	GinkgoHelper()
	l := startLoad(ctx, "http://"+w.service(ctx, pool), pool)
	defer l.stop()
	pause(ctx, 2*time.Second)
	do()
	pause(ctx, 5*time.Second)
	return l.end()
}

// life: what is planned costs no request.
func life() {
	It("scales up and down without a failure", func(ctx SpecContext) {
		Expect(underLoad(ctx, func() {
			w.kubectl(ctx, "scale", "kvpool/"+poolName, "--replicas=5", "-n", namespace)
			w.settled(ctx, 5)
			w.kubectl(ctx, "scale", "kvpool/"+poolName, "--replicas=3", "-n", namespace)
			w.settled(ctx, 3)
		})).To(BeEmpty())
	})

	It("rolls engines out without a failure", func(ctx SpecContext) {
		before := names(w.pods(ctx, engines))
		Expect(underLoad(ctx, func() {
			w.patch(ctx, `{"spec": {"template": {"metadata": {"annotations": {"example.com/edition": "2"}}}}}`)
			w.settled(ctx, 3)
		})).To(BeEmpty())
		for _, name := range names(w.pods(ctx, engines)) {
			Expect(before).NotTo(ContainElement(name), "an old pod is still there")
		}
	})

	It("rolls pickers out without a failure", func(ctx SpecContext) {
		Expect(underLoad(ctx, func() { w.renewPickers(ctx, "2") })).To(BeEmpty())
	})

	It("loses nothing when somebody deletes an engine's pod", func(ctx SpecContext) {
		victim := w.ready(ctx, engines)[0]
		Expect(underLoad(ctx, func() {
			w.kubectl(ctx, "delete", "pod", victim.Name, "-n", namespace)
			w.settled(ctx, 3)
		})).To(BeEmpty())
	})

	It("loses nothing when a node is drained", func(ctx SpecContext) {
		const node = "kvasir-1"
		Expect(underLoad(ctx, func() {
			w.drain(ctx, node)
			w.settled(ctx, 3)
			w.kubectl(ctx, "uncordon", node)
		})).To(BeEmpty())
	})
}

func names(pods []corev1.Pod) []string {
	var all []string
	for i := range pods {
		all = append(all, pods[i].Name)
	}
	slices.SortFunc(all, strings.Compare)
	return all
}
