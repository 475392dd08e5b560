package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/creack/pty"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/internal/cli/doctor"
	"github.com/kvasir-dev/kvasir/internal/cli/view"
	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/test/kube"
)

// plugin is a command of kubectl kvasir, as people call it, in the pool's namespace.
func (w *world) plugin(ctx context.Context, stdin string, args ...string) *exec.Cmd {
	bin := filepath.Join(kube.Root(), "bin")
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "kube", "kubectl"), append([]string{"kvasir"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.kubeconfig, "PATH="+bin+":"+os.Getenv("PATH"))
	cmd.Stdin = strings.NewReader(stdin)
	return cmd
}

// kvasir runs one, and gives its status and what it prints.
func (w *world) kvasir(ctx context.Context, stdin string, args ...string) (status int, out, errs string) {
	GinkgoHelper()
	cmd := w.plugin(ctx, stdin, append(args, "--namespace="+w.namespace)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		Fail(err.Error())
	}
	GinkgoWriter.Printf("$ kubectl kvasir %s\n%s%s", strings.Join(args, " "), &stdout, &stderr)
	Expect(stdout.String()).NotTo(ContainSubstring("\x1b"), "colours are for terminals")
	expectNoSecrets("kubectl kvasir "+args[0], stdout.String()+stderr.String())
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// did runs one that must succeed.
func (w *world) did(ctx context.Context, args ...string) string {
	GinkgoHelper()
	status, out, errs := w.kvasir(ctx, "", args...)
	Expect(status).To(BeZero(), "%v: %s%s", args, out, errs)
	return out
}

// seen is the pool of most scenarios as status shows it.
func (w *world) seen(ctx context.Context) *view.Pool {
	GinkgoHelper()
	return w.seenPool(ctx, poolName)
}

func (w *world) seenPool(ctx context.Context, name string) *view.Pool {
	GinkgoHelper()
	var s view.Statuses
	Expect(json.Unmarshal([]byte(w.did(ctx, "status", name, "-o", "json")), &s)).To(Succeed())
	Expect(s.Pools).To(HaveLen(1))
	return s.Pools[0]
}

// member is one of the pool's pods as status shows it.
func (w *world) member(ctx context.Context, name string) *view.Pod {
	GinkgoHelper()
	return w.memberOf(ctx, poolName, name)
}

func (w *world) memberOf(ctx context.Context, pool, name string) *view.Pod {
	GinkgoHelper()
	p := w.seenPool(ctx, pool)
	i := slices.IndexFunc(p.Members, func(m view.Pod) bool { return m.Name == name })
	Expect(i).To(BeNumerically(">=", 0), "%s is not shown", name)
	return &p.Members[i]
}

// doctor is what doctor finds.
func (w *world) doctor(ctx context.Context) *doctor.Report {
	GinkgoHelper()
	status, out, errs := w.kvasir(ctx, "", "doctor", "-o", "json")
	r := &doctor.Report{}
	Expect(json.Unmarshal([]byte(out), r)).To(Succeed(), errs)
	Expect(status == 0).To(Equal(r.Failed == 0), out)
	return r
}

// examined is the same; it must find failures or none.
func (w *world) examined(ctx context.Context, healthy bool) *doctor.Report {
	GinkgoHelper()
	r := w.doctor(ctx)
	Expect(len(failures(r)) == 0).To(Equal(healthy), "%q", failures(r))
	return r
}

// unwell are the findings of a check that are not good.
func unwell(r *doctor.Report, check string) (all []doctor.Result) {
	for _, one := range r.Results {
		if one.Check == check && one.Level != doctor.OK {
			all = append(all, one)
		}
	}
	return all
}

// failures that a report has, each "CHECK: MESSAGE".
func failures(r *doctor.Report) (all []string) {
	for _, one := range r.Results {
		if one.Level == doctor.Fail {
			all = append(all, one.Check+": "+one.Message)
		}
	}
	return all
}

// tools: people see, steer and examine the pool by kubectl kvasir, while requests arrive.
func tools() {
	It("is seen by kubectl kvasir", func(ctx SpecContext) {
		Expect(underLoad(ctx, func() { w.look(ctx) })).To(BeEmpty())
	})

	It("is drained and undrained by kubectl kvasir", func(ctx SpecContext) {
		victim, next := w.ready(ctx, engines)[0].Name, w.ready(ctx, engines)[1].Name
		Expect(underLoad(ctx, func() {
			Expect(w.did(ctx, "drain", victim)).To(HavePrefix("pod/" + victim + " drains"))
			Eventually(func() string { return w.member(ctx, victim).Stage }).Should(Equal("Draining"))
			pause(ctx, time.Second) // a mark is in force in all pickers
			picks := w.member(ctx, victim).Live.Picks
			pause(ctx, 3*time.Second)
			Expect(w.member(ctx, victim).Live.Picks).To(Equal(picks), "it is chosen still")
			Expect(w.did(ctx, "undrain", victim)).To(HavePrefix("pod/" + victim + " gets requests again"))
			Eventually(func() int64 { return w.member(ctx, victim).Live.Picks }).Should(BeNumerically(">", picks))

			w.did(ctx, "drain", next, "--replace", "--deadline=60s")
			Eventually(func() []string { return names(w.pods(ctx, engines)) }).ShouldNot(ContainElement(next))
			w.settled(ctx, 3)
		})).To(BeEmpty())
	})

	It("is rolled out, paused and resumed by kubectl kvasir", func(ctx SpecContext) {
		before := names(w.pods(ctx, engines))
		Expect(underLoad(ctx, func() {
			w.did(ctx, "rollout", "pause", poolName)
			w.patch(ctx, `{"spec": {"template": {"metadata": {"annotations": {"example.com/edition": "3"}}}}}`)
			Eventually(func() string { return w.did(ctx, "rollout", "status", poolName, "--watch=false") }).Should(HavePrefix("RolloutPaused: 0 of 3"))
			Expect(names(w.pods(ctx, engines))).To(Equal(before))
			w.did(ctx, "rollout", "resume", poolName)
			status, out, errs := w.kvasir(ctx, "", "rollout", "status", poolName, "--timeout=3m")
			Expect(status).To(BeZero(), out+errs)
			Expect(errs).To(ContainSubstring("of 3 pods updated"), "how far it has come")
			w.settled(ctx, 3)
			middle := names(w.pods(ctx, engines))
			w.did(ctx, "rollout", "restart", poolName)
			w.did(ctx, "rollout", "status", poolName, "--timeout=3m")
			w.settled(ctx, 3)
			for _, name := range names(w.pods(ctx, engines)) {
				Expect(slices.Concat(before, middle)).NotTo(ContainElement(name), "an old pod is still there")
			}
		})).To(BeEmpty())
	})

	It("is found healthy by kubectl kvasir doctor, and sick when it is", func(ctx SpecContext) {
		Expect(underLoad(ctx, func() {
			w.examined(ctx, true)

			By("a policy that denies all traffic")
			w.kubectl(ctx, "apply", "-f", "testdata/deny.yaml")
			DeferCleanup(func(ctx SpecContext) { w.kubectl(ctx, "delete", "-f", "testdata/deny.yaml", "--ignore-not-found") })
			Expect(failures(w.examined(ctx, false))).To(ContainElement(ContainSubstring("NetworkPolicy deny-all")))
			w.kubectl(ctx, "delete", "-f", "testdata/deny.yaml")

			By("an operator that does not run")
			w.kubectl(ctx, "scale", "deployment/kvasir-operator", "--replicas=0", "-n", system)
			DeferCleanup(func(ctx SpecContext) {
				w.kubectl(ctx, "scale", "deployment/kvasir-operator", "--replicas=2", "-n", system)
				w.kubectl(ctx, "rollout", "status", "deployment/kvasir-operator", "-n", system, "--timeout=3m")
			})
			Eventually(func() []string { return failures(w.examined(ctx, false)) }).Should(ContainElement("operator: none of its replicas is ready"))
			w.kubectl(ctx, "scale", "deployment/kvasir-operator", "--replicas=2", "-n", system)
			w.kubectl(ctx, "rollout", "status", "deployment/kvasir-operator", "-n", system, "--timeout=3m")

			By("an operator that may do nothing")
			w.kubectl(ctx, "delete", "clusterrolebinding", "kvasir-operator")
			Expect(failures(w.examined(ctx, false))).To(ContainElement(HavePrefix("rights: the operator may not ")))
			w.install(ctx, chart, "dev")
			w.settled(ctx, 3)
			w.examined(ctx, true)
		})).To(BeEmpty())
	})

	It("takes in engines of somebody's own, with the reporter that kubectl kvasir inject adds, and loses nothing when their node is drained", func(ctx SpecContext) {
		DeferCleanup(func(ctx SpecContext) {
			w.kubectl(ctx, "delete", "-f", "testdata/own.yaml", "--ignore-not-found", "--timeout=2m")
			w.settled(ctx, 3)
		})
		injected := w.did(ctx, "inject", "-f", "testdata/own.yaml")
		path := filepath.Join(GinkgoT().TempDir(), "injected.yaml")
		Expect(os.WriteFile(path, []byte(injected), 0o600)).To(Succeed())
		w.kubectl(ctx, "apply", "-f", path)
		w.kubectl(ctx, "wait", "-n", namespace, "kvpool/own", "--for=condition=Ready", "--timeout=3m")
		w.kubectl(ctx, "wait", "-n", namespace, "kvpool/own", "--for=condition=EventsSynced", "--timeout=3m")
		var s view.Statuses
		Eventually(func(g Gomega) {
			g.Expect(json.Unmarshal([]byte(w.did(ctx, "status", "own", "-o", "json")), &s)).To(Succeed())
			g.Expect(s.Pools[0].Members).To(HaveLen(2))
			for _, m := range s.Pools[0].Members {
				g.Expect(m.Live).NotTo(BeNil())
				g.Expect(m.Live.Events).To(Equal("Synced"))
			}
		}).Should(Succeed())

		var own corev1.PodList
		Expect(w.List(ctx, &own, client.MatchingLabels{"app": "own"}, client.InNamespace(namespace))).To(Succeed())
		node := own.Items[0].Spec.NodeName
		Expect(w.underLoad(ctx, "own", func() {
			w.kubectl(ctx, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=4m")
			w.kubectl(ctx, "uncordon", node)
			w.kubectl(ctx, "rollout", "status", "-n", namespace, "deployment/own", "--timeout=3m")
		})).To(BeEmpty())
	})
}

// look shows the pool in all ways that there are.
func (w *world) look(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		p := w.seen(ctx)
		g.Expect(p.Members).To(HaveLen(3))
		g.Expect(p.Live).NotTo(BeNil(), "%+v", p.Problems)
		g.Expect(p.Live.Pickers).To(HaveLen(2))
		g.Expect(p.Live.Hits).NotTo(BeNil())
		g.Expect(p.Live.Hits.Hit).To(BeNumerically(">", 0.3))
		g.Expect(p.Live.Hits.Divergence).To(BeNumerically("<", 0.1))
		for _, m := range p.Members {
			g.Expect(m.Stage).To(Equal("Ready"))
			g.Expect(m.Live).NotTo(BeNil())
			g.Expect(m.Live.Events).To(Equal("Synced"))
		}
	}).Should(Succeed())
	name := w.ready(ctx, engines)[0].Name
	Expect(w.did(ctx, "status")).To(And(ContainSubstring(namespace+"/"+poolName), ContainSubstring(name)))
	Expect(w.did(ctx, "status", "-o", "yaml")).To(HavePrefix("pools:\n"))
	Expect(w.did(ctx, "top", "--once")).To(ContainSubstring(name))
	shown := w.plugin(ctx, "", "status", "-n", namespace)
	shown.Stdin = nil // the terminal
	screen, err := pty.Start(shown)
	Expect(err).NotTo(HaveOccurred())
	colours, _ := io.ReadAll(screen) // ends with an error of its own when the program does
	Expect(screen.Close()).To(Succeed())
	Expect(string(colours)).To(ContainSubstring("\x1b[32m"), "a terminal gets colours")

	request := filepath.Join(GinkgoT().TempDir(), "request.json")
	Expect(os.WriteFile(request, fmt.Appendf(nil, `{"model": %q, "prompt": %q}`, poolName, strings.Repeat("The "+secretText+" of user 1. ", 20)), 0o600)).To(Succeed())
	var e api.Explanation
	Expect(json.Unmarshal([]byte(w.did(ctx, "explain", "-f", request, "-o", "json")), &e)).To(Succeed())
	Expect(e.Candidates).To(HaveLen(3))
	Expect(e.Candidates[0].Terms).NotTo(BeEmpty())
	var best []OmegaMatcher // the best one can have changed since: requests arrive all the time
	for _, c := range e.Candidates {
		best = append(best, ContainSubstring("It would go to "+c.Pod+"."))
	}
	Expect(w.did(ctx, "explain", "-f", request, poolName)).To(Or(best...))

	follow, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	stream := w.plugin(follow, "", "decisions", "-f", "--tail=0", "-o", "json", "-n", namespace)
	stream.Cancel = func() error { return stream.Process.Signal(syscall.SIGINT) }
	followed, err := stream.Output()
	Expect(follow.Err()).To(HaveOccurred(), "it has ended by itself: %v", err)
	expectNoSecrets("decisions", string(followed))
	Expect(bytes.Count(followed, []byte(`"outcome":"completed"`))).To(BeNumerically(">", 5))
	Expect(w.did(ctx, "decisions", "--tail=5")).To(ContainSubstring("completed"))
	Expect(w.did(ctx, "prefixes", poolName)).To(ContainSubstring(" " + poolName + "-"))
	Expect(w.did(ctx, "prefixes", "-o", "yaml")).To(HavePrefix("prefixes:\n"))
	completed, err := w.plugin(ctx, "", "__complete", "drain", "-n", namespace, "").Output()
	Expect(err).NotTo(HaveOccurred())
	Expect(string(completed)).To(ContainSubstring(name + "\tof " + poolName))

	page, end := context.WithCancel(ctx)
	defer end()
	ui := w.plugin(page, "", "ui", poolName, "-n", namespace)
	ui.Cancel = func() error { return ui.Process.Signal(os.Interrupt) }
	said, err := ui.StdoutPipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(ui.Start()).To(Succeed())
	line := make([]byte, 200)
	n, err := said.Read(line)
	Expect(err).NotTo(HaveOccurred())
	url, _, _ := strings.Cut(string(line[:n]), " ")
	for path, want := range map[string]string{"": "<html", "status?output=json": `"phase":"Serving"`} {
		r, err := http.Get(url + path)
		Expect(err).NotTo(HaveOccurred())
		text, err := io.ReadAll(r.Body)
		Expect(err).NotTo(HaveOccurred())
		Expect(r.Body.Close()).To(Succeed())
		Expect(string(text)).To(ContainSubstring(want), "%s%s", url, path)
	}
	end()
	_ = ui.Wait() // it was interrupted
}
