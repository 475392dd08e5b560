package chart

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Gateways and meshes guess what a port speaks, or take it for HTTP/1.1, unless its Service says so. TestRendered keeps
// the files that are read here equal to what the chart renders.
func TestEveryPortOfAServiceNamesItsProtocol(t *testing.T) {
	files, err := filepath.Glob("testdata/rendered/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	ports := 0
	for _, file := range append(files, filepath.Join(root, "config", "manager", "service.yaml")) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			var s corev1.Service
			if !strings.Contains(document, "\nkind: Service\n") {
				continue
			}
			if err := yaml.Unmarshal([]byte(document), &s); err != nil {
				t.Fatal(err)
			}
			for _, port := range s.Spec.Ports {
				ports++
				switch {
				case port.AppProtocol == nil:
					t.Errorf("%s: port %s of Service %s has no appProtocol", file, port.Name, s.Name)
				case *port.AppProtocol == "kubernetes.io/h2c" && !strings.HasPrefix(port.Name, "grpc-"):
					t.Errorf("%s: port %s of Service %s speaks HTTP/2, and its name does not begin with grpc-", file, port.Name, s.Name)
				}
			}
		}
	}
	if ports < 6 {
		t.Errorf("only %d ports were found", ports)
	}
}
