package chart

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// Prometheus finds each port with metrics once: the monitors select the Services of operator and pickers by labels and port.
func TestMonitorsFindTheMetrics(t *testing.T) {
	all := objects(t, rendered(t, "--set", "monitoring.monitors.enabled=true,keda.enabled=true", "--set", "crds.install=false"))
	type found struct {
		monitor  string
		services map[string]*unstructured.Unstructured
	}
	of := []found{{"kvasir-operator", all}}
	for _, pickers := range []string{"smallest.yaml", "fleet.yaml"} {
		text, err := os.ReadFile(filepath.Join(root, "internal", "operator", "resources", "testdata", pickers))
		if err != nil {
			t.Fatal(err)
		}
		of = append(of, found{"kvasir-pickers", objects(t, string(text))})
	}
	for _, f := range of {
		monitor, services := f.monitor, f.services
		m := all["ServiceMonitor "+system+"/"+monitor]
		if m == nil {
			t.Fatalf("there is no ServiceMonitor %s", monitor)
		}
		wanted, _, err := unstructured.NestedStringMap(m.Object, "spec", "selector", "matchLabels")
		if err != nil || len(wanted) == 0 {
			t.Fatalf("%s selects by %v (%v)", monitor, wanted, err)
		}
		endpoints, _, err := unstructured.NestedSlice(m.Object, "spec", "endpoints")
		if err != nil || len(endpoints) != 1 {
			t.Fatalf("%s has %d endpoints (%v)", monitor, len(endpoints), err)
		}
		port := endpoints[0].(map[string]any)["port"]
		var found []string
		for _, s := range services {
			if s.GetKind() != "Service" || !labels.SelectorFromSet(wanted).Matches(labels.Set(s.GetLabels())) {
				continue
			}
			ports, _, err := unstructured.NestedSlice(s.Object, "spec", "ports")
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range ports {
				if p.(map[string]any)["name"] == port {
					found = append(found, s.GetName())
				}
			}
		}
		if len(found) != 1 {
			t.Errorf("%s finds %v of port %v", monitor, found, port)
		}
	}
}
