package config

import (
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

func TestRolesComeFromLabels(t *testing.T) {
	for name, tc := range map[string]struct {
		labels map[string]string
		want   endpoint.Role
		fails  bool
	}{
		"no label":                      {nil, endpoint.Both, false},
		"our own":                       {map[string]string{"kvasir.dev/role": "prefill"}, endpoint.Prefill, false},
		"our own wins":                  {map[string]string{"kvasir.dev/role": "both", "llm-d.ai/role": "decode"}, endpoint.Both, false},
		"our own, misspelled":           {map[string]string{"kvasir.dev/role": "Prefill"}, endpoint.Both, true},
		"llm-d, decode":                 {map[string]string{"llm-d.ai/role": "decode"}, endpoint.Decode, false},
		"llm-d, both":                   {map[string]string{"llm-d.ai/role": "prefill-decode"}, endpoint.Both, false},
		"llm-d, encode and prefill":     {map[string]string{"llm-d.ai/role": "encode-prefill"}, endpoint.Prefill, false},
		"llm-d, encode only":            {map[string]string{"llm-d.ai/role": "encode"}, endpoint.Neither, false},
		"a DisaggregatedSet":            {map[string]string{"disaggregatedset.x-k8s.io/role": "prefill"}, endpoint.Prefill, false},
		"a role of a name of its own":   {map[string]string{"disaggregatedset.x-k8s.io/role": "workers"}, endpoint.Both, false},
		"a RoleBasedGroup":              {map[string]string{"rbg.workloads.x-k8s.io/role-name": "decode"}, endpoint.Decode, false},
		"an older RoleBasedGroup":       {map[string]string{"rolebasedgroup.workloads.x-k8s.io/role": "decode"}, endpoint.Decode, false},
		"AIBrix":                        {map[string]string{"roleset-name": "a", "role-name": "prefill"}, endpoint.Prefill, false},
		"a label that is like AIBrix's": {map[string]string{"role-name": "prefill"}, endpoint.Both, false},
	} {
		t.Run(name, func(t *testing.T) {
			role, ok := roleOf(tc.labels)
			if role != tc.want || ok == tc.fails {
				t.Errorf("role %v, known: %t; want %v, known: %t", role, ok, tc.want, !tc.fails)
			}
		})
	}
}

// Labels of other projects must not change what pods of a pool do: roles count as soon as a policy is about them, and no longer
// than that.
func TestRolesCountWithAPolicyForThem(t *testing.T) {
	slice := sliceText("labels: {kvasir.dev/pool: m, llm-d.ai/role: prefill}", "", "[]", "{addresses: [10.0.0.7], targetRef: {name: m-0}}")
	apart := strings.Replace(smallPolicy, "strategy:", "disaggregation: {type: Cost}, strategy:", 1)
	d := open(t, "pool.yaml", smallPool, "pods.yaml", slice)
	for i, tc := range []struct {
		policy string
		want   endpoint.Role
	}{{smallPolicy, endpoint.Both}, {apart, endpoint.Prefill}, {smallPolicy, endpoint.Both}} {
		write(t, d.file("policy.yaml"), tc.policy)
		s, problems := load(t, d)
		wantNoProblem(t, problems)
		if got := only(t, s).Endpoints[0].Role; got != tc.want {
			t.Errorf("policy %d: role %v, want %v", i, got, tc.want)
		}
	}
}

func TestRevisionsOfPodsAreThoseOfAllRoles(t *testing.T) {
	for name, tc := range map[string]struct {
		labels map[string]string
		want   string
	}{
		"none":                       {nil, ""},
		"of a pool":                  {map[string]string{"kvasir.dev/revision": "a"}, "a"},
		"of a DisaggregatedSet":      {map[string]string{"disaggregatedset.x-k8s.io/revision": "b", "disaggregatedset.x-k8s.io/role": "prefill"}, "b"},
		"of one role's Deployment":   {map[string]string{"pod-template-hash": "c"}, ""},
		"of one role's stateful set": {map[string]string{"controller-revision-hash": "d"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := revisionOf(tc.labels); got != tc.want {
				t.Errorf("revision %q, want %q", got, tc.want)
			}
		})
	}
}
