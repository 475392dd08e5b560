package config

import (
	"cmp"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// Labels of other projects that name the role of a pod. aibrixRole is not qualified by a domain, so that it counts only
// beside aibrixSet.
const (
	llmdRole       = "llm-d.ai/role" // of llm-d, and of the workloads that kserve makes for an LLMInferenceService
	setRole        = "disaggregatedset.x-k8s.io/role"
	setRevision    = "disaggregatedset.x-k8s.io/revision"
	groupRole      = "rbg.workloads.x-k8s.io/role-name"
	olderGroupRole = "rolebasedgroup.workloads.x-k8s.io/role"
	aibrixRole     = "role-name"
	aibrixSet      = "roleset-name"
)

// ownRoles are the values of v1alpha1.LabelRole.
var ownRoles = map[string]endpoint.Role{
	endpoint.Both.String(): endpoint.Both, endpoint.Prefill.String(): endpoint.Prefill, endpoint.Decode.String(): endpoint.Decode,
}

// roleOf is the role that the labels of a pod, or of a slice, give to its endpoints. The names of roles are free in most
// projects: those that say nothing here are Both. It is false only for a
// value of our own label that is none of ownRoles.
func roleOf(labels map[string]string) (role endpoint.Role, ok bool) {
	if own, labelled := labels[v1alpha1.LabelRole]; labelled {
		role, ok = ownRoles[own]
		return role, ok
	}
	for _, name := range []string{llmdRole, setRole, groupRole, olderGroupRole} {
		if value, ok := labels[name]; ok {
			return foreignRole(value), true
		}
	}
	if _, ok := labels[aibrixSet]; ok {
		return foreignRole(labels[aibrixRole]), true
	}
	return endpoint.Both, true
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

// revisionOf is the revision that all roles of a pool or of a DisaggregatedSet have in common; empty if there is none. Labels of other
// workloads name the revision of one role.
func revisionOf(labels map[string]string) string {
	return cmp.Or(labels[v1alpha1.LabelRevision], labels[setRevision])
}
