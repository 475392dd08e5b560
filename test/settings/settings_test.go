// Package settings shows that every field of the API has an effect: each is set to another value, and what the operator makes of the
// pool, or what becomes the configuration of its pickers, must differ. Fields on which only a controller acts are listed,
// each with the package that reads it.
package settings

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/dump"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/config/crd"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// effects of a pool and its policy: the objects beside the pool's pods, its first pod, and the configuration of its pickers.
func effects(t *testing.T, pool *v1alpha1.InferencePool, policy *v1alpha1.RoutingPolicy) string {
	t.Helper()
	var b strings.Builder
	input := resources.Input{Pool: pool, PolicySecrets: policy.Spec.SecretNames(), Trusted: []byte("x"), Protected: 3}
	objects, err := resources.Objects(everything, input)
	if err != nil {
		t.Fatal(err)
	}
	write(t, &b, objects)
	if pool.Spec.Template != nil {
		shape, options := podtemplate.ShapeOf(pool), podtemplate.For(pool)
		options.Name, options.Revision, options.ReporterImage, options.Provisioning = "p-0", "r", "reporter", true
		if len(pool.Spec.Roles) > 0 {
			options.Role = pool.Spec.Roles[0].Name
		}
		if p := pool.Spec.Placement; p != nil && len(p.Islands) > 0 {
			options.Island = &p.Islands[0]
		}
		pod, _, err := podtemplate.Pod(&shape, &options)
		fmt.Fprintln(&b, dump.ForHash(pod), err)
	}
	b.WriteString(configuration(t, pool, policy))
	return b.String()
}

func write(t *testing.T, b *strings.Builder, objects []*unstructured.Unstructured) {
	t.Helper()
	for _, o := range objects {
		raw, err := json.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(raw)
	}
}

// everything is the configuration for a cluster with all optional kinds.
var everything = resources.Config{
	PickerImage: "picker", Operator: types.NamespacedName{Namespace: "o", Name: "o"}, GIE: true, Routes: true, CertManager: true,
	Provisioning: true, Traffic: resources.Traffic{DestinationRule: true},
}

// fleetEffects are those of a fleet: the objects of its pickers.
func fleetEffects(t *testing.T, spec map[string]any) (string, error) {
	t.Helper()
	o, err := admit(t, v1alpha1.KindPickerFleet, spec)
	if err != nil {
		return "", err
	}
	fleet := &v1alpha1.PickerFleet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, fleet); err != nil {
		t.Fatal(err)
	}
	objects, err := resources.FleetObjects(everything, resources.Fleet{PickerFleet: fleet})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	write(t, &b, objects)
	return b.String(), nil
}

// configuration of the pool's pickers.
func configuration(t *testing.T, pool *v1alpha1.InferencePool, policy *v1alpha1.RoutingPolicy) string {
	t.Helper()
	defaults, err := defaultPolicy()
	if err != nil {
		t.Fatal(err)
	}
	translator, err := config.NewTranslator(config.Settings{ModelRoot: "/models", Hub: true, Root: []byte(strings.Repeat("r", kvblock.MinSeedBytes))}, defaults)
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "p-0", UID: "u", Labels: map[string]string{
			v1alpha1.LabelPool: "p", "app": "m", v1alpha1.LabelIsland: "here", "site": "there",
		}},
		Status: corev1.PodStatus{PodIP: "10.0.0.1", Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	state := translator.Translate(config.Objects{
		Pools: []*v1alpha1.InferencePool{pool}, Policies: []*v1alpha1.RoutingPolicy{policy}, Pods: []*corev1.Pod{pod},
		Secrets: secrets(), ConfigMaps: []*corev1.ConfigMap{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "files"}, Data: map[string]string{"tokenizer.json": "{}"},
		}},
	})
	var b strings.Builder
	for i := range state.Specs {
		b.WriteString(dump.ForHash(state.Specs[i]))
	}
	for i := range state.Problems {
		b.WriteString("\nproblem: " + state.Problems[i].Error())
	}
	return b.String()
}

// certificate of nothing in particular, PEM.
var certificate = sync.OnceValue(func() string {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
})

func secrets() []*corev1.Secret {
	one := func(name string, data map[string]string) *corev1.Secret {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: name}, Data: map[string][]byte{}}
		for key, value := range data {
			s.Data[key] = []byte(value)
		}
		return s
	}
	return []*corev1.Secret{
		one("root", map[string]string{v1alpha1.SecretKeyRoot: strings.Repeat("k", 64)}),
		one("key", map[string]string{"token": "secret", "other": "another", "ca.crt": certificate()}),
		one("tenants", nil), one("tls", nil),
		one("key2", map[string]string{"token": "third"}),
	}
}

var (
	admission     = sync.OnceValues(crdadmission.New)
	defaultPolicy = sync.OnceValues(func() (*v1alpha1.RoutingPolicy, error) {
		a, err := admission()
		if err != nil {
			return nil, err
		}
		return a.DefaultPolicy()
	})
)

func admitter(t *testing.T) *crdadmission.Admitter {
	t.Helper()
	a, err := admission()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// base is a pool with its policy: their specs before admission, and the objects after it. Some have the spec of a fleet, too.
type base struct {
	pool, policy   map[string]any
	fleet          map[string]any
	admittedPool   *v1alpha1.InferencePool
	admittedPolicy *v1alpha1.RoutingPolicy
}

// admittedBases are all bases, admitted.
func admittedBases(t *testing.T) []base {
	t.Helper()
	list := bases(t)
	for i := range list {
		b := &list[i]
		var err error
		if b.admittedPool, err = b.admitPool(t, b.pool); err == nil {
			b.admittedPolicy, err = b.admitPolicy(t, b.policy)
		}
		if err != nil {
			t.Fatalf("base %d: %v", i, err)
		}
	}
	return list
}

// effects of the base with another spec of one of its objects. It fails if that is refused.
func (b *base) effects(t *testing.T, kind string, spec map[string]any) (string, error) {
	t.Helper()
	pool, policy := b.admittedPool, b.admittedPolicy
	var err error
	switch kind {
	case v1alpha1.KindPickerFleet:
		return fleetEffects(t, spec)
	case v1alpha1.KindInferencePool:
		pool, err = b.admitPool(t, spec)
	default:
		policy, err = b.admitPolicy(t, spec)
	}
	if err != nil {
		return "", err
	}
	return effects(t, pool, policy), nil
}

func (b *base) admitPool(t *testing.T, spec map[string]any) (*v1alpha1.InferencePool, error) {
	t.Helper()
	o, err := admit(t, v1alpha1.KindInferencePool, spec)
	if err != nil {
		return nil, err
	}
	return crdadmission.Pool(o)
}

func (b *base) admitPolicy(t *testing.T, spec map[string]any) (*v1alpha1.RoutingPolicy, error) {
	t.Helper()
	o, err := admit(t, v1alpha1.KindRoutingPolicy, spec)
	if err != nil {
		return nil, err
	}
	return crdadmission.Policy(o)
}

func admit(t *testing.T, kind string, spec map[string]any) (*unstructured.Unstructured, error) {
	t.Helper()
	raw, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": kind, "metadata": map[string]any{"name": "p", "namespace": "llm"}, "spec": spec,
	})
	if err != nil {
		t.Fatal(err)
	}
	return admitter(t).Admit(t.Context(), raw, nil)
}

// field is a field of a spec that has no fields of ours below it.
type field struct {
	kind   string
	path   []string
	schema *apiextensionsv1.JSONSchemaProps
}

func (f field) String() string { return f.kind + "." + strings.Join(f.path, ".") }

// fields are all of a kind. Types of Kubernetes are one field each: those that the table of values has an example for.
func fields(t *testing.T) []field {
	t.Helper()
	defs, err := crd.Definitions()
	if err != nil {
		t.Fatal(err)
	}
	var all []field
	for _, def := range defs {
		var walk func(path []string, s *apiextensionsv1.JSONSchemaProps)
		walk = func(path []string, s *apiextensionsv1.JSONSchemaProps) {
			f := field{def.Spec.Names.Kind, path, s}
			_, foreign := foreign[last(path)]
			switch {
			case !foreign && len(s.Properties) > 0:
				for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
					child := s.Properties[name]
					walk(slices.Concat(path, []string{name}), &child)
				}
			case !foreign && s.Items != nil && len(s.Items.Schema.Properties) > 0:
				walk(slices.Concat(path, []string{"[]"}), s.Items.Schema)
			default:
				all = append(all, f)
			}
		}
		spec := def.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		walk(nil, &spec)
	}
	return all
}

func last(path []string) string {
	if len(path) == 0 {
		return ""
	}
	return path[len(path)-1]
}

// at returns the object that holds the field, in a spec; nil if there is none.
func (f field) at(spec map[string]any) map[string]any {
	var now any = spec
	for _, name := range f.path[:len(f.path)-1] {
		switch v := now.(type) {
		case map[string]any:
			now = v[name]
		case []any:
			if len(v) == 0 {
				return nil
			}
			now = v[0]
		default:
			return nil
		}
	}
	m, _ := now.(map[string]any)
	return m
}

// place is where a base can have a field: as the entry name of the object holder in the spec of a kind.
type place struct {
	base         *base
	kind         string
	spec, holder map[string]any
	name         string
}

// in returns the field's place in a base; false if the base has nothing that could contain it.
func (f field) in(b *base) (place, bool) {
	spec := map[string]map[string]any{
		v1alpha1.KindInferencePool: b.pool, v1alpha1.KindRoutingPolicy: b.policy, v1alpha1.KindPickerFleet: b.fleet,
	}[f.kind]
	if spec == nil {
		return place{}, false
	}
	holder := f.at(spec)
	return place{b, f.kind, spec, holder, last(f.path)}, holder != nil
}

// present is the field's value in the base; nil if it is not set.
func (p place) present() any { return p.holder[p.name] }

// effectsWith returns the effects of the base with another value of the field. It fails if that is refused.
func (p place) effectsWith(t *testing.T, value any) (string, error) {
	t.Helper()
	present, set := p.holder[p.name]
	p.holder[p.name] = value
	defer func() {
		if p.holder[p.name] = present; !set {
			delete(p.holder, p.name)
		}
	}()
	return p.base.effects(t, p.kind, p.spec)
}

// enumValue is a value of an enum: a string or a number.
func enumValue(t *testing.T, raw []byte) (value any) {
	t.Helper()
	if err := json.Unmarshal(raw, &value); err != nil {
		t.Fatal(err)
	}
	return value
}

// candidates are other values of a field, not all within its limits.
func candidates(t *testing.T, name string, s *apiextensionsv1.JSONSchemaProps, present any) []any {
	if value, ok := foreign[name]; ok {
		return []any{value}
	}
	var all []any
	switch {
	case len(s.Enum) > 0:
		for _, raw := range s.Enum {
			all = append(all, enumValue(t, raw.Raw))
		}
	case s.XIntOrString:
		all = []any{"128Mi", "2Gi", 2, "50%"}
	case s.Type == "integer":
		n := int64(0)
		switch v := present.(type) {
		case int:
			n = int64(v)
		case int64:
			n = v
		case float64:
			n = int64(v)
		}
		all = []any{n + 1, n - 1, n + 8}
		if s.Minimum != nil {
			all = append(all, int64(*s.Minimum), int64(*s.Minimum)+1)
		}
	case s.Type == "array":
		for _, item := range candidates(t, name, s.Items.Schema, nil) {
			list, _ := present.([]any)
			all = append(all, append(slices.Clone(list), item))
		}
		all = append(all, []any{})
	case s.Type == "object":
		all = []any{map[string]any{"added": "x"}}
	default:
		text, _ := present.(string)
		all = []any{text + "x", "other", "p", "away", "/other", "9", "UTC", "0 7 * * *", "http://other:4317", "rediss://other:6379", "10.9.0.0/16", "apps/v2", "key2", "low"}
	}
	return all
}

// TestEveryFieldHasAnEffect sets each field of the definitions to other values, in each base that has what contains it.
func TestEveryFieldHasAnEffect(t *testing.T) {
	t.Parallel()
	list := admittedBases(t)
	before := make([]string, len(list))
	for i := range list {
		b := &list[i]
		before[i] = effects(t, b.admittedPool, b.admittedPolicy)
		if _, problems, found := strings.Cut(before[i], "\nproblem: "); found {
			t.Fatalf("base %d is not applied: %s", i, problems)
		}
	}
	listed := maps.Clone(actedOn)
	maps.Copy(listed, without)
	for _, f := range fields(t) {
		if f.kind == v1alpha1.KindModelRoute {
			continue // TestEveryFieldOfARouteHasAnEffect
		}
		has := hasEffect(t, f, list, before)
		_, is := listed[f.String()]
		delete(listed, f.String())
		switch {
		case !has && !is:
			t.Errorf("%s has no effect: neither on what the operator makes nor on the configuration of pickers. "+
				"Let a program act on it, or remove it; if a controller acts on it, list its package in actedOn", f)
		case has && is:
			t.Errorf("%s has an effect and is listed as one without all the same", f)
		}
	}
	for name := range listed {
		t.Errorf("%s is listed and is no field", name)
	}
}

func fleetBefore(t *testing.T, spec map[string]any) string {
	t.Helper()
	was, err := fleetEffects(t, spec)
	if err != nil {
		t.Fatal(err)
	}
	return was
}

func hasEffect(t *testing.T, f field, list []base, before []string) bool {
	t.Helper()
	for i := range list {
		at, ok := f.in(&list[i])
		if !ok {
			continue
		}
		for _, value := range candidates(t, at.name, f.schema, at.present()) {
			if reflect.DeepEqual(value, at.present()) {
				continue
			}
			was := before[i]
			if f.kind == v1alpha1.KindPickerFleet {
				was = fleetBefore(t, list[i].fleet)
			}
			after, err := at.effectsWith(t, value)
			if err == nil && after != was {
				return true
			}
		}
	}
	return false
}
