package server

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// TestAPoolIsResolvedWithItsPolicy: the operator learns whether the Secrets of the policy in force were read, not of others.
func TestAPoolIsResolvedWithItsPolicy(t *testing.T) {
	t.Parallel()
	policy := func(namespace, name string, resolved metav1.Condition) any {
		p := &v1alpha1.RoutingPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		p.Status.Ancestors = []gwapiv1.PolicyAncestorStatus{{Conditions: []metav1.Condition{resolved}}}
		return p
	}
	pool := func(name, follows string) any {
		p := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: name}}
		p.Status.RoutingPolicy.Name = follows
		return p
	}
	missing := status.ResolvedRefs.False(status.ReasonSecretNotFound, "tenants")
	found := findingsOf(&config.List{Items: []any{
		pool("without", ""), pool("waits", "a"), pool("has", "b"), pool("new", "c"),
		policy("llm", "a", missing), policy("llm", "b", status.ResolvedRefs.True(status.ReasonResolvedRefs, "")),
		policy("other", "b", missing),
	}})
	for name, want := range map[string]bool{"without": true, "waits": false, "has": true, "new": true} {
		if got := found[keyOf("llm", name)].resolved; got != want {
			t.Errorf("pool %s: resolved %t", name, got)
		}
	}
}
