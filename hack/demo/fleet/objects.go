package fleet

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Names of the demo's objects.
const (
	Model = "demo-model"
	pool  = "demo"
)

// poolObject is the smallest pool, with the model's files if there are any.
func poolObject(o *Options) string {
	model := "name: " + Model
	if o.Tokenizer != "" {
		model += ", tokenizer: {type: Directory, directory: {path: " + modelName + "}}"
	}
	return `apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: ` + pool + `}
spec:
  model: {` + model + `}
  selector: {matchLabels: {app: ` + pool + `}}
`
}

// policyObject is a policy with a strategy and no parameters, hand-offs where pods have roles, and answers that report what was predicted.
func policyObject(o *Options) string {
	roles := ""
	if o.Prefillers > 0 {
		roles = "  disaggregation: {type: Cost}\n"
	}
	return `apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: ` + pool + `}
spec:
  targetRefs: [{name: ` + pool + `}]
  strategy: {type: ` + o.Strategy + `}
  decisions: {answerHeaders: Always}
` + roles + o.Policy
}

// Ports are those of one pod on 127.0.0.1.
type Ports struct {
	HTTP, Events, Replay int
}

// labels of pod i.
func (o *Options) labels(i int) string {
	switch {
	case o.Prefillers == 0:
		return "kvasir.dev/pool: " + pool
	case i < o.Prefillers:
		return "kvasir.dev/pool: " + pool + ", kvasir.dev/role: prefill"
	}
	return "kvasir.dev/pool: " + pool + ", kvasir.dev/role: decode"
}

// sliceObject makes a pod known to the picker.
func sliceObject(pod, labels string, p Ports) string {
	return fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: %[1]s
  labels: {%[2]s}
addressType: IPv4
ports:
- {name: http, port: %[3]d}
- {name: kv-events, port: %[4]d}
- {name: kv-replay, port: %[5]d}
endpoints:
- addresses: [127.0.0.1]
  conditions: {ready: true, serving: true, terminating: false}
  targetRef: {kind: Pod, name: %[1]s, uid: %[1]s}
`, pod, labels, p.HTTP, p.Events, p.Replay)
}

// writeObjects fills the picker's directory.
func writeObjects(dir string, o *Options, pods []string, ports []Ports) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("writing the picker's objects: %w", err)
	}
	files := map[string]string{"pool.yaml": poolObject(o)}
	if o.Strategy != "" {
		files["policy.yaml"] = policyObject(o)
	}
	slices := make([]string, len(pods))
	for i := range pods {
		slices[i] = sliceObject(pods[i], o.labels(i), ports[i])
	}
	files["pods.yaml"] = strings.Join(slices, "---\n")
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("writing the picker's objects: %w", err)
		}
	}
	return nil
}
