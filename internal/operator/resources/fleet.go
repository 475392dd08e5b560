package resources

import (
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// FleetDrainSeconds is how long the pickers of a fleet keep open streams when they end, in seconds. It does not follow the drain
// deadlines of the fleet's pools: a pool that comes or changes must not replace the pickers of all others. A picker whose streams
// have ended does not wait for it.
const FleetDrainSeconds = 3600

// Move is which pickers serve a pool that is in a fleet, or on the way into one or out of it. The zero value is that of a pool with
// pickers of its own that never was in a fleet.
type Move struct {
	// Clients and Reporters are the fleets to whose pickers clients and reporters are sent; empty for the pool's own pickers.
	Clients, Reporters string
	// KeepsOwn is whether the pool still has pickers of its own, though its mode is Fleet.
	KeepsOwn bool
	// Fleets are those whose pickers send requests to the engines, sorted.
	Fleets []string
}

// Fleet is a fleet, and the pools that its pickers serve.
type Fleet struct {
	*v1alpha1.PickerFleet
	// Pools that the fleet serves, sorted by name.
	Pools []*v1alpha1.InferencePool
	// PolicySecrets are the Secrets that the policies of these pools name.
	PolicySecrets []string
	// Trusted are the certificates of the fleet's CA, PEM.
	Trusted []byte
}

// FleetPods are the labels of the pods of a fleet's pickers.
func FleetPods(fleet string) map[string]string {
	return map[string]string{"app.kubernetes.io/name": "kvasir", LabelComponent: ComponentPicker, LabelFleet: fleet}
}

// FleetObjects returns the objects of a fleet's pickers to apply unchanged, as Objects does for a pool.
func FleetObjects(c Config, f Fleet) ([]*unstructured.Unstructured, error) {
	p := f.pickers(c)
	all := p.objects()
	if c.GIE && c.Traffic.DestinationRule && f.behindGateway() {
		all = append(all, p.destinationRule())
	}
	return c.applied(append(all, f.doorObjects(c)...), f.owners())
}

// FleetKinds are those that FleetObjects can return.
func FleetKinds(c Config) []schema.GroupVersionKind { return Kinds(c) }

// FleetAccount is the ServiceAccount of a fleet's pickers, which is among FleetObjects, too.
func FleetAccount(c Config, f Fleet) (*unstructured.Unstructured, error) {
	all, err := c.applied([]client.Object{f.pickers(c).serviceAccount()}, f.owners())
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// FleetCertificates brings a fleet's CA and its pickers' certificate up to date, as Certificates does for a pool. The Secrets belong to
// the ServiceAccount of the pickers, and need no change when a pool comes or goes.
func FleetCertificates(f Fleet, account *corev1.ServiceAccount, caSecret, tlsSecret *corev1.Secret,
	now time.Time) (ca, tls *corev1.Secret, trusted []byte, next time.Time, err error) {
	p := f.pickers(Config{})
	p.owners = OwnedByAccount(account)
	ca, tls, trusted, next, err = p.certificates(caSecret, tlsSecret, now)
	return ca, tls, trusted, next, err
}

// OwnedByAccount is the owner of a fleet's Secrets.
func OwnedByAccount(account *corev1.ServiceAccount) []metav1.OwnerReference {
	return []metav1.OwnerReference{{
		APIVersion: "v1", Kind: rbacv1.ServiceAccountKind, Name: account.Name, UID: account.UID, Controller: ptr.To(true),
	}}
}

// behindGateway reports whether the fleet or one of its pools is shown to gateways, and wants objects of their own kinds.
func (f *Fleet) behindGateway() bool {
	shown := func(g *v1alpha1.Gateway) bool {
		return g.Mode != v1alpha1.GatewayDisabled && g.TrafficPolicies != v1alpha1.TrafficPoliciesNone
	}
	return shown(FleetGateway(f.PickerFleet)) ||
		slices.ContainsFunc(f.Pools, func(pool *v1alpha1.InferencePool) bool { return shown(&pool.Spec.Gateway) })
}

// owners are the fleet and its pools. Kubernetes deletes an object with the last of its owners: if a fleet is deleted that serves
// pools, its pickers stay until no pool needs them, and nothing holds up the deletion of the fleet or of the namespace.
func (f *Fleet) owners() []metav1.OwnerReference {
	owners := []metav1.OwnerReference{{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindPickerFleet, Name: f.Name, UID: f.UID,
		Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
	}}
	for _, pool := range f.Pools {
		owners = append(owners, metav1.OwnerReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindInferencePool, Name: pool.Name, UID: pool.UID,
		})
	}
	return owners
}

// pickers are those of a fleet.
func (f *Fleet) pickers(c Config) *pickers {
	pods := FleetPods(f.Name)
	p := &pickers{
		Config: c, names: NamesOfFleet(f.Name), namespace: f.Namespace, owners: f.owners(), settings: &f.Spec.PickerSettings,
		follow: []string{"--fleet=" + f.Namespace + "/" + f.Name, "--index-memory=" + strconv.FormatInt(f.Spec.IndexMemory.Value(), 10)},
		kinds:  []string{"inferencepools", "routingpolicies", "modelroutes"},
		pods:   pods, clients: pods, reporters: pods, trusted: f.Trusted, drainSeconds: FleetDrainSeconds,
		downloads: c.HubEndpoint != "", engines: f.engines(),
	}
	secrets, configMaps := slices.Clone(f.PolicySecrets), []string(nil)
	for _, pool := range f.Pools {
		secrets = append(secrets, secretsOf(pool, nil)...)
		configMaps = append(configMaps, configMapsOf(pool)...)
	}
	p.secrets, p.configMaps = sorted(secrets), sorted(configMaps)
	return p
}

// engines admits those of the fleet's pools: by one selector the engines of all pools without labels of their own, and one for
// each pool with such labels.
func (f *Fleet) engines() []networkingv1.NetworkPolicyPeer {
	var peers []networkingv1.NetworkPolicyPeer
	var names []string
	for _, pool := range f.Pools {
		b := builder{pool: pool}
		if len(pool.Spec.Selector.MatchLabels) == 0 {
			names = append(names, pool.Name)
			continue
		}
		peers = append(peers, networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: b.engines()}})
	}
	if len(names) > 0 {
		peers = append([]networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: v1alpha1.LabelPool, Operator: metav1.LabelSelectorOpIn, Values: names},
		}}}}, peers...)
	}
	return peers
}

// Unfit is why a fleet cannot serve a pool; empty if it can. What a pool needs of the pickers' pods would replace the pickers of all
// other pools when the pool comes.
func Unfit(pool *v1alpha1.InferencePool) string {
	switch {
	case modelVolume(pool) != nil:
		return "model.tokenizer.volume is a claim or an image, which pickers mount, and the pickers of a fleet mount nothing for one pool: " +
			"use type Hub, or volume.configMap, or picker.mode Managed"
	case pool.Spec.Engine.Events.Source == v1alpha1.EventsListen:
		return "engine.events.source Listen needs a port of the picker's pod for one pool, which the pickers of a fleet do not have: " +
			"use Auto, or picker.mode Managed"
	}
	return ""
}
