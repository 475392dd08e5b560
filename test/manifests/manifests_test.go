package manifests

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/config/crd"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

func admitter(t *testing.T) *crdadmission.Admitter {
	t.Helper()
	defs, err := Gateways(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ours, err := crd.Definitions()
	if err != nil {
		t.Fatal(err)
	}
	a, err := crdadmission.Of(append(defs, ours...))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// unknown are kinds of whose definitions no Go module is published, or a very large one (cert-manager's): their manifests are read as YAML.
var unknown = []string{"Certificate", "HealthCheckPolicy", "GCPBackendPolicy", "ClientSettingsPolicy", "ProxySettingsPolicy", "ScaledObject"}

// A manifest that is copied from a page must be taken by the API server as it stands.
func TestTheManifestsInTheDocsAreValid(t *testing.T) {
	a := admitter(t)
	pages, err := filepath.Glob(filepath.Join(root(), "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, page := range pages {
		name := filepath.Base(page)
		all, err := Of(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range all {
			var value any
			if err := yaml.UnmarshalStrict([]byte(text), &value); err != nil {
				t.Errorf("%s: %v:\n%s", name, err, text)
				continue
			}
			fields, _ := value.(map[string]any)
			o := &unstructured.Unstructured{Object: fields}
			if fields["kind"] == nil { // a part of a manifest
				continue
			}
			kinds[o.GetKind()]++
			if err := check(t, a, o, text); err != nil {
				t.Errorf("%s: %v:\n%s", name, err, text)
			}
		}
	}
	for kind, least := range map[string]int{
		"InferencePool": 16, "RoutingPolicy": 4, "ModelRoute": 5, "HTTPRoute": 3, "Gateway": 1, "DestinationRule": 1, "BackendTrafficPolicy": 1, "Deployment": 1, "Secret": 2,
	} {
		if kinds[kind] < least {
			t.Errorf("%d manifests of the kind %s were checked, want at least %d: the test shows little", kinds[kind], kind, least)
		}
	}
}

// check admits an object of a kind whose definition is known, and decodes those of Kubernetes itself.
func check(t *testing.T, a *crdadmission.Admitter, o *unstructured.Unstructured, text string) error {
	t.Helper()
	switch kind := o.GroupVersionKind(); {
	case o.GetName() == "":
		return errors.New("it has no name")
	case kind == v1alpha1.GroupVersion.WithKind(v1alpha1.KindModelRoute):
		return checkModelRoute(t, text)
	case a.Knows(kind):
		if kind == resources.RouteKind {
			checkRoute(t, o)
		}
		_, err := a.Admit(t.Context(), []byte(text), nil)
		return err
	case scheme.Scheme.Recognizes(kind):
		typed, err := scheme.Scheme.New(kind)
		if err != nil {
			return err
		}
		if err := yaml.UnmarshalStrict([]byte(text), typed); err != nil {
			return err
		}
		if service, ok := typed.(*corev1.Service); ok {
			return checkPorts(service)
		}
		return nil
	case slices.Contains(unknown, o.GetKind()):
		return nil
	default:
		return fmt.Errorf("the definition of %s is not at hand", kind)
	}
}

// checkModelRoute has a picker's directory of objects read a ModelRoute beside the pools that it names.
func checkModelRoute(t *testing.T, text string) error {
	t.Helper()
	type backend struct{ Pool string }
	var route struct {
		Spec struct {
			Rules []struct{ Backends, Fallback, Mirrors []backend }
		}
	}
	if err := yaml.Unmarshal([]byte(text), &route); err != nil {
		return err
	}
	dir := t.TempDir()
	write := func(file, text string) error { return os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600) }
	if err := write("route.yaml", text); err != nil {
		return err
	}
	for _, rule := range route.Spec.Rules {
		for _, b := range slices.Concat(rule.Backends, rule.Fallback, rule.Mirrors) {
			pool := fmt.Sprintf("apiVersion: %s\nkind: InferencePool\nmetadata: {name: %[2]s}\nspec: {model: {name: %[2]s}, selector: {matchLabels: {app: %[2]s}}}\n",
				v1alpha1.GroupVersion, b.Pool)
			if err := write(b.Pool+".yaml", pool); err != nil {
				return err
			}
		}
	}
	d, err := config.NewDirectory(dir, config.Settings{Root: make([]byte, kvblock.MinSeedBytes)}, logr.Discard())
	if err != nil {
		return err
	}
	state, _ := d.Load(t.Context())
	var problems []error
	for i := range state.Problems {
		problems = append(problems, &state.Problems[i])
	}
	if len(state.RouteSpecs) != 1 {
		problems = append(problems, fmt.Errorf("%d routes are served, want 1", len(state.RouteSpecs)))
	}
	return errors.Join(problems...)
}

// checkPorts makes sure that no gateway has to guess what a port speaks.
func checkPorts(s *corev1.Service) error {
	for _, port := range s.Spec.Ports {
		if port.AppProtocol == nil {
			return fmt.Errorf("port %s of Service %s has no appProtocol", port.Name, s.Name)
		}
	}
	return nil
}

// checkRoute checks that answers can take long, and that no rule has two pools: Istio and Envoy Gateway cannot serve that.
func checkRoute(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	var route gwapiv1.HTTPRoute
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &route); err != nil {
		t.Fatal(err)
	}
	for i, rule := range route.Spec.Rules {
		if rule.Timeouts == nil || rule.Timeouts.Request == nil {
			t.Errorf("rule %d of HTTPRoute %s has no timeouts: Envoy ends answers after 15 s", i+1, route.Name)
		}
		pools := 0
		for _, ref := range rule.BackendRefs {
			if ref.Kind != nil && string(*ref.Kind) == resources.GIEKind.Kind {
				pools++
			}
		}
		if pools > 1 {
			t.Errorf("rule %d of HTTPRoute %s has %d pools", i+1, route.Name, pools)
		}
	}
}

// What the operator makes of others' kinds must be taken by clusters that have them.
func TestObjectsOfGatewaysAreValid(t *testing.T) {
	a := admitter(t)
	config := resources.Config{
		PickerImage: "p:v1", Operator: types.NamespacedName{Namespace: "kvasir", Name: "operator"}, GIE: true, Routes: true,
		Traffic: resources.Traffic{DestinationRule: true, BackendTrafficPolicy: true, HealthCheckPolicy: true, GCPBackendPolicy: true},
	}
	for name, spec := range map[string]string{
		"smallest":      `gateway: {parentRefs: [{name: g}]}`,
		"plaintext":     `gateway: {parentRefs: [{name: g, namespace: gateways}], hostnames: [a.b]}, picker: {replicas: 1, tls: {type: Plaintext}}`,
		"own limit":     `gateway: {parentRefs: [{name: g}], requestTimeout: Limited, requestTimeoutSeconds: 7200}`,
		"several ports": `engine: {protocol: H2C, dataParallel: {ranks: 4, addressing: PortPerRank}}, gateway: {failureMode: FailOpen, parentRefs: [{name: g}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			admitted, err := a.Admit(t.Context(), []byte(`{apiVersion: kvasir.dev/v1alpha1, kind: InferencePool, metadata: {name: m, namespace: llm},
				spec: {model: {name: m}, selector: {matchLabels: {app: m}}, `+spec+`}}`), nil)
			if err != nil {
				t.Fatal(err)
			}
			pool, err := crdadmission.Pool(admitted)
			if err != nil {
				t.Fatal(err)
			}
			checkChildren(t, a, config, pool)
		})
	}
}

func checkChildren(t *testing.T, a *crdadmission.Admitter, config resources.Config, pool *v1alpha1.InferencePool) {
	t.Helper()
	pool.UID = "u"
	objects, err := resources.Objects(config, resources.Input{Pool: pool, Trusted: []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	var checked []string
	for _, o := range objects {
		if o.GetKind() == "Service" {
			var service corev1.Service
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &service); err != nil {
				t.Fatal(err)
			}
			if err := checkPorts(&service); err != nil {
				t.Error(err)
			}
		}
		if !a.Knows(o.GroupVersionKind()) {
			continue
		}
		checked = append(checked, o.GetKind())
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Admit(t.Context(), text, nil); err != nil {
			t.Errorf("%v:\n%s", err, text)
		}
		if o.GroupVersionKind() == resources.RouteKind {
			checkRoute(t, o)
		}
	}
	slices.Sort(checked)
	if want := []string{"BackendTrafficPolicy", "DestinationRule", "HTTPRoute", "InferencePool"}; !slices.Equal(checked, want) {
		t.Errorf("checked %q, want %q", checked, want)
	}
}
