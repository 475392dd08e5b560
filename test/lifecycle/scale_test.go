package lifecycle

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

const autoscaled = `
apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: m}
spec:
  model: {name: m}
  autoscaling: {minReplicas: 0, maxReplicas: 3, up: {waitingPerReplica: 1}, down: {stabilizationSeconds: 10}}
  drain: {deadlineSeconds: 300}
  picker: {replicas: 2, indexMemory: 64Mi}
  template:
    metadata: {annotations: {kvasir.dev/engine-release: "0.32"}} # vllmsim takes its flags
    spec:
      serviceAccountName: default # the control plane of tests fills in none
      containers:
      - name: vllm
        image: vllmsim
        args: [--host, 127.0.0.1, --served-model-name, m, --num-gpu-blocks, "4000", --max-num-seqs, "2"]
        readinessProbe: {httpGet: {path: /health, port: 8000}}
`

// TestTheSizeFollowsTheDemand begins at zero, where the first request is held until there is a pod, grows under load, and
// shrinks when it is over. Nothing fails on the way.
func TestTheSizeFollowsTheDemand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.apply(autoscaled)
	desired := func(is func(n int32) bool) func(*v1alpha1.InferencePool) bool {
		return func(p *v1alpha1.InferencePool) bool { n := p.Status.DesiredReplicas; return n != nil && is(*n) }
	}
	w.until("at zero, with pickers", func(p *v1alpha1.InferencePool) bool {
		return desired(func(n int32) bool { return n == 0 })(p) && len(w.proxies()) == 2
	})

	first := &load{w: w, longest: 20, addresses: map[string][]string{poolName: w.proxies()}}
	began := time.Now()
	first.ask(rand.New(rand.NewPCG(1, 1)), poolName, 0, false)
	if len(first.failures) > 0 {
		t.Fatalf("the first request: %v", first.failures)
	}
	t.Logf("from zero to the first answer in %s", time.Since(began).Round(10*time.Millisecond))
	w.until("one pod", settled(1))

	l := startLoad(w, 16, 100)
	p := w.until("grown", desired(func(n int32) bool { return n >= 2 }))
	t.Logf("grown to %d because of %s", *p.Status.DesiredReplicas, p.Status.Autoscaling.Reason)
	w.until("serving with what it grew by", func(p *v1alpha1.InferencePool) bool {
		return p.Status.ReadyReplicas != nil && *p.Status.ReadyReplicas >= 2
	})
	if failures := l.end(); len(failures) > 0 {
		t.Errorf("%d of %d requests failed: %v", len(failures), l.asked.Load(), failures[:min(5, len(failures))])
	}
	w.until("shrunk", settled(1))
}
