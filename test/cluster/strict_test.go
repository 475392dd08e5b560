package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

const (
	// strict is the namespace of testdata/strict.yaml. Its pool, of testdata/strict-pool.yaml, has strictSize engines and two pickers.
	strict     = "strict"
	strictSize = 2
	// firstUser of the range that its containers get.
	firstUser = 1000650000
	// mirror takes the place of the registry in the names of its images.
	mirror = "mirror.example/"
)

// tryStrict asks the API server whether it would make a pod of a user, 0 for none, and returns the pod.
func (w *world) tryStrict(ctx context.Context, user int) (string, error) {
	who := ""
	if user != 0 {
		who = fmt.Sprintf(`"runAsUser": %d, `, user)
	}
	return w.program(ctx, "kube/kubectl", "run", "other", "-n", strict, "--image=docker.io/kvasir/picker:dev", "--dry-run=server", "-o", "yaml",
		`--overrides={"spec": {"securityContext": {`+who+`"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}}, "containers": [{"name": "other",
		"image": "docker.io/kvasir/picker:dev", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}}`)
}

// strictness: a pool lives in a namespace in which little is allowed and much is changed. Its pods are as those of a pool
// elsewhere, and nothing is fought over.
func strictness() {
	var s *world
	Describe("in a strict namespace", Ordered, func() {
		BeforeAll(func(ctx SpecContext) {
			s = w.in(strict)
			for _, node := range w.nodes(ctx) {
				for _, program := range []string{"picker", "reporter", "vllmsim"} {
					image := "kvasir/" + program + ":dev"
					w.onNode(ctx, node, "ctr", "-n", "k8s.io", "images", "tag", "--force", "docker.io/"+image, mirror+image)
				}
			}
			w.kubectl(ctx, "apply", "-f", "testdata/strict.yaml")
			Eventually(func(g Gomega) { // the API server takes a moment to follow new policies
				made, err := w.tryStrict(ctx, 0)
				g.Expect(err).NotTo(HaveOccurred(), made)
				g.Expect(made).To(And(ContainSubstring(mirror), ContainSubstring(fmt.Sprint(firstUser))))
				refused, err := w.tryStrict(ctx, 65532)
				g.Expect(err).To(HaveOccurred())
				g.Expect(refused + err.Error()).To(ContainSubstring("outside of the namespace's range"))
			}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(time.Second).Should(Succeed())
			w.kubectl(ctx, "apply", "-f", "testdata/strict-pool.yaml")
			s.settled(ctx, strictSize)
		})
		AfterAll(func(ctx SpecContext) {
			if !CurrentSpecReport().Failed() {
				w.loosen(ctx)
			}
		})

		It("runs as a user of the namespace's range", func(ctx SpecContext) {
			Expect(s.underLoad(ctx, poolName, func() {})).To(BeEmpty())
			for word, labels := range map[string]client.MatchingLabels{"--served-model-name=": engines, "--picker-service=": engines, "--pool=": pickers} {
				for _, pod := range s.pods(ctx, labels) {
					ids := w.processes(&pod, word)
					Expect(ids).NotTo(BeEmpty(), "%s of %s", word, pod.Name)
					for _, id := range ids {
						status, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(id), "status"))
						Expect(err).NotTo(HaveOccurred())
						Expect(string(status)).To(ContainSubstring(fmt.Sprintf("\nUid:\t%d\t%[1]d\t", firstUser)), "%s of %s", word, pod.Name)
					}
				}
			}
		})

		It("leaves images alone that admission has rewritten", func(ctx SpecContext) {
			pods := slices.Concat(s.pods(ctx, engines), s.pods(ctx, pickers))
			for _, pod := range pods {
				for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
					Expect(c.Image).To(HavePrefix(mirror), "%s of %s", c.Name, pod.Name)
				}
			}
			Expect(s.underLoad(ctx, poolName, func() { pause(ctx, 10*time.Second) })).To(BeEmpty())
			after := slices.Concat(s.pods(ctx, engines), s.pods(ctx, pickers))
			Expect(names(after)).To(Equal(names(pods)))
			for i := range after {
				Expect(after[i].Generation).To(Equal(pods[i].Generation), "%s was changed", pods[i].Name)
			}
			Expect(s.condition(ctx, v1alpha1.ConditionUpToDate)).To(HavePrefix("True "))
		})

		It("works where no traffic is admitted by default", func(ctx SpecContext) {
			stop := w.enforce(ctx)
			defer stop()
			Expect(s.underLoad(ctx, poolName, func() { // all have to find each other again
				w.kubectl(ctx, "rollout", "restart", "deployment/"+poolName+"-picker", "-n", strict)
				w.kubectl(ctx, "rollout", "status", "deployment/"+poolName+"-picker", "-n", strict, "--timeout=3m")
				w.kubectl(ctx, "scale", "kvpool/"+poolName, "--replicas=3", "-n", strict)
				s.settled(ctx, 3)
				w.kubectl(ctx, "scale", "kvpool/"+poolName, "--replicas=2", "-n", strict)
				s.settled(ctx, strictSize)
			})).To(BeEmpty())
		})

		It("keeps serving with a full quota, names it, and goes on when there is room", func(ctx SpecContext) {
			before := names(s.pods(ctx, engines))
			Expect(s.underLoad(ctx, poolName, func() {
				w.kubectl(ctx, "apply", "-f", "testdata/quota.yaml")
				w.kubectl(ctx, "wait", "resourcequota/full", "-n", strict, "--for=jsonpath={.status.used.pods}=4", "--timeout=1m")
				stop := s.watch(ctx)
				s.patch(ctx, `{"spec": {"replicas": 3, "picker": {"pod": {"annotations": {"example.com/edition": "2"}}}}}`)
				Eventually(func() string { return s.condition(ctx, v1alpha1.ConditionScaled) }).Should(
					And(HavePrefix("False QuotaExceeded: "), ContainSubstring("exceeded quota: full")))
				Eventually(func() string { return s.condition(ctx, v1alpha1.ConditionPickerAvailable) }).Should(
					And(HavePrefix("False UpdateStopped: "), ContainSubstring("exceeded quota: full")))
				seen := stop()
				Expect(seen.fewest).To(Equal(strictSize))
				Expect(seen.made).To(HaveLen(strictSize))
				w.kubectl(ctx, "delete", "-f", "testdata/quota.yaml")
				s.settled(ctx, 3)
			})).To(BeEmpty())
			Expect(names(s.pods(ctx, engines))).To(ContainElements(before))
		})
	})
}

// loosen removes the strict namespace and its policies.
func (w *world) loosen(ctx context.Context) {
	GinkgoHelper()
	w.empty(ctx, strict)
	w.kubectl(ctx, "delete", "namespace", strict, "--ignore-not-found", "--timeout=4m")
	w.kubectl(ctx, "delete", "--ignore-not-found", "mutatingadmissionpolicies,mutatingadmissionpolicybindings,"+
		"validatingadmissionpolicies,validatingadmissionpolicybindings", "test-users", "test-images")
}
