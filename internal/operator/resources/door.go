package resources

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// door builds what gateways see of a pool, or of a fleet, and the objects by which single gateways are configured for it. All have its
// name.
type door struct {
	meta    metav1.ObjectMeta
	gateway *v1alpha1.Gateway
	// ports of the engines, the first one for health checks; secure: they speak TLS, h2c: they speak HTTP/2 without it.
	ports       []int32
	secure, h2c bool
}

// pool is the gateways' pool of the engines with some labels. Gateways ask the picker of a Service.
func (d *door) pool(engines map[string]string, service string, port int64) *unstructured.Unstructured {
	labels := map[string]any{}
	for k, v := range engines {
		labels[k] = v
	}
	ports := make([]any, len(d.ports))
	for i, number := range d.ports {
		ports[i] = map[string]any{"number": int64(number)}
	}
	spec := map[string]any{
		"selector":    map[string]any{"matchLabels": labels},
		"targetPorts": ports,
		"endpointPickerRef": map[string]any{
			"group": "", "kind": "Service", "name": service, "port": map[string]any{"number": port},
			"failureMode": string(d.gateway.FailureMode),
		},
	}
	if d.h2c {
		spec["appProtocol"] = protocolH2C
	}
	return loose(GIEKind, d.meta, spec)
}

// route sends the paths that clients use to the gateways' pool. Users who need other paths write their own route.
func (d *door) route() *gwapiv1.HTTPRoute {
	return &gwapiv1.HTTPRoute{
		TypeMeta:   typeMeta(RouteKind),
		ObjectMeta: d.meta,
		Spec: gwapiv1.HTTPRouteSpec{
			CommonRouteSpec: gwapiv1.CommonRouteSpec{ParentRefs: d.gateway.ParentRefs},
			Hostnames:       d.gateway.Hostnames,
			Rules: []gwapiv1.HTTPRouteRule{{
				Timeouts: timeouts(d.gateway),
				Matches:  RouteMatches(),
				BackendRefs: []gwapiv1.HTTPBackendRef{{BackendRef: gwapiv1.BackendRef{BackendObjectReference: gwapiv1.BackendObjectReference{
					Group: ptr.To(gwapiv1.Group(GIEKind.Group)), Kind: ptr.To(gwapiv1.Kind(GIEKind.Kind)), Name: gwapiv1.ObjectName(d.meta.Name),
				}}}},
			}},
		},
	}
}

// FleetEngines are the labels of the engines' pods of all pools of a fleet.
func FleetEngines(fleet string) map[string]string {
	return map[string]string{v1alpha1.LabelFleetPrefix + fleet: v1alpha1.FleetEngine}
}

// FleetPool is what gateways should see of a fleet, whether the operator or a user creates it.
func FleetPool(f Fleet) *unstructured.Unstructured {
	d := f.door(Config{})
	return d.pool(FleetEngines(f.Name), NamesOfFleet(f.Name).Pickers, int64(ExtProcPort))
}

// FleetGateway are the settings of a fleet's gateways, in the words of a pool's.
func FleetGateway(fleet *v1alpha1.PickerFleet) *v1alpha1.Gateway {
	g := &fleet.Spec.Gateway
	return &v1alpha1.Gateway{
		Mode: g.Mode, FailureMode: g.FailureMode, ParentRefs: g.ParentRefs, Hostnames: g.Hostnames, RequestTimeout: g.RequestTimeout,
		RequestTimeoutSeconds: g.RequestTimeoutSeconds, TrafficPolicies: g.TrafficPolicies,
	}
}

// DifferentEngines is why gateways cannot reach the engines of all pools of a fleet by one pool of theirs, which has one protocol; empty if
// they can.
func (f *Fleet) DifferentEngines() string {
	h2c := func(pool *v1alpha1.InferencePool) bool { return pool.Spec.Engine.Protocol == v1alpha1.ProtocolH2C }
	for _, pool := range f.Pools {
		if h2c(pool) != h2c(f.Pools[0]) {
			return "engine.protocol of the pools " + f.Pools[0].Name + " and " + pool.Name + " differ, and gateways speak one protocol to all: HTTP/1.1"
		}
	}
	return ""
}

// door is the fleet's. It has the ports of all pools, because each port of the gateways' pool is one of each pod: the picker names none
// that the pod does not have.
func (f *Fleet) door(c Config) *door {
	p := f.pickers(c)
	d := &door{meta: p.meta(p.names.Pickers), gateway: FleetGateway(f.PickerFleet), h2c: len(f.Pools) > 0 && f.DifferentEngines() == ""}
	for _, pool := range f.Pools {
		e := &pool.Spec.Engine
		d.ports = append(d.ports, portsOf(e)...)
		d.h2c = d.h2c && e.Protocol == v1alpha1.ProtocolH2C
		d.secure = d.secure || e.TLS.Verification != ""
	}
	if len(d.ports) == 0 { // a route can be there before the pools
		d.ports = []int32{v1alpha1.DefaultHTTPPort}
	}
	slices.Sort(d.ports)
	d.ports = slices.Compact(d.ports)
	return d
}

// doorObjects are those of the fleet's door, for the APIs that the cluster has.
func (f *Fleet) doorObjects(c Config) []client.Object {
	g := FleetGateway(f.PickerFleet)
	if !c.GIE || g.Mode != v1alpha1.GatewayAuto {
		return nil
	}
	d := f.door(c)
	all := []client.Object{FleetPool(*f)}
	if c.Routes && len(g.ParentRefs) > 0 {
		all = append(all, d.route())
	}
	for _, o := range d.traffic(&c) {
		all = append(all, o)
	}
	return all
}
