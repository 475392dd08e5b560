package inferencepool

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// What the operator adds is in the status, and what it leaves out because it does not know the engine's release is in a
// condition until the template states the release, or refuses what is in question.
func TestTheStatusShowsWhatIsInjected(t *testing.T) {
	const all = "reporter --kv-events-config --enable-prompt-tokens-details --shutdown-timeout VLLM_HTTP_TIMEOUT_KEEP_ALIVE " +
		"startupProbe readinessProbe livenessProbe shm preStop terminationGracePeriodSeconds"
	without := strings.Replace(all, " --shutdown-timeout", "", 1)
	annotated := func(key, value string) func(*v1alpha1.InferencePoolSpec) {
		return func(s *v1alpha1.InferencePoolSpec) { s.Template.Annotations = map[string]string{key: value} }
	}
	w := newWorld(t)
	w.serve()
	for _, tc := range []struct {
		change                     func(*v1alpha1.InferencePoolSpec)
		healthy, injected, message string
	}{
		{nil, "True Healthy", all, ""},
		{func(s *v1alpha1.InferencePoolSpec) { s.Template.Spec.Containers[0].Image = "vllm:latest" }, "True ReleaseUnknown", without, "--shutdown-timeout"},
		{annotated(v1alpha1.AnnotationEngineRelease, "0.24"), "True Healthy", all, ""},
		{annotated(v1alpha1.AnnotationEngineRelease, "vLLM-0.32"), "True ReleaseUnknown", without, `is "vLLM-0.32"`},
		{annotated(v1alpha1.AnnotationEngineRelease, "0.32rc1"), "True ReleaseUnknown", without, `is "0.32rc1"`},
		{annotated(v1alpha1.AnnotationLeaveOut, "--shutdown-timeout,--enable-scale-out"), "True Healthy", without, ""},
	} {
		if tc.change != nil {
			w.edit(tc.change)
		}
		w.lasting()
		if got := w.condition(v1alpha1.ConditionPodsHealthy); got != tc.healthy {
			t.Errorf("healthy: %s, want %s", got, tc.healthy)
		}
		c := meta.FindStatusCondition(w.pool().Status.Conditions, v1alpha1.ConditionPodsHealthy)
		if !strings.Contains(c.Message, tc.message) {
			t.Errorf("message %q, want one with %q", c.Message, tc.message)
		}
		if got := strings.Join(w.pool().Status.Injected, " "); got != tc.injected {
			t.Errorf("status.injected %q, want %q", got, tc.injected)
		}
	}
}

// TestWhatIsMissingIsAllNamed in one message: with the reason of the worst, what to do about each, and what is missing on single islands.
func TestWhatIsMissingIsAllNamed(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.InferencePool) {
		p.Spec.Placement = &v1alpha1.Placement{Islands: []v1alpha1.Island{
			{Name: "near"}, {Name: "far", Engine: &v1alpha1.IslandEngine{ExtraArgs: []string{"--max-model-len=4096"}}},
		}}
	})
	w.serve()
	for _, tc := range []struct {
		change func(*v1alpha1.InferencePoolSpec)
		want   string
		parts  []string
	}{
		{func(*v1alpha1.InferencePoolSpec) {}, "True Healthy", nil},
		{func(s *v1alpha1.InferencePoolSpec) {
			s.Template.Spec.Containers[0].Command, s.Template.Spec.Containers[0].Args = []string{"sh", "-c"}, []string{"vllm serve m"}
		}, "False EngineFlagsMissing", []string{"--kv-events-config of container vllm", "extraArgs of island far of container vllm: it is started by a shell"}},
		{func(s *v1alpha1.InferencePoolSpec) { s.Engine.Flags = v1alpha1.FlagsManual }, "False EngineFlagsMissing",
			[]string{"extraArgs of island far", "readinessProbe of container vllm: engine.flags is Manual", "rollout", "kvasir.dev/leave-out"}},
		{func(s *v1alpha1.InferencePoolSpec) {
			s.Template.Spec.Containers[0].Command, s.Template.Spec.Containers[0].Args = []string{"vllm"}, []string{"serve", "m"}
		}, "False ProbesMissing", []string{"readinessProbe of container vllm: engine.flags is Manual"}},
		{func(s *v1alpha1.InferencePoolSpec) {
			s.Template.Annotations = map[string]string{v1alpha1.AnnotationLeaveOut: "readinessProbe"}
		}, "True Healthy", nil},
	} {
		w.edit(tc.change)
		w.lasting()
		c := meta.FindStatusCondition(w.pool().Status.Conditions, v1alpha1.ConditionPodsHealthy)
		if got := string(c.Status) + " " + c.Reason; got != tc.want {
			t.Errorf("healthy: %s %s, want %s", got, c.Message, tc.want)
		}
		for _, part := range tc.parts {
			if !strings.Contains(c.Message, part) {
				t.Errorf("the message %q lacks %q", c.Message, part)
			}
		}
	}
}
