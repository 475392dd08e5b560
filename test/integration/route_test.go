package integration

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/test/kube"
)

func smallRoute(ns, name string, model v1alpha1.ModelName, pool v1alpha1.PoolName) *v1alpha1.ModelRoute {
	r := &v1alpha1.ModelRoute{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	r.Spec.Models = []v1alpha1.ModelName{model}
	r.Spec.Rules = []v1alpha1.ModelRouteRule{{Backends: []v1alpha1.ModelRouteBackend{{Pool: pool}}}}
	return r
}

var _ = Describe("The status of routes", Ordered, func() {
	BeforeAll(func() {
		m := startManager("--leader-election=false")
		DeferCleanup(m.stop)
	})
	reasons := func(ctx context.Context, r *v1alpha1.ModelRoute) func() [2]string {
		return func() (found [2]string) {
			got := &v1alpha1.ModelRoute{}
			Expect(admin.Get(ctx, client.ObjectKeyFromObject(r), got)).To(Succeed())
			for i, condition := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionResolvedRefs} {
				if c := meta.FindStatusCondition(got.Status.Conditions, condition); c != nil && c.ObservedGeneration == got.Generation {
					found[i] = c.Reason
				}
			}
			return found
		}
	}

	It("follows pools that come, leave their fleet and go", func(ctx SpecContext) {
		ns := namespace(ctx)
		route := smallRoute(ns, "chat", "chat", "m")
		Expect(admin.Create(ctx, route)).To(Succeed())
		Eventually(reasons(ctx, route)).Should(Equal([2]string{"Accepted", "ReferenceNotFound"}), "a route can be there before its pools")
		pool := smallPool(ns, "m")
		pool.Spec.Picker.Mode = v1alpha1.PickerOfFleet
		Expect(admin.Create(ctx, pool)).To(Succeed())
		Eventually(reasons(ctx, route)).Should(Equal([2]string{"Accepted", "ResolvedRefs"}))
		Eventually(func() error {
			if err := admin.Get(ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
				return err
			}
			pool.Spec.Picker.Mode = v1alpha1.PickerManaged
			return admin.Update(ctx, pool)
		}).Should(Succeed())
		Eventually(reasons(ctx, route)).Should(Equal([2]string{"Accepted", "PoolWithoutFleet"}))
		Expect(admin.Delete(ctx, pool)).To(Succeed())
		Eventually(reasons(ctx, route)).Should(Equal([2]string{"Accepted", "ReferenceNotFound"}))
	})

	It("is what kubectl shows of a route that it has applied", func(ctx SpecContext) {
		ns := namespace(ctx)
		manifest := filepath.Join(GinkgoT().TempDir(), "chat.yaml")
		Expect(os.WriteFile(manifest, []byte("apiVersion: kvasir.dev/v1alpha1\nkind: ModelRoute\nmetadata: {name: chat}\n"+
			"spec: {models: [chat, talk], rules: [{backends: [{pool: llama}]}]}\n"), 0o600)).To(Succeed())
		kubectl(ctx, "apply", "-n", ns, "-f", manifest)
		Eventually(func() []string { return strings.Fields(kubectl(ctx, "get", "modelroutes", "-n", ns)) }).Should(HaveExactElements(
			"NAME", "MODELS", "ACCEPTED", "RESOLVED", "AGE", "chat", `["chat","talk"]`, "Accepted", "ReferenceNotFound", Not(BeEmpty())))
		Expect(kubectl(ctx, "describe", "modelroute", "-n", ns, "chat")).To(ContainSubstring("InferencePool " + ns + "/llama does not exist"))
	})

	It("names the route that has a name, and follows when it goes", func(ctx SpecContext) {
		ns := namespace(ctx)
		first, second := smallRoute(ns, "a", "chat", "m"), smallRoute(ns, "b", "chat", "m") // as old, or younger
		Expect(admin.Create(ctx, first)).To(Succeed())
		Expect(admin.Create(ctx, second)).To(Succeed())
		Eventually(reasons(ctx, first)).Should(Equal([2]string{"Accepted", "ReferenceNotFound"}))
		Eventually(reasons(ctx, second)).Should(Equal([2]string{"NameTaken", "ReferenceNotFound"}))
		Expect(admin.Delete(ctx, first)).To(Succeed())
		Eventually(reasons(ctx, second)).Should(Equal([2]string{"Accepted", "ReferenceNotFound"}))
	})
})

var _ = Describe("An operator on definitions without fleets and routes", func() {
	It("does the rest, and ends when they are there", func(ctx SpecContext) {
		c, err := kube.Start(kube.Options{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(c.Stop)
		for _, args := range [][]string{
			{"apply", "--server-side", "-k", filepath.Join(kube.Root(), "config", "default")},
			// While the storage of a kind begins, the API server can take minutes to remove it.
			{"wait", "--for=condition=Established", "crd/modelroutes.kvasir.dev", "crd/pickerfleets.kvasir.dev"},
			{"get", "kvroute,kvfleet", "--all-namespaces"},
			{"delete", "crd", "modelroutes.kvasir.dev", "pickerfleets.kvasir.dev"},
		} {
			_, err := c.Kubectl(ctx, nil, args...)
			Expect(err).NotTo(HaveOccurred())
		}
		there, err := client.New(c.Config, client.Options{Scheme: admin.Scheme()})
		Expect(err).NotTo(HaveOccurred())
		m := startManagerOf(c, "--leader-election=false")
		Eventually(m.ready).Should(Equal(http.StatusOK))
		Expect(m.log).To(gbytes.Say("A kind is not defined"))
		pool := smallPool("default", "m")
		Expect(there.Create(ctx, pool)).To(Succeed())
		Eventually(func() *metav1.Condition {
			Expect(there.Get(ctx, client.ObjectKeyFromObject(pool), pool)).To(Succeed())
			return meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionAccepted)
		}).ShouldNot(BeNil())
		_, err = c.Kubectl(ctx, nil, "apply", "--server-side", "-k", filepath.Join(kube.Root(), "config", "default"))
		Expect(err).NotTo(HaveOccurred())
		Eventually(m.ended).Should(Receive(BeNil()), "to be started again, with the kinds")
		m.ended <- nil
	})
})
