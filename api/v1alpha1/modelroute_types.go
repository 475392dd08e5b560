package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ModelRoute says to which pools requests for some models go. It is experimental: its fields can change in any release.
//
// Pickers of a PickerFleet follow the routes of their namespace, and standalone pickers those of their files. Pickers that
// serve one pool follow none.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=modelroutes,scope=Namespaced,shortName=kvroute,categories={kvasir}
// +kubebuilder:printcolumn:name="Models",type=string,JSONPath=`.spec.models`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Resolved",type=string,JSONPath=`.status.conditions[?(@.type=="ResolvedRefs")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ModelRoute struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// spec is where requests go.
	// +required
	Spec ModelRouteSpec `json:"spec,omitzero"`
	// status is what was made of the route.
	// +optional
	Status ModelRouteStatus `json:"status,omitempty,omitzero"`
}

// ModelRouteList is a list of routes.
//
// +kubebuilder:object:root=true
type ModelRouteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ModelRoute `json:"items"`
}

// ModelRouteSpec is where the requests for some models go.
type ModelRouteSpec struct {
	// models are the names that clients use, 1 to 16. If another route of the namespace has one of them, the older route is
	// applied, and the other one is not.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	// +required
	Models []ModelName `json:"models,omitempty"`
	// rules are tried in order, 1 to 16. A request that matches none is answered as one for a model that does not exist.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +required
	Rules []ModelRouteRule `json:"rules,omitempty"`
	// timeouts bound a request. Absent, only the pools' own limits do.
	// +optional
	Timeouts ModelRouteTimeouts `json:"timeouts,omitzero"`
	// limits of all requests by the route, whatever the tenant. They apply to all replicas of the picker together. Absent, only those of
	// tenants and pools apply.
	// +optional
	Limits ModelRouteLimits `json:"limits,omitzero"`
}

// ModelRouteRule says where the requests go that it matches.
//
// +kubebuilder:validation:XValidation:rule="(has(self.fallback) && size(self.fallback) > 0) || (!has(self.fallbackOn) && !has(self.fallbackWithinMilliseconds))",message="the pools that fallbackOn and fallbackWithinMilliseconds are about",fieldPath=".fallback",reason="FieldValueRequired"
// +kubebuilder:validation:XValidation:rule="!has(self.mirrors) || self.mirrors.all(m, self.backends.exists(b, b.pool != m.pool || has(b.modelName) != has(m.modelName) || (has(m.modelName) && b.modelName != m.modelName)))",message="a mirror must differ from the backends: this one would send each request to the same engines twice",fieldPath=".mirrors"
type ModelRouteRule struct {
	// matches are alternatives, at most 8. Without any, the rule matches every request.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	Matches []ModelRouteMatch `json:"matches,omitempty"`
	// backends share the requests by weight, 1 to 8.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.exists(b, !has(b.weight) || b.weight != 0)",message="all weights are 0, so that no backend gets a request"
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a.pool == b.pool && (has(a.modelName) ? a.modelName : '') == (has(b.modelName) ? b.modelName : '')))",message="no two backends may have the same pool and the same modelName: add up their weights"
	// +listType=atomic
	// +required
	Backends []ModelRouteBackend `json:"backends,omitempty"`
	// fallback lists pools that are tried in order when a backend does not serve a request, at most 4.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a.pool == b.pool && (has(a.modelName) ? a.modelName : '') == (has(b.modelName) ? b.modelName : '')))",message="no two fallbacks may have the same pool and the same modelName"
	// +listType=atomic
	// +optional
	Fallback []ModelRouteFallback `json:"fallback,omitempty"`
	// fallbackOn are the causes: the pool is Full, Cold (no endpoint) or Down. Absent, all of them. Only with fallback.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=3
	// +listType=set
	// +optional
	FallbackOn []FallbackCause `json:"fallbackOn,omitempty"`
	// fallbackWithinMilliseconds is how long after its arrival a request can go to a fallback, and how long it waits in the
	// queue of its pool before it does. Absent, 10000. Only with fallback.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=600000
	// +optional
	FallbackWithinMilliseconds int32 `json:"fallbackWithinMilliseconds,omitempty"`
	// mirrors get copies of requests, and their answers are thrown away, at most 4. Clients notice nothing of them. The picker sends them
	// itself: behind a gateway there are none.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a.pool == b.pool && (has(a.modelName) ? a.modelName : '') == (has(b.modelName) ? b.modelName : '')))",message="no two mirrors may have the same pool and the same modelName"
	// +listType=atomic
	// +optional
	Mirrors []ModelRouteMirror `json:"mirrors,omitempty"`
	// sticky Session lets the requests of a session stay with one backend; None spreads all by chance.
	// +kubebuilder:default=Session
	// +optional
	Sticky RouteStickiness `json:"sticky,omitempty"`
}

// ModelRouteMatch is a condition: all of its parts must hold.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="has(self.tenant) || (has(self.headers) && size(self.headers) > 0)",message="a tenant or headers are required; without matches, a rule is for every request"
type ModelRouteMatch struct {
	// tenant as the policy of the rule's first pool identifies it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Tenant string `json:"tenant,omitempty"`
	// headers that a request must have, at most 8.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a.name.lowerAscii() == b.name.lowerAscii()))",message="no two headers may have the same name, whatever its case"
	// +listType=atomic
	// +optional
	Headers []ModelRouteHeader `json:"headers,omitempty"`
}

// ModelRouteHeader is a header with exactly this value.
type ModelRouteHeader struct {
	// name of the header. Its case does not count.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9!#$%&'*+.^_\x60|~-]+$`
	// +required
	Name string `json:"name,omitempty"`
	// value of the header. Its case counts.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[^\x00-\x08\x0a-\x1f\x7f]+$`
	// +required
	Value string `json:"value,omitempty"`
}

// ModelRouteBackend is a pool of the route's namespace.
type ModelRouteBackend struct {
	// pool is the name of an InferencePool.
	// +required
	Pool PoolName `json:"pool,omitempty"`
	// weight in relation to those of the rule's other backends. With 0, the backend gets no requests.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	// +kubebuilder:default=1
	// +optional
	Weight *int32 `json:"weight,omitempty"`
	// modelName that the engines get, one of the pool's names. Absent, that of the pool's model.
	// +optional
	ModelName ModelName `json:"modelName,omitempty"`
}

// ModelRouteFallback is a pool of the route's namespace.
type ModelRouteFallback struct {
	// pool is the name of an InferencePool.
	// +required
	Pool PoolName `json:"pool,omitempty"`
	// modelName that the engines get, one of the pool's names. Absent, that of the pool's model.
	// +optional
	ModelName ModelName `json:"modelName,omitempty"`
}

// ModelRouteMirror is a pool of the route's namespace that gets copies of requests.
type ModelRouteMirror struct {
	// pool is the name of an InferencePool.
	// +required
	Pool PoolName `json:"pool,omitempty"`
	// percent of the requests that are copied: of their sessions, where the rule is sticky. With 0, none are.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=100
	// +optional
	Percent *int32 `json:"percent,omitempty"`
	// modelName that the engines get, one of the pool's names. Absent, that of the pool's model.
	// +optional
	ModelName ModelName `json:"modelName,omitempty"`
}

// PoolName is the name of an InferencePool of the same namespace.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=253
// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
type PoolName string

// FallbackCause is why a request goes to a fallback.
//
// +kubebuilder:validation:Enum=Full;Cold;Down
type FallbackCause string

// The causes of fallbacks.
const (
	FallbackFull FallbackCause = "Full"
	FallbackCold FallbackCause = "Cold"
	FallbackDown FallbackCause = "Down"
)

// RouteStickiness defines which requests stay with one backend.
//
// +kubebuilder:validation:Enum=Session;None
type RouteStickiness string

// Which requests stay with one backend.
const (
	StickySession RouteStickiness = "Session"
	StickyNone    RouteStickiness = "None"
)

// ModelRouteTimeouts bound a request.
//
// +kubebuilder:validation:MinProperties=1
type ModelRouteTimeouts struct {
	// requestSeconds from a request's arrival to the end of its answer.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +optional
	RequestSeconds int32 `json:"requestSeconds,omitempty"`
}

// ModelRouteLimits bound the requests by a route. A request beyond them gets 429.
//
// +kubebuilder:validation:MinProperties=1
type ModelRouteLimits struct {
	// requestsPerMinute by the route. Absent, no limit.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	// +optional
	RequestsPerMinute int32 `json:"requestsPerMinute,omitempty"`
	// maxConcurrent requests by the route, including those that wait. Absent, no limit.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	// +optional
	MaxConcurrent int32 `json:"maxConcurrent,omitempty"`
}

// ModelRouteStatus is what was made of a route.
//
// +kubebuilder:validation:MinProperties=1
type ModelRouteStatus struct {
	// conditions of the route: Accepted, whether it is applied, and ResolvedRefs, whether its pools are there.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
