package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
)

// PoolRole is a part of a pool's pods: those that prefill, those that decode, or those that do both. All roles are made from
// the pool's template and have one revision in common, so that engines which hand prompts over are always of one version.
//
// +kubebuilder:validation:XValidation:rule="has(self.replicas) == (!has(self.autoscaling) || self.autoscaling.mode == 'Recommend')",message="set either replicas or autoscaling with mode Active in each role: one writer for the size of a role"
type PoolRole struct {
	// name of the role. Prefill computes prompts for others and serves no request alone; Decode generates answers, and
	// serves requests alone that are not handed over; Both does either. The pods get the label kvasir.dev/role.
	// +required
	Name RoleName `json:"name,omitempty"`
	// replicas is the wanted number of pods of the role. Exactly one of replicas and an active autoscaling is set.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2000
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// autoscaling lets Kvasir choose the size of the role, or recommend one.
	// +optional
	Autoscaling Autoscaling `json:"autoscaling,omitzero"`
	// engine changes the engine container for the role.
	// +optional
	Engine *RoleEngine `json:"engine,omitempty"`
}

// RoleName names what the pods of a role do of a request.
//
// +kubebuilder:validation:Enum=Prefill;Decode;Both
type RoleName string

// The roles.
const (
	RolePrefill RoleName = "Prefill"
	RoleDecode  RoleName = "Decode"
	RoleBoth    RoleName = "Both"
)

// RoleEngine changes the engine container of one role. Engines that hand prompts over must agree in the model, the version,
// the type of the KV cache and the block size, or they refuse the transfer.
//
// +kubebuilder:validation:MinProperties=0
type RoleEngine struct {
	// extraArgs are appended to the engine container's arguments; at most 64 of 1024 characters each.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	// +listType=atomic
	// +optional
	ExtraArgs []string `json:"extraArgs,omitempty"`
	// resources replace those of the engine container.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
}

// Autoscales reports whether Kvasir chooses or recommends the size of the pool, or of one of its roles.
func (s *InferencePoolSpec) Autoscales() bool {
	for i := range s.Roles {
		if s.Roles[i].Autoscaling.MaxReplicas > 0 {
			return true
		}
	}
	return s.Autoscaling.MaxReplicas > 0
}

// FromZero reports whether the pods that answer requests can all be gone until a request comes.
func (s *InferencePoolSpec) FromZero() bool {
	zero := func(a *Autoscaling) bool { return a.MinReplicas != nil && *a.MinReplicas == 0 }
	if len(s.Roles) == 0 {
		return zero(&s.Autoscaling)
	}
	for i := range s.Roles {
		if s.Roles[i].Name != RolePrefill && !zero(&s.Roles[i].Autoscaling) {
			return false
		}
	}
	return true
}
