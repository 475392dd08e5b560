package resources

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
)

var update = flag.Bool("update", false, "write the golden files")

var installed = Config{HubEndpoint: "https://hub.example.com",
	PickerImage: "registry.example/kvasir/picker:v1", Operator: types.NamespacedName{Namespace: "kvasir", Name: "kvasir-operator"},
	GIE: true, Routes: true, CertManager: true,
}

var admitter = sync.OnceValues(crdadmission.New)

// pool admits a pool as the API server does, defaults included.
func pool(t *testing.T, manifest string) *v1alpha1.InferencePool {
	t.Helper()
	admitter, err := admitter()
	if err != nil {
		t.Fatal(err)
	}
	o, err := admitter.Admit(t.Context(), []byte(manifest), nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &v1alpha1.InferencePool{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, p); err != nil {
		t.Fatal(err)
	}
	p.UID = "0b1c"
	return p
}

func sample(t *testing.T, name string) *v1alpha1.InferencePool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "config", "samples", name))
	if err != nil {
		t.Fatal(err)
	}
	return pool(t, string(text))
}

func small(t *testing.T, spec string) *v1alpha1.InferencePool {
	t.Helper()
	return pool(t, `{apiVersion: kvasir.dev/v1alpha1, kind: InferencePool, metadata: {name: m, namespace: llm}, spec: {`+spec+`}}`)
}

func pools(t *testing.T) map[string]*v1alpha1.InferencePool {
	t.Helper()
	return map[string]*v1alpha1.InferencePool{
		"owned":    sample(t, "pool_owned.yaml"),
		"adopted":  sample(t, "pool_adopted.yaml"),
		"smallest": sample(t, "pool_smallest.yaml"),
		"ranks": small(t, `model: {name: m}, selector: {matchLabels: {app: m}}, engine: {protocol: H2C, ports: {http: 9000},
  dataParallel: {ranks: 3, addressing: PortPerRank}, events: {source: Listen}}, picker: {replicas: 1, tls: {type: Plaintext}, proxy: Disabled}`),
		"configured": small(t, `model: {name: m}, selector: {matchLabels: {app: m}}, placement: {islands: [{name: here}, {name: away}]}, picker: {
  island: here, compatibilityMetrics: Enabled, profiling: Enabled, decisionLog: {size: 1Gi}, usageRecords: {file: {size: 512Mi},
  otlp: {endpoint: "https://records:4317", headersSecretRef: {name: records, key: headers}, caSecretRef: {name: records, key: ca}}}, maxRequestBody: 512Mi, tracing: {endpoint: "https://collector:4318",
  protocol: HTTP, samplePercent: 5, headersSecretRef: {name: collector, key: headers}, caSecretRef: {name: collector, key: ca}}}`),
		"certmanager": small(t, `selector: {matchLabels: {app: m}}, model: {name: m, tokenizer: {type: Volume, volume: {configMap: {name: files}}}},
  picker: {tls: {type: CertManager, issuerRef: {name: ours}}, replicas: 1, networkPolicy: None, resources: {limits: {memory: 1Gi}}}`),
		"closed": small(t, `model: {name: m}, selector: {matchLabels: {app: m}}, engine: {dataParallel: {ranks: 2, addressing: PortPerRank}, networkPolicy: {from: [
  {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}, podSelector: {matchLabels: {app: prometheus}}},
  {ipBlock: {cidr: 130.211.0.0/22, except: [130.211.1.0/24]}}]}}, picker: {tls: {type: Plaintext}}`),
		"hub":   small(t, `model: {name: a/b, tokenizer: {type: Hub, hub: {revision: v1, tokenSecretRef: {name: hf, key: token}}}}, selector: {matchLabels: {app: m}}`),
		"found": small(t, `model: {name: a/b, tokenizer: {hub: {tokenSecretRef: {name: hf, key: token}}}}, selector: {matchLabels: {app: m}}`),
		"securedproxy": small(t, `model: {name: m}, selector: {matchLabels: {app: m}}, picker: {proxyTLS: {secretRef: {name: chat-tls},
  clientCASecretRef: {name: clients, key: authorities.pem}, clientCertificates: Optional}}`),
		"external": small(t, `model: {name: m}, selector: {matchLabels: {app: m}}, picker: {mode: External, external: {serviceName: theirs}}, gateway: {failureMode: FailOpen}`),
	}
}

func objects(t *testing.T, p *v1alpha1.InferencePool) []*unstructured.Unstructured {
	t.Helper()
	all, err := Objects(installed, Input{
		Pool: p, PolicySecrets: []string{"tenants", "more"}, Trusted: []byte("certificates\n"),
		Gateways: []types.NamespacedName{{Namespace: "infra", Name: "inference"}}, Sets: []string{"groups"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// child finds one of a pool's children.
func child[T any](t *testing.T, p *v1alpha1.InferencePool, kind, name string) *T {
	t.Helper()
	for _, o := range objects(t, p) {
		if o.GetKind() == kind && o.GetName() == name {
			typed := new(T)
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, typed); err != nil {
				t.Fatal(err)
			}
			return typed
		}
	}
	t.Fatalf("no %s %s", kind, name)
	return nil
}

func TestChildren(t *testing.T) {
	for name, p := range pools(t) {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			for _, o := range objects(t, p) {
				text, err := yaml.Marshal(o.Object)
				if err != nil {
					t.Fatal(err)
				}
				got.WriteString("---\n")
				got.Write(text)
			}
			file := filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("%s (-want +got; -update writes it):\n%s", file, diff)
			}
		})
	}
}

// What the API's contract says of every child.
func TestEveryChildBelongsToItsPool(t *testing.T) {
	kinds := Kinds(installed)
	for name, p := range pools(t) {
		seen := map[string]bool{}
		for _, o := range objects(t, p) {
			gvk := o.GetObjectKind().GroupVersionKind()
			id := gvk.Kind + " " + o.GetName()
			if seen[id] {
				t.Errorf("%s: %s twice", name, id)
			}
			seen[id] = true
			if !slices.Contains(kinds, gvk) {
				t.Errorf("%s: %s is not among the kinds that are cleaned up", name, gvk)
			}
			if o.GetNamespace() != p.Namespace || !strings.HasPrefix(o.GetName(), p.Name) {
				t.Errorf("%s: %s is called %s/%s", name, gvk.Kind, o.GetNamespace(), o.GetName())
			}
			refs := o.GetOwnerReferences()
			if len(refs) != 1 || refs[0].UID != p.UID || !ptr.Deref(refs[0].Controller, false) {
				t.Errorf("%s: owners of %s are %v", name, id, refs)
			}
			if _, ok := o.GetLabels()[v1alpha1.LabelPool]; ok {
				t.Errorf("%s: %s looks like an engine", name, id)
			}
		}
	}
}

// TestChildrenNameTheOperatorsVersion in their own labels and nowhere else, so that an upgrade replaces no pods for it.
func TestChildrenNameTheOperatorsVersion(t *testing.T) {
	p := pools(t)["owned"]
	for version, want := range map[string]string{"v1.2.3": "v1.2.3", "": "", "v1.2.3+meta": ""} {
		config := installed
		config.Version = version
		all, err := Objects(config, Input{Pool: p, PolicySecrets: []string{"tenants", "more"}, Trusted: []byte("certificates\n"),
			Gateways: []types.NamespacedName{{Namespace: "infra", Name: "inference"}}, Sets: []string{"groups"}})
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range all {
			labels := o.GetLabels()
			if got := labels["app.kubernetes.io/version"]; got != want {
				t.Errorf("version %q: %s %s has %q", version, o.GetKind(), o.GetName(), got)
			}
			delete(labels, "app.kubernetes.io/version")
			o.SetLabels(labels)
			if diff := cmp.Diff(objects(t, p)[i].Object, o.Object); diff != "" {
				t.Errorf("version %q: %s %s has more than its label (-without +with):\n%s", version, o.GetKind(), o.GetName(), diff)
			}
		}
	}
}

// TestPickersAreReplacedWhenOthersAreAvailable: an image that crashes after it was ready must not replace the next picker.
func TestPickersAreReplacedWhenOthersAreAvailable(t *testing.T) {
	d := child[appsv1.Deployment](t, small(t, `model: {name: m}, selector: {matchLabels: {app: m}}`), "Deployment", PickerName("m"))
	if d.Spec.MinReadySeconds < 10 || d.Spec.Strategy.RollingUpdate.MaxUnavailable.IntValue() != 0 || d.Spec.Strategy.RollingUpdate.MaxSurge.IntValue() < 1 {
		t.Errorf("ready for %d s, %+v", d.Spec.MinReadySeconds, d.Spec.Strategy.RollingUpdate)
	}
}

// TestPickersNameNoUser: clusters that give each namespace a range of users refuse pods that name others.
func TestPickersNameNoUser(t *testing.T) {
	for name, p := range pools(t) {
		for _, o := range objects(t, p) {
			if o.GetKind() != "Deployment" {
				continue
			}
			var d appsv1.Deployment
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d); err != nil {
				t.Fatal(err)
			}
			pod := d.Spec.Template.Spec
			if c := pod.SecurityContext; !ptr.Deref(c.RunAsNonRoot, false) || c.RunAsUser != nil || c.RunAsGroup != nil || c.FSGroup != nil {
				t.Errorf("%s: the pod of %s has %v", name, d.Name, c)
			}
			for _, c := range pod.Containers {
				if s := c.SecurityContext; s.RunAsUser != nil || s.RunAsGroup != nil {
					t.Errorf("%s: container %s of %s has %v", name, c.Name, d.Name, s)
				}
			}
		}
	}
}

func TestNamesFitForTheLongestPool(t *testing.T) {
	long := strings.Repeat("a", 45)
	for _, name := range []string{PickerName(long), PeersName(long), KeyName(long), TLSName(long), CAName(long), GatewayTLSName(long)} {
		if len(name) > 63 {
			t.Errorf("%s has %d characters", name, len(name))
		}
	}
}

// Envoy ends an answer after 15 s when a route says nothing, with status 200 and half of it sent. GKE refuses routes that
// say something.
func TestRoutesSayHowLongAnswersMayTake(t *testing.T) {
	for setting, want := range map[string]*gwapiv1.HTTPRouteTimeouts{
		"":                               {Request: ptr.To[gwapiv1.Duration]("0s")},
		"requestTimeout: Unlimited":      {Request: ptr.To[gwapiv1.Duration]("0s")},
		"requestTimeout: GatewayDefault": nil,
		"requestTimeout: Limited, requestTimeoutSeconds: 5400": {Request: ptr.To[gwapiv1.Duration]("5400s")},
	} {
		p := small(t, `model: {name: m}, selector: {matchLabels: {app: m}}, gateway: {parentRefs: [{name: g}], `+setting+`}`)
		route := child[gwapiv1.HTTPRoute](t, p, "HTTPRoute", "m")
		for i := range route.Spec.Rules {
			if diff := cmp.Diff(want, route.Spec.Rules[i].Timeouts); diff != "" {
				t.Errorf("%q (-want +got):\n%s", setting, diff)
			}
		}
	}
}

func TestTheDrainPortOfOpenEnginesIsClosedAndNothingElse(t *testing.T) {
	for _, port := range []int32{1024, 9445, 65535} {
		p := sample(t, "pool_owned.yaml")
		p.Spec.Engine.Events.Reporter.DrainPort = port
		p.Spec.Engine.NetworkPolicy.Mode = v1alpha1.EngineNetworkOpen
		policy := child[networkingv1.NetworkPolicy](t, p, "NetworkPolicy", p.Name)
		open := func(protocol corev1.Protocol, port int32) bool {
			return slices.ContainsFunc(policy.Spec.Ingress[0].Ports, func(r networkingv1.NetworkPolicyPort) bool {
				return *r.Protocol == protocol && (r.Port == nil || port >= r.Port.IntVal && port <= ptr.Deref(r.EndPort, r.Port.IntVal))
			})
		}
		for _, other := range []int32{1, 8000, port - 1, port, port + 1, 65535} {
			if other > 65535 {
				continue
			}
			if got := open(corev1.ProtocolTCP, other); got == (other == port) {
				t.Errorf("drain port %d: port %d open: %v", port, other, got)
			}
			if !open(corev1.ProtocolUDP, other) {
				t.Errorf("drain port %d: UDP port %d is closed", port, other)
			}
		}
	}
}

func TestADrainingPodIsNotCountedTwice(t *testing.T) {
	budget := child[policyv1.PodDisruptionBudget](t, sample(t, "pool_owned.yaml"), "PodDisruptionBudget", "qwen3-32b")
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}
	pod := labels.Set{v1alpha1.LabelPool: "qwen3-32b"}
	if !selector.Matches(pod) {
		t.Error("a serving pod is not counted")
	}
	pod[v1alpha1.LabelDrain] = "scale-down"
	if selector.Matches(pod) {
		t.Error("a draining pod is counted")
	}
}

func TestABudgetLeavesWhatARolloutAllowsToEvict(t *testing.T) {
	for name, tc := range map[string]struct {
		unavailable string
		protected   int
		replaces    bool // pods before they leave their nodes
		want        int
	}{
		"no pods":                            {`0`, 0, false, 0},
		"one pod can be evicted":             {`0`, 1, false, 0},
		"one of many by default":             {`0`, 8, false, 7},
		"zero percent is one":                {`0%`, 8, false, 7},
		"a number":                           {`3`, 8, false, 5},
		"a share, rounded down":              {`30%`, 8, false, 6},
		"more than there are":                {`9`, 8, false, 0},
		"a share that rounds to none is one": {`10%`, 5, false, 4},

		"no pods to replace":                    {`0`, 0, true, 0},
		"one pod is replaced first":             {`0`, 1, true, 1},
		"all are replaced first":                {`0`, 8, true, 8},
		"a number need not be replaced first":   {`3`, 8, true, 5},
		"a share that rounds to none":           {`10%`, 5, true, 5},
		"more than there are, if replaced also": {`9`, 8, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := small(t, `model: {name: m}, replicas: 8, rollout: {maxSurge: 1, maxUnavailable: `+tc.unavailable+`}, template: {spec: {containers: [{name: vllm, image: "v:1"}]}}`)
			all, err := Objects(installed, Input{Pool: p, Protected: tc.protected, Replaces: tc.replaces})
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range all {
				if o.GetKind() != "PodDisruptionBudget" || o.GetName() != "m" {
					continue
				}
				spec := o.Object["spec"].(map[string]any)
				if got := spec["minAvailable"]; got != int64(tc.want) || spec["maxUnavailable"] != nil {
					t.Errorf("minAvailable %v, maxUnavailable %v, want %d and none", got, spec["maxUnavailable"], tc.want)
				}
				return
			}
			t.Error("no budget")
		})
	}
}

func TestARootIsLongAndNew(t *testing.T) {
	p := sample(t, "pool_smallest.yaml")
	a, b := KeySecret(p), KeySecret(p)
	if len(a.Data[v1alpha1.SecretKeyRoot]) < v1alpha1.MinRootBytes || bytes.Equal(a.Data[v1alpha1.SecretKeyRoot], b.Data[v1alpha1.SecretKeyRoot]) {
		t.Error("a root is short, or not random")
	}
}

func TestCertificatesOutliveTheirSecrets(t *testing.T) {
	p := sample(t, "pool_smallest.yaml")
	now := time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
	ca, tls, trusted, next, err := Certificates(p, nil, nil, now)
	if err != nil || ca == nil || tls == nil || len(trusted) == 0 || !next.After(now) {
		t.Fatalf("first: %v %v %q %s (%v)", ca, tls, trusted, next, err)
	}
	again, _, same, _, err := Certificates(p, ca, tls, now.Add(time.Hour))
	if err != nil || again != nil || !bytes.Equal(same, trusted) {
		t.Errorf("an hour later: changed %v (%v)", again != nil, err)
	}
	years := now
	for range 300 { // the state that is kept is all that is needed
		newCA, newTLS, _, next, err := Certificates(p, ca, tls, years)
		if err != nil {
			t.Fatal(err)
		}
		if newCA != nil {
			ca, tls = newCA, newTLS
		}
		years = next
	}
	if _, _, later, _, _ := Certificates(p, ca, tls, years); years.Year() < 2036 || bytes.Equal(later, trusted) {
		t.Errorf("in %s the first CA is all that is trusted", years)
	}
}

// TestOnlyPickersThatCanUseAHubHaveOne: with a hub in the installation, those of pools that look for files in it; without one, none.
func TestOnlyPickersThatCanUseAHubHaveOne(t *testing.T) {
	for tokenizer, want := range map[string]bool{
		"{type: Auto}": true, "{type: Hub}": true, "{chatTemplate: a.jinja}": true, "{type: Engine}": false, "{type: None}": false,
		"{type: Reporter, reporter: {path: /m}}": false,
	} {
		for _, endpoint := range []string{"", "https://hub.example.com"} {
			config := installed
			config.HubEndpoint, config.HubAuthorities, config.HubProxy = endpoint, "PEM", "http://proxy:3128"
			all, err := Objects(config, Input{Pool: small(t, "model: {name: m, tokenizer: "+tokenizer+"}, selector: {matchLabels: {app: m}}")})
			if err != nil {
				t.Fatal(err)
			}
			text, err := yaml.Marshal(all)
			if err != nil {
				t.Fatal(err)
			}
			for _, flag := range []string{"--hub-endpoint=", "--hub-ca=", "--hub-proxy="} {
				if got := bytes.Contains(text, []byte(flag)); got != (want && endpoint != "") {
					t.Errorf("%s with the hub %q: %s is there: %v", tokenizer, endpoint, flag, got)
				}
			}
		}
	}
}
