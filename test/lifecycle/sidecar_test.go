package lifecycle

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/relay"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// poolApart has one pod that prefills and two that decode.
const poolApart = `
apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: m}
spec:
  model: {name: m}
  roles:
  - {name: Prefill, replicas: 1}
  - {name: Decode, replicas: 2}
  drain: {deadlineSeconds: 300}
  picker: {replicas: 1, indexMemory: 64Mi}
  template:
    metadata: {annotations: {kvasir.dev/engine-release: "0.32"}} # vllmsim takes its flags
    spec:
      serviceAccountName: default
      containers:
      - name: vllm
        image: vllmsim
        args: [--host, 0.0.0.0, --served-model-name, m, --num-gpu-blocks, "4000"]
`

// policyApart hands new prompts over, behind a gateway, too.
const policyApart = `
apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: apart}
spec:
  targetRefs: [{name: m}]
  disaggregation: {type: Threshold, uncachedTokens: 64, sidecar: Kvasir}
`

// roleSettled reports whether the pods of a pool with roles serve, and no others are there.
func roleSettled(p *v1alpha1.InferencePool) bool {
	s := &p.Status
	is := func(a, b *int32) bool { return a != nil && b != nil && *a == *b }
	for i := range s.Roles {
		r := &s.Roles[i]
		if !is(r.DesiredReplicas, r.Replicas) || !is(r.DesiredReplicas, r.ReadyReplicas) || !is(r.DesiredReplicas, r.UpdatedReplicas) {
			return false
		}
	}
	return s.ObservedGeneration == p.Generation && len(s.Roles) == 2 && is(s.Replicas, s.ReadyReplicas) && is(s.Replicas, s.DesiredReplicas) &&
		s.CurrentRevision == s.UpdateRevision && (s.DrainingReplicas == nil || *s.DrainingReplicas == 0)
}

// gatewayOf is a gateway in front of the pool's picker.
func (w *world) gatewayOf() string {
	w.Helper()
	unchecked := credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}) //nolint:gosec // the picker is known by its address
	g, err := envoytest.New(envoytest.Options{
		Pickers: []string{net.JoinHostPort(w.pickerPods()[0].Status.PodIP, "9002")}, Seed: 1, Allowed: []string{relay.TicketHeader},
		Dial: []grpc.DialOption{grpc.WithTransportCredentials(unchecked)},
	})
	w.must(err)
	server := httptest.NewServer(g)
	w.Cleanup(func() {
		server.Close()
		g.Close()
		for _, v := range g.Violations() {
			w.Errorf("a rule of Envoy's is broken: %s", v)
		}
	})
	return server.Listener.Addr().String()
}

// decoders are the pods that decode and stay, and how many of these have the sidecar.
func (w *world) decoders() (pods []corev1.Pod, behind int) {
	for _, p := range w.podsOf(v1alpha1.LabelRole + "=decode") {
		if _, drains := p.Labels[v1alpha1.LabelDrain]; drains || !p.DeletionTimestamp.IsZero() {
			continue
		}
		pods = append(pods, p)
		if config.ReporterServes(&p) {
			behind++
		}
	}
	return pods, behind
}

// handed is how many hand-offs with an outcome the picker has counted.
func (w *world) handed(outcome string) (sum int) {
	_, page := w.observe(w.pickerPods()[0], "/metrics", true)
	for line := range strings.Lines(page) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if strings.HasPrefix(name, "kvasir_handoffs_total{") && strings.Contains(name, `outcome="`+outcome+`"`) {
			n := 0
			_, _ = fmt.Sscan(value, &n)
			sum += n
		}
	}
	return sum
}

// asks sends a request with a prompt that no engine holds, and says what was wrong with its answer.
func (w *world) asks(address string, n int) error {
	body, err := json.Marshal(map[string]any{
		"model": poolName, "max_tokens": 4, "ignore_eos": true, "prompt": strings.Repeat(fmt.Sprintf("%d is a prompt of its own. ", n), 60),
	})
	w.must(err)
	question, err := http.NewRequestWithContext(w.Context(), http.MethodPost, "http://"+address+"/v1/completions", bytes.NewReader(body))
	w.must(err)
	question.Header.Set("Content-Type", "application/json")
	r, err := http.DefaultClient.Do(question)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", r.StatusCode, text)
	}
	return err
}

// TestAPolicySetsUpTheSidecar: a pool with roles gets a policy that names Kvasir's sidecar. Its pods that decode get it, without a request
// that fails; then requests through a gateway are handed over, and pods that decode end without breaking what passes through them.
func TestAPolicySetsUpTheSidecar(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.apply(poolApart)
	w.until("serving", func(p *v1alpha1.InferencePool) bool { return roleSettled(p) && len(w.proxies()) == 1 })
	w.createReader()
	if _, behind := w.decoders(); behind != 0 {
		t.Fatalf("%d pods have a sidecar without a policy", behind)
	}
	gateway := w.gatewayOf()
	l := startLoadOf(w, 3, *longest, []string{poolName}, func(string) []string { return []string{gateway} })
	w.answers(l, 20)

	w.apply(policyApart)
	w.until("behind the sidecar", func(p *v1alpha1.InferencePool) bool {
		pods, behind := w.decoders()
		return roleSettled(p) && len(pods) == 2 && behind == 2
	})
	for _, p := range w.podsOf(v1alpha1.LabelRole + "=prefill") {
		if config.ReporterServes(&p) {
			t.Errorf("pod %s, which prefills, has a sidecar", p.Name)
		}
	}
	next := 0
	w.reaches("handing over", func() error {
		next++
		if err := w.asks(gateway, next); err != nil {
			t.Fatal(err)
		}
		if n := w.handed("completed"); n < 10 {
			return fmt.Errorf("%d requests were handed over, %d by no sidecar", n, w.handed("not_prefilled"))
		}
		return nil
	})

	w.patch(`{"spec":{"roles":[{"name":"Prefill","replicas":1},{"name":"Decode","replicas":1}]}}`)
	w.until("smaller", func(p *v1alpha1.InferencePool) bool {
		pods, _ := w.decoders()
		return roleSettled(p) && len(pods) == 1 && len(w.podsOf(v1alpha1.LabelRole+"=decode")) == 1
	})
	w.answers(l, 20)
	failures := l.end()
	t.Logf("%d requests through the gateway, %d failed; %d handed over, %d not prefilled", l.asked.Load()+int64(next), len(failures),
		w.handed("completed"), w.handed("not_prefilled"))
	for _, f := range failures[:min(10, len(failures))] {
		t.Error(f)
	}

	// A dead engine closes the pool's port, and the engine is started again without its reporter.
	pods, _ := w.decoders()
	reporter := reporterState(&pods[0])
	w.must(w.runner.Kill(pods[0].UID, "vllm"))
	w.reaches("serving after a crash of the engine", func() error {
		p := w.podsOf(v1alpha1.LabelRole + "=decode")[0]
		restarted := func(s corev1.ContainerStatus) bool { return s.Name == "vllm" && s.RestartCount > 0 }
		if !slices.ContainsFunc(p.Status.ContainerStatuses, restarted) || !ready(&p) {
			return errors.New("the engine is not back")
		}
		if got := reporterState(&p); got != reporter {
			t.Fatalf("the reporter was %s, and is %s", reporter, got)
		}
		return w.asks(gateway, int(time.Now().UnixNano()))
	})
}

// reporterState is the process of a pod's reporter.
func reporterState(p *corev1.Pod) string {
	for _, s := range p.Status.InitContainerStatuses {
		if s.Name == v1alpha1.ReporterContainer {
			return s.ContainerID
		}
	}
	return ""
}
