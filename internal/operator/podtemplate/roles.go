package podtemplate

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// SideChannelHost is the variable with the address at which an engine gives others what they need to read its blocks. vLLM's default is
// localhost, which no other pod reaches.
const SideChannelHost = "VLLM_NIXL_SIDE_CHANNEL_HOST"

// RoleOf is a role as the label spells it, and as pickers know it.
func RoleOf(name v1alpha1.RoleName) endpoint.Role {
	switch name {
	case v1alpha1.RolePrefill:
		return endpoint.Prefill
	case v1alpha1.RoleDecode:
		return endpoint.Decode
	case v1alpha1.RoleBoth:
	}
	return endpoint.Both
}

// RoleName is the opposite of RoleOf.
func RoleName(role endpoint.Role) v1alpha1.RoleName {
	switch role {
	case endpoint.Prefill:
		return v1alpha1.RolePrefill
	case endpoint.Decode:
		return v1alpha1.RoleDecode
	case endpoint.Both, endpoint.Neither:
	}
	return v1alpha1.RoleBoth
}

// RolesOf are the roles of a shape's pods: Both for a shape without roles.
func (s *Shape) RolesOf() []endpoint.Role {
	if len(s.Roles) == 0 {
		return []endpoint.Role{endpoint.Both}
	}
	out := make([]endpoint.Role, len(s.Roles))
	for i := range s.Roles {
		out[i] = RoleOf(s.Roles[i].Name)
	}
	return out
}

// sideChannel has the engine of a role announce the pod's address. A connector other than NIXL, which the user has configured, has its own
// variables.
func (w *work) sideChannel() {
	if !w.transfers || w.wiring.Flags != string(v1alpha1.FlagsInject) || w.leftOut(SideChannelHost) || !w.usesNIXL() ||
		slices.ContainsFunc(w.engine.Env, func(e corev1.EnvVar) bool { return e.Name == SideChannelHost }) {
		return
	}
	if len(w.engine.EnvFrom) > 0 {
		w.skip(w.engine.Name, SideChannelHost, "envFrom can set it, and env would take precedence")
		return
	}
	w.engine.Env = append(w.engine.Env, corev1.EnvVar{Name: SideChannelHost, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"},
	}})
	w.done = append(w.done, SideChannelHost)
}

// usesNIXL reports whether the engine's connector is one of NIXL, as far as its command line shows.
func (w *work) usesNIXL() bool {
	return slices.ContainsFunc(slices.Concat(w.engine.Command, w.engine.Args), func(arg string) bool {
		return strings.Contains(arg, "Nixl")
	})
}
