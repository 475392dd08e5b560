package lifecycle

import (
	"errors"
	"fmt"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// TestEnginesServeWithoutTheirReporters takes all reporters of a pool away at once: their image cannot be pulled, and no pod is ready. The
// engines are, so that requests are answered as before, and evictions wait for replacements as before.
func TestEnginesServeWithoutTheirReporters(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.apply(pool)
	w.until("serving", func(p *v1alpha1.InferencePool) bool { return settled(3)(p) && len(w.proxies()) == 2 })
	l := startLoad(w, *clients, *longest)
	w.answers(l, 20)
	for _, p := range w.podsOf(v1alpha1.LabelSlot) {
		change := fmt.Appendf(nil, `{"spec":{"initContainers":[{"name":%q,"image":"missing"}]}}`, v1alpha1.ReporterContainer)
		w.must(w.admin.Patch(t.Context(), &p, client.RawPatch(types.StrategicMergePatchType, change)))
	}
	w.reaches("without a ready pod", func() error {
		for _, p := range w.podsOf(v1alpha1.LabelSlot) {
			if ready(&p) {
				return errors.New("pod " + p.Name + " is ready")
			}
		}
		return nil
	})
	w.answers(l, 200)
	for _, p := range w.podsOf(v1alpha1.LabelSlot) {
		if ready(&p) {
			t.Errorf("pod %s is ready: the test shows nothing", p.Name)
		}
	}
	victim := w.podsOf(v1alpha1.LabelSlot)[0]
	w.reaches("protected", func() error {
		b := &policyv1.PodDisruptionBudget{}
		w.must(w.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: poolName}, b))
		if *b.Spec.UnhealthyPodEvictionPolicy != policyv1.IfHealthyBudget || b.Status.ObservedGeneration != b.Generation {
			return fmt.Errorf("the budget has %+v", b)
		}
		return nil
	})
	if err := w.admin.SubResource("eviction").Create(t.Context(), &victim, &policyv1.Eviction{}); !apierrors.IsTooManyRequests(err) {
		t.Errorf("the eviction of pod %s, which serves without its reporter: %v", victim.Name, err)
	}
	w.drain(victim.Spec.NodeName)
	w.answers(l, 20)
	failures := l.end()
	t.Logf("%d requests, %d failed", l.asked.Load(), len(failures))
	for _, f := range failures[:min(10, len(failures))] {
		t.Error(f)
	}
}
