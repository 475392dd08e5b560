package inferencepool

import (
	"context"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// follow creates a policy of the pool that names a sidecar, and returns it.
func (w *world) follow(sidecar v1alpha1.Sidecar) *v1alpha1.RoutingPolicy {
	w.t.Helper()
	p := &v1alpha1.RoutingPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: poolKey.Namespace, Name: "apart"},
		Spec: v1alpha1.RoutingPolicySpec{
			TargetRefs:     []v1alpha1.PolicyTarget{{Group: ptr.To(v1alpha1.GroupVersion.Group), Kind: "InferencePool", Name: poolKey.Name}},
			Disaggregation: v1alpha1.Disaggregation{Type: v1alpha1.DisaggregationCost, Sidecar: sidecar},
		},
	}
	w.must(w.api.Create(context.Background(), p))
	return p
}

// serves lets the pool settle.
func (w *world) serves() {
	w.t.Helper()
	for range 12 {
		w.serve()
	}
}

// uids are those of all pods.
func (w *world) uids() []string {
	var out []string
	for _, pod := range w.all() {
		out = append(out, string(pod.UID))
	}
	slices.Sort(out)
	return out
}

// sidecars counts the pods that decode with a sidecar and without one, and checks that no other pod has one.
func (w *world) sidecars() (with, without int) {
	w.t.Helper()
	for _, pod := range w.all() {
		switch serves := config.ReporterServes(pod); {
		case roleOf(w.pool(), pod) == endpoint.Prefill:
			if serves {
				w.fail("pod %s, which prefills, has a sidecar", pod.Name)
			}
		case serves:
			with++
		default:
			without++
		}
	}
	return with, without
}

// TestAPolicyPutsTheSidecarInFront of the engines that decode, by a rollout. Without the policy they keep it until another rollout, so that
// a policy that goes and comes restarts no engine.
func TestAPolicyPutsTheSidecarInFront(t *testing.T) {
	w := newWorld(t, apart)
	expect := func(what string, with, without int) {
		t.Helper()
		if a, b := w.sidecars(); a != with || b != without {
			w.fail("%s: %d pods with a sidecar and %d without, want %d and %d", what, a, b, with, without)
		}
		if got := w.condition(v1alpha1.ConditionUpToDate); got != "True UpToDate" {
			w.fail("%s: up to date: %s", what, got)
		}
	}
	w.serves()
	expect("no policy", 0, 2)
	bare := w.uids()
	llmd := w.follow(v1alpha1.SidecarLLMD)
	w.serves()
	expect("another sidecar", 0, 2)
	if !slices.Equal(bare, w.uids()) {
		w.fail("a policy with another sidecar replaces pods")
	}
	w.must(w.api.Delete(context.Background(), llmd))

	policy := w.follow(v1alpha1.SidecarKvasir)
	w.serves()
	expect("a policy", 2, 0)
	behind := w.uids()
	w.must(w.api.Delete(context.Background(), policy))
	w.start() // a controller without memory
	w.serves()
	expect("the policy is gone", 2, 0)
	w.follow(v1alpha1.SidecarKvasir)
	w.serves()
	if expect("the policy is back", 2, 0); !slices.Equal(behind, w.uids()) {
		w.fail("a policy that goes and comes replaces pods")
	}
	w.must(w.api.Delete(context.Background(), policy))
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Template.Spec.Containers[0].Image = "vllm/vllm-openai:v0.25.0" })
	w.serves()
	expect("another rollout", 0, 2)
}

// TestAPoolSaysThatTheSidecarIsMissing: which pods wait for it, and why it cannot be there. The pods stay as they are then.
func TestAPoolSaysThatTheSidecarIsMissing(t *testing.T) {
	message := func(w *world, kind string) string {
		return meta.FindStatusCondition(w.pool().Status.Conditions, kind).Message
	}
	w := newWorld(t, apart)
	w.serves()
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Paused = v1alpha1.PauseRollout })
	policy := w.follow(v1alpha1.SidecarKvasir)
	w.serves()
	if got := message(w, v1alpha1.ConditionUpToDate); !strings.Contains(got, "2 pods that decode lack the sidecar of RoutingPolicy apart") {
		t.Errorf("up to date: %s", got)
	}
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Paused = "" })
	w.serves()
	if with, without := w.sidecars(); with != 2 || without != 0 {
		t.Errorf("%d pods have the sidecar, %d do not", with, without)
	}

	for name, change := range map[string]func(*v1alpha1.InferencePoolSpec){
		"no roles":        func(s *v1alpha1.InferencePoolSpec) { *s = newPool().Spec },
		"engine.tls":      func(s *v1alpha1.InferencePoolSpec) { s.Engine.TLS.Verification = v1alpha1.VerificationNone },
		"engine.protocol": func(s *v1alpha1.InferencePoolSpec) { s.Engine.Protocol = v1alpha1.ProtocolH2C },
		"--port 8100 of a role": func(s *v1alpha1.InferencePoolSpec) {
			s.Roles[1].Engine = &v1alpha1.RoleEngine{ExtraArgs: []string{"--port=8100"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, apart, func(p *v1alpha1.InferencePool) { change(&p.Spec) })
			w.serves()
			before := w.uids()
			w.follow(v1alpha1.SidecarKvasir)
			w.serves()
			if !slices.Equal(before, w.uids()) {
				t.Error("pods are replaced by others that are the same")
			}
			want, _, _ := strings.Cut(name, " of")
			if want = strings.Replace(want, "no roles", "spec.roles is not set", 1); w.condition(v1alpha1.ConditionPodsHealthy) != "False SidecarMissing" ||
				!strings.Contains(message(w, v1alpha1.ConditionPodsHealthy), want) {
				t.Errorf("%s: %s, want %s", w.condition(v1alpha1.ConditionPodsHealthy), message(w, v1alpha1.ConditionPodsHealthy), want)
			}
		})
	}
	policy.Spec.Disaggregation.Type = v1alpha1.DisaggregationNever
	w.must(w.api.Update(context.Background(), policy))
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Engine.TLS.Verification = v1alpha1.VerificationNone })
	w.serves()
	if got := w.condition(v1alpha1.ConditionPodsHealthy); got == "False SidecarMissing" {
		t.Error("a policy that hands nothing over misses a sidecar")
	}
}

// TestReportersThatRequestsPassThroughStay: their image is changed with their pod, and the other reporters prove a new one.
func TestReportersThatRequestsPassThroughStay(t *testing.T) {
	w := newWorld(t, apart)
	w.follow(v1alpha1.SidecarKvasir)
	w.serves()
	w.r.ReporterImage, w.r.Version = "reporter:v2", "v2"
	w.update(nil)
	for _, pod := range w.all() {
		want := "reporter:v2"
		if config.ReporterServes(pod) {
			want = "reporter:v1"
		}
		if got := reporterOf(pod).Image; got != want {
			t.Errorf("pod %s has the reporter %s, want %s", pod.Name, got, want)
		}
	}
	if got := w.condition(v1alpha1.ConditionUpToDate); got != "True InjectionOutdated" {
		t.Errorf("up to date: %s", got)
	}
	for _, pod := range w.all() {
		if config.ReporterServes(pod) {
			w.must(w.api.Delete(context.Background(), pod))
		}
	}
	w.serves()
	if with, _ := w.sidecars(); with != 2 || w.reporterImages()["reporter:v2"] != 3 {
		t.Errorf("%d sidecars, images %v", with, w.reporterImages())
	}
}

// TestAPodThatIsLostGetsTheSidecarThatRuns, where requests pass through all reporters: once a new image is seen not to run, it costs
// no other pod.
func TestAPodThatIsLostGetsTheSidecarThatRuns(t *testing.T) {
	w := newWorld(t, apart, func(p *v1alpha1.InferencePool) {
		p.Spec.Roles = []v1alpha1.PoolRole{{Name: v1alpha1.RoleBoth, Replicas: ptr.To[int32](3)}}
	})
	w.follow(v1alpha1.SidecarKvasir)
	w.serves()
	if with, without := w.sidecars(); with != 3 || without != 0 {
		t.Fatalf("%d pods have the sidecar, %d do not", with, without)
	}
	w.r.ReporterImage = "reporter:bad"
	for range 2 {
		w.must(w.api.Delete(context.Background(), w.with("reporter:v1")[0]))
		w.settleDown()
		w.kubelets(map[string]string{"reporter:bad": "ImagePullBackOff"})
		w.settleDown()
	}
	if got := w.reporterImages(); got["reporter:bad"] != 1 || got["reporter:v1"] != 2 {
		t.Errorf("images %v", got)
	}
	w.r.ReporterImage = "reporter:v3"
	w.update(map[string]string{"reporter:bad": "ImagePullBackOff"})
	if got := w.reporterImages(); got["reporter:bad"] != 0 || got["reporter:v1"] != 2 { // no request passes through one that does not run
		t.Errorf("images %v after a good image", got)
	}
}
