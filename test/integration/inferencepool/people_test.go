package inferencepool_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/test/kube"
)

var _ = Describe("people with the roles that every cluster has", func() {
	ctx := context.Background()

	// may reports whether the rules of a role, with its additions, allow an action on pools.
	may := func(role, verb, resource string) func(Gomega) bool {
		return func(g Gomega) bool {
			got := &rbacv1.ClusterRole{}
			g.Expect(api.Get(ctx, types.NamespacedName{Name: role}, got)).To(Succeed())
			return slices.ContainsFunc(got.Rules, func(r rbacv1.PolicyRule) bool {
				return slices.Contains(r.APIGroups, v1alpha1.GroupName) && slices.Contains(r.Resources, resource) && slices.Contains(r.Verbs, verb)
			})
		}
	}

	It("see and write pools and policies as these roles say", func() {
		text, err := os.ReadFile(filepath.Join(kube.Root(), "config", "rbac", "user_roles.yaml"))
		Expect(err).NotTo(HaveOccurred())
		for _, document := range bytes.Split(text, []byte("\n---\n")) {
			role := &rbacv1.ClusterRole{}
			Expect(yaml.UnmarshalStrict(document, role)).To(Succeed())
			Expect(api.Create(ctx, role)).To(Succeed())
		}
		for _, resource := range []string{"inferencepools", "routingpolicies"} {
			Eventually(may("view", "get", resource)).Should(BeTrue())
			Eventually(may("edit", "create", resource)).Should(BeTrue())
			Eventually(may("edit", "list", resource)).Should(BeTrue(), "edit has what view has")
			Eventually(may("admin", "delete", resource)).Should(BeTrue())
			Expect(may("view", "create", resource)(Default)).To(BeFalse())
		}
		Eventually(may("edit", "patch", "inferencepools/scale")).Should(BeTrue())
		Expect(may("edit", "patch", "inferencepools/status")(Default)).To(BeFalse())
	})
})
