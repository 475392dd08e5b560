package resources

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// meshProtocol is what a mesh makes of a Service port, after Istio 1.31: appProtocol if there is one, else the name up to
// the first hyphen; "" where it would guess.
func meshProtocol(p *corev1.ServicePort) string {
	name := p.Name
	if p.AppProtocol != nil {
		name = *p.AppProtocol
		if name == "kubernetes.io/h2c" {
			return "HTTP2"
		}
	}
	name, _, _ = strings.Cut(name, "-")
	switch strings.ToLower(name) {
	case "http":
		return "HTTP"
	case "http2", "grpc":
		return "HTTP2"
	case "https", "tls":
		return "TLS"
	}
	return ""
}

// Behind Istio every request got 500, because a port of HTTP/2 said nothing and was spoken to in HTTP/1.1.
func TestGatewaysAndMeshesKnowWhatEachPortSpeaks(t *testing.T) {
	extProc := map[v1alpha1.TLSType]string{
		v1alpha1.TLSSelfSigned: "http2", v1alpha1.TLSSecret: "http2", v1alpha1.TLSCertManager: "http2", v1alpha1.TLSPlaintext: "kubernetes.io/h2c",
	}
	for name, p := range pools(t) {
		if p.Spec.Picker.Mode == v1alpha1.PickerExternal {
			continue
		}
		for tls, appProtocol := range extProc {
			p := p.DeepCopy()
			p.Spec.Picker.TLS.Type = tls
			// By the port of the container. What clients wrap in TLS themselves must not be taken for HTTP.
			speaks := map[string]string{"http": "HTTP", "ext-proc": "HTTP2", "health": "HTTP2", "metrics": "TLS", "sync": "TLS"}
			for _, service := range []string{PickerName(p.Name), PeersName(p.Name)} {
				for _, port := range child[corev1.Service](t, p, "Service", service).Spec.Ports {
					target := port.TargetPort.String()
					if got := meshProtocol(&port); port.AppProtocol == nil || got != speaks[target] {
						t.Errorf("%s, %s: port %s of %s (appProtocol %q) is taken for %q, want %q",
							name, tls, port.Name, service, ptr.Deref(port.AppProtocol, ""), got, speaks[target])
					}
					if target == "ext-proc" && ptr.Deref(port.AppProtocol, "") != appProtocol {
						t.Errorf("%s, %s: appProtocol %q of ext_proc, want %q", name, tls, ptr.Deref(port.AppProtocol, ""), appProtocol)
					}
					// Some meshes read names only, so both must agree.
					port.AppProtocol = nil
					if got := meshProtocol(&port); speaks[target] == "HTTP2" && got != "HTTP2" {
						t.Errorf("%s: by its name alone port %s of %s is taken for %q, want HTTP2", name, port.Name, service, got)
					}
				}
			}
		}
	}
}
