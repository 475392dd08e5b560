package v1alpha1

import (
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EngineNetworkPolicy defines which pods and addresses can connect to the engines of a pool.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode == 'Closed' || !has(self.from) || size(self.from) == 0",message="from needs mode Closed: in the other modes it has no effect"
type EngineNetworkPolicy struct {
	// mode Closed admits the pool's pickers and engines, the operator, the pods of the pool's gateways, and from. Open
	// admits all clients to all ports except the drain port of the reporter. None makes no NetworkPolicy. Absent, it is
	// Closed if from is set. Otherwise it is None for pools with selector and where picker.networkPolicy is None, Open
	// for external pickers, and Closed for all other pools.
	// +optional
	Mode EngineNetworkMode `json:"mode,omitempty"`
	// from lists other pods and addresses that can connect to the HTTP ports of the engines, at most 16: scrapers of
	// metrics, external pickers, gateways without pods in the cluster, clients that bypass the pickers.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	From []NetworkPeer `json:"from,omitempty"`
}

// EngineNetworkMode selects which clients the NetworkPolicy of the engines admits.
//
// +kubebuilder:validation:Enum=Closed;Open;None
type EngineNetworkMode string

// The modes of the engines' NetworkPolicy.
const (
	EngineNetworkClosed EngineNetworkMode = "Closed"
	EngineNetworkOpen   EngineNetworkMode = "Open"
	EngineNetworkNone   EngineNetworkMode = "None"
)

// NetworkPeer has the fields of a NetworkPolicyPeer of networking.k8s.io, with limits.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",message="a peer is either ipBlock, or podSelector and namespaceSelector or one of them"
type NetworkPeer struct {
	// podSelector selects pods, in the namespaces of namespaceSelector, or in the pool's without one. An empty selector
	// selects all.
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
	// namespaceSelector selects namespaces by their labels. An empty selector selects all.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// ipBlock is a range of addresses.
	// +optional
	IPBlock IPBlock `json:"ipBlock,omitzero"`
}

// IPBlock is a range of addresses.
type IPBlock struct {
	// cidr is the range, such as 10.0.0.0/8 or 2001:db8::/32.
	// +required
	CIDR CIDR `json:"cidr,omitempty"`
	// except are ranges within cidr that are left out, at most 8.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	Except []CIDR `json:"except,omitempty"`
}

// CIDR is a range of IPv4 or IPv6 addresses: an address, a slash and a number of bits.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=49
// +kubebuilder:validation:Pattern=`^([0-9]{1,3}(\.[0-9]{1,3}){3}/([0-9]|[12][0-9]|3[0-2])|[0-9a-fA-F]*:[0-9a-fA-F:.]*/([0-9]|[1-9][0-9]|1[01][0-9]|12[0-8]))$`
type CIDR string

// Peer returns the peer as a rule of a NetworkPolicy has it. It shares the selectors with the receiver.
func (p *NetworkPeer) Peer() networkingv1.NetworkPolicyPeer {
	peer := networkingv1.NetworkPolicyPeer{PodSelector: p.PodSelector, NamespaceSelector: p.NamespaceSelector}
	if p.IPBlock.CIDR != "" {
		peer.IPBlock = &networkingv1.IPBlock{CIDR: string(p.IPBlock.CIDR)}
		for _, cidr := range p.IPBlock.Except {
			peer.IPBlock.Except = append(peer.IPBlock.Except, string(cidr))
		}
	}
	return peer
}

// EngineNetwork returns the mode of the engines' NetworkPolicy, which depends on other fields if it is not set.
func (s *InferencePoolSpec) EngineNetwork() EngineNetworkMode {
	policy := &s.Engine.NetworkPolicy
	switch {
	case policy.Mode != "":
		return policy.Mode
	case len(policy.From) > 0:
		return EngineNetworkClosed
	case s.Template == nil, s.Picker.NetworkPolicy == NetworkPolicyNone:
		return EngineNetworkNone
	case s.Picker.Mode == PickerExternal:
		return EngineNetworkOpen
	}
	return EngineNetworkClosed
}
