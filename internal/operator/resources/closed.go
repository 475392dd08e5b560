package resources

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
)

const lastPort = 65535

// Labels by which the pods of a gateway's data plane are found, and the namespace where Envoy Gateway runs them unless it is
// configured otherwise. LabelGateway is the label of Gateway API (GEP-1762), which Istio, kgateway, agentgateway and NGINX
// Gateway Fabric set in the Gateway's namespace.
const (
	LabelGateway           = "gateway.networking.k8s.io/gateway-name"
	LabelEnvoyGateway      = "gateway.envoyproxy.io/owning-gateway-name"
	LabelEnvoyGatewaySpace = "gateway.envoyproxy.io/owning-gateway-namespace"
	EnvoyGatewayNamespace  = "envoy-gateway-system"
)

// DataPlane is where pods of a gateway's data plane are looked for: those with all the labels, in the namespaces.
type DataPlane struct {
	Namespaces []string
	Labels     map[string]string
}

// DataPlanes returns the places where the pods of a Gateway can be. It returns none for a name that is too long for the
// value of a label. Pods of other namespaces do not count: anyone who can make a pod in some namespace chooses its labels.
func DataPlanes(gateway types.NamespacedName) []DataPlane {
	if len(validation.IsValidLabelValue(gateway.Name)) > 0 {
		return nil
	}
	spaces := []string{gateway.Namespace}
	if gateway.Namespace != EnvoyGatewayNamespace {
		spaces = append(spaces, EnvoyGatewayNamespace)
	}
	return []DataPlane{
		{spaces[:1], map[string]string{LabelGateway: gateway.Name}},
		{spaces, map[string]string{LabelEnvoyGateway: gateway.Name, LabelEnvoyGatewaySpace: gateway.Namespace}},
	}
}

// peer admits the pods of the data plane.
func (d *DataPlane) peer() networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{
		NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: d.Namespaces},
		}},
		PodSelector: &metav1.LabelSelector{MatchLabels: d.Labels},
	}
}

// engineNetwork admits to the engines what the pool's mode says. In mode Closed, requests that do not come through a picker
// bypass tenants and limits, so that only the clients that Kvasir needs, gateways, and those that the user names are admitted.
// No mode admits pods of others to the drain port, where the kubelet waits for an idle engine: a node's own agents are
// never held up by policies.
func (b *builder) engineNetwork() *networkingv1.NetworkPolicy {
	if b.pool.Spec.EngineNetwork() == v1alpha1.EngineNetworkOpen {
		return networkPolicy(b.meta(b.pool.Name), metav1.LabelSelector{MatchLabels: b.engines()},
			[]networkingv1.NetworkPolicyIngressRule{{Ports: b.allButDrain()}})
	}
	// An empty list of peers would admit all: the operator is always in it.
	clients := []networkingv1.NetworkPolicyPeer{b.operator()}
	for _, gateway := range b.Gateways {
		for _, plane := range DataPlanes(gateway) {
			clients = append(clients, plane.peer())
		}
	}
	for i := range b.pool.Spec.Engine.NetworkPolicy.From {
		clients = append(clients, b.pool.Spec.Engine.NetworkPolicy.From[i].Peer())
	}
	rules := []networkingv1.NetworkPolicyIngressRule{
		{Ports: b.allButDrain(), From: b.group()},
		{Ports: []networkingv1.NetworkPolicyPort{b.http()}, From: clients},
	}
	if b.pool.Spec.Picker.Mode != v1alpha1.PickerExternal {
		from := []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: b.selector()}}}
		for _, fleet := range b.Move.Fleets {
			from = append(from, networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: FleetPods(fleet)}})
		}
		rules = append(rules, networkingv1.NetworkPolicyIngressRule{Ports: b.pickerPorts(), From: from})
	}
	return networkPolicy(b.meta(b.pool.Name), metav1.LabelSelector{MatchLabels: b.engines()}, rules)
}

// operator admits the operator's pods.
func (c *Config) operator() networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: c.Operator.Namespace}},
		PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": "kvasir-operator"}},
	}
}

// group admits the pool's engines and the workers of their groups, whose collectives and transfers of KV blocks use ports that
// engines choose themselves. Workers do not carry the labels of the pool.
func (b *builder) group() []networkingv1.NetworkPolicyPeer {
	peers := []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: b.engines()}}}
	if len(b.Sets) > 0 {
		peers = append(peers, networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: config.LabelSet, Operator: metav1.LabelSelectorOpIn, Values: b.Sets},
			},
		}})
	}
	return peers
}

// allButDrain are all ports but the one where the kubelet waits for an idle engine.
func (b *builder) allButDrain() []networkingv1.NetworkPolicyPort {
	var ports []networkingv1.NetworkPolicyPort
	for _, protocol := range []corev1.Protocol{corev1.ProtocolUDP, corev1.ProtocolSCTP} {
		ports = append(ports, networkingv1.NetworkPolicyPort{Protocol: ptr.To(protocol)})
	}
	return append(ports, b.tcpButDrain()...)
}

func (b *builder) tcpButDrain() []networkingv1.NetworkPolicyPort {
	port := b.pool.Spec.Engine.Events.Reporter.DrainPort
	var ports []networkingv1.NetworkPolicyPort
	for _, r := range [][2]int32{{1, port - 1}, {port + 1, lastPort}} {
		if r[0] <= r[1] {
			p := tcp(r[0])
			p.EndPort = ptr.To(r[1])
			ports = append(ports, p)
		}
	}
	return ports
}

// http are the ports of the engines' API: one, or one per rank.
func (b *builder) http() networkingv1.NetworkPolicyPort {
	e := &b.pool.Spec.Engine
	if e.DataParallel.Addressing == v1alpha1.AddressByPort {
		return b.perRank(e.Ports.HTTP)
	}
	return tcp(e.Ports.HTTP)
}

func (b *builder) perRank(first int32) networkingv1.NetworkPolicyPort {
	p := tcp(first)
	if ranks := b.pool.Spec.Engine.DataParallel.Ranks; ranks > 1 {
		p.EndPort = ptr.To(first + ranks - 1)
	}
	return p
}

// pickerPorts are what pickers use of an engine. A picker that subscribes asks the engine for its ports of events unless the
// pool names them, and for the pods of others a rank can have another number than in its pod. It then reaches all TCP ports
// but the drain port.
func (b *builder) pickerPorts() []networkingv1.NetworkPolicyPort {
	e := &b.pool.Spec.Engine
	named := b.pool.Spec.Template != nil && e.Ports.Events > 0 && e.Ports.Replay > 0
	switch e.Events.Source {
	case v1alpha1.EventsReporter, v1alpha1.EventsNone:
		return []networkingv1.NetworkPolicyPort{b.http()}
	case v1alpha1.EventsListen:
		if b.pool.Spec.Template != nil {
			return []networkingv1.NetworkPolicyPort{b.http(), b.perRank(e.Ports.ReplayPort())}
		}
	case v1alpha1.EventsAuto, v1alpha1.EventsSubscribe:
		if named {
			return []networkingv1.NetworkPolicyPort{b.http(), b.perRank(e.Ports.Events), b.perRank(e.Ports.Replay)}
		}
	}
	return b.tcpButDrain()
}
