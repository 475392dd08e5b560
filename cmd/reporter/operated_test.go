package main

import (
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
)

// operated are flags that the operator sets only in pools with certain fields: with what the spec of such a pool has besides its
// model and its size.
var operated = map[string]string{
	"events-connect": "template: {spec: {containers: " +
		"[{name: vllm, image: i, args: [--kv-events-config, '{\"endpoint\": \"tcp://*:5557\"}']}]}}",
	"model-dir":        "model: {name: m, tokenizer: {type: Reporter, reporter: {path: /models/m}}}",
	"model-root":       "model: {name: m, tokenizer: {type: Reporter, reporter: {path: /models/m}}}",
	"model-cache":      inCache,
	"model-repository": inCache,
	"model-revision":   inCache,
	"engine-unchecked": "engine: {tls: {verification: None}}",
	"engine-name":      "engine: {tls: {verification: Full, serverName: e.llm}}",
	"engine-ca":        "engine: {tls: {verification: Full, serverName: e.llm, caSecretRef: {name: key, key: ca.crt}}}",
	"memory-limit":     "engine: {events: {reporter: {resources: {limits: {memory: 1Gi}}}}}",
}

// inCache is an engine with its model in a cache on a volume, as pools of the default tokenizer find it.
const inCache = "template: {spec: {containers: [{name: vllm, image: i, args: [--model, org/m, --revision, v1], " +
	"volumeMounts: [{name: v, mountPath: /root/.cache/huggingface}]}]}}"

// unreachable are flags that users of a cluster cannot set, with the reason.
var unreachable = map[string]string{
	"version":        "prints and exits",
	"pod":            "is the environment variable POD_UID, which the operator sets",
	"pickers":        "replicas are found by --picker-service",
	"client-cert":    "reporters prove who they are by tokens of their service accounts",
	"client-key":     "as client-cert",
	"secret-file":    "as client-cert",
	"insecure":       "is for a single machine",
	"drain-settle":   "the default is longer than a request is on its way from a picker, and a pool has no reason to differ",
	"status-address": "is for the pod itself; the default does not collide with ports of engines",
	"serve-address":  "the operator sets it if the pool's policy has the sidecar: see TestTheReporterTakesTheArgumentsOfASidecar",
	"serve-engine":   "as serve-address",
	"serve-memory":   "as serve-address, if the reporter's resources have a memory limit",
	"serve-cert":     "the operator sets up no sidecar in pools whose engines have TLS",
	"serve-key":      "as serve-cert",
	"serve-requests": "the default is more than an engine runs at once",
	"log-format":     "the default is read by people and by collectors of logs",
	"gc-percent":     "the soft memory limit, which follows the pool's resources, ends what it saves",
}

// argsOf are the arguments of the reporter in the pods of a pool, also those that the operator sets as variables.
func argsOf(t *testing.T, admitter *crdadmission.Admitter, spec string) []string {
	t.Helper()
	fields := map[string]any{}
	const base = "model: {name: m}\nreplicas: 1\n" +
		"template: {spec: {containers: [{name: vllm, image: i, args: [x], volumeMounts: [{name: v, mountPath: /models}]}]}}"
	for _, text := range []string{base, spec} {
		if err := yaml.Unmarshal([]byte(text), &fields); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := json.Marshal(map[string]any{"apiVersion": "kvasir.dev/v1alpha1", "kind": "InferencePool",
		"metadata": map[string]any{"name": "p", "namespace": "llm"}, "spec": fields})
	if err != nil {
		t.Fatal(err)
	}
	admitted, err := admitter.Admit(t.Context(), raw, nil)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := crdadmission.Pool(admitted)
	if err != nil {
		t.Fatal(err)
	}
	shape, options := podtemplate.ShapeOf(pool), podtemplate.For(pool)
	if len(shape.Roles) > 0 {
		if why := shape.BehindSidecar(pool); why != "" {
			t.Fatal(why)
		}
		options.Role = shape.Roles[0].Name
	}
	options.Name, options.Revision, options.ReporterImage, options.ReporterLogLevel = "p-0", "r", "reporter", "info"
	pod, _, err := podtemplate.Pod(&shape, &options)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == v1alpha1.ReporterContainer })
	if at < 0 {
		t.Fatal("no reporter")
	}
	args := pod.Spec.InitContainers[at].Args
	for _, v := range pod.Spec.InitContainers[at].Env {
		if name, is := strings.CutPrefix(v.Name, "KVASIR_"); is {
			args = append(args, "--"+strings.ToLower(strings.ReplaceAll(name, "_", "-"))+"="+v.Value)
		}
	}
	return args
}

// TestTheReporterTakesTheArgumentsOfASidecar: those of a pod that decodes in a pool whose policy has the sidecar, with and without a memory
// limit of the user's.
func TestTheReporterTakesTheArgumentsOfASidecar(t *testing.T) {
	t.Setenv(podUID, "u")
	admitter, err := crdadmission.New()
	if err != nil {
		t.Fatal(err)
	}
	const roles = "replicas: null\nroles: [{name: Decode, replicas: 1}]\n"
	for spec, memory := range map[string]int{
		roles: 64, roles + "engine: {events: {reporter: {resources: {limits: {memory: 256Mi}}}}}": 32,
	} {
		args := slices.DeleteFunc(argsOf(t, admitter, spec), func(arg string) bool { return strings.HasPrefix(arg, "--picker-ca=") })
		o, err := parse(args, io.Discard, io.Discard)
		if err != nil {
			t.Fatalf("%q: %v", args, err)
		}
		if p := &o.poolPort; p.address != ":8000" || p.host != "127.0.0.1:8200" || p.memory != memory {
			t.Errorf("%q: the pool's port is %+v", args, p)
		}
	}
}

// TestEveryFlagIsSetByTheOperatorOrIsListed keeps a flag from being one that users of a cluster can neither set nor miss: the
// operator sets it, always or by a field of the pool, or the list says why it need not be set.
func TestEveryFlagIsSetByTheOperatorOrIsListed(t *testing.T) {
	t.Setenv(podUID, "u")
	admitter, err := crdadmission.New()
	if err != nil {
		t.Fatal(err)
	}
	sets := func(spec string) map[string]bool {
		names := map[string]bool{}
		var checked []string
		for _, arg := range argsOf(t, admitter, spec) {
			name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
			if names[name] = true; name != "picker-ca" { // a file of the pod
				checked = append(checked, arg)
			}
		}
		if _, err := parse(checked, io.Discard, io.Discard); err != nil {
			t.Errorf("the reporter refuses the operator's arguments %q: %v", checked, err)
		}
		return names
	}
	always, all := sets(""), allFlags(t)
	for _, name := range all {
		spec, chosen := operated[name]
		why, cannot := unreachable[name]
		switch {
		case chosen && cannot:
			t.Errorf("--%s is in both tables", name)
		case chosen:
			if always[name] || !sets(spec)[name] {
				t.Errorf("--%s is set by the operator (always: %t), and not only for a pool with %s", name, always[name], spec)
			}
		case cannot:
			if always[name] || why == "" {
				t.Errorf("--%s is set by the operator (%t), and listed as unreachable for the reason %q", name, always[name], why)
			}
		case !always[name]:
			t.Errorf("--%s: the operator does not set it, no field of a pool does, and no reason is listed", name)
		}
	}
	for _, table := range []map[string]string{operated, unreachable} {
		for name := range table {
			if !slices.Contains(all, name) {
				t.Errorf("--%s is listed and is no flag", name)
			}
		}
	}
}
