package inferencepool_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// Policies that change or refuse the pods of a namespace, as clusters with a registry mirror or with OpenShift's security constraints do.
var _ = Describe("a pool in a cluster with admission policies", func() {
	ctx := context.Background()

	// enforce creates the policies of a file, and the namespace that they are for, and waits until the API server follows them.
	enforce := func(file, namespace string, followed func(g Gomega)) {
		GinkgoHelper()
		text, err := os.ReadFile(filepath.Join("testdata", file))
		Expect(err).NotTo(HaveOccurred())
		Expect(api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
		for documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 1<<10); ; {
			o := &unstructured.Unstructured{}
			err := documents.Decode(o)
			if errors.Is(err, io.EOF) {
				break
			}
			Expect(err).NotTo(HaveOccurred())
			Expect(api.Create(ctx, o)).To(Succeed())
			DeferCleanup(func() { Expect(api.Delete(ctx, o)).To(Succeed()) })
		}
		Eventually(followed).Should(Succeed())
	}
	// admitted is a pod as the API server would create it.
	admitted := func(namespace string, user *int64) (*corev1.Container, error) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "probe"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c", SecurityContext: &corev1.SecurityContext{RunAsUser: user}}}},
		}
		err := api.Create(ctx, pod, client.DryRunAll)
		return &pod.Spec.Containers[0], err
	}
	images := func(pods []corev1.Pod) (out []string) {
		for i := range pods {
			out = append(out, fmt.Sprint(pods[i].UID, " ", pods[i].Spec.Containers[0].Image, " ", pods[i].Spec.InitContainers[0].Image))
		}
		return out
	}

	It("keeps pods whose images come from a mirror, and gives them another reporter once", func() {
		const mirror = "mirror.example/"
		enforce("mirror.yaml", "mirrored", func(g Gomega) {
			c, err := admitted("mirrored", nil)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(c.Image).To(Equal(mirror + "c"))
		})
		w := waiting{types.NamespacedName{Namespace: "mirrored", Name: "chat"}}
		w.create(2, func(*v1alpha1.InferencePoolSpec) {})
		w.clear()
		w.says(2, v1alpha1.ConditionUpToDate, "UpToDate")
		before := w.pods(Default)
		for _, pod := range before {
			Expect(pod.Spec.Containers[0].Image).To(Equal(mirror + "vllm/vllm-openai:v0.24.0"))
			Expect(pod.Spec.InitContainers[0].Image).To(Equal(mirror + "reporter:v1"))
		}
		w.quiet()
		Expect(images(w.pods(Default))).To(ConsistOf(images(before)))

		revision := w.get(Default).Status.UpdateRevision
		for i := range before { // as an operator with another reporter has made them, and a kubelet runs them
			running := client.RawPatch(types.StrategicMergePatchType, fmt.Appendf(nil, `{"status": {"initContainerStatuses": [
				{"name": %q, "image": "reporter:v0", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}}]}}`, v1alpha1.ReporterContainer))
			Expect(api.Status().Patch(ctx, &before[i], running)).To(Succeed())
			older := client.RawPatch(types.StrategicMergePatchType, fmt.Appendf(nil, `{"metadata": {"annotations": {%q: "reporter:v0"}},
				"spec": {"initContainers": [{"name": %q, "image": "reporter:v0"}]}}`, v1alpha1.AnnotationReporterImage, v1alpha1.ReporterContainer))
			Expect(api.Patch(ctx, &before[i], older)).To(Succeed())
			Expect(before[i].Spec.InitContainers[0].Image).To(Equal(mirror + "reporter:v0"))
		}
		Eventually(func(g Gomega) {
			now := w.pods(g)
			g.Expect(now).To(HaveLen(2))
			for i := range now {
				g.Expect(now[i].UID).To(BeElementOf(before[0].UID, before[1].UID))
				g.Expect(now[i].Spec.InitContainers[0].Image).To(Equal(mirror + "reporter:v1"))
			}
		}).Should(Succeed())
		w.quiet()
		Expect(w.get(Default).Status.UpdateRevision).To(Equal(revision))
	})

	It("runs engines, reporters and pickers as a user of the namespace's range", func() {
		const first = 1000650000
		enforce("range.yaml", "ranged", func(g Gomega) {
			_, err := admitted("ranged", ptr.To[int64](5))
			g.Expect(err).To(MatchError(ContainSubstring("users of this namespace")))
			c, err := admitted("ranged", nil)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(c.SecurityContext.RunAsUser).To(HaveValue(BeEquivalentTo(first)))
		})
		w := waiting{types.NamespacedName{Namespace: "ranged", Name: "chat"}}
		w.create(1, func(s *v1alpha1.InferencePoolSpec) { s.Picker.Replicas = 1 })
		w.clear()
		w.says(1, v1alpha1.ConditionAccepted, "Accepted")
		engines := w.pods(Default)
		var pickers corev1.PodList
		Eventually(func(g Gomega) {
			g.Expect(api.List(ctx, &pickers, client.InNamespace("ranged"), client.MatchingLabels{"app.kubernetes.io/component": "picker"})).To(Succeed())
			g.Expect(pickers.Items).To(HaveLen(1))
		}).Should(Succeed())
		for _, pod := range append(engines, pickers.Items...) {
			for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
				Expect(c.SecurityContext.RunAsUser).To(HaveValue(BeEquivalentTo(first)), "container %s of %s", c.Name, pod.Name)
			}
		}

		w.edit(func(s *v1alpha1.InferencePoolSpec) {
			s.Template.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](1000)}
		})
		w.says(1, v1alpha1.ConditionAccepted, "TemplateRefused", "users of this namespace")
		Expect(w.pods(Default)[0].UID).To(Equal(engines[0].UID))
	})
})
