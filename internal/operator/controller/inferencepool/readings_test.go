package inferencepool

import (
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// The operator cannot reach engines under a mesh with strict mTLS, or if a network policy of others keeps it out.
func TestADrainEndsByWhatPickersRead(t *testing.T) {
	for name, tc := range map[string]struct {
		reading bool // of the pickers
		ends    bool
	}{
		"pickers read the engine":         {reading: true, ends: true},
		"no program can read the engine":  {reading: false, ends: false},
		"the operator can read it itself": {reading: false, ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.blind, w.reading = tc.reading == tc.ends, tc.reading
			w.serve()
			for _, pod := range w.all() {
				w.engine(pod).requests = []time.Time{w.clock.Now().Add(time.Minute)}
			}
			w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To[int32](1) })
			w.settleDown()
			for range 5 { // busy
				w.tick()
				w.settleDown()
			}
			w.expect("new-0 scale-down", "new-1")
			w.clock.SetTime(w.clock.Now().Add(time.Minute))
			for range 5 {
				w.tick()
				w.settleDown()
			}
			if tc.ends {
				w.expect("new-1")
			} else {
				w.expect("new-0 scale-down", "new-1") // until its deadline
			}
		})
	}
}
