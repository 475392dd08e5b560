package inferencepool

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// networkFacts are what EnginesClosed is judged from.
type networkFacts struct {
	// gateways whose data planes the engines' NetworkPolicy admits, sorted.
	gateways []types.NamespacedName
	// missing are the gateways without pods, and parents that are no Gateways.
	missing []string
	// unseen are the gateways whose pods were not found, but can be in a namespace that the operator does not watch.
	unseen []string
	// absent: the engines' NetworkPolicy is not there, because the API server refuses it, or an object of another owner has its name.
	absent bool
}

// findGateways finds the gateways that send requests to the engines themselves, and whether they have pods: those of
// gateway.parentRefs, of the pool and its fleets, and those that have accepted the gateways' pool, through routes of others.
func (r *children) findGateways(ctx context.Context, config *resources.Config) (networkFacts, error) {
	f := networkFacts{}
	if r.pool.Spec.EngineNetwork() != v1alpha1.EngineNetworkClosed {
		return f, nil
	}
	add := func(group *gwapiv1.Group, kind *gwapiv1.Kind, namespace, name string) {
		gateway := types.NamespacedName{Namespace: namespace, Name: name}
		if gateway.Namespace == "" {
			gateway.Namespace = r.key.Namespace
		}
		switch k := ptr.Deref(kind, "Gateway"); {
		case k != "Gateway" || ptr.Deref(group, gwapiv1.GroupName) != gwapiv1.GroupName:
			f.missing = append(f.missing, fmt.Sprintf("%s %s", k, gateway))
		case !slices.Contains(f.gateways, gateway):
			f.gateways = append(f.gateways, gateway)
		}
	}
	doors, err := r.doors(ctx)
	if err != nil {
		return f, err
	}
	for name, gateway := range doors {
		for i := range gateway.ParentRefs {
			ref := &gateway.ParentRefs[i]
			add(ref.Group, ref.Kind, string(ptr.Deref(ref.Namespace, "")), string(ref.Name))
		}
		if !config.GIE {
			continue
		}
		pool := &gatewayPool{}
		if _, err := loose(ctx, r.Client, types.NamespacedName{Namespace: r.key.Namespace, Name: name}, resources.GIEKind, pool); err != nil {
			return f, err
		}
		for i := range pool.Status.Parents {
			// A Gateway of a namespace that has no right to the pool can be among the parents, too, and is not accepted.
			p := &pool.Status.Parents[i]
			if meta.IsStatusConditionTrue(p.Conditions, string(gwapiv1.RouteConditionAccepted)) {
				add(p.ParentRef.Group, p.ParentRef.Kind, p.ParentRef.Namespace, p.ParentRef.Name)
			}
		}
	}
	slices.SortFunc(f.gateways, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	for _, gateway := range f.gateways {
		there, unseen, err := r.dataPlane(ctx, gateway)
		switch {
		case err != nil:
			return f, err
		case there:
		case unseen != "":
			f.unseen = append(f.unseen, fmt.Sprintf("%s (in %s)", gateway, unseen))
		default:
			f.missing = append(f.missing, "Gateway "+gateway.String())
		}
	}
	slices.Sort(f.missing)
	f.missing = slices.Compact(f.missing)
	return f, nil
}

// doors are what gateways see of the pool and of its fleets, by the name of the gateways' pool.
func (r *children) doors(ctx context.Context) (map[string]*v1alpha1.Gateway, error) {
	all := map[string]*v1alpha1.Gateway{}
	if g := &r.pool.Spec.Gateway; g.Mode != v1alpha1.GatewayDisabled {
		all[r.key.Name] = g
	}
	for _, name := range r.move.Fleets {
		fleet := &v1alpha1.PickerFleet{}
		err := r.Client.Get(ctx, types.NamespacedName{Namespace: r.key.Namespace, Name: name}, fleet)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading fleet %s: %w", name, err)
		}
		// Without the fleet, its objects stay, and so do the gateways that have accepted them.
		if g := resources.FleetGateway(fleet); g.Mode != v1alpha1.GatewayDisabled {
			all[resources.NamesOfFleet(name).Pickers] = g
		}
	}
	return all, nil
}

// dataPlane reports whether a gateway has pods, and names a namespace where the operator cannot look for them.
func (r *children) dataPlane(ctx context.Context, gateway types.NamespacedName) (there bool, unseen string, err error) {
	for _, plane := range resources.DataPlanes(gateway) {
		for _, namespace := range plane.Namespaces {
			if len(r.Namespaces) > 0 && !slices.Contains(r.Namespaces, namespace) {
				if unseen == "" {
					unseen = namespace
				}
				continue
			}
			var pods corev1.PodList
			if err := r.Client.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels(plane.Labels),
				client.UnsafeDisableDeepCopy); err != nil {
				return false, "", fmt.Errorf("listing the pods of gateway %s: %w", gateway, err)
			}
			if slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return !ended(&p) }) {
				return true, "", nil
			}
		}
	}
	return false, unseen, nil
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// sets are the LeaderWorkerSets of the pool's pods.
func (r *children) sets() []string {
	var names []string
	for _, pod := range r.pods {
		if name := pod.Labels[config.LabelSet]; name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// enginesClosed judges whether only the clients that the pool names, and those that Kvasir needs, reach its engines.
func enginesClosed(pool *v1alpha1.InferencePool, f *networkFacts) metav1.Condition {
	policy := &pool.Spec.Engine.NetworkPolicy
	if pool.Spec.EngineNetwork() == v1alpha1.EngineNetworkOpen {
		if policy.Mode == "" {
			return status.EnginesClosed.False("PickersUnnamed", "picker.mode is External, so the pods of the pickers are not known: all clients reach the engines. "+
				"Name these pods in engine.networkPolicy.from")
		}
		return status.EnginesClosed.Unknown(status.ReasonOpen, "engine.networkPolicy.mode is Open: all clients reach the engines")
	}
	remark := ""
	if len(policy.From) > 0 {
		remark = fmt.Sprintf("; and %d peers of engine.networkPolicy.from", len(policy.From))
	}
	names := make([]string, len(f.gateways))
	for i, gateway := range f.gateways {
		names[i] = gateway.String()
	}
	admitted := "none"
	if len(names) > 0 {
		admitted = strings.Join(names, ", ")
	}
	switch {
	case f.absent:
		return status.EnginesClosed.False("PolicyMissing", "the NetworkPolicy %s could not be made, as Accepted says: all clients reach the engines unless others deny it",
			pool.Name)
	case len(f.missing) > 0 && len(policy.From) > 0:
		return status.EnginesClosed.True("GatewayPodsNamed", "no pods of %s are found: engine.networkPolicy.from must have their pods or addresses",
			strings.Join(f.missing, ", "))
	case len(f.missing) > 0:
		return status.EnginesClosed.False(status.ReasonGatewayPodsMissing, "no pods of %s are found by the labels %s, or %s in %s: their requests do not reach the engines. "+
			"Name the pods or addresses in engine.networkPolicy.from", strings.Join(f.missing, ", "),
			resources.LabelGateway, resources.LabelEnvoyGateway, resources.EnvoyGatewayNamespace)
	case len(f.unseen) > 0:
		return status.EnginesClosed.Unknown("GatewayNotWatched", "the operator does not watch the namespaces in which pods of these gateways can be: %s. "+
			"Pods with the usual labels are admitted there", strings.Join(f.unseen, ", "))
	}
	return status.EnginesClosed.True("Closed", "gateways admitted: %s%s", admitted, remark)
}

// gatewayPods are the changes of pods by which a gateway's data plane appears or disappears.
var gatewayPods = predicate.Funcs{
	CreateFunc:  func(e event.CreateEvent) bool { return ofGateway(e.Object) },
	DeleteFunc:  func(e event.DeleteEvent) bool { return ofGateway(e.Object) },
	GenericFunc: func(event.GenericEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*corev1.Pod)
		after, also := e.ObjectNew.(*corev1.Pod)
		return ok && also && (ofGateway(before) != ofGateway(after) || ofGateway(after) && ended(before) != ended(after))
	},
}

// ofGateway reports whether a pod is one of a gateway's data plane.
func ofGateway(o client.Object) bool {
	labels := o.GetLabels()
	return labels[resources.LabelGateway] != "" || labels[resources.LabelEnvoyGateway] != ""
}

// behindGateways are the pools that gateways of any namespace can send requests to. A gateway's pods are made and deleted
// rarely.
func (r *Reconciler) behindGateways(ctx context.Context, _ client.Object) []reconcile.Request {
	return r.requests(ctx, "", func(pool *v1alpha1.InferencePool) bool {
		return pool.Spec.EngineNetwork() == v1alpha1.EngineNetworkClosed &&
			(pool.Spec.Gateway.Mode != v1alpha1.GatewayDisabled || pool.Spec.Picker.Mode == v1alpha1.PickerOfFleet)
	})
}
