package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// Objects are all objects of one moment, admitted, with their defaults. Order does not matter.
type Objects struct {
	Pools    []*v1alpha1.InferencePool
	Policies []*v1alpha1.RoutingPolicy
	Routes   []*v1alpha1.ModelRoute
	// Elsewhere are pools of the same namespaces that other pickers serve, with what is said of them.
	Elsewhere map[types.NamespacedName]string
	Slices    []*discoveryv1.EndpointSlice
	// Pods of the pools, where there is Kubernetes; those of no pool are ignored.
	Pods []*corev1.Pod
	// RankPorts are the HTTP ports of the ranks of a pod, by pool, where they are not consecutive. Kvasir's pools cannot
	// configure that; those of Gateway API's inference extension can.
	RankPorts map[types.NamespacedName][]int32
	Secrets   []*corev1.Secret
	// ConfigMaps that hold models' files.
	ConfigMaps []*corev1.ConfigMap
	// Origins are where objects were read; nil where they are not read from files.
	Origins map[ObjectKey]Origin
}

// State is what follows from objects. It is immutable.
type State struct {
	// Specs of the pools that can be served, by namespace and name.
	Specs []picker.Spec
	// Pools and Policies are all of them, by namespace and name, with what became of each.
	Pools    []PoolState
	Policies []PolicyState
	// RouteSpecs are the routes that are applied, and Routes all of them, by namespace and name.
	RouteSpecs []modelroute.Route
	Routes     []RouteState
	// Pods of the pools, by namespace and name; none where endpoints are read from files.
	Pods []Pod
	// Problems are why something is not applied, in a stable order.
	Problems []Problem
	// Empty is why there are no objects, where a directory without files is the cause.
	Empty string
}

// PoolState is what became of a pool.
type PoolState struct {
	Object *v1alpha1.InferencePool
	// Served reports whether the pool is among the Specs; with problems, it is the last good state that is.
	Served bool
	// Policy that the pool follows, nil for the defaults.
	Policy *v1alpha1.RoutingPolicy
	// KeyID is the fingerprint of the key root.
	KeyID string
	// Problems of the pool itself.
	Problems []Problem
}

// PolicyState is what became of a policy.
type PolicyState struct {
	Object *v1alpha1.RoutingPolicy
	// Targets in the order of spec.targetRefs.
	Targets []TargetState
	// MissingSecrets are the names of the Secrets that are referred to and do not exist.
	MissingSecrets []string
	// Problems of the policy itself.
	Problems []Problem
}

// TargetState is what became of a policy at one of its targets.
type TargetState struct {
	// Found reports whether the pool exists.
	Found bool
	// Winner is the policy that the target follows instead; empty when it follows this one.
	Winner string
}

// Translator turns objects into states. It remembers what it last translated, to keep it where the next objects
// cannot be translated. It is not safe for concurrent use.
type Translator struct {
	settings Settings
	fallback picker.PolicySpec // for pools that no policy targets
	last     translated
}

// translated is what each object was translated into.
type translated struct {
	pools     map[types.NamespacedName]picker.Spec // without policy and endpoints
	policies  map[types.NamespacedName]picker.PolicySpec
	endpoints map[types.NamespacedName][]endpoint.Endpoint // by slice
	inForce   map[types.NamespacedName]string              // name of each pool's policy
	models    map[string]types.NamespacedName              // the pool of each name that requests can use
	routes    map[v1alpha1.ModelName]types.NamespacedName  // the route of each name that a route has
}

func newTranslated() translated {
	return translated{
		pools:     map[types.NamespacedName]picker.Spec{},
		policies:  map[types.NamespacedName]picker.PolicySpec{},
		endpoints: map[types.NamespacedName][]endpoint.Endpoint{},
		inForce:   map[types.NamespacedName]string{},
		models:    map[string]types.NamespacedName{},
		routes:    map[v1alpha1.ModelName]types.NamespacedName{},
	}
}

// NewTranslator returns a translator. defaults is a policy with all defaults, for pools that none targets.
func NewTranslator(settings Settings, defaults *v1alpha1.RoutingPolicy) (*Translator, error) {
	fallback, errs := Policy(defaults)
	if len(errs) > 0 {
		return nil, fmt.Errorf("translating the default policy: %w", errs.ToAggregate())
	}
	return &Translator{settings: settings, fallback: fallback, last: newTranslated()}, nil
}

// translation is one translation.
type translation struct {
	*Translator
	state   State
	next    translated
	origins map[ObjectKey]Origin
	secrets Secrets
	maps    ConfigMaps
	pools   map[types.NamespacedName]*v1alpha1.InferencePool
	winners map[types.NamespacedName]*v1alpha1.RoutingPolicy // of each pool that has one
	engines map[engineAt]string                              // that slices of files list: the pod of the endpoint
	// suggestions is for how many more missing pools the one that was probably meant is looked for.
	suggestions int
}

// Translate makes the next state.
func (t *Translator) Translate(o Objects) State {
	n := &translation{
		Translator: t,
		next:       newTranslated(),
		origins:    o.Origins,
		secrets:    Secrets{},
		maps:       ConfigMaps{},
		pools:      map[types.NamespacedName]*v1alpha1.InferencePool{},
		engines:    map[engineAt]string{}, suggestions: maxSuggestions,
	}
	for _, s := range o.Secrets {
		n.secrets[nameOf(s)] = s
	}
	for _, c := range o.ConfigMaps {
		n.maps[nameOf(c)] = c
	}
	for _, p := range o.Pools {
		n.pools[nameOf(p)] = p
	}
	n.winners = PolicyWinners(o.Policies, n.last.inForce)
	for _, p := range byName(o.Policies) {
		n.translatePolicy(p)
	}
	n.checkTokens()
	endpoints := map[types.NamespacedName][]endpoint.Endpoint{}
	owners := map[string]string{}
	for _, s := range n.slices(&o) {
		target, list := n.translateSlice(s, owners)
		endpoints[target] = append(endpoints[target], list...)
	}
	var drafts []*draft
	for _, p := range byName(o.Pools) {
		drafts = append(drafts, n.draftPool(p))
	}
	n.settleNames(drafts)
	for _, d := range drafts {
		n.finishPool(d, endpoints[d.name])
	}
	n.translateRoutes(&o, drafts)
	t.last = n.next
	sortProblems(n.state.Problems)
	return n.state
}

// nameOf an object.
func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// ParseKey is the key of a pool by its name in packages that are without Kubernetes: namespace/name.
func ParseKey(pool string) types.NamespacedName {
	namespace, name, _ := strings.Cut(pool, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// byName is a list by namespace and name.
func byName[T metav1.Object](list []T) []T {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b T) int {
		return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
	})
	return list
}

// problem records an error of an object; kept reports whether its last good state stays.
func (n *translation) problem(kind string, o metav1.Object, err *field.Error, kept bool) Problem {
	key := ObjectKey{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}
	p := Problem{Origin: n.origins[key], Object: key, Field: err.Field, Detail: err.ErrorBody(), Kept: kept, reason: status.ReasonInvalid}
	switch err.Type {
	case field.ErrorTypeNotFound:
		p.reason = status.ReasonReferenceNotFound
	case field.ErrorTypeDuplicate:
		p.reason = status.ReasonNameTaken
	}
	n.state.Problems = append(n.state.Problems, p)
	return p
}
