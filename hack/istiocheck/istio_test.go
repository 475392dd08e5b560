// Package istiocheck reads the objects of Istio's kinds with Istio's own validation: those of the docs, and those that the operator
// makes. `make conformance` runs Istio's control plane over them.
package istiocheck

import (
	"os/exec"
	"strings"
	"testing"

	"istio.io/istio/pilot/pkg/config/kube/crd"
)

func TestIstioTakesTheRules(t *testing.T) {
	const page = "install-gateways.md"
	out, err := exec.CommandContext(t.Context(), "go", "-C", "../..", "run", "./hack/objects", page, "chat-picker").Output()
	if err != nil {
		t.Fatalf("making the objects of %s: %v", page, err)
	}
	var rules []string
	for object := range strings.SplitSeq(string(out), "---\n") {
		if strings.Contains(object, "\napiVersion: networking.istio.io/") || strings.HasPrefix(object, "apiVersion: networking.istio.io/") {
			rules = append(rules, object)
		}
	}
	if len(rules) != 2 {
		t.Fatalf("there are %d rules, want that of the page and that of the operator", len(rules))
	}
	for _, rule := range rules {
		if parsed, unknown, err := crd.ParseInputs(rule); err != nil || len(unknown) > 0 || len(parsed) != 1 {
			t.Errorf("Istio refuses it: %v, %v\n%s", err, unknown, rule)
		}
		wrong := strings.Replace(rule, "host:", "hots:", 1)
		if _, _, err := crd.ParseInputs(wrong); err == nil {
			t.Errorf("Istio takes a rule without a host:\n%s", wrong)
		}
	}
}
