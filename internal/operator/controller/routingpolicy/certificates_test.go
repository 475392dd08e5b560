package routingpolicy

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// TestAPolicySaysThatClientsCannotShowCertificates: tenants by certificate need pickers that ask for one. The policy is accepted, and its
// condition names what is missing and where.
func TestAPolicySaysThatClientsCannotShowCertificates(t *testing.T) {
	const byCertificate = "{targetRefs: [{name: m}], admission: {tenants: {identification: ClientCertificate, secretRefs: [{name: keys}], classes: [{name: default}]}}}"
	asking := v1alpha1.ProxyTLS{SecretRef: v1alpha1.LocalName{Name: "tls"}, ClientCASecretRef: v1alpha1.SecretKey{Name: "ca", Key: "ca.crt"}}
	with := func(mode v1alpha1.PickerMode, proxy v1alpha1.ProxyTLS) *v1alpha1.InferencePool {
		p := pool("m")
		p.Spec.Picker.Mode, p.Spec.Picker.ProxyTLS = mode, proxy
		return p
	}
	fleet := func(proxy v1alpha1.ProxyTLS) *v1alpha1.PickerFleet {
		f := &v1alpha1.PickerFleet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: v1alpha1.DefaultFleet}}
		f.Spec.ProxyTLS = proxy
		return f
	}
	for name, tc := range map[string]struct {
		objects []client.Object
		spec    string
		want    string // at the end of the message
	}{
		"without TLS":                  {[]client.Object{with(v1alpha1.PickerManaged, v1alpha1.ProxyTLS{})}, byCertificate, "of the pool"},
		"without authorities":          {[]client.Object{with(v1alpha1.PickerManaged, v1alpha1.ProxyTLS{SecretRef: asking.SecretRef})}, byCertificate, "of the pool"},
		"with authorities":             {[]client.Object{with(v1alpha1.PickerManaged, asking)}, byCertificate, ""},
		"pickers outside the operator": {[]client.Object{with(v1alpha1.PickerExternal, v1alpha1.ProxyTLS{})}, byCertificate, ""},
		"a fleet without authorities":  {[]client.Object{with(v1alpha1.PickerOfFleet, asking), fleet(v1alpha1.ProxyTLS{})}, byCertificate, "of PickerFleet default"},
		"a fleet with authorities":     {[]client.Object{with(v1alpha1.PickerOfFleet, v1alpha1.ProxyTLS{}), fleet(asking)}, byCertificate, ""},
		"a fleet that does not exist":  {[]client.Object{with(v1alpha1.PickerOfFleet, v1alpha1.ProxyTLS{})}, byCertificate, ""},
		"tenants by key need none":     {[]client.Object{with(v1alpha1.PickerManaged, v1alpha1.ProxyTLS{})}, withKeys, ""},
		"a pool of a gateway alone":    {[]client.Object{bare("b")}, strings.Replace(byCertificate, "{name: m}", "{group: inference.networking.k8s.io, name: b}", 1), ""},
		"a pool that does not exist":   {nil, byCertificate, "there is no such pool"},
	} {
		w := newWorld(t, append(tc.objects, policy(t, "p", 1, tc.spec))...)
		w.mustReconcile("p")
		c := w.get("p").Status.Ancestors[0].Conditions[0]
		if !strings.HasSuffix(c.Message, tc.want) || tc.want == "" && c.Message != "" {
			t.Errorf("%s: condition %s %s %s: %q", name, c.Type, c.Status, c.Reason, c.Message)
		}
	}
}
