package lifecycle

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

var (
	removals = flag.Int("lifecycle.removals", 12, "pods to scale down, and as many to scale up again")
	rollouts = flag.Int("lifecycle.rollouts", 1, "changes of the template")
	drains   = flag.Int("lifecycle.drains", 1, "nodes to drain")
	upgrades = flag.Int("lifecycle.upgrades", 1, "changes of the images of operator, pickers and reporters")
	longest  = flag.Int("lifecycle.longest", 200, "tokens of the longest answers, about 9 ms each")
	clients  = flag.Int("lifecycle.clients", 6, "clients that ask at the same time; every third for long answers")
	largest  = flag.Int("lifecycle.largest", 5, "the most pods")
	late     = flag.Duration("lifecycle.late", 2*time.Second, "how late the operator and the pickers see what they watch")
)

const pool = `
apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: m}
spec:
  model: {name: m}
  replicas: 3
  drain: {deadlineSeconds: 300}
  rollout: {maxSurge: 50%}
  picker: {replicas: 2, indexMemory: 64Mi}
  template:
    metadata: {annotations: {kvasir.dev/engine-release: "0.32"}} # vllmsim takes its flags
    spec:
      serviceAccountName: default # the control plane of tests fills in none
      containers:
      - name: vllm
        image: vllmsim
        args: [--host, 127.0.0.1, --served-model-name, m, --num-gpu-blocks, "4000", --log-level, debug]
        readinessProbe: {httpGet: {path: /health, port: 8000}}
`

// planned is something that an administrator does to a pool, several times.
type planned struct {
	name        string
	count, done int
	do          func()
}

// TestNoRequestFails scales a pool down and up, rolls it out, drains its nodes and upgrades Kvasir, again and again, under load,
// while the operator and the pickers see all changes late. No request fails, and none goes to a pod that all pickers have said not
// to choose any more.
func TestNoRequestFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, *late)
	w.apply(pool)
	w.until("serving", func(p *v1alpha1.InferencePool) bool { return settled(3)(p) && len(w.proxies()) == 2 })
	m := followMarks(w)
	l := startLoad(w, *clients, *longest)
	rng := rand.New(rand.NewPCG(1, 2))
	size, removed, began := int32(3), 0, time.Now()
	rollout, drain, upgrade := planned{name: "rollouts", count: *rollouts}, planned{name: "drains", count: *drains}, planned{name: "upgrades", count: *upgrades}
	rollout.do = func() {
		w.patch(`{"spec":{"template":{"metadata":{"annotations":{"revision":"%d"}}}}}`, rollout.done)
	}
	drain.do = func() { w.drain(w.nodes[drain.done%len(w.nodes)]) }
	upgrade.do = w.upgrade
	events := []*planned{&rollout, &drain, &upgrade}
	left := func() bool {
		return slices.ContainsFunc(events, func(e *planned) bool { return e.done < e.count })
	}
	for removed < *removals || left() {
		for _, e := range events {
			if e.done < e.count && removed*e.count >= e.done*(*removals) {
				e.do()
				w.until("as it was, after one of the "+e.name, settled(size))
				e.done++
				t.Logf("%s: %d of %d %s", time.Since(began).Round(time.Second), e.done, e.count, e.name)
			}
		}
		next := 1 + rng.Int32N(int32(*largest))
		if removed += int(max(0, size-next)); next == size {
			continue
		}
		size = next
		t.Logf("%s: size %d after %d removals", time.Since(began).Round(time.Second), size, removed)
		w.patch(`{"spec":{"replicas":%d}}`, size)
		w.until("scaled", settled(size))
	}
	lasted := time.Since(began).Round(time.Second)
	failures := l.end()
	drained, after, tooLate := m.end()
	t.Logf("%d pods scaled down, %d rollouts, %d node drains, %d upgrades in %s; %d requests, %d of them streamed, the longest answer %s; %d failed",
		removed, rollout.done, drain.done, upgrade.done, lasted, l.asked.Load(), l.streamed.Load(), time.Duration(l.slowest.Load()).Round(100*time.Millisecond), len(failures))
	t.Logf("%d pods drained; %d requests came after all pickers had acknowledged the mark, %d later than one may be on its way",
		drained, after, tooLate)
	if tooLate > 0 {
		t.Errorf("%d requests came to draining pods", tooLate)
	}
	if n := w.restarts.Load(); n > 0 {
		t.Errorf("the operator had to start again %d times", n)
	}
	if drained < removed {
		t.Errorf("only %d marks were seen of %d pods that have gone", drained, removed)
	}
	for _, f := range failures[:min(10, len(failures))] {
		t.Error(f)
	}
	if l.asked.Load() < 100 || l.streamed.Load() == 0 {
		t.Errorf("only %d requests, %d streamed: the test shows little", l.asked.Load(), l.streamed.Load())
	}
}
