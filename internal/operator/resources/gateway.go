package resources

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// Kinds of optional APIs.
var (
	// GIEKind is the pool of Gateway API's inference extension.
	GIEKind = schema.GroupVersionKind{Group: "inference.networking.k8s.io", Version: "v1", Kind: "InferencePool"}
	// RouteKind is Gateway API's route.
	RouteKind = schema.GroupVersion(gwapiv1.GroupVersion).WithKind("HTTPRoute")
	// CertificateKind is cert-manager's certificate.
	CertificateKind = schema.GroupVersionKind{Group: "cert-manager.io", Version: "v1", Kind: "Certificate"}
)

// GatewayPool is what gateways should see of a pool, whether the operator or a user creates it.
func GatewayPool(pool *v1alpha1.InferencePool, move Move) *unstructured.Unstructured {
	b := builder{Input: Input{Pool: pool, Move: move}, pool: pool}
	return b.giePool()
}

// giePool is what gateways see of the pool. Its status is the gateways'.
func (b *builder) giePool() *unstructured.Unstructured {
	service, port := PickerName(b.pool.Name), int64(ExtProcPort)
	switch {
	case b.Move.Clients != "":
		service = NamesOfFleet(b.Move.Clients).Pickers
	case b.pool.Spec.Picker.Mode == v1alpha1.PickerExternal:
		service, port = b.pool.Spec.Picker.External.ServiceName, int64(b.pool.Spec.Picker.External.Port)
	}
	e := &b.pool.Spec.Engine
	d := door{meta: b.meta(b.pool.Name), gateway: &b.pool.Spec.Gateway, ports: portsOf(e), h2c: e.Protocol == v1alpha1.ProtocolH2C}
	return d.pool(b.engines(), service, port)
}

// portsOf are those at which the engines of a pod answer.
func portsOf(e *v1alpha1.Engine) []int32 {
	ports := []int32{e.Ports.HTTP}
	if e.DataParallel.Addressing == v1alpha1.AddressByPort {
		for r := int32(1); r < e.DataParallel.Ranks; r++ {
			ports = append(ports, e.Ports.HTTP+r)
		}
	}
	return ports
}

// RouteMatches are the paths that the route sends to a pool: those that the picker's proxy admits, so that the same
// clients work through a gateway and directly. Administrative paths of engines below /v1 are refused by the picker. Paths
// outside /v1 are exact, because engines can have administrative paths beside them.
func RouteMatches() []gwapiv1.HTTPRouteMatch {
	match := func(kind gwapiv1.PathMatchType, path string) gwapiv1.HTTPRouteMatch {
		return gwapiv1.HTTPRouteMatch{Path: &gwapiv1.HTTPPathMatch{Type: &kind, Value: &path}}
	}
	matches := []gwapiv1.HTTPRouteMatch{match(gwapiv1.PathMatchPathPrefix, openai.Prefix)}
	for _, path := range openai.ClientPaths() {
		matches = append(matches, match(gwapiv1.PathMatchExact, path))
	}
	return matches
}

// timeouts of the route. "0s" is no limit; without timeouts the gateway's default applies, in Envoy 15 s for an entire
// answer. backendRequest is not set: it bounds each attempt and is within request by itself.
func timeouts(g *v1alpha1.Gateway) *gwapiv1.HTTPRouteTimeouts {
	seconds := int32(0)
	switch g.RequestTimeout {
	case v1alpha1.RequestTimeoutGatewayDefault:
		return nil
	case v1alpha1.RequestTimeoutLimited:
		seconds = g.RequestTimeoutSeconds
	case v1alpha1.RequestTimeoutUnlimited:
	}
	return &gwapiv1.HTTPRouteTimeouts{Request: ptr.To(gwapiv1.Duration(fmt.Sprintf("%ds", seconds)))}
}

// certificate requests, from cert-manager, the certificate that the picker presents to gateways.
func (p *pickers) certificate() *unstructured.Unstructured {
	var names []any
	for _, name := range p.names.serviceNames(p.namespace) {
		names = append(names, name)
	}
	issuer := p.settings.TLS.IssuerRef
	return loose(CertificateKind, p.meta(p.names.GatewayTLS), map[string]any{
		"secretName": p.names.GatewayTLS,
		"dnsNames":   names,
		"issuerRef":  map[string]any{"group": CertificateKind.Group, "kind": string(issuer.Kind), "name": issuer.Name},
		"usages":     []any{"server auth", "digital signature"},
		"privateKey": map[string]any{"algorithm": "ECDSA", "rotationPolicy": "Always"},
	})
}

// loose is an object of an API without Go types here.
func loose(kind schema.GroupVersionKind, meta metav1.ObjectMeta, spec map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetGroupVersionKind(kind)
	o.SetName(meta.Name)
	o.SetNamespace(meta.Namespace)
	o.SetLabels(meta.Labels)
	return o
}
