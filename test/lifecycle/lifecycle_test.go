package lifecycle

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

var (
	removals = flag.Int("lifecycle.removals", 12, "pods to scale down, and as many to scale up again")
	rollouts = flag.Int("lifecycle.rollouts", 1, "changes of the template")
	longest  = flag.Int("lifecycle.longest", 200, "tokens of the longest answers, about 20 ms each")
	clients  = flag.Int("lifecycle.clients", 6, "clients that ask at the same time")
)

const pool = `
apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: m}
spec:
  model: {name: m}
  replicas: 3
  drain: {deadlineSeconds: 300}
  picker: {replicas: 2, indexMemory: 64Mi}
  template:
    spec:
      serviceAccountName: default # the control plane of tests fills in none
      containers:
      - name: vllm
        image: vllmsim
        args: [--host, 127.0.0.1, --served-model-name, m, --num-gpu-blocks, "4000"]
        readinessProbe: {httpGet: {path: /health, port: 8000}}
`

// TestNoRequestFails scales a pool down and up and rolls it out, again and again, under load.
func TestNoRequestFails(t *testing.T) {
	w := newWorld(t)
	w.apply(pool)
	w.until("serving", func(p *v1alpha1.InferencePool) bool { return settled(3)(p) && len(w.proxies()) == 2 })
	l := startLoad(w, *clients, *longest)
	rng := rand.New(rand.NewPCG(1, 2))
	size, removed, rolled, began := int32(3), 0, 0, time.Now()
	for removed < *removals || rolled < *rollouts {
		if rolled < *rollouts && removed*(*rollouts) >= rolled*(*removals) {
			w.patch(`{"spec":{"template":{"metadata":{"annotations":{"revision":"%d"}}}}}`, rolled)
			w.until("rolled out", settled(size))
			rolled++
		}
		next := 1 + rng.Int32N(5)
		if removed += int(max(0, size-next)); next == size {
			continue
		}
		size = next
		w.patch(`{"spec":{"replicas":%d}}`, size)
		w.until("scaled", settled(size))
	}
	lasted := time.Since(began).Round(time.Second)
	failures := l.end()
	t.Logf("%d pods scaled down, %d rollouts in %s; %d requests, %d of them streamed, %d failed", removed, rolled, lasted,
		l.asked.Load(), l.streamed.Load(), len(failures))
	for _, f := range failures[:min(10, len(failures))] {
		t.Error(f)
	}
	if l.asked.Load() < 100 || l.streamed.Load() == 0 {
		t.Errorf("only %d requests, %d streamed: the test shows little", l.asked.Load(), l.streamed.Load())
	}
}
