package children

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/internal/certs"
)

func (b *builder) service() *corev1.Service {
	s := &corev1.Service{
		TypeMeta:   typeMeta(corev1.SchemeGroupVersion.WithKind("Service")),
		ObjectMeta: b.meta(PickerName(b.pool.Name)),
		Spec: corev1.ServiceSpec{
			Type:     corev1.ServiceTypeClusterIP,
			Selector: b.selector(),
			Ports: []corev1.ServicePort{
				servicePort("ext-proc", ExtProcPort, "ext-proc", "kubernetes.io/h2c"),
				servicePort("health", HealthPort, "health", ""),
				servicePort("metrics", MetricsPort, "metrics", "http"),
			},
		},
	}
	if b.pool.Spec.Picker.TLS.Type != "Plaintext" {
		s.Spec.Ports[0].AppProtocol = nil // HTTP/2 with TLS has no name among the standard ones
	}
	if b.proxies() {
		s.Spec.Ports = append([]corev1.ServicePort{servicePort("http", ServicePort, "http", "http")}, s.Spec.Ports...)
	}
	return s
}

// peers is where each replica is found by its own address, ready or not: by the others, by reporters and the operator.
func (b *builder) peers() *corev1.Service {
	return &corev1.Service{
		TypeMeta:   typeMeta(corev1.SchemeGroupVersion.WithKind("Service")),
		ObjectMeta: b.meta(PeersName(b.pool.Name)),
		Spec: corev1.ServiceSpec{
			Type:                     corev1.ServiceTypeClusterIP,
			ClusterIP:                corev1.ClusterIPNone,
			PublishNotReadyAddresses: true,
			Selector:                 b.selector(),
			Ports:                    []corev1.ServicePort{servicePort("sync", SyncPort, "sync", "")},
		},
	}
}

func servicePort(name string, port int32, target, protocol string) corev1.ServicePort {
	p := corev1.ServicePort{Name: name, Port: port, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString(target)}
	if protocol != "" {
		p.AppProtocol = ptr.To(protocol)
	}
	return p
}

// CertificateNames are the DNS names by which a pool's pickers are reached.
func CertificateNames(pool, namespace string) []string {
	return append(certs.ServiceNames(PickerName(pool), namespace), certs.ServiceNames(PeersName(pool), namespace)...)
}
