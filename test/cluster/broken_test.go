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

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// broken: what does not run does not take the place of what does, is named, and is got rid of by going back.
func broken() {
	for _, b := range []struct {
		what, change, back string // of the template's spec, as JSON patches
		says, stops        string // PodsHealthy and UpToDate; empty for what they do not show within seconds
		most               int    // new pods
	}{
		{"whose image does not exist", `{"op": "replace", "path": "/containers/0/image", "value": "kvasir/vllmsim:none"}`,
			`{"op": "replace", "path": "/containers/0/image", "value": "kvasir/vllmsim:dev"}`, "False ImagePullFailed: ", "", 1},
		{"that crashes", `{"op": "add", "path": "/containers/0/args/-", "value": "--no-such-flag"}`,
			`{"op": "remove", "path": "/containers/0/args/2"}`, "False CrashLooping: ", "", 1},
		{"that ends and is not started again", `{"op": "add", "path": "/restartPolicy", "value": "Never"},
			{"op": "add", "path": "/containers/0/args/-", "value": "--no-such-flag"}`,
			`{"op": "remove", "path": "/restartPolicy"}, {"op": "remove", "path": "/containers/0/args/2"}`,
			"", "False RolloutStopped: new pods of revision", 2},
	} {
		It("keeps its engines when the new one is one "+b.what, func(ctx SpecContext) {
			before := names(w.pods(ctx, engines))
			Expect(underLoad(ctx, func() {
				stop := w.watch(ctx)
				w.patchTemplate(ctx, b.change)
				for condition, want := range map[string]string{v1alpha1.ConditionPodsHealthy: b.says, v1alpha1.ConditionUpToDate: b.stops} {
					if want != "" {
						Eventually(func() string { return w.condition(ctx, condition) }).Should(HavePrefix(want))
					}
				}
				pause(ctx, 5*time.Second)
				seen := stop()
				Expect(seen.fewest).To(Equal(3))
				Expect(len(seen.made)).To(BeNumerically(">", 3), "nothing new was tried")
				Expect(len(seen.made)).To(BeNumerically("<=", 3+b.most), "%v", seen.made)
				w.patchTemplate(ctx, b.back)
				w.kubectl(ctx, "delete", "pods", "-n", namespace, "-l", v1alpha1.LabelPool+"="+poolName, "--field-selector=status.phase=Failed")
				w.settled(ctx, 3)
			})).To(BeEmpty())
			Expect(names(w.pods(ctx, engines))).To(Equal(before))
		})
	}

	It("makes pods that always end ever more slowly, and names them", func(ctx SpecContext) {
		w.kubectl(ctx, "apply", "-f", "testdata/ends.yaml")
		DeferCleanup(func(ctx SpecContext) {
			w.kubectl(ctx, "delete", "-f", "testdata/ends.yaml", "--ignore-not-found", "--timeout=2m")
		})
		var scheduled corev1.EventList // each is of one pod
		made := func() int {
			Expect(w.List(ctx, &scheduled)).To(Succeed())
			return len(slices.DeleteFunc(scheduled.Items, func(e corev1.Event) bool {
				return e.Reason != "Scheduled" || !strings.HasPrefix(e.InvolvedObject.Name, "ends-")
			}))
		}
		Eventually(made).Should(BeNumerically(">=", 3))
		pause(ctx, 10*time.Second)
		// Without a pause one pod comes each second or two: after 0, 10 and 20 s it is at most 4, with time to spare.
		Expect(made()).To(BeNumerically("<=", 4))
		Eventually(func() string {
			return w.kubectl(ctx, "get", "kvpool", "ends", "-n", namespace, "-o",
				`jsonpath={.status.conditions[?(@.type=="PodsHealthy")].reason} {.status.pods[0].stage} {.status.pods[0].message}`)
		}).Should(Equal("PodsEnded Ended exit code 2"))
	})

	It("keeps serving when a new version of Kvasir has images that do not exist or crash", func(ctx SpecContext) {
		pods, before := names(w.pods(ctx, engines)), w.restarts(ctx)
		Expect(underLoad(ctx, func() {
			By("an operator that does not exist")
			_, err := w.program(ctx, "helm", "upgrade", release, chart, "--namespace="+system, "--reuse-values", "--set=images.manager.tag=none", "--wait", "--timeout=10s")
			Expect(err).To(HaveOccurred())
			Expect(w.ready(ctx, operators)).To(HaveLen(2))

			crashes, missing := "images.%[1]s.repository=kvasir/coredns", "images.%[1]s.tag=none"
			for _, bad := range []struct{ picker, reporter string }{{missing, crashes}, {crashes, missing}} {
				picker, reporter := fmt.Sprintf(bad.picker, "picker"), fmt.Sprintf(bad.reporter, "reporter")
				By(picker + " and " + reporter)
				w.install(ctx, chart, "dev", picker, reporter)
				Eventually(func() string { return w.condition(ctx, v1alpha1.ConditionUpToDate) }).Should(And(
					HavePrefix("False ReporterUpdateStopped: "), ContainSubstring(reporter[strings.IndexByte(reporter, '=')+1:])))
				Eventually(func() string { return w.condition(ctx, v1alpha1.ConditionPickerAvailable) }).Should(HavePrefix("False UpdateStopped: "))
				Expect(slices.DeleteFunc(w.pods(ctx, engines), func(p corev1.Pod) bool {
					return p.Annotations[v1alpha1.AnnotationReporterImage] == "docker.io/kvasir/reporter:dev"
				})).To(HaveLen(1), "one pod pays for an image that does not run")
			}

			By("the way back")
			w.install(ctx, chart, "dev")
			w.settled(ctx, 3)
			Eventually(func() string { return w.condition(ctx, v1alpha1.ConditionPickerAvailable) }).Should(HavePrefix("True "))
		})).To(BeEmpty())
		Expect(names(w.pods(ctx, engines))).To(Equal(pods))
		for key, n := range w.restarts(ctx) {
			if strings.HasSuffix(key, "/vllm") {
				Expect(n).To(Equal(before[key]), "the engine of %s was started again", key)
			}
		}
	})
}

// patchTemplate changes the spec of the pool's template by JSON patches.
func (w *world) patchTemplate(ctx context.Context, patches string) {
	GinkgoHelper()
	w.kubectl(ctx, "patch", "kvpool", poolName, "-n", w.namespace, "--type=json",
		"-p=["+strings.ReplaceAll(patches, `"path": "`, `"path": "/spec/template/spec`)+"]")
}
