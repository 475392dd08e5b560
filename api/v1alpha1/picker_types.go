package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Picker is the service that picks an endpoint for each request of the pool.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="has(self.external) == (self.mode == 'External')",message="external is required when mode is External, and only then"
// +kubebuilder:validation:XValidation:rule="!has(self.fleetRef) || self.mode == 'Fleet'",message="fleetRef is only for mode Fleet"
// +kubebuilder:validation:XValidation:rule="!has(self.fleetRef) || size(self.fleetRef.name) <= 45 && self.fleetRef.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="fleetRef.name must be the name of a PickerFleet: a DNS label that starts with a letter, at most 45 characters"
// +kubebuilder:validation:XValidation:rule="self.mode == 'Managed' || (!has(self.island) && !has(self.tracing) && !has(self.compatibilityMetrics) && !has(self.profiling) && !has(self.decisionLog) && !has(self.usageRecords) && !has(self.proxyTLS))",message="island, tracing, compatibilityMetrics, profiling, decisionLog, usageRecords and proxyTLS configure managed pickers; external pickers have flags for them, and fleets have fields"
// +kubebuilder:validation:XValidation:rule="!has(self.proxyTLS) || self.proxy == 'Enabled'",message="proxyTLS needs the proxy"
type Picker struct {
	// mode Managed runs a Deployment of pickers for the pool alone; Fleet leaves the pool to a PickerFleet, which serves many;
	// External uses a Service that somebody else runs.
	// +kubebuilder:default=Managed
	// +optional
	Mode PickerMode `json:"mode,omitempty"`
	// external names the Service of the pickers; only with mode External.
	// +optional
	External ExternalPicker `json:"external,omitzero"`
	// fleetRef names the PickerFleet, of the same namespace, that serves the pool; only with mode Fleet. Absent, the one
	// named default.
	// +optional
	FleetRef LocalName `json:"fleetRef,omitzero"`

	PickerSettings `json:",inline"`
}

// FleetName is the fleet that the pool is left to; empty in other modes than Fleet.
func (p *Picker) FleetName() string {
	switch {
	case p.Mode != PickerOfFleet:
		return ""
	case p.FleetRef.Name != "":
		return p.FleetRef.Name
	}
	return DefaultFleet
}

// PickerSettings configure pickers that the operator runs.
//
// +kubebuilder:validation:MinProperties=1
type PickerSettings struct {
	// replicas of the picker, 1 to 16. Every one picks; none is a leader.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16
	// +kubebuilder:default=2
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// indexMemory is the budget of the block index in one replica, at least 16Mi. That of a PickerFleet is for the indexes of all
	// its pools together, besides the budget of each.
	// +kubebuilder:default="1Gi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('16Mi')) >= 0",message="indexMemory must be at least 16Mi"
	// +optional
	IndexMemory resource.Quantity `json:"indexMemory,omitempty,omitzero"`
	// maxRequestBody above which a request is refused with 413, at least 1Ki.
	// +kubebuilder:default="64Mi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1Ki')) >= 0",message="maxRequestBody must be at least 1Ki"
	// +optional
	MaxRequestBody resource.Quantity `json:"maxRequestBody,omitempty,omitzero"`
	// proxy controls whether the picker also serves requests itself, without a gateway.
	// +kubebuilder:default=Enabled
	// +optional
	Proxy Switch `json:"proxy,omitempty"`
	// tls of the picker's ports.
	// +kubebuilder:default={type: SelfSigned}
	// +optional
	TLS PickerTLS `json:"tls,omitzero"`
	// proxyTLS serves the clients of the proxy over TLS. Absent, they are served without.
	// +optional
	ProxyTLS ProxyTLS `json:"proxyTLS,omitzero"`
	// networkPolicy controls whether a NetworkPolicy for the pickers is made. With None, none is made for the engines
	// either, unless engine.networkPolicy is set.
	// +kubebuilder:default=Managed
	// +optional
	NetworkPolicy NetworkPolicyMode `json:"networkPolicy,omitempty"`
	// resources of the picker's container.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
	// pod shapes the picker's pods.
	// +optional
	Pod *PickerPod `json:"pod,omitempty"`
	// island where the pickers run, as placement.islands names it. The policy's guards.islandCrossing counts from there,
	// and endpoints on it have no network distance. It does not place the pickers: pod.nodeSelector does. Absent, the
	// pickers are on no island: the distance to each is its latencyMilliseconds, and every island may be used.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +optional
	Island string `json:"island,omitempty"`
	// tracing sends traces of requests to an OpenTelemetry collector. Absent, there are none.
	// +optional
	Tracing Tracing `json:"tracing,omitzero"`
	// compatibilityMetrics also exports metrics under the names that dashboards of inference gateways use. Absent,
	// Disabled.
	// +optional
	CompatibilityMetrics Switch `json:"compatibilityMetrics,omitempty"`
	// profiling serves profiles of the process, /debug/pprof, on the metrics port, to accounts that can get
	// inferencepools/metrics. Absent, Disabled.
	// +optional
	Profiling Switch `json:"profiling,omitempty"`
	// decisionLog bounds the log of decisions, to which the policy's decisions.logPercent of the requests are written.
	// +optional
	DecisionLog DecisionLog `json:"decisionLog,omitzero"`
	// usageRecords has each replica record what its requests have used, for billing and audit. Absent, nothing is recorded.
	// +optional
	UsageRecords UsageRecords `json:"usageRecords,omitzero"`
}

// Tracing sends traces of requests to an OpenTelemetry collector, by OTLP.
//
// +kubebuilder:validation:MinProperties=1
type Tracing struct {
	Collector `json:",inline"`

	// samplePercent of the requests that are traced, among those for which neither client nor gateway has decided.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=100
	// +optional
	SamplePercent *int32 `json:"samplePercent,omitempty"`
}

// Collector is an OpenTelemetry collector, and how pickers send to it.
type Collector struct {
	// endpoint is the URL of the collector, http or https, such as http://collector.observability:4317.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?$|^https?://\[[0-9a-fA-F:.]+\](:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?$`
	// +required
	Endpoint string `json:"endpoint,omitempty"`
	// protocol of the collector: GRPC, or HTTP for protobuf over HTTP.
	// +kubebuilder:default=GRPC
	// +optional
	Protocol CollectorProtocol `json:"protocol,omitempty"`
	// headersSecretRef is the entry with headers that the collector requires, such as a key, as name=value pairs
	// separated by commas. While it does not exist, pickers send without them.
	// +optional
	HeadersSecretRef SecretKey `json:"headersSecretRef,omitzero"`
	// caSecretRef is the entry with the CA certificates, in PEM, for an https endpoint. Absent, the ones that the
	// picker's system trusts.
	// +optional
	CASecretRef SecretKey `json:"caSecretRef,omitzero"`
}

// CollectorProtocol is how pickers send to a collector.
//
// +kubebuilder:validation:Enum=GRPC;HTTP
type CollectorProtocol string

// The protocols of collectors.
const (
	CollectorGRPC CollectorProtocol = "GRPC"
	CollectorHTTP CollectorProtocol = "HTTP"
)

// DecisionLog bounds the log of decisions of one replica.
//
// +kubebuilder:validation:MinProperties=1
type DecisionLog struct {
	// size that the log can take on the node's disk, at least 4Mi; the oldest quarter is removed when it is full.
	// +kubebuilder:default="256Mi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('4Mi')) >= 0",message="size must be at least 4Mi"
	// +optional
	Size resource.Quantity `json:"size,omitempty,omitzero"`
}

// UsageRecords defines where a replica keeps records of what its requests have used, and where it sends them.
//
// +kubebuilder:validation:MinProperties=1
type UsageRecords struct {
	// file keeps the records in files on the node's disk, which the picker serves at /usage-log. They are lost with the pod.
	// +optional
	File UsageFile `json:"file,omitzero"`
	// otlp sends the records to an OpenTelemetry collector, as logs by OTLP.
	// +optional
	OTLP Collector `json:"otlp,omitzero"`
}

// UsageFile bounds the files with records of use of one replica.
//
// +kubebuilder:validation:MinProperties=1
type UsageFile struct {
	// size that the files can take on the node's disk, at least 4Mi; the oldest quarter is removed when they are full. A
	// record takes about 600 bytes.
	// +kubebuilder:default="256Mi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('4Mi')) >= 0",message="size must be at least 4Mi"
	// +optional
	Size resource.Quantity `json:"size,omitempty,omitzero"`
}

// PickerMode selects which pickers serve a pool.
//
// +kubebuilder:validation:Enum=Managed;Fleet;External
type PickerMode string

// The picker modes.
const (
	PickerManaged  PickerMode = "Managed"
	PickerOfFleet  PickerMode = "Fleet"
	PickerExternal PickerMode = "External"
)

// NetworkPolicyMode selects whether the operator or the user makes NetworkPolicies.
//
// +kubebuilder:validation:Enum=Managed;None
type NetworkPolicyMode string

// The NetworkPolicy modes.
const (
	NetworkPolicyManaged NetworkPolicyMode = "Managed"
	NetworkPolicyNone    NetworkPolicyMode = "None"
)

// ExternalPicker names the Service of pickers that somebody else runs.
type ExternalPicker struct {
	// serviceName of a Service of the same namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	ServiceName string `json:"serviceName,omitempty"`
	// port where it speaks ext_proc.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:default=9002
	// +optional
	Port int32 `json:"port,omitempty"`
}

// PickerTLS defines where the certificate of the pickers comes from.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="has(self.secretRef) == (self.type == 'Secret')",message="secretRef is required when type is Secret, and only then"
// +kubebuilder:validation:XValidation:rule="has(self.issuerRef) == (self.type == 'CertManager')",message="issuerRef is required when type is CertManager, and only then"
type PickerTLS struct {
	// type of source: SelfSigned (the operator makes and rotates it), CertManager, Secret, or Plaintext for no TLS.
	// +kubebuilder:default=SelfSigned
	// +optional
	Type TLSType `json:"type,omitempty"`
	// secretRef names a Secret of type kubernetes.io/tls; only with type Secret.
	// +optional
	SecretRef LocalName `json:"secretRef,omitzero"`
	// issuerRef names a cert-manager issuer; only with type CertManager.
	// +optional
	IssuerRef IssuerRef `json:"issuerRef,omitzero"`
}

// ProxyTLS is TLS for the clients of the pickers' proxy: TLS 1.2 or newer, with HTTP/2 and HTTP/1.1.
//
// +kubebuilder:validation:XValidation:rule="!has(self.clientCertificates) || has(self.clientCASecretRef)",message="clientCertificates needs clientCASecretRef"
type ProxyTLS struct {
	// secretRef names the Secret of type kubernetes.io/tls with the certificate, such as one that cert-manager keeps. Pickers
	// read it again when it changes. While it does not exist, pickers run and refuse clients.
	// +required
	SecretRef LocalName `json:"secretRef,omitzero"`
	// clientCASecretRef is the entry with the CA certificates, in PEM, that sign clients' certificates. Absent, clients are not
	// asked for one.
	// +optional
	ClientCASecretRef SecretKey `json:"clientCASecretRef,omitzero"`
	// clientCertificates are Required of each client, or Optional: clients without one are served, too. Absent, Required; only
	// with clientCASecretRef.
	// +optional
	ClientCertificates ClientCertificates `json:"clientCertificates,omitempty"`
}

// ClientCertificates selects which clients must show a certificate.
//
// +kubebuilder:validation:Enum=Required;Optional
type ClientCertificates string

// The uses of clients' certificates.
const (
	ClientCertificatesRequired ClientCertificates = "Required"
	ClientCertificatesOptional ClientCertificates = "Optional"
)

// TLSType names a source of certificates.
//
// +kubebuilder:validation:Enum=SelfSigned;CertManager;Secret;Plaintext
type TLSType string

// The sources of certificates.
const (
	TLSSelfSigned  TLSType = "SelfSigned"
	TLSCertManager TLSType = "CertManager"
	TLSSecret      TLSType = "Secret"
	TLSPlaintext   TLSType = "Plaintext"
)

// IssuerRef names a cert-manager issuer.
type IssuerRef struct {
	// kind of the issuer.
	// +kubebuilder:default=Issuer
	// +optional
	Kind IssuerKind `json:"kind,omitempty"`
	// name of the issuer.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name,omitempty"`
}

// IssuerKind is a kind of cert-manager issuer.
//
// +kubebuilder:validation:Enum=Issuer;ClusterIssuer
type IssuerKind string

// The issuer kinds.
const (
	KindIssuer        IssuerKind = "Issuer"
	KindClusterIssuer IssuerKind = "ClusterIssuer"
)

// PickerPod shapes the pickers' pods.
//
// +kubebuilder:validation:MinProperties=0
type PickerPod struct {
	// labels added to the pods, at most 32.
	// +kubebuilder:validation:MinProperties=0
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	Labels map[string]LabelValue `json:"labels,omitempty"`
	// annotations added to the pods, at most 32 of 4096 characters each.
	// +kubebuilder:validation:MinProperties=0
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	Annotations map[string]AnnotationValue `json:"annotations,omitempty"`
	// nodeSelector of the pods, at most 16 labels.
	// +kubebuilder:validation:MinProperties=0
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	NodeSelector map[string]LabelValue `json:"nodeSelector,omitempty"`
	// tolerations of the pods, at most 16.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// affinity of the pods.
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`
	// priorityClassName of the pods.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// imagePullSecrets of the pods, at most 8.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	// +optional
	ImagePullSecrets []LocalName `json:"imagePullSecrets,omitempty"`
}

// AnnotationValue is the value of an annotation, at most 4096 characters.
//
// +kubebuilder:validation:MaxLength=4096
type AnnotationValue string

// Gateway connects a pool to Gateway API and its inference extension.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="self.mode == 'Auto' || !has(self.parentRefs) || size(self.parentRefs) == 0",message="parentRefs need mode Auto"
// +kubebuilder:validation:XValidation:rule="!has(self.hostnames) || size(self.hostnames) == 0 || (has(self.parentRefs) && size(self.parentRefs) > 0)",message="hostnames need parentRefs"
// +kubebuilder:validation:XValidation:rule="has(self.requestTimeoutSeconds) == (has(self.requestTimeout) && self.requestTimeout == 'Limited')",message="requestTimeoutSeconds is required when requestTimeout is Limited, and only then"
type Gateway struct {
	// mode Auto makes the gateway's pool object when its kind is installed, Existing checks one that somebody else
	// makes, Disabled does neither.
	// +kubebuilder:default=Auto
	// +optional
	Mode GatewayMode `json:"mode,omitempty"`
	// failureMode defines what the gateway does when no picker answers: FailClose refuses the request, FailOpen sends it
	// to any pod.
	// +kubebuilder:default=FailClose
	// +optional
	FailureMode FailureMode `json:"failureMode,omitempty"`
	// destinations given to the gateway for one request: Single, or Ordered where it takes a list to fall back on.
	// +kubebuilder:default=Single
	// +optional
	Destinations DestinationMode `json:"destinations,omitempty"`
	// parentRefs make an HTTPRoute on these gateways for the paths that the picker's proxy admits, at most 8; only with
	// mode Auto.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	ParentRefs []gwapiv1.ParentReference `json:"parentRefs,omitempty"`
	// hostnames of that HTTPRoute, at most 16; only with parentRefs.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Hostnames []gwapiv1.Hostname `json:"hostnames,omitempty"`
	// requestTimeout of that HTTPRoute: Unlimited lets an answer take as long as it needs, Limited ends it after
	// requestTimeoutSeconds, GatewayDefault leaves the setting out, for gateways that refuse it (GKE). Without it the
	// default of Envoy ends answers after 15 seconds.
	// +kubebuilder:default=Unlimited
	// +optional
	RequestTimeout RequestTimeout `json:"requestTimeout,omitempty"`
	// requestTimeoutSeconds of a whole answer; only with requestTimeout Limited.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +optional
	RequestTimeoutSeconds int32 `json:"requestTimeoutSeconds,omitempty"`
	// trafficPolicies Managed makes objects of the gateway's own kinds where the cluster has them: a DestinationRule for
	// Istio, a BackendTrafficPolicy for Envoy Gateway, a HealthCheckPolicy and a GCPBackendPolicy for GKE. Objects of
	// these names that somebody else has made are left alone. None makes none.
	// +kubebuilder:default=Managed
	// +optional
	TrafficPolicies TrafficPolicyMode `json:"trafficPolicies,omitempty"`
}

// TrafficPolicyMode selects what configures the objects of single gateways.
//
// +kubebuilder:validation:Enum=Managed;None
type TrafficPolicyMode string

// The modes of gateways' own policies.
const (
	TrafficPoliciesManaged TrafficPolicyMode = "Managed"
	TrafficPoliciesNone    TrafficPolicyMode = "None"
)

// RequestTimeout defines how long a gateway lets an answer take.
//
// +kubebuilder:validation:Enum=Unlimited;Limited;GatewayDefault
type RequestTimeout string

// The time limits of answers.
const (
	RequestTimeoutUnlimited      RequestTimeout = "Unlimited"
	RequestTimeoutLimited        RequestTimeout = "Limited"
	RequestTimeoutGatewayDefault RequestTimeout = "GatewayDefault"
)

// GatewayMode selects what makes the gateway's pool object.
//
// +kubebuilder:validation:Enum=Auto;Existing;Disabled
type GatewayMode string

// The gateway modes.
const (
	GatewayAuto     GatewayMode = "Auto"
	GatewayExisting GatewayMode = "Existing"
	GatewayDisabled GatewayMode = "Disabled"
)

// FailureMode defines what happens to a request if what has to decide about it fails.
//
// +kubebuilder:validation:Enum=FailClose;FailOpen
type FailureMode string

// The failure modes.
const (
	FailClose FailureMode = "FailClose"
	FailOpen  FailureMode = "FailOpen"
)

// DestinationMode defines how many destinations a gateway is given for one request.
//
// +kubebuilder:validation:Enum=Single;Ordered
type DestinationMode string

// The destination modes.
const (
	DestinationSingle  DestinationMode = "Single"
	DestinationOrdered DestinationMode = "Ordered"
)
