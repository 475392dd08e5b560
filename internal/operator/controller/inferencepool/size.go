package inferencepool

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
	"github.com/kvasir-dev/kvasir/internal/operator/scaling"
)

// Sizer decides the sizes of autoscaled pools and roles; false before it has looked at one. The role is empty in a pool without roles.
type Sizer interface {
	Decision(pool types.NamespacedName, role v1alpha1.RoleName) (scaling.Decision, bool)
}

// size that a pool is steered to.
type size struct {
	now int
	// wanted is what it would be if the pool were not paused.
	wanted int
	// decision of the autoscaler; nil without autoscaling, or before the first.
	decision *scaling.Decision
	changed  bool
	// roles of a pool with roles, in the order of the spec. Then now and wanted are the sums, and no decision is for the pool.
	roles []roleSize
}

// roleSize is the size of one role.
type roleSize struct {
	name v1alpha1.RoleName
	size
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
	if len(r.pool.Spec.Roles) == 0 {
		last := r.memory.size
		if last == nil {
			last = r.pool.Status.DesiredReplicas
		}
		return r.choose(&sized{
			replicas: r.pool.Spec.Replicas, autoscaling: &r.pool.Spec.Autoscaling, last: last, shown: r.pool.Status.DesiredReplicas,
			staying: r.staying(func(*corev1.Pod) bool { return true }),
		})
	}
	var out size
	for i := range r.pool.Spec.Roles {
		role := &r.pool.Spec.Roles[i]
		of := sized{role: role.Name, replicas: role.Replicas, autoscaling: &role.Autoscaling}
		if status := roleStatus(&r.pool.Status, role.Name); status != nil {
			of.shown = status.DesiredReplicas
		}
		if of.last = of.shown; r.memory.roleSizes != nil {
			of.last = r.memory.roleSizes[role.Name]
		}
		of.staying = r.staying(func(pod *corev1.Pod) bool { return roleOf(r.pool, pod) == podtemplate.RoleOf(role.Name) })
		chosen := r.choose(&of)
		out.now, out.wanted, out.changed = out.now+chosen.now, out.wanted+chosen.wanted, out.changed || chosen.changed
		out.roles = append(out.roles, roleSize{role.Name, chosen})
	}
	return out
}

// keepSize remembers what the pool is steered to.
func (r *scope) keepSize(s *size) {
	r.memory.size, r.memory.roleSizes = count(s.now), nil
	for i := range s.roles {
		if r.memory.roleSizes == nil {
			r.memory.roleSizes = map[v1alpha1.RoleName]*int32{}
		}
		r.memory.roleSizes[s.roles[i].name] = count(s.roles[i].now)
	}
}

// sized is what has a size: a pool, or one of its roles.
type sized struct {
	role        v1alpha1.RoleName
	replicas    *int32
	autoscaling *v1alpha1.Autoscaling
	// last is what it was last steered to; nil if that is not known. The status, which shows shown, can be behind: a change of
	// the pool that comes between the pods and their status makes the write of the status fail.
	last, shown *int32
	staying     int
}

func (r *sizing) choose(of *sized) size {
	out := r.wantedSize(of)
	out.wanted = out.now
	if r.pool.Spec.Paused == v1alpha1.PauseAll {
		out.now, out.changed = int(ptr.Deref(of.last, int32(of.staying))), false
	}
	return out
}

// staying counts the pods of some kind that are not on their way out, with those that are about to be adopted.
func (r *sizing) staying(of func(*corev1.Pod) bool) int {
	n := 0
	for _, pod := range slices.Concat(r.pods, r.orphans) {
		if stays(pod) && of(pod) {
			n++
		}
	}
	return n
}

// wantedSize takes replicas, or else the decision of the autoscaler. Before its first one, the pool stays as it is: a new one has the
// pods that it has found.
func (r *sizing) wantedSize(of *sized) size {
	a := of.autoscaling
	first := max(ptr.Deref(a.MinReplicas, v1alpha1.DefaultMinReplicas), int32(of.staying))
	out := size{now: int(ptr.Deref(of.last, first))}
	if of.replicas != nil {
		out.now = int(*of.replicas)
	}
	if a.MaxReplicas == 0 || r.Sizer == nil {
		return out
	}
	d, ok := r.Sizer.Decision(r.key, of.role)
	if !ok {
		return out
	}
	out.decision = &d
	if a.Mode != v1alpha1.AutoscalingRecommend {
		before := out.now
		if of.replicas == nil { // a change counts until the status has it
			before = int(ptr.Deref(of.shown, first))
		}
		out.now, out.changed = d.Size, d.Size != before
	}
	return out
}

// autoscalingStatus is the status of the autoscaler of a pool or a role. It keeps its last value while nothing new is known.
func (r *verdict) autoscalingStatus(a *v1alpha1.Autoscaling, chosen *size, out v1alpha1.AutoscalingStatus) v1alpha1.AutoscalingStatus {
	if a.MaxReplicas == 0 {
		return v1alpha1.AutoscalingStatus{}
	}
	if d := chosen.decision; d != nil {
		out.RecommendedReplicas, out.Reason = count(d.Size), string(d.Reason)
	}
	if chosen.changed {
		now := metav1.NewTime(r.now)
		out.LastScaleTime = &now
	}
	return out
}

func count(n int) *int32 { return ptr.To(int32(n)) }
