package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// operatorRights are all rights of the operator in a namespace with pools: "group/resource: verbs". It is the table of the
// API's contract; an additional right is a fault, like a missing one.
var operatorRights = []string{
	"kvasir.dev/inferencepools: get list watch",
	"kvasir.dev/inferencepools/finalizers: update",
	"kvasir.dev/inferencepools/status: patch",
	"kvasir.dev/modelroutes: get list watch",
	"kvasir.dev/modelroutes/status: patch",
	"kvasir.dev/pickerfleets: get list watch",
	"kvasir.dev/pickerfleets/finalizers: update",
	"kvasir.dev/pickerfleets/status: patch",
	"kvasir.dev/routingpolicies: get list watch",
	"kvasir.dev/routingpolicies/status: patch",
	"/pods: create delete get list patch watch",
	"/pods/status: patch",
	"/configmaps: create delete get list patch watch",
	"/serviceaccounts: create delete get list patch watch",
	"/services: create delete get list patch watch",
	"/secrets: create get patch",
	"/podtemplates: create",
	"/nodes: get list watch",
	"apps/controllerrevisions: create delete get list patch watch",
	"apps/deployments: create delete get list patch watch",
	"apps/deployments/scale: get patch",
	"apps/statefulsets/scale: get patch",
	"leaderworkerset.x-k8s.io/leaderworkersets/scale: get patch",
	"policy/poddisruptionbudgets: create delete get list patch watch",
	"networking.k8s.io/networkpolicies: create delete get list patch watch",
	"rbac.authorization.k8s.io/roles: create delete get list patch watch",
	"rbac.authorization.k8s.io/rolebindings: create delete get list patch watch",
	"inference.networking.k8s.io/inferencepools: create delete get list patch watch",
	"gateway.networking.k8s.io/httproutes: create delete get list patch watch",
	"networking.istio.io/destinationrules: create delete get list patch watch",
	"gateway.envoyproxy.io/backendtrafficpolicies: create delete get list patch watch",
	"networking.gke.io/healthcheckpolicies: create delete get list patch watch",
	"networking.gke.io/gcpbackendpolicies: create delete get list patch watch",
	"cert-manager.io/certificates: create delete get list patch watch",
	"autoscaling.x-k8s.io/provisioningrequests: create delete get list patch watch",
	"events.k8s.io/events: create patch",
	// to identify readers of metrics; the second is granted to pickers
	"authentication.k8s.io/tokenreviews: create",
	"authorization.k8s.io/subjectaccessreviews: create",
	"authorization.k8s.io/localsubjectaccessreviews: create",
}

// rights of a service account in a namespace, but for those that everybody has.
func rights(ctx context.Context, ns, accountNamespace, account string) []string {
	GinkgoHelper()
	theirs := rulesOf(ctx, ns, accountNamespace, account)
	everybody := rulesOf(ctx, ns, "nowhere", "nobody")
	var lines []string
	for resource, verbs := range theirs {
		verbs = slices.DeleteFunc(verbs, func(verb string) bool { return slices.Contains(everybody[resource], verb) })
		if len(verbs) > 0 {
			slices.Sort(verbs)
			lines = append(lines, resource+": "+strings.Join(slices.Compact(verbs), " "))
		}
	}
	return lines
}

// rulesOf are the verbs by resource: "group/resource", and "[name ...]" behind it where only some objects are meant.
func rulesOf(ctx context.Context, ns, accountNamespace, account string) map[string][]string {
	GinkgoHelper()
	review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: ns}}
	Expect(as(accountNamespace, account).Create(ctx, review)).To(Succeed())
	Expect(review.Status.Incomplete).To(BeFalse())
	verbs := map[string][]string{}
	for _, rule := range review.Status.ResourceRules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				key := group + "/" + resource
				if len(rule.ResourceNames) > 0 {
					key += fmt.Sprintf(" %v", rule.ResourceNames)
				}
				verbs[key] = append(verbs[key], rule.Verbs...)
			}
		}
	}
	return verbs
}

// as is a client that acts as a service account.
func as(ns, name string) client.Client {
	GinkgoHelper()
	file, err := cluster.ServiceAccount(ns, name)
	Expect(err).NotTo(HaveOccurred())
	config, err := clientcmd.BuildConfigFromFlags("", file)
	Expect(err).NotTo(HaveOccurred())
	config.QPS = -1
	return newClient(config)
}

func newClient(config *rest.Config) client.Client {
	GinkgoHelper()
	c, err := client.New(config, client.Options{Scheme: admin.Scheme()})
	Expect(err).NotTo(HaveOccurred())
	return c
}

// may asks the API server whether a service account is allowed to do something in a namespace.
func may(ctx context.Context, account, ns, verb, resource, name string) bool {
	GinkgoHelper()
	group, resource, _ := strings.Cut(resource, "/")
	resource, sub, _ := strings.Cut(resource, "/")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: account, Groups: []string{"system:serviceaccounts", "system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: ns, Verb: verb, Group: group, Resource: resource, Subresource: sub, Name: name},
	}}
	Expect(admin.Create(ctx, review)).To(Succeed())
	return review.Status.Allowed
}

// applyChildren makes the objects of a pool, with the operator's rights.
func applyChildren(ctx context.Context, of resources.Input) {
	GinkgoHelper()
	objects, err := resources.Objects(resources.Config{PickerImage: "kvasir"}, of)
	Expect(err).NotTo(HaveOccurred())
	applyAll(ctx, objects)
}

// applyAll applies objects as the operator.
func applyAll(ctx context.Context, objects []*unstructured.Unstructured) {
	GinkgoHelper()
	Expect(len(objects)).To(BeNumerically(">=", 8))
	self := as(system, operator)
	for _, o := range objects {
		Expect(self.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(resources.Manager), client.ForceOwnership)).
			To(Succeed(), "%s %s", o.GetKind(), o.GetName())
	}
}

var _ = Describe("The rights", func() {
	It("of the operator are those of the contract", func(ctx SpecContext) {
		Expect(rights(ctx, namespace(ctx), system, operator)).To(ConsistOf(operatorRights))
	})

	It("of the operator in its own namespace let it lead", func(ctx SpecContext) {
		Expect(rights(ctx, system, system, operator)).To(ConsistOf(append(slices.Clone(operatorRights),
			"coordination.k8s.io/leases: create", "coordination.k8s.io/leases [manager.kvasir.dev]: delete get update",
			"apps/replicasets: get")))
	})

	DescribeTable("of the operator end before", func(ctx SpecContext, verb, resource string) {
		Expect(may(ctx, "system:serviceaccount:"+system+":"+operator, namespace(ctx), verb, resource, "x")).To(BeFalse())
	},
		Entry("the spec of a pool", "patch", "kvasir.dev/inferencepools"),
		Entry("the spec of a policy", "update", "kvasir.dev/routingpolicies"),
		Entry("making pools", "create", "kvasir.dev/inferencepools"),
		Entry("listing Secrets", "list", "/secrets"),
		Entry("watching Secrets", "watch", "/secrets"),
		Entry("deleting Secrets", "delete", "/secrets"),
		Entry("deleting pods in bulk", "deletecollection", "/pods"),
		Entry("going into pods", "create", "/pods/exec"),
		Entry("changing nodes", "patch", "/nodes"),
		Entry("granting what it does not hold", "escalate", "rbac.authorization.k8s.io/roles"),
		Entry("binding what it does not hold", "bind", "rbac.authorization.k8s.io/roles"),
		Entry("being somebody else", "impersonate", "/serviceaccounts"),
		Entry("tokens of service accounts", "create", "/serviceaccounts/token"),
		Entry("roles of the cluster", "create", "rbac.authorization.k8s.io/clusterroles"),
		Entry("definitions", "patch", "apiextensions.k8s.io/customresourcedefinitions"),
	)

	It("of a fleet's pickers are to read what is their pools', and in their namespace only", func(ctx SpecContext) {
		ns, other := namespace(ctx), namespace(ctx)
		pool := smallPool(ns, "m")
		pool.Spec.Picker.Mode = v1alpha1.PickerOfFleet
		Expect(admin.Create(ctx, pool)).To(Succeed())
		fleet := &v1alpha1.PickerFleet{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "default"}}
		Expect(admin.Create(ctx, fleet)).To(Succeed())
		objects, err := resources.FleetObjects(resources.Config{PickerImage: "kvasir"}, resources.Fleet{
			PickerFleet: fleet, Pools: []*v1alpha1.InferencePool{pool}, PolicySecrets: []string{"tenants"},
		})
		Expect(err).NotTo(HaveOccurred())
		applyAll(ctx, objects)
		account := resources.NamesOfFleet("default").Pickers
		Expect(rights(ctx, ns, ns, account)).To(ConsistOf(
			"kvasir.dev/inferencepools: get list watch",
			"kvasir.dev/modelroutes: get list watch",
			"kvasir.dev/routingpolicies: get list watch",
			"inference.networking.k8s.io/inferencepools: get list watch",
			"/pods: get list watch",
			"/secrets [m-key tenants]: get",
			"authorization.k8s.io/localsubjectaccessreviews: create",
		))
		Expect(rights(ctx, other, ns, account)).To(BeEmpty(), "elsewhere")
		picker := as(ns, account)
		Expect(picker.List(ctx, &v1alpha1.InferencePoolList{}, client.InNamespace(ns))).To(Succeed())
		for what, err := range map[string]error{
			"pools of another namespace": picker.List(ctx, &v1alpha1.InferencePoolList{}, client.InNamespace(other)),
			"pods of another namespace":  picker.List(ctx, &corev1.PodList{}, client.InNamespace(other)),
			"another Secret":             picker.Get(ctx, client.ObjectKey{Namespace: ns, Name: "default-fleet-ca"}, &corev1.Secret{}),
			"its own fleet":              picker.Delete(ctx, fleet.DeepCopy()),
		} {
			Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%s: %v", what, err)
		}
	})

	It("of pickers are granted by the operator, and are to read what is theirs", func(ctx SpecContext) {
		ns := namespace(ctx)
		pool := smallPool(ns, "m")
		Expect(admin.Create(ctx, pool)).To(Succeed())
		pool.Spec.Engine.APIKey.Name = "engine-key"
		applyChildren(ctx, resources.Input{Pool: pool, PolicySecrets: []string{"tenants"}})
		self := as(system, operator)

		Expect(rights(ctx, ns, ns, resources.PickerName("m"))).To(ConsistOf(
			"kvasir.dev/inferencepools: get list watch",
			"kvasir.dev/routingpolicies: get list watch",
			"inference.networking.k8s.io/inferencepools: get list watch",
			"/pods: get list watch",
			"/secrets [engine-key m-key tenants]: get",
			"authorization.k8s.io/localsubjectaccessreviews: create",
		))
		Expect(rights(ctx, "default", ns, resources.PickerName("m"))).To(BeEmpty(), "elsewhere")

		By("trying")
		for _, name := range []string{"m-key", "somebodys"} {
			Expect(client.IgnoreAlreadyExists(admin.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}}))).To(Succeed())
		}
		picker, secret := as(ns, resources.PickerName("m")), func(name string) client.Object {
			return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}}
		}
		in := client.InNamespace(ns)
		Expect(picker.Get(ctx, client.ObjectKey{Namespace: ns, Name: "m-key"}, &corev1.Secret{})).To(Succeed())
		Expect(picker.List(ctx, &corev1.PodList{}, in)).To(Succeed())
		Expect(picker.List(ctx, &v1alpha1.InferencePoolList{}, in)).To(Succeed())
		Expect(self.Get(ctx, client.ObjectKey{Namespace: ns, Name: "somebodys"}, &corev1.Secret{})).To(Succeed())
		touched := pool.DeepCopy()
		touched.Labels = map[string]string{"touched": "yes"}
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: ns}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x"}}},
		}
		for what, err := range map[string]error{
			"a picker reads another Secret":             picker.Get(ctx, client.ObjectKey{Namespace: ns, Name: "somebodys"}, &corev1.Secret{}),
			"a picker lists Secrets":                    picker.List(ctx, &corev1.SecretList{}, in),
			"a picker makes pods":                       picker.Create(ctx, pod.DeepCopy()),
			"a picker deletes pods":                     picker.DeleteAllOf(ctx, &corev1.Pod{}, in),
			"a picker changes its pool":                 picker.Update(ctx, touched.DeepCopy()),
			"a picker changes its pool's status":        picker.Status().Update(ctx, touched.DeepCopy()),
			"a picker reads pools of another namespace": picker.List(ctx, &v1alpha1.InferencePoolList{}, client.InNamespace("default")),
			"a picker reads nodes":                      picker.List(ctx, &corev1.NodeList{}),
			"the operator lists Secrets":                self.List(ctx, &corev1.SecretList{}, in),
			"the operator deletes a Secret":             self.Delete(ctx, secret("somebodys")),
			"the operator changes the spec of a pool":   self.Update(ctx, touched.DeepCopy()),
			"the operator deletes pods in bulk":         self.DeleteAllOf(ctx, &corev1.Pod{}, in),
			"the operator grants what it does not hold": self.Create(ctx, &rbacv1.Role{
				ObjectMeta: metav1.ObjectMeta{Name: "more", Namespace: ns},
				Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"list"}}},
			}),
		} {
			Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%s: %v", what, err)
		}
	})

	DescribeTable("of people", func(ctx SpecContext, role, verb, resource string, allowed bool) {
		ns := namespace(ctx)
		kubectl(ctx, "create", "rolebinding", "-n", ns, "they", "--clusterrole="+role, "--user=they")
		// The authorizer sees the binding a moment later.
		Eventually(func() bool { return may(ctx, "they", ns, verb, resource, "") }, "10s").Should(Equal(allowed))
	},
		Entry("who view, to read pools", "kvasir-view", "list", "kvasir.dev/inferencepools", true),
		Entry("who view, not to write", "kvasir-view", "patch", "kvasir.dev/routingpolicies", false),
		Entry("who edit, to write pools", "kvasir-edit", "create", "kvasir.dev/inferencepools", true),
		Entry("who edit, to scale pools", "kvasir-edit", "patch", "kvasir.dev/inferencepools/scale", true),
		Entry("who edit, not to write status", "kvasir-edit", "patch", "kvasir.dev/inferencepools/status", false),
		Entry("who edit policies, to write routes", "kvasir-policy-editor", "update", "kvasir.dev/modelroutes", true),
		Entry("who edit policies, to write them", "kvasir-policy-editor", "update", "kvasir.dev/routingpolicies", true),
		Entry("who edit policies, not to write pools", "kvasir-policy-editor", "update", "kvasir.dev/inferencepools", false),
		Entry("who edit policies, to read pools", "kvasir-policy-editor", "get", "kvasir.dev/inferencepools", true),
	)

	It("are those of listed namespaces where only these are looked at", func(ctx SpecContext) {
		out := kubectl(ctx, "kustomize", "../../config/namespaced")
		Expect(out).NotTo(ContainSubstring("kind: ClusterRoleBinding\nmetadata:\n  name: kvasir-operator\n"))
		Expect(out).NotTo(ContainSubstring("kind: ClusterRoleBinding\nmetadata:\n  name: kvasir-operator-nodes\n"))
		Expect(out).To(ContainSubstring("name: kvasir-operator\n  namespace: llm"))
		Expect(out).To(ContainSubstring("--namespace=llm"))
	})
})
