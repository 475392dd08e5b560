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
