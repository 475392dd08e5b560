package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// ResponseCache defines which answers each picker keeps in its memory, for the same request of the same tenant. Only the picker's own
// proxy uses it: a gateway gets no answers from a picker. A change of the pool or of the policy empties it.
type ResponseCache struct {
	// type Exact answers only requests that are the same in all that can change the answer.
	// +required
	Type ResponseCacheType `json:"type,omitempty"`
	// requests are those that are looked up: Deterministic, if they have one answer (temperature 0 and one choice, or embeddings) or their
	// client asks for it by the header x-kvasir-cache: true; OnRequest, only if the client asks.
	// +kubebuilder:default=Deterministic
	// +optional
	Requests CachedRequests `json:"requests,omitempty"`
	// maxBytes that the answers of the pool can take in each picker, 1Mi to 16Gi. A picker gives all its caches together a twentieth of its
	// memory limit at most.
	// +kubebuilder:default="32Mi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1Mi')) >= 0 && quantity(string(self)).compareTo(quantity('16Gi')) <= 0",message="maxBytes must be 1Mi to 16Gi"
	// +optional
	MaxBytes resource.Quantity `json:"maxBytes,omitempty,omitzero"`
	// timeToLiveSeconds after which an answer is not used any more.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:default=600
	// +optional
	TimeToLiveSeconds int32 `json:"timeToLiveSeconds,omitempty"`
}

// ResponseCacheType is how requests are compared.
//
// +kubebuilder:validation:Enum=Exact
type ResponseCacheType string

// ResponseCacheExact compares all that can change the answer.
const ResponseCacheExact ResponseCacheType = "Exact"

// CachedRequests are those that are looked up.
//
// +kubebuilder:validation:Enum=Deterministic;OnRequest
type CachedRequests string

// The requests.
const (
	CachedDeterministic CachedRequests = "Deterministic"
	CachedOnRequest     CachedRequests = "OnRequest"
)
