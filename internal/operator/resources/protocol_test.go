package resources

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
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
			speaks := map[string]string{"http": "HTTP", "https": "TLS", "ext-proc": "HTTP2", "health": "HTTP2", "metrics": "TLS", "sync": "TLS"}
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

// TestFilesOfFlagsAreMounted: each file that a flag of the picker names lies in a volume, which has it if it lists what it has.
func TestFilesOfFlagsAreMounted(t *testing.T) {
	for name, p := range pools(t) {
		if p.Spec.Picker.Mode == v1alpha1.PickerExternal {
			continue
		}
		pod := child[appsv1.Deployment](t, p, "Deployment", PickerName(p.Name)).Spec.Template.Spec
		volumes := map[string]corev1.Volume{}
		for _, v := range pod.Volumes {
			volumes[v.Name] = v
		}
		for _, arg := range pod.Containers[0].Args {
			_, file, _ := strings.Cut(arg, "=")
			if !strings.HasPrefix(file, "/etc/kvasir/") {
				continue
			}
			found := false
			for _, m := range pod.Containers[0].VolumeMounts {
				base, in := strings.CutPrefix(file, m.MountPath+"/")
				secret := volumes[m.Name].Secret
				found = found || in && (secret == nil || len(secret.Items) == 0 ||
					slices.ContainsFunc(secret.Items, func(i corev1.KeyToPath) bool { return i.Path == base }))
			}
			if !found {
				t.Errorf("%s: no volume has the file of %s", name, arg)
			}
		}
	}
}

// TestTLSForClientsHasItsOwnPort: a Service sends clients that speak TLS only to pods that do, while others are still there; and a Secret
// that is missing keeps no picker from starting.
func TestTLSForClientsHasItsOwnPort(t *testing.T) {
	plain, secure := pools(t)["smallest"], pools(t)["securedproxy"]
	target := func(p *v1alpha1.InferencePool) (string, int32) {
		port := child[corev1.Service](t, p, "Service", PickerName(p.Name)).Spec.Ports[0]
		return port.TargetPort.String(), port.Port
	}
	has := func(p *v1alpha1.InferencePool, name string) bool {
		ports := child[appsv1.Deployment](t, p, "Deployment", PickerName(p.Name)).Spec.Template.Spec.Containers[0].Ports
		return slices.ContainsFunc(ports, func(c corev1.ContainerPort) bool { return c.Name == name })
	}
	before, _ := target(plain)
	after, number := target(secure)
	if before == after || number != 443 || has(plain, after) || has(secure, before) || !has(secure, after) {
		t.Errorf("the Service sends clients to port %q, with TLS from %d to %q", before, number, after)
	}
	secrets := 0
	for _, v := range child[appsv1.Deployment](t, secure, "Deployment", PickerName(secure.Name)).Spec.Template.Spec.Volumes {
		if s := v.Secret; s != nil && (s.SecretName == "chat-tls" || s.SecretName == "clients") {
			secrets++
			if !ptr.Deref(s.Optional, false) {
				t.Errorf("pods do not start without the Secret %s", s.SecretName)
			}
		}
	}
	if secrets != 2 {
		t.Errorf("%d Secrets are mounted", secrets)
	}
}
