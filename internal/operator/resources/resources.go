// Package resources builds the objects that the operator keeps beside the pods of a pool: the Deployment of its pickers with
// Services, rights, network policies and disruption budgets, and the pool and route of a gateway. It is pure: one pool in,
// the objects to apply out. Names, labels and rights are those of the API's contract.
package resources

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

const (
	// Manager is the field manager of everything that is applied.
	Manager = "kvasir"
	// labelVersion names the release of the operator that has applied an object.
	labelVersion = "app.kubernetes.io/version"
)

// Config is what does not depend on the pool.
type Config struct {
	// PickerImage runs the pickers.
	PickerImage string
	// Operator is the ServiceAccount of the operator, whose calls pickers answer.
	Operator types.NamespacedName
	// Version of the operator, for a label of each object; one that is no label's value is left out.
	Version string
	// LogLevel of the pickers: error, warn, info, debug or trace; "" is info.
	LogLevel string
	// HubEndpoint is the URL of the model hub from which pickers download files of tokenizers of the types Auto and Hub; "" for none.
	HubEndpoint string
	// HubAuthorities are certificates in PEM that sign those of the hub, besides the authorities of the pickers' image; "" for none.
	HubAuthorities string
	// HubProxy is the URL of the proxy through which pickers reach the hub; "" for none.
	HubProxy string
	// GIE, Routes, CertManager and Provisioning report which optional APIs the cluster has.
	GIE, Routes, CertManager, Provisioning bool
	// Traffic reports which kinds of single gateways the cluster has.
	Traffic Traffic
}

// Input is a pool, and what is known besides.
type Input struct {
	Pool *v1alpha1.InferencePool
	// PolicySecrets are the Secrets that the applied policy names.
	PolicySecrets []string
	// Trusted are the certificates of the pool's CA, PEM.
	Trusted []byte
	// Protected is how many pods the disruption budget of the engines starts from.
	Protected int
	// Surge is how many pods beyond Protected have a node and are there to stay: while a pod is replaced, its replacement.
	Surge int
	// Replaces is whether the operator replaces pods before they leave their nodes, so that evictions can wait for that;
	// Evictions explains it to people.
	Replaces  bool
	Evictions string
	// WaitSince is since when pods whose nodes go away wait for replacements; zero while none does.
	WaitSince time.Time
	// ServesUnready is whether the engine of a pod serves while the pod is not ready, because its reporter is not.
	ServesUnready bool
	// Gateways are the Gateways whose data planes send requests to the engines.
	Gateways []types.NamespacedName
	// Sets are the LeaderWorkerSets of the pool's pods, sorted.
	Sets []string
	// Move is which pickers serve the pool, if it is in a fleet, or on the way into one or out of it.
	Move Move
}

// Ports of the pickers.
const (
	ProxyPort   = 8080
	ServicePort = 80 // of the proxy, at the Service
	// SecureServicePort is that of a proxy with TLS.
	SecureServicePort = 443
	ExtProcPort       = 9002
	HealthPort        = 9003
	SyncPort          = 9004 // reporters, peers, the operator
	MetricsPort       = 9090
)

// Objects returns the objects to apply unchanged, by server-side apply: they contain the fields that the operator wants to
// own and no others. A pool with external pickers has few. Objects that hold secrets are not included: see KeySecret and
// Certificates.
func Objects(c Config, in Input) ([]*unstructured.Unstructured, error) {
	b := builder{Config: c, Input: in, pool: in.Pool}
	var all []client.Object
	switch {
	case b.ownPickers():
		all = append(all, b.pickers().objects()...)
	case in.Pool.Spec.Picker.Mode == v1alpha1.PickerOfFleet: // by which reporters and clients find the fleet's pickers
		all = append(all, b.pickers().trust(), b.pickers().service(), b.pickers().peers())
	}
	if in.Pool.Spec.Template != nil {
		all = append(all, b.engineBudget())
	}
	if in.Pool.Spec.EngineNetwork() != v1alpha1.EngineNetworkNone {
		all = append(all, b.engineNetwork())
	}
	if gateway := in.Pool.Spec.Gateway; gateway.Mode == v1alpha1.GatewayAuto {
		if c.GIE {
			all = append(all, b.giePool())
		}
		if c.GIE && c.Routes && len(gateway.ParentRefs) > 0 {
			d := door{meta: b.meta(b.pool.Name), gateway: &gateway}
			all = append(all, d.route())
		}
	}
	for _, o := range b.traffic() {
		all = append(all, o)
	}
	return c.applied(all, []metav1.OwnerReference{Owner(b.pool)})
}

// applied are objects of some owners, as server-side apply takes them.
func (c *Config) applied(all []client.Object, owners []metav1.OwnerReference) ([]*unstructured.Unstructured, error) {
	applied := make([]*unstructured.Unstructured, 0, len(all))
	for _, o := range all {
		o.SetOwnerReferences(owners)
		u, err := Applied(o)
		if err != nil {
			return nil, err
		}
		c.versioned(u)
		applied = append(applied, u)
	}
	return applied, nil
}

// versioned adds the operator's version to the labels of an object. Templates of pods do not have it: another release of the operator is no
// reason to replace pods.
func (c *Config) versioned(u *unstructured.Unstructured) {
	if c.Version == "" || len(validation.IsValidLabelValue(c.Version)) > 0 {
		return
	}
	labels := u.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[labelVersion] = c.Version
	u.SetLabels(labels)
}

// Applied is an object without what the API server fills in, as server-side apply takes it.
func Applied(o client.Object) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", o.GetObjectKind().GroupVersionKind().Kind, o.GetName(), err)
	}
	u := &unstructured.Unstructured{Object: fields}
	unstructured.RemoveNestedField(fields, "status")
	unstructured.RemoveNestedField(fields, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(fields, "spec", "template", "metadata", "creationTimestamp")
	return u, nil
}

// Kinds are those that Objects can return, so that what a pool does not want any more is found and deleted.
func Kinds(c Config) []schema.GroupVersionKind {
	kinds := []schema.GroupVersionKind{
		corev1.SchemeGroupVersion.WithKind("ServiceAccount"), rbacv1.SchemeGroupVersion.WithKind("Role"),
		rbacv1.SchemeGroupVersion.WithKind("RoleBinding"), corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		corev1.SchemeGroupVersion.WithKind("Service"), policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"),
		appsv1.SchemeGroupVersion.WithKind("Deployment"), networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"),
	}
	if c.CertManager {
		kinds = append(kinds, CertificateKind)
	}
	if c.GIE {
		kinds = append(kinds, GIEKind)
	}
	if c.Routes {
		kinds = append(kinds, RouteKind)
	}
	return append(kinds, c.Traffic.Kinds()...)
}

type builder struct {
	Config
	Input
	pool *v1alpha1.InferencePool
}

// meta names a child. The label of the pool's pods is on none of them: EndpointSlices inherit it from Services, and
// pickers would look like engines.
func (b *builder) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: b.pool.Namespace, Labels: b.labels()}
}

func (b *builder) labels() map[string]string {
	labels := b.selector()
	labels["app.kubernetes.io/managed-by"] = "kvasir"
	return labels
}

// Labels of the pickers' pods: what they are, and the pool that they serve, or the fleet that they are of. Pickers of a fleet have no
// LabelInstance: whatever a fleet is called, no Service of a pool selects its pods by accident.
const (
	LabelComponent  = "app.kubernetes.io/component"
	ComponentPicker = "picker"
	LabelInstance   = "app.kubernetes.io/instance"
	LabelFleet      = v1alpha1.LabelFleet
)

// selector of the pickers' pods.
func (b *builder) selector() map[string]string {
	return map[string]string{
		"app.kubernetes.io/name": "kvasir",
		LabelComponent:           ComponentPicker,
		LabelInstance:            b.pool.Name,
	}
}

// Owner is the reference by which a child belongs to its pool and goes with it.
func Owner(pool *v1alpha1.InferencePool) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindInferencePool, Name: pool.Name, UID: pool.UID,
		Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
	}
}

func typeMeta(gvk schema.GroupVersionKind) metav1.TypeMeta {
	apiVersion, kind := gvk.ToAPIVersionAndKind()
	return metav1.TypeMeta{APIVersion: apiVersion, Kind: kind}
}
