package install

import (
	"path/filepath"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/kvasir-dev/kvasir/test/kube"
)

// chart is the chart's directory.
var chart = filepath.Join(kube.Root(), "charts", "kvasir")

// previous is the first chart of the operator, as it was packaged.
var previous = filepath.Join(kube.Root(), "test", "chart", "testdata", "kvasir-0.2.0.tgz")

// users is what somebody has made.
const users = `
apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: mine, namespace: users}
spec:
  model: {name: m}
  selector: {matchLabels: {app: m}}
---
apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: mine, namespace: users}
spec:
  targetRefs: [{name: mine}]
`

// commands are the paragraphs of a text that are indented by four blanks, and can have empty lines between.
func commands(notes string) (all []string) {
	for _, m := range regexp.MustCompile(`(?m)^    kubectl .*\n(?:    .*\n)*`).FindAllString(notes, -1) {
		all = append(all, strings.TrimSpace(regexp.MustCompile(`(?m)^    `).ReplaceAllString(m, "")))
	}
	return all
}

var _ = Describe("Helm", Ordered, func() {
	system := []string{"--namespace", "kvasir-system"}
	uids := func(ctx SpecContext) []string {
		return strings.Fields(kubectl(ctx, "get", "kvpool,kvpolicy", "--namespace", "users", "--output", "jsonpath={.items[*].metadata.uid}"))
	}
	var made []string
	var notes string
	AfterAll(func(ctx SpecContext) {
		bash(ctx, removeDefinitions)
	})

	It("installs what the next two commands need", func(ctx SpecContext) {
		out := mustHelm(ctx, append(system, "install", "kvasir", previous, "--create-namespace")...)
		Expect(out).To(ContainSubstring("STATUS: deployed"))
		Expect(out).To(ContainSubstring("kubectl get kvpool"))
		kubectl(ctx, "wait", "--for=condition=Established", "crd/inferencepools.kvasir.dev", "crd/routingpolicies.kvasir.dev")
		kubectl(ctx, "create", "namespace", "users")
		kubectlIn(ctx, users, "apply", "--filename", "-")
		made = uids(ctx)
		Expect(made).To(HaveLen(2))
	})

	It("keeps what users have made when it upgrades from the previous chart", func(ctx SpecContext) {
		notes = mustHelm(ctx, append(system, "upgrade", "kvasir", chart, "--set", "replicas=1")...)
		Expect(mustHelm(ctx, append(system, "list")...)).NotTo(ContainSubstring("kvasir-0.2.0"))
		Expect(kubectl(ctx, append(system, "get", "deployment", "kvasir-operator", "--output", "jsonpath={.spec.replicas}")...)).To(Equal("1"))
		Expect(uids(ctx)).To(Equal(made))
	})

	It("prints the next two commands, which work as printed", func(ctx SpecContext) {
		told := commands(notes)
		Expect(told).To(HaveLen(2))
		Expect(bash(ctx, told[0])).To(ContainSubstring("inferencepool.kvasir.dev/mine created"))
		Expect(bash(ctx, told[1])).To(MatchRegexp(`(?m)^mine `))
		kubectl(ctx, "delete", "kvpool", "mine", "--namespace", "default")

		notes = mustHelm(ctx, append(system, "upgrade", "kvasir", chart, "--set", "watch.namespaces={users}")...)
		Expect(commands(notes)[1]).To(Equal("kubectl get kvpool --namespace users"))
		mustHelm(ctx, append(system, "upgrade", "kvasir", chart)...)
	})

	It("goes back with helm rollback and forward again, and keeps what users have made", func(ctx SpecContext) {
		get := func(what string, paths ...string) string {
			return kubectl(ctx, "get", what, "--namespace", "users", "--output", "jsonpath={"+strings.Join(paths, `}{" "}{`)+"}")
		}
		knows := func(field string) bool { // the definitions of the moment
			_, err := cluster.Kubectl(ctx, nil, "explain", "inferencepools.kvasir.dev.spec."+field)
			return err == nil
		}
		kubectl(ctx, "patch", "kvpool", "mine", "--namespace", "users", "--type=merge",
			"--patch", `{"spec":{"engine":{"networkPolicy":{"mode":"Open"}},"drain":{"deadlineSeconds":77}}}`)
		Expect(knows("engine.networkPolicy")).To(BeTrue())
		mustHelm(ctx, append(system, "rollback", "kvasir", "1")...)
		Eventually(func() bool { return knows("engine.networkPolicy") }).WithTimeout(patience).Should(BeFalse())
		Expect(knows("role")).To(BeTrue())
		Expect(uids(ctx)).To(Equal(made))
		Expect(get("kvpool/mine", ".spec.model.name", ".spec.selector.matchLabels.app", ".spec.drain.deadlineSeconds")).To(Equal("m m 77"))
		Expect(get("kvpolicy/mine", ".spec.targetRefs[0].name")).To(Equal("mine"))

		mustHelm(ctx, append(system, "upgrade", "kvasir", chart)...)
		Eventually(func() bool { return knows("engine.networkPolicy") }).WithTimeout(patience).Should(BeTrue())
		Expect(uids(ctx)).To(Equal(made))
		both := []string{".spec.engine.networkPolicy.mode", ".spec.drain.deadlineSeconds"}
		Expect(get("kvpool/mine", both...)).To(Equal("Open 77"), "nothing has written the pool meanwhile")

		mustHelm(ctx, append(system, "rollback", "kvasir", "1")...)
		kubectl(ctx, "patch", "kvpool", "mine", "--namespace", "users", "--type=merge", "--patch", `{"spec":{"drain":{"deadlineSeconds":78}}}`)
		mustHelm(ctx, append(system, "upgrade", "kvasir", chart)...)
		Expect(uids(ctx)).To(Equal(made))
		Expect(get("kvpool/mine", both...)).To(Equal(" 78"), "written without the new field")
	})

	It("leaves the definitions and what users have made when it uninstalls, and nothing else", func(ctx SpecContext) {
		mustHelm(ctx, append(system, "uninstall", "kvasir")...)
		Expect(uids(ctx)).To(Equal(made))
		Expect(strings.Fields(kubectl(ctx, "get", "crd,clusterroles,clusterrolebindings,all,roles,rolebindings,serviceaccounts,networkpolicies,poddisruptionbudgets,secrets,configmaps",
			"--all-namespaces", "--selector", "app.kubernetes.io/instance=kvasir", "--output", "name"))).To(BeEmpty())
		Expect(kubectl(ctx, "get", "clusterroles,clusterrolebindings", "--output", "name")).NotTo(ContainSubstring("kvasir"))
	})

	It("takes over the definitions of an earlier installation, of its own name and of another", func(ctx SpecContext) {
		mustHelm(ctx, append(system, "install", "kvasir", chart)...)
		mustHelm(ctx, append(system, "uninstall", "kvasir")...)
		_, err := helm(ctx, append(system, "install", "other", chart)...)
		Expect(err).To(MatchError(ContainSubstring("release-name")))
		mustHelm(ctx, append(system, "install", "other", chart, "--take-ownership")...)
		mustHelm(ctx, append(system, "uninstall", "other")...)
		Expect(uids(ctx)).To(Equal(made))
	})

	It("takes over what kustomize has installed", func(ctx SpecContext) {
		kubectl(ctx, "apply", "--server-side", "--force-conflicts", "-k", filepath.Join(kube.Root(), "config", "default"))
		kubectl(ctx, append(system, "delete", "deployment", "kvasir-operator")...) // its selector cannot change
		mustHelm(ctx, append(system, "install", "kvasir", chart, "--take-ownership", "--force-conflicts")...)
		mustHelm(ctx, append(system, "uninstall", "kvasir")...)
		Expect(uids(ctx)).To(Equal(made))
	})
})
