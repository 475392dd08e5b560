package resources

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// fleet admits a fleet as the API server does, defaults included.
func fleet(t *testing.T, name, spec string) *v1alpha1.PickerFleet {
	t.Helper()
	admitter, err := admitter()
	if err != nil {
		t.Fatal(err)
	}
	o, err := admitter.Admit(t.Context(), []byte(`{apiVersion: kvasir.dev/v1alpha1, kind: PickerFleet, metadata: {name: `+name+`, namespace: llm}, spec: {`+spec+`}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	f := &v1alpha1.PickerFleet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, f); err != nil {
		t.Fatal(err)
	}
	f.UID = "f1ee7"
	return f
}

// inFleet is a pool in mode Fleet.
func inFleet(t *testing.T, name, spec string) *v1alpha1.InferencePool {
	t.Helper()
	p := pool(t, `{apiVersion: kvasir.dev/v1alpha1, kind: InferencePool, metadata: {name: `+name+`, namespace: llm}, spec: {model: {name: `+name+`}, picker: {mode: Fleet}`+spec+`}}`)
	p.UID = "of-" + p.UID + "-" + p.UID
	return p
}

func fleets(t *testing.T) map[string]Fleet {
	t.Helper()
	members := []*v1alpha1.InferencePool{
		inFleet(t, "a", `, replicas: 1, template: {spec: {containers: [{name: e, image: vllm}]}}`),
		inFleet(t, "b", `, selector: {matchLabels: {app: b}}, engine: {clientAuth: PoolKey, apiKey: {name: engines, key: key}}`),
		inFleet(t, "c", `, replicas: 1, template: {spec: {containers: [{name: e, image: vllm}]}}, placement: {pricesFrom: {name: prices}}, gateway: {mode: Disabled}`),
	}
	return map[string]Fleet{
		"fleet-empty": {PickerFleet: fleet(t, "default", "")},
		"fleet": {
			PickerFleet: fleet(t, "big", `replicas: 3, tls: {type: CertManager, issuerRef: {name: ours}}, indexMemory: 4Gi, island: here, profiling: Enabled,
  gateway: {parentRefs: [{name: g, namespace: gateways}], hostnames: [models.example.com], requestTimeout: Limited, requestTimeoutSeconds: 60, failureMode: FailOpen}`),
			Pools: members, PolicySecrets: []string{"tenants", "more"}, Trusted: []byte("certificates\n"),
		},
		"fleet-plain": {
			PickerFleet: fleet(t, "plain", `replicas: 1, tls: {type: Plaintext}, proxy: Disabled, networkPolicy: None, gateway: {mode: Disabled}`), Pools: members[2:], Trusted: []byte("certificates\n"),
		},
	}
}

// everything is the configuration of a cluster that has all kinds of gateways.
func everything() Config {
	c := installed
	c.Traffic = Traffic{DestinationRule: true, BackendTrafficPolicy: true, HealthCheckPolicy: true, GCPBackendPolicy: true}
	return c
}

func ofFleet(t *testing.T, f Fleet) []*unstructured.Unstructured {
	t.Helper()
	all, err := FleetObjects(everything(), f)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestChildrenOfFleets(t *testing.T) {
	for name, f := range fleets(t) {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			for _, o := range ofFleet(t, f) {
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

// typed is an object of a fleet.
func typed[T any](t *testing.T, f Fleet, kind string) *T {
	t.Helper()
	for _, o := range ofFleet(t, f) {
		if o.GetKind() == kind {
			into := new(T)
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, into); err != nil {
				t.Fatal(err)
			}
			return into
		}
	}
	t.Fatalf("no %s", kind)
	return nil
}

// TestFleetsAndPoolsShareNoNames: a fleet can have the name of a pool, or a name that ends as those of objects do. What gateways see of a
// pool has its name, and of a fleet that of its Service: of a fleet and a pool FLEET-fleet the first one has it (see NamesOfFleet).
func TestFleetsAndPoolsShareNoNames(t *testing.T) {
	taken := map[string]string{}
	claim := func(kind, name, of string) {
		if other, ok := taken[kind+" "+name]; ok && other != of && strings.Contains(of+other, "fleet ") {
			t.Errorf("%s %s is of %s and of %s", kind, name, other, of)
		}
		taken[kind+" "+name] = of
	}
	for _, name := range []string{"m", "m-fleet", "m-picker", "m-fleet-peers", "m-picker-peers", "m-fleet-tls", "m-fleet-gateway", "m-gateway", "m-key", "m-fleet-ca"} {
		c := installed
		c.Traffic.DestinationRule = true
		p := pool(t, `{apiVersion: kvasir.dev/v1alpha1, kind: InferencePool, metadata: {name: `+name+`, namespace: llm}, spec: {model: {name: m}, replicas: 1,
  template: {spec: {containers: [{name: e, image: vllm}]}}, picker: {tls: {type: CertManager, issuerRef: {name: ours}}}, gateway: {parentRefs: [{name: g}]}}}`)
		of := Fleet{PickerFleet: fleet(t, name, `tls: {type: CertManager, issuerRef: {name: ours}}`), Pools: []*v1alpha1.InferencePool{p}}
		all, err := Objects(c, Input{Pool: p})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range all {
			claim(o.GetKind(), o.GetName(), "pool "+name)
		}
		for _, o := range ofFleet(t, of) {
			if gvk := o.GroupVersionKind(); gvk == GIEKind || gvk == RouteKind || IsTraffic(gvk) && gvk != DestinationRuleKind {
				if want := name + "-fleet"; o.GetName() != want {
					t.Errorf("gateways see the %s %s of fleet %s, want %s", o.GetKind(), o.GetName(), name, want)
				}
				continue
			}
			claim(o.GetKind(), o.GetName(), "fleet "+name)
		}
		for _, secret := range []string{KeyName(name), TLSName(name), CAName(name), GatewayTLSName(name)} {
			claim("Secret", secret, "pool "+name)
		}
		for _, secret := range []string{NamesOfFleet(name).TLS, NamesOfFleet(name).CA, NamesOfFleet(name).GatewayTLS} {
			claim("Secret", secret, "fleet "+name)
		}
	}
}

// TestServicesOfPoolsSelectNoFleet: nor the other way around, unless a move says so.
func TestServicesOfPoolsSelectNoFleet(t *testing.T) {
	own := child[appsv1.Deployment](t, small(t, `model: {name: m}, selector: {matchLabels: {app: m}}`), "Deployment", PickerName("m"))
	theirs := typed[appsv1.Deployment](t, Fleet{PickerFleet: fleet(t, "m", "")}, "Deployment")
	if labels.SelectorFromSet(own.Spec.Selector.MatchLabels).Matches(labels.Set(theirs.Spec.Template.Labels)) {
		t.Error("the pool's Deployment selects the pickers of the fleet of its name")
	}
	if labels.SelectorFromSet(theirs.Spec.Selector.MatchLabels).Matches(labels.Set(own.Spec.Template.Labels)) {
		t.Error("the fleet's Deployment selects the pickers of the pool of its name")
	}
}

func TestNamesFitForTheLongestFleet(t *testing.T) {
	n := NamesOfFleet(strings.Repeat("a", 45))
	for _, name := range []string{n.Pickers, n.Guard, n.Peers, n.CA, n.TLS, n.GatewayTLS} {
		if len(name) > 63 {
			t.Errorf("%s has %d characters", name, len(name))
		}
	}
}

// TestPoolsComeWithoutAnotherFleetPod: the pickers of a fleet are not replaced when a pool comes, goes or changes.
func TestPoolsComeWithoutAnotherFleetPod(t *testing.T) {
	f := fleets(t)["fleet"]
	with := typed[appsv1.Deployment](t, f, "Deployment")
	f.Pools, f.PolicySecrets = nil, nil
	without := typed[appsv1.Deployment](t, f, "Deployment")
	if diff := cmp.Diff(without.Spec, with.Spec); diff != "" {
		t.Errorf("-without pools +with:\n%s", diff)
	}
	if grace := *with.Spec.Template.Spec.TerminationGracePeriodSeconds; grace < FleetDrainSeconds {
		t.Errorf("the grace period is %d s", grace)
	}
}

// TestFleetsReadTheSecretsOfTheirPools and no others; without a name the rule would grant all.
func TestFleetsReadTheSecretsOfTheirPools(t *testing.T) {
	all := fleets(t)
	of := func(f Fleet, resource string) (names [][]string) {
		for _, rule := range typed[rbacv1.Role](t, f, "Role").Rules {
			if slices.Contains(rule.Resources, resource) {
				names = append(names, rule.ResourceNames)
			}
		}
		return names
	}
	if got, want := of(all["fleet"], "secrets"), [][]string{{"a-key", "b-key", "c-key", "engines", "more", "tenants"}}; !cmp.Equal(got, want) {
		t.Errorf("secrets %v, want %v", got, want)
	}
	if got, want := of(all["fleet"], "configmaps"), [][]string{{"prices"}}; !cmp.Equal(got, want) {
		t.Errorf("configmaps %v, want %v", got, want)
	}
	if got := of(all["fleet-empty"], "secrets"); len(got) != 0 {
		t.Errorf("a fleet without pools reads %v", got)
	}
}

// TestFleetsOutliveTheirOwnObject: Kubernetes deletes an object with its last owner.
func TestFleetsOutliveTheirOwnObject(t *testing.T) {
	f := fleets(t)["fleet"]
	for _, o := range ofFleet(t, f) {
		controllers, owners := 0, map[string]bool{}
		for _, ref := range o.GetOwnerReferences() {
			owners[ref.Kind+" "+ref.Name] = true
			if ref.Controller != nil && *ref.Controller {
				controllers++
			}
		}
		if controllers != 1 || len(owners) != 4 || !owners["PickerFleet big"] || !owners["InferencePool b"] {
			t.Errorf("owners of %s %s: %v", o.GetKind(), o.GetName(), o.GetOwnerReferences())
		}
		if o.GetNamespace() != "llm" || o.GetLabels()[LabelFleet] != "big" || !slices.Contains(FleetKinds(everything()), o.GroupVersionKind()) {
			t.Errorf("%s %s/%s with %v", o.GetKind(), o.GetNamespace(), o.GetName(), o.GetLabels())
		}
	}
}

// TestPoolsFindTheirFleet by the names that their reporters know: an engine is not restarted when its pool moves.
func TestPoolsFindTheirFleet(t *testing.T) {
	p := inFleet(t, "a", `, selector: {matchLabels: {app: a}}, engine: {networkPolicy: {mode: Closed}}`)
	of := func(move Move) map[string]*unstructured.Unstructured {
		all, err := Objects(installed, Input{Pool: p, Move: move, Trusted: []byte("certificates\n")})
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]*unstructured.Unstructured{}
		for _, o := range all {
			found[o.GetKind()+" "+o.GetName()] = o
		}
		return found
	}
	selector := func(o *unstructured.Unstructured) map[string]string {
		m, _, _ := unstructured.NestedStringMap(o.Object, "spec", "selector")
		return m
	}
	there := of(Move{Clients: "big", Reporters: "big", Fleets: []string{"big"}})
	for _, name := range []string{PickerName("a"), PeersName("a")} {
		if got := selector(there["Service "+name]); !cmp.Equal(got, FleetPods("big")) {
			t.Errorf("the Service %s selects %v", name, got)
		}
	}
	ports, _, _ := unstructured.NestedSlice(there["Service "+PickerName("a")].Object, "spec", "ports")
	for _, port := range ports {
		if m, ok := port.(map[string]any); !ok || m["name"] == "metrics" {
			t.Errorf("monitors find the fleet's pickers through the pool: %v", port)
		}
	}
	if there["ConfigMap "+CAName("a")] == nil || there["Deployment "+PickerName("a")] != nil || there["Role "+PickerName("a")] != nil {
		t.Errorf("a pool in a fleet has %v", there)
	}
	ref, _, _ := unstructured.NestedString(there["InferencePool a"].Object, "spec", "endpointPickerRef", "name")
	if ref != "big-fleet" {
		t.Errorf("gateways ask %s", ref)
	}
	network := &networkingv1.NetworkPolicy{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(there["NetworkPolicy a"].Object, network); err != nil {
		t.Fatal(err)
	}
	pickers := networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: FleetPods("big")}}
	if !slices.ContainsFunc(network.Spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool {
		return slices.ContainsFunc(r.From, func(p networkingv1.NetworkPolicyPeer) bool { return cmp.Equal(p, pickers) })
	}) {
		t.Errorf("the engines do not admit the fleet: %v", network.Spec.Ingress)
	}
	moving := of(Move{Reporters: "big", KeepsOwn: true, Fleets: []string{"big"}})
	if moving["Deployment "+PickerName("a")] == nil || selector(moving["Service "+PickerName("a")])[LabelInstance] != "a" ||
		selector(moving["Service "+PeersName("a")])[LabelFleet] != "big" {
		t.Errorf("on the way, clients and reporters find %v", moving)
	}
}

// TestFleetCertificatesHoldForPoolsToCome: a reporter expects the name of its pool's Service.
func TestFleetCertificatesHoldForPoolsToCome(t *testing.T) {
	_, leaf, trusted, _, err := FleetCertificates(Fleet{PickerFleet: fleet(t, "big", "")}, &corev1.ServiceAccount{}, nil, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(leaf.Data[corev1.TLSCertKey], leaf.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	for name, want := range map[string]bool{
		"later-picker.llm.svc": true, "big-fleet.llm.svc": true, "big-fleet-peers.llm.svc.cluster.local": true, "later-picker.other.svc": false, "llm.svc": false,
	} {
		_, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name})
		if (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhatAFleetCannotServe(t *testing.T) {
	for spec, unfit := range map[string]bool{
		`selector: {matchLabels: {app: m}}`:                                     false,
		`selector: {matchLabels: {app: m}}, engine: {events: {source: Listen}}`: true,
	} {
		p := pool(t, `{apiVersion: kvasir.dev/v1alpha1, kind: InferencePool, metadata: {name: m}, spec: {model: {name: m}, picker: {mode: Fleet, replicas: 1}, `+spec+`}}`)
		if got := Unfit(p); (got != "") != unfit {
			t.Errorf("%s: %q", spec, got)
		}
	}
	for volume, unfit := range map[string]bool{
		`configMap: {name: files}`:                       false,
		`persistentVolumeClaim: {name: files}, path: x`:  true,
		`image: {reference: registry/files:v1}, path: x`: true,
	} {
		p := pool(t, `{apiVersion: kvasir.dev/v1alpha1, kind: InferencePool, metadata: {name: m}, spec: {model: {name: m, tokenizer: {type: Volume, volume: {`+volume+`}}},
  picker: {mode: Fleet}, selector: {matchLabels: {app: m}}}}`)
		if got := Unfit(p); (got != "") != unfit {
			t.Errorf("%s: %q", volume, got)
		}
	}
}

// TestGatewaysSeeOneDoorOfAFleet: its selector selects the pods of all pools by the label that they get, and no picker, its ports are those of
// all pools, and the picker is the fleet's.
func TestGatewaysSeeOneDoorOfAFleet(t *testing.T) {
	ports := func(f Fleet) (numbers []int64) {
		list, _, _ := unstructured.NestedSlice(FleetPool(f).Object, "spec", "targetPorts")
		for _, port := range list {
			numbers = append(numbers, port.(map[string]any)["number"].(int64))
		}
		return numbers
	}
	protocol := func(f Fleet) string {
		p, _, _ := unstructured.NestedString(FleetPool(f).Object, "spec", "appProtocol")
		return p
	}
	f := Fleet{PickerFleet: fleet(t, "big", "")}
	if got := ports(f); !slices.Equal(got, []int64{8000}) {
		t.Errorf("without pools the ports are %v", got)
	}
	f.Pools = []*v1alpha1.InferencePool{
		inFleet(t, "a", `, selector: {matchLabels: {app: a}}, engine: {ports: {http: 30000}}`),
		inFleet(t, "b", `, selector: {matchLabels: {app: b}}, engine: {dataParallel: {ranks: 2, addressing: PortPerRank}}`),
		inFleet(t, "c", `, selector: {matchLabels: {app: c}}`),
	}
	if got := ports(f); !slices.Equal(got, []int64{8000, 8001, 30000}) {
		t.Errorf("the ports are %v", got)
	}
	selector, _, _ := unstructured.NestedStringMap(FleetPool(f).Object, "spec", "selector", "matchLabels")
	if !cmp.Equal(selector, FleetEngines("big")) {
		t.Errorf("the selector is %v", selector)
	}
	for _, pods := range []map[string]string{FleetPods("big"), FleetEngines("bigger")} {
		if labels.SelectorFromSet(selector).Matches(labels.Set(pods)) {
			t.Errorf("%v selects %v", selector, pods)
		}
	}
	if service, _, _ := unstructured.NestedString(FleetPool(f).Object, "spec", "endpointPickerRef", "name"); service != "big-fleet" {
		t.Errorf("the picker is %s", service)
	}
	if f.DifferentEngines() != "" || protocol(f) != "" {
		t.Errorf("engines of one protocol: %q, %q", f.DifferentEngines(), protocol(f))
	}
	h2c := inFleet(t, "d", `, selector: {matchLabels: {app: d}}, engine: {protocol: H2C}`)
	if f.Pools = append(f.Pools, h2c); !strings.Contains(f.DifferentEngines(), "pools a and d") || protocol(f) != "" {
		t.Errorf("engines of two protocols: %q, %q", f.DifferentEngines(), protocol(f))
	}
	if f.Pools = []*v1alpha1.InferencePool{h2c}; f.DifferentEngines() != "" || protocol(f) != protocolH2C {
		t.Errorf("engines that speak HTTP/2: %q, %q", f.DifferentEngines(), protocol(f))
	}
}
