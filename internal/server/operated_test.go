package server

import (
	"encoding/json"
	"encoding/pem"
	"flag"
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// operated are flags that the operator sets only in pools with certain fields: with the spec of such a pool, besides its model and
// selector.
var operated = map[string]string{
	"compat-metrics":     "picker: {compatibilityMetrics: Enabled}",
	"events-address":     "engine: {ports: {events: 6000}, events: {source: Listen}}\npicker: {replicas: 1}",
	"ext-proc-plaintext": "picker: {tls: {type: Plaintext}}",
	"island":             "placement: {islands: [{name: here}]}\npicker: {island: here}",
	"model-root":         "model: {name: m, tokenizer: {type: Volume, volume: {persistentVolumeClaim: {name: c}}}}",
	"pprof":              "picker: {profiling: Enabled}",
	"proxy-cert":         "picker: {proxyTLS: {secretRef: {name: s}}}",
	"proxy-key":          "picker: {proxyTLS: {secretRef: {name: s}}}",
	"proxy-client-ca":    "picker: {proxyTLS: {secretRef: {name: s}, clientCASecretRef: {name: c, key: ca.crt}}}",
	"proxy-client-certs": "picker: {proxyTLS: {secretRef: {name: s}, clientCASecretRef: {name: c, key: ca.crt}, clientCertificates: Optional}}",
	"tracing-endpoint":   "picker: {tracing: {endpoint: 'http://c:4317'}}",
	"usage-endpoint":     "picker: {usageRecords: {otlp: {endpoint: 'http://c:4317'}}}",
	"usage-log":          "picker: {usageRecords: {file: {}}}",
	"usage-log-bytes":    "picker: {usageRecords: {file: {size: 1Gi}}}",
	"usage-log-files":    "picker: {usageRecords: {file: {}}}",
	"tracing-ratio":      "picker: {tracing: {endpoint: 'http://c:4317', samplePercent: 1}}",
}

// unset are flags that users of a cluster cannot set, with the reason.
var unset = map[string]string{
	"version":                 "prints and exits",
	"standalone":              "the objects are in the cluster",
	"engines":                 "the pool's pods are the engines",
	"model":                   "the pool names it",
	"validate":                "the API server checks objects when they are applied",
	"gateway-pool":            "is for pools without an InferencePool of Kvasir; the pickers of those are external",
	"fleet":                   "is set in place of --pool, for the pickers of a PickerFleet",
	"index-memory":            "is the indexMemory of a PickerFleet; a pool's own pickers have that of the pool",
	"kubeconfig":              "the picker uses the account of its pod",
	"key-file":                "the root is in the pool's Secret",
	"metrics-open":            "metrics of a cluster are only for accounts with a right; an open port would be a second way past it",
	"metrics-host":            "as metrics-open",
	"ext-proc":                "a managed picker serves one pool, at --ext-proc-address",
	"ext-proc-service":        "names a certificate that is created at the start; the operator provides one",
	"ext-proc-connection-age": "replicas are found again within the default of 5 minutes",
	"report-secret-file":      "reporters prove who they are by tokens of their service accounts",
	"report-client-ca":        "as report-secret-file",
	"report-insecure":         "as report-secret-file",
	"report-issuer":           "is that of the picker's own token",
	"report-audience":         "is a constant of Kvasir, which the operator writes into reporters' tokens",
	"peers":                   "replicas are found by --peers-service",
	"peers-secret-file":       "replicas know each other by certificates",
	"hub-token-file":          "pools name the Secret of their token (tokenizer.hub.tokenSecretRef)",
	"name":                    "is the name of the picker's pod",
}

// argsOf are the arguments of the pickers that the operator makes for a pool.
func argsOf(t *testing.T, admitter *crdadmission.Admitter, spec string) []string {
	t.Helper()
	fields := map[string]any{"model": map[string]any{"name": "m"}, "selector": map[string]any{"matchLabels": map[string]any{"app": "m"}}}
	if err := yaml.Unmarshal([]byte(spec), &fields); err != nil {
		t.Fatal(err)
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
	hub := httptest.NewTLSServer(nil)
	defer hub.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hub.Certificate().Raw})
	objects, err := resources.Objects(resources.Config{
		PickerImage: "picker", Operator: types.NamespacedName{Namespace: "o", Name: "o"}, HubEndpoint: "https://h", HubAuthorities: string(authority),
		HubProxy: "http://proxy:3128",
	}, resources.Input{Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if o.GetKind() == "Deployment" {
			var deployment appsv1.Deployment
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &deployment); err != nil {
				t.Fatal(err)
			}
			return deployment.Spec.Template.Spec.Containers[0].Args
		}
	}
	t.Fatal("no Deployment")
	return nil
}

// TestEveryFlagIsSetByTheOperatorOrIsListed keeps a flag from being one that users of a cluster can neither set nor miss: the
// operator sets it, always or by a field of the pool, or the list says why it need not be set.
func TestEveryFlagIsSetByTheOperatorOrIsListed(t *testing.T) {
	t.Parallel()
	admitter, err := crdadmission.New()
	if err != nil {
		t.Fatal(err)
	}
	sets := func(spec string) map[string]bool {
		args := argsOf(t, admitter, spec)
		if _, err := parse(args, io.Discard, io.Discard); err != nil {
			t.Errorf("the picker refuses the operator's arguments %q: %v", args, err)
		}
		names := map[string]bool{}
		for _, arg := range args {
			name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
			names[name] = true
		}
		return names
	}
	always := sets("")
	all := flag.NewFlagSet("picker", flag.ContinueOnError)
	new(options).flags(all)
	all.VisitAll(func(f *flag.Flag) {
		spec, chosen := operated[f.Name]
		why, cannot := unset[f.Name]
		switch {
		case chosen && cannot:
			t.Errorf("--%s is in both tables", f.Name)
		case chosen:
			if always[f.Name] || !sets(spec)[f.Name] {
				t.Errorf("--%s is set by the operator (always: %t), and not only for a pool with %s", f.Name, always[f.Name], spec)
			}
		case cannot:
			if always[f.Name] || why == "" {
				t.Errorf("--%s is set by the operator (%t), and listed as unset for the reason %q", f.Name, always[f.Name], why)
			}
		case !always[f.Name]:
			t.Errorf("--%s: the operator does not set it, no field of a pool does, and no reason is listed", f.Name)
		}
	})
	for _, table := range []map[string]string{operated, unset} {
		for name := range table {
			if all.Lookup(name) == nil {
				t.Errorf("--%s is listed and is no flag", name)
			}
		}
	}
}

// TestWhatPoolsChooseReachesThePicker: the values of the fields, not only their flags.
func TestWhatPoolsChooseReachesThePicker(t *testing.T) {
	t.Parallel()
	admitter, err := crdadmission.New()
	if err != nil {
		t.Fatal(err)
	}
	options := func(spec string) *options {
		o, err := parse(argsOf(t, admitter, spec), io.Discard, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	o := options(`
placement: {islands: [{name: here}]}
picker: {island: here, maxRequestBody: 512Mi, decisionLog: {size: 40Mi}, usageRecords: {file: {size: 20Mi}, otlp: {endpoint: 'https://u:4317'}}, tracing: {endpoint: 'https://c:4318', samplePercent: 5}}`)
	if o.island != "here" || o.tracing.endpoint != "https://c:4318" || o.tracing.ratio == nil || *o.tracing.ratio != 0.05 {
		t.Errorf("island %q, traces %+v", o.island, o.tracing)
	}
	if o.decisions.Dir == "" || o.decisions.FileBytes*int64(o.decisions.Files) != 40<<20 {
		t.Errorf("a decision log of %d files of %d bytes in %q, want 40 MiB", o.decisions.Files, o.decisions.FileBytes, o.decisions.Dir)
	}
	if o.usage.Dir == "" || o.usage.FileBytes*int64(o.usage.Files) != 20<<20 {
		t.Errorf("a usage log of %d files of %d bytes in %q, want 20 MiB", o.usage.Files, o.usage.FileBytes, o.usage.Dir)
	}
	if o.usage.endpoint != "https://u:4317" {
		t.Errorf("usage is exported to %q", o.usage.endpoint)
	}
	if o.gateways.maxMessage <= 512<<20 {
		t.Errorf("messages of %d bytes, less than the largest body", o.gateways.maxMessage)
	}
	if o := options("engine: {ports: {events: 6000}, events: {source: Listen}}\npicker: {replicas: 1}"); o.eventsAddress != ":6000" {
		t.Errorf("engines connect to %q, want the port of the pool", o.eventsAddress)
	}
	secure := options(`picker: {proxyTLS: {secretRef: {name: s}, clientCASecretRef: {name: c, key: authorities}}}`).proxyTLS
	if f := secure.files; f.Cert == "" || f.Key == "" || f.CA == "" || secure.clients != clientsRequired {
		t.Errorf("TLS for clients %+v", secure)
	}
	if o := options(""); o.proxyTLS.files.Cert != "" {
		t.Errorf("a pool with all defaults has TLS for clients: %+v", o.proxyTLS)
	}
	if o := options(""); o.decisions.Dir == "" || o.pprof || o.gateways.compat || o.tracing.endpoint != "" || o.usage.Dir != "" || o.usage.endpoint != "" || o.island != "" {
		t.Errorf("a pool with all defaults has %+v", o)
	}
}
