package inferencepool

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/scaling"
)

// Sizer decides the sizes of autoscaled pools; false before it has looked at one.
type Sizer interface {
	Decision(pool types.NamespacedName) (scaling.Decision, bool)
}

// size that a pool is steered to.
type size struct {
	now int
	// wanted is what it would be if the pool were not paused.
	wanted int
	// decision of the autoscaler; nil without autoscaling, or before the first.
	decision *scaling.Decision
	changed  bool
}

// sizing is the part that chooses a pool's size.
type sizing struct {
	*scope
	*observed
}

// chosenSize is the size that a pool is steered to.
func chosenSize(s *scope, o *observed) size { return (&sizing{s, o}).chooseSize() }

// chooseSize takes what is wanted, or leaves the size of a paused pool as it is: none for a new pool.
func (r *sizing) chooseSize() size {
	out := r.wantedSize()
	out.wanted = out.now
	if r.pool.Spec.Paused == v1alpha1.PauseAll {
		out.now, out.changed = int(ptr.Deref(r.lastSize(), int32(r.staying()))), false
	}
	return out
}

// lastSize is what the pool was last steered to; nil for a pool whose size is not known. The status can be behind: a change of
// the pool that comes between the pods and their status makes the write of the status fail.
func (r *sizing) lastSize() *int32 {
	if r.memory.size != nil {
		return r.memory.size
	}
	return r.pool.Status.DesiredReplicas
}

// staying counts the pods that are not on their way out, with those that are about to be adopted.
func (r *sizing) staying() int {
	n := 0
	for _, pod := range slices.Concat(r.pods, r.orphans) {
		if stays(pod) {
			n++
		}
	}
	return n
}

// wantedSize takes spec.replicas, or else the decision of the autoscaler. Before its first one, the pool stays as it is: a new one has the
// pods that it has found.
func (r *sizing) wantedSize() size {
	a := &r.pool.Spec.Autoscaling
	first := max(ptr.Deref(a.MinReplicas, v1alpha1.DefaultMinReplicas), int32(r.staying()))
	out := size{now: int(ptr.Deref(r.lastSize(), first))}
	if r.pool.Spec.Replicas != nil {
		out.now = int(*r.pool.Spec.Replicas)
	}
	if a.MaxReplicas == 0 || r.Sizer == nil {
		return out
	}
	d, ok := r.Sizer.Decision(r.key)
	if !ok {
		return out
	}
	out.decision = &d
	if a.Mode != v1alpha1.AutoscalingRecommend {
		before := out.now
		if r.pool.Spec.Replicas == nil { // a change counts until the status has it
			before = int(ptr.Deref(r.pool.Status.DesiredReplicas, first))
		}
		out.now, out.changed = d.Size, d.Size != before
	}
	return out
}

// autoscalingStatus is the status of the autoscaler. It keeps its last value while nothing new is known.
func (r *verdict) autoscalingStatus() v1alpha1.AutoscalingStatus {
	if r.pool.Spec.Autoscaling.MaxReplicas == 0 {
		return v1alpha1.AutoscalingStatus{}
	}
	out := r.pool.Status.Autoscaling
	if d := r.size.decision; d != nil {
		out.RecommendedReplicas, out.Reason = count(d.Size), string(d.Reason)
	}
	if r.size.changed {
		now := metav1.NewTime(r.now)
		out.LastScaleTime = &now
	}
	return out
}

func count(n int) *int32 { return ptr.To(int32(n)) }
