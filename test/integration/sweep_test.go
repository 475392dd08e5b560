package integration

import (
	"context"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/discovery"

	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// verbs that the API server knows, those of RBAC, authentication and certificates among them.
var verbs = []string{
	"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection",
	"proxy", "escalate", "bind", "impersonate", "approve", "sign", "attest", "use",
}

// paths that are no objects.
var paths = []string{"/", "/api", "/apis", "/debug/pprof/", "/flagz", "/healthz", "/livez", "/logs", "/metrics", "/openapi/v3", "/readyz", "/statusz", "/version"}

// attempt is something to be tried.
type attempt struct{ verb, resource, path string }

func (a attempt) String() string {
	if a.path != "" {
		return a.verb + " " + a.path
	}
	return a.verb + " " + a.resource
}

// attempts are all verbs on all resources, with their subresources, that the API server has, and on those that only the
// operator's roles name.
func attempts() (all []attempt) {
	GinkgoHelper()
	_, lists, err := discovery.NewDiscoveryClientForConfigOrDie(cluster.Config).ServerGroupsAndResources()
	Expect(err).NotTo(HaveOccurred())
	resources := map[string]bool{"kvasir.dev/inferencepools/metrics": true, "/pods/portforward": true}
	for _, list := range lists {
		group, _, found := strings.Cut(list.GroupVersion, "/")
		if !found {
			group = ""
		}
		for _, r := range list.APIResources {
			resources[group+"/"+r.Name] = true
		}
	}
	for _, line := range operatorRights {
		resource, _, _ := strings.Cut(line, ":")
		resources[resource] = true
	}
	Expect(len(resources)).To(BeNumerically(">", 100))
	for resource := range resources {
		for _, verb := range verbs {
			all = append(all, attempt{verb: verb, resource: resource})
		}
	}
	for _, path := range paths {
		for _, verb := range []string{"get", "post", "put", "delete"} {
			all = append(all, attempt{verb: verb, path: path})
		}
	}
	return all
}

// allowed asks the API server for each attempt whether an account is allowed to make it in a namespace, and returns those
// that it is allowed to make and that not every account is.
func allowed(ctx context.Context, account, ns string) []string {
	GinkgoHelper()
	all := attempts()
	may := make([]bool, len(all))
	var asking sync.WaitGroup
	next := make(chan int)
	for range 8 {
		asking.Go(func() {
			defer GinkgoRecover()
			for i := range next {
				may[i] = is(ctx, account, ns, all[i]) && !is(ctx, "system:serviceaccount:nowhere:nobody", ns, all[i])
			}
		})
	}
	for i := range all {
		next <- i
	}
	close(next)
	asking.Wait()
	var names []string
	for i, a := range all {
		if may[i] {
			names = append(names, a.String())
		}
	}
	return names
}

// is reports whether an account is allowed to make an attempt.
func is(ctx context.Context, account, ns string, a attempt) bool {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: account, Groups: []string{"system:serviceaccounts", "system:authenticated"},
	}}
	if a.path != "" {
		review.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Verb: a.verb, Path: a.path}
	} else {
		group, resource, _ := strings.Cut(a.resource, "/")
		resource, sub, _ := strings.Cut(resource, "/")
		review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{Namespace: ns, Verb: a.verb, Group: group, Resource: resource, Subresource: sub}
	}
	Expect(admin.Create(ctx, review)).To(Succeed())
	return review.Status.Allowed
}

// each takes "group/resource: verb verb" apart.
func each(lines []string) (all []string) {
	for _, line := range lines {
		resource, list, _ := strings.Cut(line, ": ")
		for verb := range strings.FieldsSeq(list) {
			all = append(all, verb+" "+resource)
		}
	}
	return all
}

var _ = Describe("Of all verbs on all resources and paths", func() {
	const viewer = "kvasir-viewer"
	It("the operator may do what the contract says and nothing else", func(ctx SpecContext) {
		Expect(allowed(ctx, "system:serviceaccount:"+system+":"+operator, namespace(ctx))).To(ConsistOf(each(operatorRights)))
	})

	It("the account of viewers may see what pickers measure and nothing else", func(ctx SpecContext) {
		Expect(allowed(ctx, "system:serviceaccount:"+system+":"+viewer, namespace(ctx))).To(ConsistOf("get kvasir.dev/inferencepools/metrics"))
	})

	It("a picker may read what is its own and nothing else, and its pods' reporters may do nothing", func(ctx SpecContext) {
		ns := namespace(ctx)
		pool := smallPool(ns, "swept")
		Expect(admin.Create(ctx, pool)).To(Succeed())
		applyChildren(ctx, resources.Input{Pool: pool})
		account := "system:serviceaccount:" + ns + ":" + resources.PickerName("swept")
		Expect(allowed(ctx, account, ns)).To(ConsistOf(each([]string{
			"kvasir.dev/inferencepools: get list watch",
			"kvasir.dev/routingpolicies: get list watch",
			"inference.networking.k8s.io/inferencepools: get list watch",
			"/pods: get list watch",
			"authorization.k8s.io/localsubjectaccessreviews: create",
		}))) // the Secrets that it reads have names
		Expect(allowed(ctx, account, "default")).To(BeEmpty())
		Expect(allowed(ctx, "system:serviceaccount:"+ns+":default", ns)).To(BeEmpty())
	})

	DescribeTable("people who are bound to", func(ctx SpecContext, role string, want ...string) {
		ns := namespace(ctx)
		kubectl(ctx, "create", "rolebinding", "-n", ns, "they", "--clusterrole="+role, "--user=they-"+ns)
		// The authorizer sees the binding a moment later.
		verb, resource, _ := strings.Cut(each(want)[0], " ")
		Eventually(func() bool { return is(ctx, "they-"+ns, ns, attempt{verb: verb, resource: resource}) }).Should(BeTrue())
		Expect(allowed(ctx, "they-"+ns, ns)).To(ConsistOf(each(want)))
	},
		Entry("kvasir-view", "kvasir-view",
			"kvasir.dev/inferencepools: get list watch", "kvasir.dev/inferencepools/scale: get list watch", "kvasir.dev/inferencepools/status: get list watch",
			"kvasir.dev/pickerfleets: get list watch", "kvasir.dev/pickerfleets/status: get list watch",
			"kvasir.dev/modelroutes: get list watch", "kvasir.dev/modelroutes/status: get list watch",
			"kvasir.dev/routingpolicies: get list watch", "kvasir.dev/routingpolicies/status: get list watch"),
		Entry("kvasir-edit", "kvasir-edit",
			"kvasir.dev/inferencepools: create delete deletecollection patch update", "kvasir.dev/inferencepools/scale: patch update",
			"kvasir.dev/pickerfleets: create delete deletecollection patch update",
			"kvasir.dev/modelroutes: create delete deletecollection patch update",
			"kvasir.dev/routingpolicies: create delete deletecollection patch update"),
		Entry("kvasir-policy-editor", "kvasir-policy-editor",
			"kvasir.dev/routingpolicies: create delete deletecollection get list patch update watch", "kvasir.dev/inferencepools: get list watch",
			"kvasir.dev/modelroutes: create delete deletecollection get list patch update watch", "kvasir.dev/modelroutes/status: get list watch",
			"kvasir.dev/inferencepools/status: get list watch", "kvasir.dev/routingpolicies/status: get list watch"),
		Entry("kvasir-metrics-reader", "kvasir-metrics-reader", "kvasir.dev/inferencepools/metrics: get"),
	)
})
