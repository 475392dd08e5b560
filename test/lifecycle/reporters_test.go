package lifecycle

import (
	"errors"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// TestEnginesServeWithoutTheirReporters takes all reporters of a pool away at once: their image cannot be pulled, and no pod is ready. The
// engines are, so that requests are answered as before.
func TestEnginesServeWithoutTheirReporters(t *testing.T) {
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
	failures := l.end()
	t.Logf("%d requests, %d failed", l.asked.Load(), len(failures))
	for _, f := range failures[:min(10, len(failures))] {
		t.Error(f)
	}
}
