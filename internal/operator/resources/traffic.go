package resources

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// Kinds by which single gateways are configured. Gateway API has nothing for what they set.
var (
	// DestinationRuleKind is Istio's, for connections to the pickers.
	DestinationRuleKind = schema.GroupVersionKind{Group: "networking.istio.io", Version: "v1", Kind: "DestinationRule"}
	// BackendTrafficPolicyKind is Envoy Gateway's, for connections to the engines.
	BackendTrafficPolicyKind = schema.GroupVersionKind{Group: "gateway.envoyproxy.io", Version: "v1alpha1", Kind: "BackendTrafficPolicy"}
	// HealthCheckPolicyKind and GCPBackendPolicyKind are GKE's, for the engines.
	HealthCheckPolicyKind = schema.GroupVersionKind{Group: "networking.gke.io", Version: "v1", Kind: "HealthCheckPolicy"}
	GCPBackendPolicyKind  = schema.GroupVersionKind{Group: "networking.gke.io", Version: "v1", Kind: "GCPBackendPolicy"}
)

// Traffic reports which of those kinds the cluster has.
type Traffic struct {
	DestinationRule, BackendTrafficPolicy, HealthCheckPolicy, GCPBackendPolicy bool
}

// Kinds are those that are there.
func (t Traffic) Kinds() []schema.GroupVersionKind {
	var kinds []schema.GroupVersionKind
	for _, kind := range []struct {
		gvk   schema.GroupVersionKind
		there bool
	}{
		{DestinationRuleKind, t.DestinationRule},
		{BackendTrafficPolicyKind, t.BackendTrafficPolicy},
		{HealthCheckPolicyKind, t.HealthCheckPolicy},
		{GCPBackendPolicyKind, t.GCPBackendPolicy},
	} {
		if kind.there {
			kinds = append(kinds, kind.gvk)
		}
	}
	return kinds
}

// IsTraffic reports whether a kind configures a single gateway. A pool serves without such an object, and users can
// bring their own.
func IsTraffic(kind schema.GroupVersionKind) bool {
	switch kind {
	case DestinationRuleKind, BackendTrafficPolicyKind, HealthCheckPolicyKind, GCPBackendPolicyKind:
		return true
	}
	return false
}

const (
	// manyRequests are more than pickers and engines have at once. Envoy's default of 1024 for each counts requests until
	// their answers have ended, which takes minutes.
	manyRequests = int64(100_000)
	// longestAnswer in seconds, where a limit must be set.
	longestAnswer = int64(86_400)
	// enginesIdle is less than the default time after which engines close idle connections.
	enginesIdle = "4s"
)

// traffic are the objects of gateways' own kinds that the pool needs to be served as well as it can be.
func (b *builder) traffic() []*unstructured.Unstructured {
	g := &b.pool.Spec.Gateway
	if !b.GIE || g.Mode == v1alpha1.GatewayDisabled || g.TrafficPolicies == v1alpha1.TrafficPoliciesNone {
		return nil
	}
	var all []*unstructured.Unstructured
	if b.Traffic.DestinationRule && b.ownPickers() {
		all = append(all, b.pickers().destinationRule())
	}
	if g.Mode != v1alpha1.GatewayAuto {
		return all
	}
	e := &b.pool.Spec.Engine
	d := door{meta: b.meta(b.pool.Name), gateway: g, ports: portsOf(e), secure: e.TLS.Verification != ""}
	return append(all, d.traffic(&b.Config)...)
}

// traffic are the objects by which single gateways are configured for the engines.
func (d *door) traffic(c *Config) []*unstructured.Unstructured {
	if d.gateway.TrafficPolicies == v1alpha1.TrafficPoliciesNone {
		return nil
	}
	var all []*unstructured.Unstructured
	if c.Traffic.BackendTrafficPolicy && c.Routes && len(d.gateway.ParentRefs) > 0 {
		all = append(all, d.backendTrafficPolicy())
	}
	if c.Traffic.HealthCheckPolicy {
		all = append(all, d.healthCheckPolicy())
	}
	if c.Traffic.GCPBackendPolicy {
		all = append(all, d.gcpBackendPolicy())
	}
	return all
}

// destinationRule configures how Istio connects to the pickers: with TLS that is not verified, unless it is off, without a
// limit on parallel requests, and avoiding replicas that fail. It is for the port of ext_proc alone: the other ports have
// other protocols.
func (p *pickers) destinationRule() *unstructured.Unstructured {
	settings := map[string]any{
		"port": map[string]any{"number": int64(ExtProcPort)},
		"connectionPool": map[string]any{
			"http": map[string]any{"http2MaxRequests": manyRequests, "http1MaxPendingRequests": manyRequests},
			"tcp":  map[string]any{"maxConnections": manyRequests},
		},
	}
	if p.settings.TLS.Type != v1alpha1.TLSPlaintext {
		settings["tls"] = map[string]any{"mode": "SIMPLE", "insecureSkipVerify": true}
	}
	// A replica is ejected at its first failure: each further one is a request that fails. Only connections that break count,
	// and answers of 502 to 504, which a picker that works does not give. At most half of the replicas are ejected; if there is
	// only one, none would be left.
	if p.settings.Replicas > 1 {
		settings["outlierDetection"] = map[string]any{
			"consecutiveGatewayErrors": int64(1), "interval": "1s", "baseEjectionTime": "5s", "maxEjectionPercent": int64(50),
		}
	}
	// A name without a dot is completed by Istio with the rule's namespace and the cluster's domain, whatever that is.
	name := p.names.Pickers
	return loose(DestinationRuleKind, p.meta(name), map[string]any{
		"host":          name,
		"trafficPolicy": map[string]any{"portLevelSettings": []any{settings}},
	})
}

// backendTrafficPolicy configures how Envoy Gateway connects to the engines: it does not reuse connections that they might
// be closing, retries what did not reach one, and does not limit parallel requests. It is merged with the Gateway's own.
func (d *door) backendTrafficPolicy() *unstructured.Unstructured {
	return loose(BackendTrafficPolicyKind, d.meta, map[string]any{
		"mergeType":  "StrategicMerge",
		"targetRefs": []any{map[string]any{"group": RouteKind.Group, "kind": RouteKind.Kind, "name": d.meta.Name}},
		"circuitBreaker": map[string]any{
			"maxConnections": manyRequests, "maxPendingRequests": manyRequests, "maxParallelRequests": manyRequests,
		},
		"timeout": map[string]any{"http": map[string]any{"connectionIdleTimeout": enginesIdle}},
		"retry": map[string]any{
			"numRetries": int64(2),
			"retryOn":    map[string]any{"triggers": []any{"connect-failure", "reset-before-request"}},
		},
	})
}

// healthCheckPolicy configures the health check of the engines on GKE.
func (d *door) healthCheckPolicy() *unstructured.Unstructured {
	config := map[string]any{"type": "HTTP"}
	check := "httpHealthCheck"
	if d.secure {
		config["type"], check = "HTTPS", "httpsHealthCheck"
	}
	config[check] = map[string]any{"requestPath": "/health", "port": int64(d.ports[0])}
	return loose(HealthCheckPolicyKind, d.meta, map[string]any{
		"targetRef": giePoolRef(d.meta.Name), "default": map[string]any{"config": config},
	})
}

// gcpBackendPolicy configures how long an answer can take on GKE: GKE refuses the setting in routes, and its default is 30
// s.
func (d *door) gcpBackendPolicy() *unstructured.Unstructured {
	seconds := longestAnswer
	if g := d.gateway; g.RequestTimeout == v1alpha1.RequestTimeoutLimited {
		seconds = int64(g.RequestTimeoutSeconds)
	}
	return loose(GCPBackendPolicyKind, d.meta, map[string]any{
		"targetRef": giePoolRef(d.meta.Name), "default": map[string]any{"timeoutSec": seconds},
	})
}

func giePoolRef(name string) map[string]any {
	return map[string]any{"group": GIEKind.Group, "kind": GIEKind.Kind, "name": name}
}
