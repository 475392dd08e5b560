package resources

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/certs"
)

// Protocols of Service ports, as gateways and meshes read them. They need appProtocol: without it they use HTTP/1.1 for a
// port, or guess its protocol. If meshes do not know a value they read the beginning of the port's name, so ports of HTTP/2
// are called grpc-.
const (
	// protocolHTTP is HTTP/1.1 without TLS; HTTP/2 is understood, too.
	protocolHTTP = "http"
	// protocolH2C is HTTP/2 without TLS.
	protocolH2C = "kubernetes.io/h2c"
	// protocolHTTP2 is HTTP/2 in TLS that the gateway or the mesh begins, by its own configuration for the Service.
	protocolHTTP2 = "http2"
	// protocolHTTPS is TLS that clients begin themselves, whatever protocol is inside: a mesh must pass it on unchanged.
	protocolHTTPS = "https"
	// protocolTCP is a protocol that meshes pass on unchanged.
	protocolTCP = "tcp"
)

func (p *pickers) service() *corev1.Service {
	picks := protocolHTTP2
	if p.settings.TLS.Type == v1alpha1.TLSPlaintext {
		picks = protocolH2C
	}
	s := &corev1.Service{
		TypeMeta:   typeMeta(corev1.SchemeGroupVersion.WithKind("Service")),
		ObjectMeta: p.meta(p.names.Pickers),
		Spec: corev1.ServiceSpec{
			Type:     corev1.ServiceTypeClusterIP,
			Selector: p.clients,
			Ports: []corev1.ServicePort{
				servicePort("grpc-ext-proc", ExtProcPort, "ext-proc", picks),
				servicePort("grpc-health", HealthPort, "health", protocolH2C),
			},
		},
	}
	if p.clients[LabelFleet] == p.pods[LabelFleet] { // else monitors, which select Services, would find a fleet's pickers once for each pool
		s.Spec.Ports = append(s.Spec.Ports, servicePort("metrics", MetricsPort, "metrics", protocolHTTPS))
	}
	for _, port := range p.listen {
		s.Spec.Ports = append(s.Spec.Ports, servicePort("tcp-"+port.Name, port.Port, port.Name, protocolTCP))
	}
	if p.proxies() {
		s.Spec.Ports = append([]corev1.ServicePort{servicePort("http", ServicePort, "http", protocolHTTP)}, s.Spec.Ports...)
	}
	return s
}

// peers is where each replica is found by its own address, ready or not: by the others, by reporters and the operator.
func (p *pickers) peers() *corev1.Service {
	return &corev1.Service{
		TypeMeta:   typeMeta(corev1.SchemeGroupVersion.WithKind("Service")),
		ObjectMeta: p.meta(p.names.Peers),
		Spec: corev1.ServiceSpec{
			Type:                     corev1.ServiceTypeClusterIP,
			ClusterIP:                corev1.ClusterIPNone,
			PublishNotReadyAddresses: true,
			Selector:                 p.reporters,
			Ports:                    []corev1.ServicePort{servicePort("https-sync", SyncPort, "sync", protocolHTTPS)},
		},
	}
}

func servicePort(name string, port int32, target, protocol string) corev1.ServicePort {
	return corev1.ServicePort{
		Name: name, Port: port, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString(target), AppProtocol: ptr.To(protocol),
	}
}

// serviceNames are the DNS names of the pickers' own Services.
func (n *Names) serviceNames(namespace string) []string {
	return append(certs.ServiceNames(n.Pickers, namespace), certs.ServiceNames(n.Peers, namespace)...)
}

// certificateNames are the DNS names by which pickers are reached by what trusts their CA alone. Those of a fleet are reached by the names
// of the Services of all its pools, too, which come and go: reporters and the operator know no others.
func (n *Names) certificateNames(namespace string) []string {
	names := n.serviceNames(namespace)
	if n.fleet {
		names = append(names, Host("*", namespace))
	}
	return names
}
