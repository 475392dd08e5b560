package resources

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// trafficOf makes a pool's objects in a cluster that has every gateway's kinds, and returns those of single gateways.
func trafficOf(t *testing.T, p *v1alpha1.InferencePool) map[string]*unstructured.Unstructured {
	t.Helper()
	all := installed
	all.Traffic = Traffic{DestinationRule: true, BackendTrafficPolicy: true, HealthCheckPolicy: true, GCPBackendPolicy: true}
	objects, err := Objects(all, Input{Pool: p, Trusted: []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]*unstructured.Unstructured{}
	for _, o := range objects {
		if !slices.Contains(Kinds(all), o.GroupVersionKind()) {
			t.Errorf("%s is not among the kinds that are cleaned up", o.GetKind())
		}
		if IsTraffic(o.GroupVersionKind()) {
			got[o.GetKind()] = o
		}
	}
	return got
}

func TestGatewaysGetWhatTheyNeedOfTheirOwnKinds(t *testing.T) {
	const spec = `model: {name: m}, selector: {matchLabels: {app: m}}`
	for name, tc := range map[string]struct {
		spec string
		want []string
	}{
		"a route for gateways": {`gateway: {parentRefs: [{name: g}]}`, []string{"BackendTrafficPolicy", "DestinationRule", "GCPBackendPolicy", "HealthCheckPolicy"}},
		"routes of the user":   {`gateway: {}`, []string{"DestinationRule", "GCPBackendPolicy", "HealthCheckPolicy"}},
		"a pool of the user":   {`gateway: {mode: Existing}`, []string{"DestinationRule"}},
		"pickers of the user":  {`gateway: {mode: Existing}, picker: {mode: External, external: {serviceName: theirs}}`, nil},
		"no gateway":           {`gateway: {mode: Disabled}`, nil},
		"policies of the user": {`gateway: {parentRefs: [{name: g}], trafficPolicies: None}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for kind := range trafficOf(t, small(t, spec+", "+tc.spec)) {
				got = append(got, kind)
			}
			slices.Sort(got)
			if !slices.Equal(got, tc.want) {
				t.Errorf("made %q, want %q", got, tc.want)
			}
		})
	}
	if objects, err := Objects(installed, Input{Pool: small(t, spec)}); err != nil || slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool {
		return IsTraffic(o.GroupVersionKind())
	}) {
		t.Errorf("objects of kinds that the cluster does not have (%v)", err)
	}
}

// The rule must not touch the other ports of the Service, which speak without TLS, and must leave a replica to ask.
func TestTheDestinationRuleIsForTheGatewaysPort(t *testing.T) {
	for name, tc := range map[string]struct {
		picker        string
		tls, outliers bool
	}{
		"two replicas": {`{}`, true, true},
		"one replica":  {`{replicas: 1}`, true, false},
		"plaintext":    {`{tls: {type: Plaintext}}`, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := small(t, `model: {name: m}, selector: {matchLabels: {app: m}}, picker: `+tc.picker)
			rule := trafficOf(t, p)["DestinationRule"]
			policy, _, err := unstructured.NestedMap(rule.Object, "spec", "trafficPolicy")
			if err != nil || len(policy) != 1 {
				t.Fatalf("the policy is for all ports: %v (%v)", policy, err)
			}
			ports := policy["portLevelSettings"].([]any)
			settings := ports[0].(map[string]any)
			port, _, _ := unstructured.NestedInt64(settings, "port", "number")
			_, tls := settings["tls"]
			_, outliers := settings["outlierDetection"]
			if failures, _, _ := unstructured.NestedInt64(settings, "outlierDetection", "consecutiveGatewayErrors"); outliers && failures != 1 {
				t.Errorf("a replica that fails is ejected after %d requests, want 1", failures)
			}
			if len(ports) != 1 || port != ExtProcPort || tls != tc.tls || outliers != tc.outliers {
				t.Errorf("%v, want TLS %v, outlier detection %v", settings, tc.tls, tc.outliers)
			}
		})
	}
}
