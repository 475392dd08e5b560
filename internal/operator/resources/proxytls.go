package resources

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// proxyPort is the port of the proxy.
type proxyPort struct {
	name     string // at the Service and in the pods
	number   int32  // at the Service
	protocol string
}

// proxyPort is that of the pickers. With TLS it has another name, so that the Service sends no client that speaks TLS to a pod
// of before, which does not.
func (p *pickers) proxyPort() proxyPort {
	if p.securesProxy() {
		return proxyPort{"https", SecureServicePort, protocolHTTPS}
	}
	return proxyPort{"http", ServicePort, protocolHTTP}
}

// securesProxy reports whether clients of the proxy speak TLS.
func (p *pickers) securesProxy() bool {
	return p.proxies() && p.settings.ProxyTLS.SecretRef.Name != ""
}

// proxyTLSVolumes are the Secrets for the clients of the proxy. They are optional: pickers start without them, because they also serve
// gateways and are what others depend on, and read the files when they come.
func (p *pickers) proxyTLSVolumes() []corev1.Volume {
	if !p.securesProxy() {
		return nil
	}
	t := &p.settings.ProxyTLS
	mount := func(name, secret string, items ...corev1.KeyToPath) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: secret, Optional: ptr.To(true), Items: items,
		}}}
	}
	volumes := []corev1.Volume{mount("proxy-tls", t.SecretRef.Name, corev1.KeyToPath{Key: corev1.TLSCertKey, Path: corev1.TLSCertKey},
		corev1.KeyToPath{Key: corev1.TLSPrivateKeyKey, Path: corev1.TLSPrivateKeyKey})}
	if ca := t.ClientCASecretRef; ca.Name != "" {
		volumes = append(volumes, mount("client-ca", ca.Name, corev1.KeyToPath{Key: ca.Key, Path: CAEntry}))
	}
	return volumes
}

// proxyTLSArgs are the picker's flags for them.
func (p *pickers) proxyTLSArgs() []string {
	if !p.securesProxy() {
		return nil
	}
	args := []string{"--proxy-cert=" + proxyTLSDir + "/" + corev1.TLSCertKey, "--proxy-key=" + proxyTLSDir + "/" + corev1.TLSPrivateKeyKey}
	t := &p.settings.ProxyTLS
	if t.ClientCASecretRef.Name != "" {
		args = append(args, "--proxy-client-ca="+clientCADir+"/"+CAEntry)
		if t.ClientCertificates == v1alpha1.ClientCertificatesOptional {
			args = append(args, "--proxy-client-certs=optional")
		}
	}
	return args
}
