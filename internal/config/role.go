package config

import (
	"errors"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// Labels of other projects that name the role of a pod. aibrixRole is not qualified by a domain, so that it counts only
// beside aibrixSet.
const (
	llmdRole       = "llm-d.ai/role" // of llm-d, and of the workloads that kserve makes for an LLMInferenceService
	setRole        = "disaggregatedset.x-k8s.io/role"
	groupRole      = "rbg.workloads.x-k8s.io/role-name"
	olderGroupRole = "rolebasedgroup.workloads.x-k8s.io/role"
	aibrixRole     = "role-name"
	aibrixSet      = "roleset-name"
)

// ownRoles are the values of v1alpha1.LabelRole.
var ownRoles = []string{endpoint.Both.String(), endpoint.Prefill.String(), endpoint.Decode.String()}

// errRole is the error for another value of v1alpha1.LabelRole.
var errRole = errors.New("no such role")

// roleOf is the role that the labels of a pod, or of a slice, give to its endpoints. The names of roles are free in most
// projects: those that say nothing here are Both. Only an unknown value of our own label is an error.
func roleOf(labels map[string]string) (endpoint.Role, error) {
	if own, ok := labels[v1alpha1.LabelRole]; ok {
		for _, role := range []endpoint.Role{endpoint.Both, endpoint.Prefill, endpoint.Decode} {
			if role.String() == own {
				return role, nil
			}
		}
		return endpoint.Both, errRole
	}
	for _, name := range []string{llmdRole, setRole, groupRole, olderGroupRole} {
		if value, ok := labels[name]; ok {
			return foreignRole(value), nil
		}
	}
	if _, ok := labels[aibrixSet]; ok {
		return foreignRole(labels[aibrixRole]), nil
	}
	return endpoint.Both, nil
}

// foreignRole reads a role as other projects spell it.
func foreignRole(value string) endpoint.Role {
	switch value {
	case "prefill", "encode-prefill":
		return endpoint.Prefill
	case "decode":
		return endpoint.Decode
	case "encode":
		return endpoint.Neither
	}
	return endpoint.Both
}
