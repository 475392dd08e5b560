package resources

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// TestEnginesOfAPoolReachEachOthersSideChannels: whatever role the pods have, and whichever clients are admitted.
func TestEnginesOfAPoolReachEachOthersSideChannels(t *testing.T) {
	for _, mode := range []v1alpha1.EngineNetworkMode{"", v1alpha1.EngineNetworkClosed, v1alpha1.EngineNetworkOpen} {
		p := sample(t, "pool_roles.yaml")
		p.Spec.Engine.NetworkPolicy.Mode = mode
		policy := child[networkingv1.NetworkPolicy](t, p, "NetworkPolicy", p.Name)
		selects := func(s *metav1.LabelSelector, role string) bool {
			selector, err := metav1.LabelSelectorAsSelector(s)
			if err != nil {
				t.Fatal(err)
			}
			return selector.Matches(labels.Set{v1alpha1.LabelPool: p.Name, v1alpha1.LabelRole: role})
		}
		for _, role := range []string{"prefill", "decode"} {
			if !selects(&policy.Spec.PodSelector, role) {
				t.Fatalf("mode %q: no policy for pods of role %s", mode, role)
			}
			// VLLM_NIXL_SIDE_CHANNEL_PORT by default; the ranks of a pod take the ports from there on.
			for _, port := range []int32{5600, 5607} {
				if !slices.ContainsFunc(policy.Spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool {
					from := len(r.From) == 0 || slices.ContainsFunc(r.From, func(peer networkingv1.NetworkPolicyPeer) bool {
						return peer.NamespaceSelector == nil && peer.PodSelector != nil && selects(peer.PodSelector, role)
					})
					return from && slices.ContainsFunc(r.Ports, func(q networkingv1.NetworkPolicyPort) bool {
						return *q.Protocol == corev1.ProtocolTCP && port >= q.Port.IntVal && port <= ptr.Deref(q.EndPort, q.Port.IntVal)
					})
				}) {
					t.Errorf("mode %q: pods of role %s are not admitted at port %d", mode, role, port)
				}
			}
		}
	}
}
