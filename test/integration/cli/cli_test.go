package cli_test

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/cli/view"
	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/test/docpage"
	"github.com/kvasir-dev/kvasir/test/kube"
)

var update = flag.Bool("update", false, "rewrite the outputs in the docs")

// documented wants the page to show what a command has printed.
func documented(command, output string) {
	GinkgoHelper()
	Expect(docpage.Check("kubectl-kvasir.md", "kubectl kvasir "+command, output, *update)).To(Succeed())
}

var _ = Describe("Pods and rollouts", func() {
	It("drains and undrains pods", func(ctx SpecContext) {
		w := newWorld(ctx)
		mark := func() (label, deadline string) {
			p := &corev1.Pod{}
			Expect(w.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "engine-a"}, p)).To(Succeed())
			return p.Labels[v1alpha1.LabelDrain], p.Annotations[v1alpha1.AnnotationDrainDeadline]
		}
		documented("drain engine-a", expect(ctx, "drain", "engine-a"))
		label, deadline := mark()
		Expect(label).To(Equal("manual"))
		Expect(deadline).To(BeEmpty())
		Expect(expect(ctx, "drain", "engine-a")).To(Equal("pod/engine-a drains already\n"))
		Expect(expect(ctx, "status")).To(MatchRegexp(`engine-a +Draining +manual`))
		documented("undrain engine-a", expect(ctx, "undrain", "engine-a"))
		label, _ = mark()
		Expect(label).To(BeEmpty())
		Expect(expect(ctx, "undrain", "engine-a", "-o", "json")).To(MatchJSON(`{"pod":"engine-a","pool":"m","changed":false}`))

		refused(ctx, "there is no pod engine-c", "drain", "engine-c")
		refused(ctx, "does not belong to pool", "drain", "engine-a", "--replace")
		w.pod(ctx, "stranger", kube.Address(0, 0, 4), nil)
		refused(ctx, "no pool of the namespace llm has the pod stranger", "drain", "stranger")

		By("leaving alone what the operator drains")
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "engine-b"}}
		Expect(w.client.Patch(ctx, p, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"kvasir.dev/drain":"scale-down"}}}`)))).To(Succeed())
		refused(ctx, "raise the pool's size", "undrain", "engine-b")
		refused(ctx, "drains already, for scale-down", "drain", "engine-b")
	})

	It("replaces pods of its own pools by a deadline", func(ctx SpecContext) {
		w := newWorld(ctx)
		own := ownPool()
		w.create(ctx, own)
		w.pod(ctx, "chat-bcdfghjklm-0", kube.Address(0, 0, 5), map[string]string{v1alpha1.LabelPool: "chat"})
		before := time.Now()
		out := expect(ctx, "drain", "chat-bcdfghjklm-0", "--replace", "--deadline", "90s", "-o", "json")
		var marked struct {
			Deadline time.Time `json:"deadline"`
		}
		Expect(json.Unmarshal([]byte(out), &marked)).To(Succeed())
		Expect(marked.Deadline).To(BeTemporally("~", before.Add(90*time.Second), 5*time.Second))
		p := &corev1.Pod{}
		Expect(w.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "chat-bcdfghjklm-0"}, p)).To(Succeed())
		Expect(p.Annotations[v1alpha1.AnnotationDrainDeadline]).To(Equal(marked.Deadline.Format(time.RFC3339)))
		Expect(p.Labels[v1alpha1.LabelDrain]).To(Equal("manual"))
		Expect(expect(ctx, "drain", "chat-bcdfghjklm-0")).To(ContainSubstring("drains: no picker"), "the deadline is lifted")
		Expect(w.client.Get(ctx, client.ObjectKeyFromObject(p), p)).To(Succeed())
		Expect(p.Annotations).NotTo(HaveKey(v1alpha1.AnnotationDrainDeadline))
	})

	It("watches, pauses and restarts rollouts", func(ctx SpecContext) {
		w := newWorld(ctx)
		own := ownPool()
		w.create(ctx, own)
		at := func() *v1alpha1.InferencePool {
			p := &v1alpha1.InferencePool{}
			Expect(w.client.Get(ctx, client.ObjectKeyFromObject(own), p)).To(Succeed())
			return p
		}
		documented("rollout pause chat", expect(ctx, "rollout", "pause", "chat"))
		Expect(at().Spec.Paused).To(Equal(v1alpha1.PauseRollout))
		Expect(expect(ctx, "rollout", "pause", "chat")).To(Equal("kvpool/chat paused already\n"))
		refused(ctx, "is paused", "rollout", "restart", "chat")
		Expect(expect(ctx, "rollout", "pause", "chat", "--all")).To(Equal("kvpool/chat paused\n"))
		Expect(at().Spec.Paused).To(Equal(v1alpha1.PauseAll))
		documented("rollout resume chat", expect(ctx, "rollout", "resume", "chat"))
		Expect(at().Spec.Paused).To(BeEmpty())
		Expect(expect(ctx, "rollout", "resume", "chat")).To(Equal("kvpool/chat not paused\n"))
		documented("rollout restart chat", expect(ctx, "rollout", "restart", "chat"))
		Expect(at().Spec.Template.Annotations).To(HaveKey(v1alpha1.AnnotationRestartedAt))
		refused(ctx, "have another owner", "rollout", "restart", "m")
		refused(ctx, "--all pauses", "rollout", "pause", "m")

		By("telling how far it is")
		status, out, errs := cli(ctx, "", "rollout", "status", "chat", "--timeout", "4s") // the first look is within it
		Expect(status).To(Equal(1))
		Expect(errs).To(ContainSubstring("not done in time"))
		Expect(out).To(ContainSubstring("Waiting"))
		w.pool = own
		w.status(ctx, func(s *v1alpha1.InferencePoolStatus) {
			s.Conditions[1] = condition(v1alpha1.ConditionUpToDate, "False", "RolloutInProgress", "1 of 2 pods")
		})
		Expect(expect(ctx, "rollout", "status", "chat", "--watch=false")).To(Equal("RolloutInProgress: 2 of 2 pods updated, 2 ready: 1 of 2 pods\n"))
		w.status(ctx, func(s *v1alpha1.InferencePoolStatus) {
			s.Conditions[1] = condition(v1alpha1.ConditionUpToDate, "False", "RolloutStopped", "a pod is not ready")
		})
		refused(ctx, "has stopped", "rollout", "status", "chat")
		w.status(ctx, nil)
		documented("rollout status chat", expect(ctx, "rollout", "status", "chat"))
	})

	It("injects for a pool that it reads from the cluster", func(ctx SpecContext) {
		w := newWorld(ctx)
		w.pool.Spec.Engine.Events.Source = v1alpha1.EventsAuto
		Expect(w.client.Update(ctx, w.pool)).To(Succeed())
		manifest := `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"m"},"spec":{"selector":{"matchLabels":{"app":"m"}},` +
			`"template":{"metadata":{"labels":{"app":"m"}},"spec":{"containers":[{"name":"vllm","image":"vllm/vllm-openai:v0.24.0","args":["--model","m"]}]}}}}`
		status, out, errs := cli(ctx, manifest, "inject", "-f", "-", "--pool", "m", "--reporter-image", "kvasir/reporter:dev")
		Expect(status).To(Equal(0), errs)
		Expect(errs).To(Equal("deployment/m: added reporter, --kv-events-config, --enable-prompt-tokens-details, --shutdown-timeout, VLLM_HTTP_TIMEOUT_KEEP_ALIVE, preStop, terminationGracePeriodSeconds\n"))
		_, err := cluster.Kubectl(ctx, strings.NewReader(out), "-n", namespace, "apply", "--dry-run=server", "--validate=strict", "-f", "-")
		Expect(err).NotTo(HaveOccurred())
		status, _, errs = cli(ctx, manifest, "inject", "-f", "-", "--pool", "m")
		Expect(status).To(Equal(1))
		Expect(errs).To(ContainSubstring("no operator runs in the cluster"))
		Expect(errs).To(ContainSubstring("--reporter-image"))
	})
})

// ownPool is a pool that makes its pods.
func ownPool() *v1alpha1.InferencePool {
	p := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Name: "chat"}}
	p.Spec.Model.Name = "chat"
	two := int32(2)
	p.Spec.Replicas = &two
	p.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "vllm", Image: "vllm/vllm-openai:v0.24.0"}}}}
	return p
}

var _ = Describe("Completion", func() {
	It("knows pools, pods and namespaces, for kubectl too", func(ctx SpecContext) {
		newWorld(ctx)
		run := func(name string, arguments ...string) string {
			cmd := exec.CommandContext(ctx, filepath.Join(programs, name), arguments...)
			cmd.Env = append(os.Environ(), "KUBECONFIG="+cluster.Kubeconfig())
			out, err := cmd.Output()
			Expect(err).NotTo(HaveOccurred())
			return string(out)
		}
		Expect(run("kubectl_complete-kvasir", "drain", "-n", namespace, "")).To(HavePrefix("engine-a\tof m\nengine-b\tof m\n"))
		Expect(run("kubectl-kvasir", "__complete", "rollout", "status", "-n", namespace, "")).To(HavePrefix("m\tm\n"))
		Expect(run("kubectl-kvasir", "__complete", "status", "-n", "ll")).To(ContainSubstring(namespace + "\n"))
		Expect(run("kubectl-kvasir", "__complete", "status", "-o", "")).To(HavePrefix("table\njson\nyaml\n"))
		for _, shell := range []string{"bash", "zsh", "fish"} {
			Expect(run("kubectl-kvasir", "completion", shell)).To(ContainSubstring("__complete"))
		}
	})
})

var _ = Describe("Status", func() {
	It("shows what the API server knows where no picker answers", func(ctx SpecContext) {
		w := newWorld(ctx)
		w.status(ctx, func(s *v1alpha1.InferencePoolStatus) {
			s.Conditions = append(s.Conditions, condition(v1alpha1.ConditionEventsSynced, "False", "StreamMissing", "engine-b sends no events"))
		})
		var got view.Statuses
		Expect(json.Unmarshal([]byte(expect(ctx, "status", "m", "-o", "json")), &got)).To(Succeed())
		Expect(got.Pools).To(HaveLen(1))
		Expect(got.Pools[0].Status).To(Equal("Serving"))
		Expect(got.Pools[0].Live).To(BeNil())
		Expect(got.Pools[0].Members).To(HaveLen(2))
		out := expect(ctx, "status")
		documented("status", out)
		Expect(out).To(ContainSubstring("! EventsSynced StreamMissing: engine-b sends no events"))
		Expect(out).To(ContainSubstring("! picker: looking for the pickers of pool m"))
		Expect(expect(ctx, "status", "-A")).To(ContainSubstring("llm/m"))
		refused(ctx, "there is no pool x in the namespace llm", "status", "x")
	})
})

var _ = Describe("Pickers", func() {
	It("are asked through the API server, with a token of the viewer", func(ctx SpecContext) {
		w := newWorld(ctx)
		w.status(ctx, nil)
		w.startPicker(ctx)
		w.operator(ctx)
		Expect(expect(ctx, "status")).To(ContainSubstring("no service account kvasir-viewer"))
		refused(ctx, "kubectl -n llm create serviceaccount kvasir-viewer", "prefixes")
		w.viewer(ctx)
		for i := range 4 {
			w.ask(i%2, 200)
		}
		var got view.Statuses
		Eventually(func(g Gomega) {
			g.Expect(json.Unmarshal([]byte(expect(ctx, "status", "-o", "json")), &got)).To(Succeed())
			g.Expect(got.Pools[0].Live).NotTo(BeNil(), "%+v", got.Pools[0].Problems)
			g.Expect(got.Pools[0].Live.Requests).To(BeEquivalentTo(4))
		}, patience).Should(Succeed())
		Expect(got.Pools[0].Live.Pickers).To(Equal([]string{"m-picker-0"}))
		Expect(got.Pools[0].Members[0].Stage).To(Equal("Ready"), "the operator's stages stand")
		Expect(got.Pools[0].Members[0].Live).NotTo(BeNil())

		status, out, errs := cli(ctx, `{"model":"m","prompt":[1,2,3]}`, "explain", "-f", "-", "-o", "json")
		Expect(status).To(Equal(0), errs)
		var e api.Explanation
		Expect(json.Unmarshal([]byte(out), &e)).To(Succeed())
		Expect(e.Candidates).To(HaveLen(2))
		status, _, errs = cli(ctx, `{"model":"other","prompt":[1,2,3]}`, "explain", "-f", "-")
		Expect(status).To(Equal(1))
		Expect(errs).To(ContainSubstring("404"))
		Expect(expect(ctx, "decisions", "m", "-o", "json")).To(ContainSubstring(`"outcome":"completed"`))
		Expect(expect(ctx, "prefixes", "m", "-o", "yaml")).To(HavePrefix("prefixes:"))
		Expect(expect(ctx, "top", "--once")).To(ContainSubstring("engine-a"))
		refused(ctx, "top needs a terminal", "top")

		By("examining it all")
		documented("doctor", expect(ctx, "doctor"))

		By("finding what is wrong")
		w.create(ctx, &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "deny-all"}, Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}},
		})
		w.status(ctx, func(s *v1alpha1.InferencePoolStatus) {
			s.Conditions = append(s.Conditions, condition(v1alpha1.ConditionEventsSynced, "False", "BlockSizeUnsupported", "blocks of 20 tokens"))
		})
		status, out, _ = cli(ctx, "", "doctor")
		Expect(status).To(Equal(1))
		Expect(out).To(ContainSubstring("the NetworkPolicy deny-all does not let the requests of pickers to engines through, port 18431"))
		Expect(out).To(ContainSubstring("> the engine's block size does not divide"))

		By("running as a user without any permission")
		file, err := cluster.ServiceAccount(namespace, "nobody")
		Expect(err).NotTo(HaveOccurred())
		status, out, _ = cliWith(ctx, file, "", "doctor", "-n", namespace)
		Expect(status).To(Equal(1))
		Expect(out).To(ContainSubstring("you may not patch pods, which is needed for drain, undrain"))
	})
})
