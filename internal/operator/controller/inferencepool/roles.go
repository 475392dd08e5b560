package inferencepool

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
)

// roleOf is the role that the operator has given to a pod: Both for one without. A label that the user's own template has is not the
// operator's.
func roleOf(pool *v1alpha1.InferencePool, pod *corev1.Pod) endpoint.Role {
	label, labelled := pod.Labels[v1alpha1.LabelRole]
	if t := pool.Spec.Template; !labelled || t == nil || t.Labels[v1alpha1.LabelRole] == label {
		return endpoint.Both
	}
	for _, role := range []endpoint.Role{endpoint.Prefill, endpoint.Decode} {
		if label == role.String() {
			return role
		}
	}
	return endpoint.Both
}

func roleStatus(s *v1alpha1.InferencePoolStatus, name v1alpha1.RoleName) *v1alpha1.RoleStatus {
	for i := range s.Roles {
		if s.Roles[i].Name == name {
			return &s.Roles[i]
		}
	}
	return nil
}

// roles returns those of the pool, and those that go; none if all pods do both.
func (r *podKeeper) roles(pods []lifecycle.Pod) ([]lifecycle.Role, error) {
	var wanted []lifecycle.Role
	for i := range r.size.roles {
		one := &r.size.roles[i]
		surge, unavailable := limits(r.pool.Spec.Rollout, one.now)
		wanted = append(wanted, lifecycle.Role{Of: podtemplate.RoleOf(one.name), Size: one.now, Surge: surge, Unavailable: unavailable})
	}
	if len(wanted) == 0 {
		surge, unavailable := limits(r.pool.Spec.Rollout, r.size.now)
		wanted = []lifecycle.Role{{Of: endpoint.Both, Size: r.size.now, Surge: surge, Unavailable: unavailable}}
	}
	var serving []endpoint.Role
	if r.revisions.current != "" {
		shape, err := r.shape(r.revisions.current)
		if err != nil {
			return nil, fmt.Errorf("pool %s: %w", r.key, err)
		}
		serving = shape.RolesOf()
	}
	return lifecycle.Transition(wanted, serving, r.had(), pods), nil
}

// had are the sizes that the pool's roles had, by its status.
func (r *podKeeper) had() map[endpoint.Role]int {
	s := &r.pool.Status
	if len(s.Roles) == 0 {
		return map[endpoint.Role]int{endpoint.Both: int(ptr.Deref(s.DesiredReplicas, 0))}
	}
	out := map[endpoint.Role]int{}
	for i := range s.Roles {
		out[podtemplate.RoleOf(s.Roles[i].Name)] = int(ptr.Deref(s.Roles[i].DesiredReplicas, 0))
	}
	return out
}

// roleStatuses is the status of each role that the pool has, or that goes.
func (r *verdict) roleStatuses() []v1alpha1.RoleStatus {
	of := r.decision.Counts.Roles
	var out []v1alpha1.RoleStatus
	add := func(name v1alpha1.RoleName, desired *int32, a v1alpha1.AutoscalingStatus) {
		n := of[podtemplate.RoleOf(name)]
		if c := &r.decision.Counts; of == nil { // all pods do both
			n = lifecycle.RoleCounts{Total: c.Total, Staying: c.Staying, Ready: c.Ready, Updated: c.Updated}
		}
		out = append(out, v1alpha1.RoleStatus{
			Name: name, DesiredReplicas: desired, Replicas: count(n.Staying), ReadyReplicas: count(n.Ready), UpdatedReplicas: count(n.Updated),
			Autoscaling: a,
		})
	}
	for i := range r.size.roles {
		one := &r.size.roles[i]
		var before v1alpha1.AutoscalingStatus
		if s := roleStatus(&r.pool.Status, one.name); s != nil {
			before = s.Autoscaling
		}
		add(one.name, count(one.now), r.autoscalingStatus(&r.pool.Spec.Roles[i].Autoscaling, &one.size, before))
	}
	if of == nil {
		return out
	}
	if len(r.size.roles) == 0 {
		add(v1alpha1.RoleBoth, count(r.size.now), v1alpha1.AutoscalingStatus{})
	}
	had := (&podKeeper{r.scope, r.observed, r.outcome}).had()
	for _, role := range []endpoint.Role{endpoint.Prefill, endpoint.Decode, endpoint.Both} {
		name, listed := podtemplate.RoleName(role), false
		_, goes := of[role] // its size is known by the status only, also while it has no pods
		for i := range out {
			listed = listed || out[i].Name == name
		}
		if !listed && goes {
			add(name, count(had[role]), v1alpha1.AutoscalingStatus{})
		}
	}
	return out
}

// shortRoles says which of several roles have too few pods that serve; empty for none.
func (r *verdict) shortRoles() string {
	if r.decision.Counts.Roles == nil {
		return ""
	}
	var short []string
	for i := range r.size.roles {
		one := &r.size.roles[i]
		if ready := r.decision.Counts.Roles[podtemplate.RoleOf(one.name)].Ready; ready < one.now {
			short = append(short, fmt.Sprintf("%s: %d of %d", one.name, ready, one.now))
		}
	}
	return strings.Join(short, ", ")
}

// decodes reports whether some pod that is ready answers requests.
func (r *verdict) decodes() bool {
	of := r.decision.Counts.Roles
	return of == nil || of[endpoint.Decode].Ready+of[endpoint.Both].Ready > 0
}

// wantedDecoders is how many pods shall answer requests.
func (r *verdict) wantedDecoders() int {
	if len(r.size.roles) == 0 {
		return r.size.now
	}
	n := 0
	for i := range r.size.roles {
		if one := &r.size.roles[i]; one.name != v1alpha1.RolePrefill {
			n += one.now
		}
	}
	return n
}
