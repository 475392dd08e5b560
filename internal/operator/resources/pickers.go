package resources

import (
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// pickers builds the objects of pickers, whether they are of a pool or of a fleet.
type pickers struct {
	Config
	names     Names
	namespace string
	// owners of the objects that hold secrets.
	owners   []metav1.OwnerReference
	settings *v1alpha1.PickerSettings
	// follow are the flags that say what the pickers serve, and kinds are the resources of Kvasir that they watch for it.
	follow []string
	kinds  []string
	// pods are the labels by which the pickers' pods are known.
	pods map[string]string
	// clients and reporters are the labels of the pods to which the two Services lead.
	clients, reporters map[string]string
	// trusted are the certificates of the CA, PEM.
	trusted []byte
	// drainSeconds is how long open streams are kept when a picker ends.
	drainSeconds int
	// downloads reports whether files are read from the model hub.
	downloads bool
	// model is the volume of tokenizers; nil for none.
	model *corev1.VolumeSource
	// listen are the ports to which engines connect; none where pickers connect to engines.
	listen []listenPort
	// secrets and configMaps are the names of those that the pickers read themselves.
	secrets, configMaps []string
	// engines are those that report to the pickers.
	engines []networkingv1.NetworkPolicyPeer
}

// listenPort is a port to which the publishers of one rank connect.
type listenPort struct {
	Name string
	Port int32
}

// objects are those of the pickers, without what holds secrets.
func (p *pickers) objects() []client.Object {
	all := []client.Object{
		p.serviceAccount(), p.role(), p.roleBinding(), p.trust(), p.service(), p.peers(), p.budget(), p.deployment(),
	}
	if p.settings.NetworkPolicy != v1alpha1.NetworkPolicyNone {
		all = append(all, p.pickerNetwork())
	}
	if p.settings.TLS.Type == v1alpha1.TLSCertManager && p.CertManager {
		all = append(all, p.certificate())
	}
	return all
}

func (p *pickers) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: p.namespace, Labels: p.labels()}
}

func (p *pickers) labels() map[string]string {
	labels := maps.Clone(p.pods)
	labels["app.kubernetes.io/managed-by"] = Manager
	return labels
}

// pickers are the pool's own.
func (b *builder) pickers() *pickers {
	spec := &b.pool.Spec
	p := &pickers{
		Config: b.Config, names: NamesOf(b.pool.Name), namespace: b.pool.Namespace,
		owners: []metav1.OwnerReference{Owner(b.pool)}, settings: &spec.Picker.PickerSettings,
		follow: []string{"--pool=" + b.pool.Namespace + "/" + b.pool.Name}, kinds: []string{"inferencepools", "routingpolicies"},
		pods: b.selector(), clients: b.selector(), reporters: b.selector(), trusted: b.Trusted,
		drainSeconds: int(ptr.Deref(spec.Drain.DeadlineSeconds, v1alpha1.DefaultDrainDeadlineSeconds)),
		downloads:    b.HubEndpoint != "" && fromHub(spec.Model.Tokenizer.Type), model: modelVolume(b.pool), listen: listenPorts(&spec.Engine),
		secrets: sorted(secretsOf(b.pool, b.PolicySecrets)), configMaps: sorted(configMapsOf(b.pool)),
		engines: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: b.engines()}}},
	}
	if b.Move.Clients != "" {
		p.clients = FleetPods(b.Move.Clients)
	}
	if b.Move.Reporters != "" {
		p.reporters = FleetPods(b.Move.Reporters)
	}
	return p
}

// ownPickers reports whether the pool has pickers of its own.
func (b *builder) ownPickers() bool {
	switch b.pool.Spec.Picker.Mode {
	case v1alpha1.PickerExternal:
		return false
	case v1alpha1.PickerOfFleet:
		return b.Move.KeepsOwn
	case v1alpha1.PickerManaged:
	}
	return true
}

// fromHub reports whether files of a tokenizer are read from the model hub.
func fromHub(t v1alpha1.TokenizerType) bool {
	return t == v1alpha1.TokenizerFromHub || t == v1alpha1.TokenizerAuto
}

// modelVolume is the volume of a pool's tokenizer that pickers mount; nil for none.
func modelVolume(pool *v1alpha1.InferencePool) *corev1.VolumeSource {
	switch v := pool.Spec.Model.Tokenizer.Volume; {
	case v == nil:
	case v.PersistentVolumeClaim.Name != "":
		return &corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v.PersistentVolumeClaim.Name, ReadOnly: true},
		}
	case v.Image != nil:
		return &corev1.VolumeSource{Image: v.Image}
	}
	return nil
}

// listenPorts are those of all ranks of a pod; none where pickers connect to engines.
func listenPorts(engine *v1alpha1.Engine) []listenPort {
	if engine.Events.Source != v1alpha1.EventsListen {
		return nil
	}
	ports := make([]listenPort, max(engine.DataParallel.Ranks, 1))
	for rank := range ports {
		ports[rank] = listenPort{"events-" + strconv.Itoa(rank), engine.Ports.EventsPort() + int32(rank)}
	}
	return ports
}

// secretsOf are the Secrets that the pickers of a pool read by themselves: the key root, those of the engine, the token for the
// model hub, those of the policy.
func secretsOf(pool *v1alpha1.InferencePool, policy []string) []string {
	names := append([]string{KeySecretName(pool)}, pool.Spec.Engine.SecretNames()...)
	names = append(names, pool.Spec.Model.Tokenizer.SecretNames()...)
	return append(names, policy...)
}

// configMapsOf are the ConfigMaps that the pickers of a pool read by themselves.
func configMapsOf(pool *v1alpha1.InferencePool) []string {
	var names []string
	if v := pool.Spec.Model.Tokenizer.Volume; v != nil && v.ConfigMap.Name != "" {
		names = append(names, v.ConfigMap.Name)
	}
	if p := pool.Spec.Placement; p != nil && p.PricesFrom.Name != "" {
		names = append(names, p.PricesFrom.Name)
	}
	return names
}

func sorted(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
