package inferencepool

import (
	"context"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// apart gives a pool a prefill pod and two decode pods.
func apart(pool *v1alpha1.InferencePool) {
	pool.Spec.Replicas = nil
	pool.Spec.Roles = []v1alpha1.PoolRole{
		{Name: v1alpha1.RolePrefill, Replicas: ptr.To[int32](1)}, {Name: v1alpha1.RoleDecode, Replicas: ptr.To[int32](2)},
	}
}

// byRole counts the pool's pods.
func (w *world) byRole() map[endpoint.Role]int {
	out := map[endpoint.Role]int{}
	for _, pod := range w.all() {
		out[roleOf(w.pool(), pod)]++
	}
	return out
}

// TestARoleThatGoesIsMadeAgain: while the rollout to pods without roles is paused, the pods of a role vanish all at once.
func TestARoleThatGoesIsMadeAgain(t *testing.T) {
	for name, gone := range map[string]endpoint.Role{"prefill": endpoint.Prefill, "decode": endpoint.Decode} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, apart)
			for range 3 {
				w.serve()
			}
			w.edit(func(s *v1alpha1.InferencePoolSpec) {
				s.Roles, s.Replicas, s.Paused = nil, ptr.To[int32](3), v1alpha1.PauseRollout
			})
			w.serve()
			for _, pod := range w.all() {
				if roleOf(w.pool(), pod) == gone {
					w.must(w.api.Delete(context.Background(), pod))
				}
			}
			for range 5 {
				w.serve()
			}
			if got := w.byRole(); got[endpoint.Prefill] != 1 || got[endpoint.Decode] != 2 || len(got) != 2 {
				t.Errorf("pods by role: %v; status %+v", got, w.pool().Status.Roles)
			}
			w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Paused = "" })
			for range 20 {
				w.serve()
			}
			if got := w.byRole(); got[endpoint.Both] != 3 || len(got) != 1 || len(w.pool().Status.Roles) != 0 {
				t.Errorf("pods by role after the rollout: %v; status %+v", got, w.pool().Status.Roles)
			}
		})
	}
}

// TestAPoolWithoutDecodersIsAtZero, if it shall have none, whatever prefills.
func TestAPoolWithoutDecodersIsAtZero(t *testing.T) {
	w := newWorld(t, apart)
	for range 3 {
		w.serve()
	}
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Roles[1].Replicas = ptr.To[int32](0) })
	for range 5 {
		w.serve()
	}
	if got := w.byRole(); got[endpoint.Prefill] != 1 || len(got) != 1 {
		t.Fatalf("pods by role: %v", got)
	}
	if got := w.condition(v1alpha1.ConditionReady); got != "True AtZero" {
		t.Errorf("ready: %s", got)
	}
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Roles[1].Replicas = ptr.To[int32](1) })
	w.settleDown()
	if got := w.condition(v1alpha1.ConditionReady); got != "False NoReadyEndpoint" {
		t.Errorf("ready while the first pod that decodes starts: %s", got)
	}
}
