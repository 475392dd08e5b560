package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// Admission defines what happens to requests when the pool is full.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="!has(self.tenants) || !has(self.tenants.classes) || self.tenants.classes.all(c, !has(c.maxPriority) || (has(self.priorities) && self.priorities.exists(p, p.name == c.maxPriority)))",message="a tenant class's maxPriority must name one of priorities"
// +kubebuilder:validation:XValidation:rule="!has(self.defaultPriority) || (has(self.priorities) && self.priorities.exists(p, p.name == self.defaultPriority))",message="defaultPriority must name one of priorities"
type Admission struct {
	// mode Queue keeps requests in the picker while the pool is full; "Off" sends them on at once. In YAML it is written
	// in quotes, because a bare Off is a boolean.
	// +kubebuilder:default=Queue
	// +optional
	Mode AdmissionMode `json:"mode,omitempty"`
	// waitBudgetMilliseconds is how much prefill an endpoint can have before it, in predicted time, and still be sent
	// another request. Further requests for it wait in the picker, where priorities and tenants count.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=600000
	// +kubebuilder:default=250
	// +optional
	WaitBudgetMilliseconds *int32 `json:"waitBudgetMilliseconds,omitempty"`
	// maxSlowdownPercent is the target for first tokens: within so many percent of the time that the prefill of the whole
	// prompt takes on an endpoint that has nothing to do and holds nothing of it. A request goes to an endpoint only if
	// it should meet that there, waits until there is one, and is refused with 429 as soon as there can be none any more.
	// waitBudgetMilliseconds then says nothing. Absent, there is no target.
	// +kubebuilder:validation:Minimum=110
	// +kubebuilder:validation:Maximum=100000
	// +optional
	MaxSlowdownPercent int32 `json:"maxSlowdownPercent,omitempty"`
	// queue bounds what one picker replica keeps. Beyond it requests get 429 with Retry-After.
	// +kubebuilder:default={maxRequests: 1024}
	// +optional
	Queue Queue `json:"queue,omitzero"`
	// holdSeconds that a request waits while pods load or the pool is at zero; then it gets 503.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	// +kubebuilder:default=300
	// +optional
	HoldSeconds *int32 `json:"holdSeconds,omitempty"`
	// shed defines which requests are refused first when the queue is full: requests of new sessions, or the newest requests.
	// +kubebuilder:default=NewSessionsFirst
	// +optional
	Shed ShedOrder `json:"shed,omitempty"`
	// priorities that a request may name, at most 16.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Priorities []Priority `json:"priorities,omitempty"`
	// defaultPriority of requests that name none. Absent, level 0.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	DefaultPriority string `json:"defaultPriority,omitempty"`
	// tenants define how the tenant of a request is found, and the limits of each tenant. If absent, there is one tenant without limits.
	// +optional
	Tenants Tenants `json:"tenants,omitzero"`
	// engineFields that requests may set, though they control the engine and not the answer. Priority: the place in the
	// engine's scheduler (priority, X-Vllm-Priority). KVTransfer: blocks from and for other engines, and the engine's rank
	// (kv_transfer_params, ec_transfer_params, SGLang's bootstrap_* and data_parallel_rank, x-prefiller-host-port). What
	// is not listed here or in the tenant's class does not reach engines: a priority and headers are removed, and other
	// fields get 400. Absent, none.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=2
	// +listType=set
	// +optional
	EngineFields []EngineField `json:"engineFields,omitempty"`
	// allowedOrigins of web pages that may send requests from browsers (CORS), at most 32: a scheme, a host and a port if
	// it is not the scheme's, as browsers send it in Origin, or * for any. Pickers answer preflights by this list and never
	// send them to engines. A picker that serves several pools allows what any of their policies does. Absent, none:
	// preflights get 403.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:Pattern=`^(\*|[a-z][a-z0-9+.-]*://[^/?#@\s]+)$`
	// +listType=set
	// +optional
	AllowedOrigins []string `json:"allowedOrigins,omitempty"`
}

// EngineField is a kind of fields and headers that control the engine.
//
// +kubebuilder:validation:Enum=Priority;KVTransfer
type EngineField string

// The kinds.
const (
	EngineFieldPriority   EngineField = "Priority"
	EngineFieldKVTransfer EngineField = "KVTransfer"
)

// AdmissionMode controls whether requests wait in the picker.
//
// +kubebuilder:validation:Enum=Queue;Off
type AdmissionMode string

// The admission modes.
const (
	AdmissionQueue AdmissionMode = "Queue"
	AdmissionOff   AdmissionMode = "Off"
)

// ShedOrder defines which requests are refused first when a queue is full.
//
// +kubebuilder:validation:Enum=NewSessionsFirst;NewestFirst
type ShedOrder string

// The orders.
const (
	ShedNewSessionsFirst ShedOrder = "NewSessionsFirst"
	ShedNewestFirst      ShedOrder = "NewestFirst"
)

// Queue bounds what one picker replica keeps.
//
// +kubebuilder:validation:MinProperties=1
type Queue struct {
	// maxRequests kept.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	// +kubebuilder:default=1024
	// +optional
	MaxRequests *int32 `json:"maxRequests,omitempty"`
	// maxBytes of their bodies kept, at least 1Ki.
	// +kubebuilder:default="256Mi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1Ki')) >= 0",message="maxBytes must be at least 1Ki"
	// +optional
	MaxBytes resource.Quantity `json:"maxBytes,omitempty,omitzero"`
	// timeToLiveSeconds after which a kept request is refused.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	// +kubebuilder:default=60
	// +optional
	TimeToLiveSeconds int32 `json:"timeToLiveSeconds,omitempty"`
}

// Priority is a class of requests.
type Priority struct {
	// name that requests use.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +required
	Name string `json:"name,omitempty"`
	// level of the priority, -1000 to 1000: a higher level is served first, a negative one is shed first.
	// +kubebuilder:validation:Minimum=-1000
	// +kubebuilder:validation:Maximum=1000
	// +required
	Level *int32 `json:"level,omitempty"`
	// timeToLiveSeconds in the queue for requests of this priority. Absent, the queue's.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	// +optional
	TimeToLiveSeconds int32 `json:"timeToLiveSeconds,omitempty"`
}

// Tenants define how the tenant of a request is found, and the limits of each tenant.
//
// +kubebuilder:validation:XValidation:rule="self.identification in ['Header', 'JWT'] || (has(self.secretRefs) && size(self.secretRefs) > 0)",message="identification APIKey and ClientCertificate need secretRefs"
// +kubebuilder:validation:XValidation:rule="self.identification == 'Header' || !has(self.headerName)",message="headerName is only for identification Header"
// +kubebuilder:validation:XValidation:rule="has(self.jwt) == (self.identification == 'JWT')",message="jwt is required when identification is JWT, and only then"
// +kubebuilder:validation:XValidation:rule="self.classes.exists(c, c.name == self.defaultClass)",message="defaultClass must name one of classes"
type Tenants struct {
	// identification of a tenant: by the API key in Authorization: Bearer, by a header that an authenticating
	// gateway sets, by the certificate that a client of the pickers' proxy shows (picker.proxyTLS.clientCASecretRef), or by a
	// signed token (JWT) in Authorization: Bearer.
	// +required
	Identification TenantIdentification `json:"identification,omitempty"`
	// headerName of that header; only with identification Header. Absent, x-gateway-inference-fairness-id.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9-]+$`
	// +optional
	HeaderName string `json:"headerName,omitempty"`
	// jwt defines which tokens name tenants; only with identification JWT.
	// +optional
	JWT TokenIssuer `json:"jwt,omitzero"`
	// unknown defines what happens to requests of no known tenant: Reject with 401, or DefaultClass.
	// +kubebuilder:default=Reject
	// +optional
	Unknown UnknownTenant `json:"unknown,omitempty"`
	// secretRefs name the Secrets that hold the tenants, at most 16; needed for APIKey and ClientCertificate.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	SecretRefs []LocalName `json:"secretRefs,omitempty"`
	// classes of tenants, 1 to 32.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	// +required
	Classes []TenantClass `json:"classes,omitempty"`
	// defaultClass of tenants that name none.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:default=default
	// +optional
	DefaultClass string `json:"defaultClass,omitempty"`
	// cacheSalt separates the tenants' blocks in the engines' caches. None: tenants share blocks, and learn from
	// cached_tokens and response times which prompts others have sent. PerTenant: each tenant has its own cache_salt, made
	// from the pool's key root; requests that cannot carry one, such as those of /v1/messages, get 400.
	// +kubebuilder:default=None
	// +optional
	CacheSalt CacheSalt `json:"cacheSalt,omitempty"`
}

// CacheSalt defines which requests share blocks in the engines' caches.
//
// +kubebuilder:validation:Enum=None;PerTenant
type CacheSalt string

// Which requests share blocks.
const (
	CacheSaltNone      CacheSalt = "None"
	CacheSaltPerTenant CacheSalt = "PerTenant"
)

// TenantIdentification defines how a tenant is known.
//
// +kubebuilder:validation:Enum=APIKey;Header;ClientCertificate;JWT
type TenantIdentification string

// The ways to know a tenant.
const (
	IdentifyByAPIKey      TenantIdentification = "APIKey"
	IdentifyByHeader      TenantIdentification = "Header"
	IdentifyByCertificate TenantIdentification = "ClientCertificate"
	IdentifyByJWT         TenantIdentification = "JWT"
)

// TokenIssuer signs tokens that name tenants, such as a provider of OpenID Connect. Pickers fetch its keys over https, with the
// authorities that their image trusts, and keep them while it cannot be reached.
type TokenIssuer struct {
	// issuer of the tokens, as they name it (iss): an https URL.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?$`
	// +required
	Issuer string `json:"issuer,omitempty"`
	// audiences of tokens that are accepted (aud), 1 to 8: a token needs one of them.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +required
	Audiences []string `json:"audiences,omitempty"`
	// keysURL is the https URL of the issuer's JSON Web Key Set. Absent, the jwks_uri of the issuer's
	// /.well-known/openid-configuration.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/?=&-]*)?$`
	// +optional
	KeysURL string `json:"keysURL,omitempty"`
	// tenantClaim is the claim of a token whose value, a string, is the tenant.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:default=sub
	// +optional
	TenantClaim string `json:"tenantClaim,omitempty"`
	// caCertificates of authorities that sign the certificate of the issuer's server, in PEM, at most 64 KiB. Those of the system
	// are trusted as well.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	// +kubebuilder:validation:Pattern=`-----BEGIN CERTIFICATE-----`
	// +optional
	CACertificates string `json:"caCertificates,omitempty"`
}

// UnknownTenant defines what happens to requests of no known tenant.
//
// +kubebuilder:validation:Enum=Reject;DefaultClass
type UnknownTenant string

// What happens to requests of no known tenant.
const (
	UnknownReject       UnknownTenant = "Reject"
	UnknownDefaultClass UnknownTenant = "DefaultClass"
)

// TenantClass says what each tenant of it may use. Rates are per pool: the replicas of the picker share the counters.
type TenantClass struct {
	// name of the class.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name,omitempty"`
	// weight of each tenant in the queue.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=1
	// +optional
	Weight int32 `json:"weight,omitempty"`
	// requestsPerMinute of each tenant. Absent, no limit.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	// +optional
	RequestsPerMinute int32 `json:"requestsPerMinute,omitempty"`
	// tokensPerMinute of each tenant, prompt and answer. Absent, no limit.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000000
	// +optional
	TokensPerMinute int64 `json:"tokensPerMinute,omitempty"`
	// maxConcurrent requests of each tenant. Absent, no limit.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	// +optional
	MaxConcurrent int32 `json:"maxConcurrent,omitempty"`
	// models a tenant may name, at most 32; a trailing * matches a prefix. Absent, all. Others get 403.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=set
	// +optional
	Models []string `json:"models,omitempty"`
	// maxPriority that a tenant's requests get at most; one of the policy's priorities. Absent, no limit.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	MaxPriority string `json:"maxPriority,omitempty"`
	// engineFields that requests of its tenants may set, beside those that all may.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=2
	// +listType=set
	// +optional
	EngineFields []EngineField `json:"engineFields,omitempty"`
}
