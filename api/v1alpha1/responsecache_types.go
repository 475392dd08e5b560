package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// ResponseCache defines which answers each picker keeps in its memory, for the same request of the same tenant. Only the picker's own
// proxy uses it: a gateway gets no answers from a picker. A change of the pool or of the policy empties it.
//
// +kubebuilder:validation:XValidation:rule="(has(self.type) && self.type == 'Semantic') == has(self.semantic)",message="semantic is for type Semantic, which needs it"
type ResponseCache struct {
	// type Exact answers only requests that are the same in all that can change the answer. Semantic also answers a request whose question,
	// the text of the last message, is similar to that of an earlier request of the same tenant, and that is the same in all else.
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
	// semantic defines how similar questions are found.
	// +optional
	Semantic SemanticMatch `json:"semantic,omitzero"`
	// store keeps the answers outside of the pickers, too, so that replicas share them.
	// +optional
	Store ResponseStore `json:"store,omitzero"`
}

// ResponseStore keeps answers outside of the pickers.
type ResponseStore struct {
	// redis is a server that speaks the protocol of Redis.
	// +required
	Redis RedisStore `json:"redis,omitzero"`
}

// RedisStore is a server with the protocol of Redis, 6.0 or newer. It gets answers that are sealed with the root of the pool's keys, under
// names that say nothing of the requests, each with its time to live. While it does not answer, each picker uses its own memory.
//
// +kubebuilder:validation:XValidation:rule="!has(self.caSecretRef) || self.url.startsWith('rediss:')",message="caSecretRef is for a URL of rediss"
// +kubebuilder:validation:XValidation:rule="!has(self.username) || has(self.passwordSecretRef)",message="username needs passwordSecretRef"
type RedisStore struct {
	// url of the server, such as redis://redis.caches:6379, or rediss with TLS.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=300
	// +kubebuilder:validation:Pattern=`^rediss?://([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}$`
	// +required
	URL string `json:"url,omitempty"`
	// username of the access control list of Redis; without it, the password is that of the default user.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9._@-]+$`
	// +optional
	Username string `json:"username,omitempty"`
	// passwordSecretRef names the entry of a Secret with the password.
	// +optional
	PasswordSecretRef SecretKey `json:"passwordSecretRef,omitzero"`
	// caSecretRef names the entry of a Secret with the certificates of the authorities that the server's certificate is checked by, in PEM.
	// Without it, those of the picker's image are used.
	// +optional
	CASecretRef SecretKey `json:"caSecretRef,omitzero"`
	// keyPrefix of the names on the server.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9._:-]+$`
	// +kubebuilder:default=kvasir
	// +optional
	KeyPrefix string `json:"keyPrefix,omitempty"`
	// timeoutMilliseconds of a question, which delays each request that the picker's own memory has no answer to.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=50
	// +optional
	TimeoutMilliseconds int32 `json:"timeoutMilliseconds,omitempty"`
}

// SemanticMatch defines which questions are similar. An answer to a similar question can be wrong: numbers in digits must be equal, but a
// negation or a name can differ.
type SemanticMatch struct {
	// embeddings is the service that makes vectors of the questions. It gets the text of each question that the cache has no answer to.
	// +required
	Embeddings EmbeddingService `json:"embeddings,omitzero"`
	// minSimilarityPercent is the least similarity of two questions, 100 times the cosine of the angle between their vectors. What it
	// should be depends on the model.
	// +kubebuilder:validation:Minimum=70
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=95
	// +optional
	MinSimilarityPercent int32 `json:"minSimilarityPercent,omitempty"`
}

// EmbeddingService makes vectors of texts, by POST /v1/embeddings of the OpenAI API. While it does not answer, only equal requests are
// answered from the cache.
type EmbeddingService struct {
	// url of the service, http or https, such as http://embeddings.models:8000/v1/embeddings.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^/?#@\s]+(/[^?#\s]*)?(\?[^#\s]*)?$`
	// +required
	URL string `json:"url,omitempty"`
	// model that the service is asked for.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +required
	Model string `json:"model,omitempty"`
	// keySecretRef names the entry of a Secret with the key for the service.
	// +optional
	KeySecretRef SecretKey `json:"keySecretRef,omitzero"`
	// timeoutMilliseconds of the whole call, which delays each request that the cache has no equal one to.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=5000
	// +kubebuilder:default=200
	// +optional
	TimeoutMilliseconds int32 `json:"timeoutMilliseconds,omitempty"`
}

// SecretNames are the Secrets that the cache needs.
func (c *ResponseCache) SecretNames() []string {
	var names []string
	for _, ref := range []SecretKey{c.Semantic.Embeddings.KeySecretRef, c.Store.Redis.PasswordSecretRef, c.Store.Redis.CASecretRef} {
		if ref.Name != "" {
			names = append(names, ref.Name)
		}
	}
	return names
}

// ResponseCacheType is how requests are compared.
//
// +kubebuilder:validation:Enum=Exact;Semantic
type ResponseCacheType string

// The types.
const (
	// ResponseCacheExact compares all that can change the answer.
	ResponseCacheExact ResponseCacheType = "Exact"
	// ResponseCacheSemantic also compares questions by their vectors.
	ResponseCacheSemantic ResponseCacheType = "Semantic"
)

// CachedRequests are those that are looked up.
//
// +kubebuilder:validation:Enum=Deterministic;OnRequest
type CachedRequests string

// The requests.
const (
	CachedDeterministic CachedRequests = "Deterministic"
	CachedOnRequest     CachedRequests = "OnRequest"
)
