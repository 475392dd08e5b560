package chart

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// verified returns what a monitor verifies: the name of the server, and the object with the CA; empty for nothing.
func verified(t *testing.T, monitor *unstructured.Unstructured) (server, ca string) {
	t.Helper()
	if monitor == nil {
		t.Fatal("there is no such monitor")
	}
	endpoints, _, err := unstructured.NestedSlice(monitor.Object, "spec", "endpoints")
	if err != nil || len(endpoints) != 1 {
		t.Fatalf("endpoints %v (%v)", endpoints, err)
	}
	config, _, err := unstructured.NestedMap(endpoints[0].(map[string]any), "tlsConfig")
	if err != nil {
		t.Fatal(err)
	}
	if config["insecureSkipVerify"] == true {
		return "", ""
	}
	for _, kind := range []string{"secret", "configMap"} {
		name, _, _ := unstructured.NestedString(config, "ca", kind, "name")
		if key, _, _ := unstructured.NestedString(config, "ca", kind, "key"); key == "ca.crt" {
			ca = kind + " " + name
		}
	}
	server, _ = config["serverName"].(string)
	return server, ca
}

// TestMonitorsVerifyCertificates wherever the chart knows their CA.
func TestMonitorsVerifyCertificates(t *testing.T) {
	all := objects(t, rendered(t, "--set", "monitoring.monitors.enabled=true", "--set", "crds.install=false"))
	for _, name := range []string{"kvasir-operator", "kvasir-pickers"} {
		if server, ca := verified(t, all["ServiceMonitor "+system+"/"+name]); server+ca != "" {
			t.Errorf("%s verifies %s by %s, which the chart does not know", name, server, ca)
		}
	}
	all = objects(t, rendered(t, "--set", "monitoring.monitors.enabled=true", "--set", "crds.install=false",
		"--set", "metrics.certificateSecret=metrics,monitoring.monitors.verifyOperator=false"))
	if server, ca := verified(t, all["ServiceMonitor "+system+"/kvasir-operator"]); server+ca != "" {
		t.Errorf("the operator's monitor verifies %s by %s, against the values", server, ca)
	}
	all = objects(t, rendered(t, "--set", "monitoring.monitors.enabled=true", "--set", "crds.install=false",
		"--set", "metrics.certificateSecret=metrics",
		"--set", "monitoring.monitors.pools[0].name=chat,monitoring.monitors.pools[0].namespace=llm",
		"--set", "monitoring.monitors.pools[1].name=code,monitoring.monitors.pools[1].namespace=dev",
		"--set", "monitoring.monitors.fleets[0].name=default,monitoring.monitors.fleets[0].namespace=llm"))
	for name, want := range map[string][2]string{
		system + "/kvasir-operator": {"kvasir-operator-metrics." + system + ".svc", "secret metrics"},
		"llm/chat-picker":           {"chat-picker.llm.svc", "configMap chat-picker-ca"},
		"dev/code-picker":           {"code-picker.dev.svc", "configMap code-picker-ca"},
		"llm/default-fleet":         {"default-fleet.llm.svc", "configMap default-fleet-ca"},
	} {
		if server, ca := verified(t, all["ServiceMonitor "+name]); server != want[0] || ca != want[1] {
			t.Errorf("%s verifies %q by %q, want %v", name, server, ca, want)
		}
	}
	if all["ServiceMonitor "+system+"/kvasir-pickers"] != nil {
		t.Error("the pickers of the listed pools are scraped twice")
	}
}

// TestTheNotesNameCertificatesThatAreNotVerified, with the value that changes it.
func TestTheNotesNameCertificatesThatAreNotVerified(t *testing.T) {
	const pools, operator = "monitoring.monitors.pools", "set metrics.certificateSecret"
	const listed, secret = "monitoring.monitors.pools[0].name=chat,monitoring.monitors.pools[0].namespace=llm", "metrics.certificateSecret=metrics"
	const ofFleet = "monitoring.monitors.fleets[0].name=default,monitoring.monitors.fleets[0].namespace=llm"
	for set, want := range map[string][]string{
		"monitoring.monitors.enabled=false":                                                        nil,
		"monitoring.monitors.enabled=true":                                                         {pools, operator},
		"monitoring.monitors.enabled=true," + secret:                                               {pools},
		"monitoring.monitors.enabled=true," + listed:                                               {operator},
		"monitoring.monitors.enabled=true," + listed + "," + secret:                                nil,
		"monitoring.monitors.enabled=true," + ofFleet + "," + secret:                               nil,
		"monitoring.monitors.enabled=true," + secret + ",monitoring.monitors.verifyOperator=false": {pools, operator},
	} {
		out, err := run(t.Context(), filepath.Join(root, "bin", "helm"), "install", "kvasir", chart, "--dry-run=client", "--namespace", system,
			"--values", "testdata/registry.yaml", "--set", "crds.install=false", "--set", set)
		_, notes, ok := strings.Cut(out, "\nNOTES:\n")
		if err != nil || !ok {
			t.Fatalf("%s: %v\n%s", set, err, out)
		}
		for _, text := range []string{pools, operator} {
			if got := strings.Contains(notes, text); got != slices.Contains(want, text) {
				t.Errorf("%s: the notes say %q: %t", set, text, got)
			}
		}
	}
}

func TestKEDAsScalerHasACertificate(t *testing.T) {
	args := func(set string) []string {
		t.Helper()
		all := objects(t, rendered(t, "--set", set, "--set", "crds.install=false"))
		containers, _, err := unstructured.NestedSlice(all["Deployment "+system+"/kvasir-operator"].Object, "spec", "template", "spec", "containers")
		if err != nil || len(containers) != 1 {
			t.Fatal(containers, err)
		}
		got, _, err := unstructured.NestedStringSlice(containers[0].(map[string]any), "args")
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(got, func(arg string) bool { return !strings.HasPrefix(arg, "--keda") })
	}
	for set, want := range map[string][]string{
		"keda.certificateSecret=k":                   {},
		"keda.enabled=true":                          {"--keda-address=:9600"},
		"keda.enabled=true,keda.certificateSecret=k": {"--keda-address=:9600", "--keda-cert-dir=/etc/kvasir/keda-tls"},
		"keda.enabled=true,keda.certificateSecret=k,keda.verifyClients=true": {
			"--keda-address=:9600", "--keda-cert-dir=/etc/kvasir/keda-tls", "--keda-client-ca=/etc/kvasir/keda-tls/ca.crt",
		},
	} {
		if got := args(set); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", set, got, want)
		}
	}
}
