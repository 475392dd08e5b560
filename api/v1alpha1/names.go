package v1alpha1

// Labels and annotations that Kvasir reads or writes.
const (
	// LabelPool names the pool of an engine's pod and of the EndpointSlices of engines. Nothing else carries it.
	LabelPool = "kvasir.dev/pool"
	// LabelRevision is the revision of an owned pod.
	LabelRevision = "kvasir.dev/revision"
	// LabelSlot is the slot number of an owned pod.
	LabelSlot = "kvasir.dev/slot"
	// LabelIsland names the island of a pod or of an EndpointSlice, unless a pool names another label.
	LabelIsland = "kvasir.dev/island"
	// LabelDrain is the drain mark: a pod that carries it gets no more requests. Its value tells why.
	LabelDrain = "kvasir.dev/drain"
	// LabelInject asks for the reporter sidecar in an adopted pod.
	LabelInject = "kvasir.dev/inject"

	// AnnotationDrainDeadline is when a marked pod is deleted, RFC 3339.
	AnnotationDrainDeadline = "kvasir.dev/drain-deadline"
	// AnnotationInjected tells the version and the list of what was injected into an owned pod.
	AnnotationInjected = "kvasir.dev/injected"
	// AnnotationRotateKey on a pool asks for a new key root: whenever its value differs from that on the Secret that the
	// operator keeps, the root is made anew.
	AnnotationRotateKey = "kvasir.dev/rotate-key"
	// AnnotationRestartedAt in the template of a pool, with a time as its value, makes a new revision of the same pods: a
	// restart as a rollout.
	AnnotationRestartedAt = "kvasir.dev/restarted-at"
	// AnnotationStartRank is the global rank of the first rank in a pod or EndpointSlice; 0 by default.
	AnnotationStartRank = "kvasir.dev/start-rank"
	// AnnotationHTTPSocket is the path of a unix socket where an engine answers. It is read from files only.
	AnnotationHTTPSocket = "kvasir.dev/http-socket"
)

// Condition types of a pool. All are positive: True is good.
const (
	ConditionAccepted           = "Accepted"
	ConditionReady              = "Ready"
	ConditionUpToDate           = "UpToDate"
	ConditionScaled             = "Scaled"
	ConditionPodsHealthy        = "PodsHealthy"
	ConditionEventsSynced       = "EventsSynced"
	ConditionTokensExact        = "TokensExact"
	ConditionPredictionsTrusted = "PredictionsTrusted"
	ConditionPickerAvailable    = "PickerAvailable"
	ConditionGatewayAccepted    = "GatewayAccepted"
	ConditionAutoscalingActive  = "AutoscalingActive"
	ConditionPolicyAffected     = "kvasir.dev/RoutingPolicyAffected"
)

// Condition types of a policy, per ancestor, besides ConditionAccepted.
const (
	ConditionResolvedRefs = "ResolvedRefs"
	ConditionProgrammed   = "Programmed"
)

// SecretKeyRoot is the entry of a key space's Secret that holds the root: at least MinRootBytes random bytes.
const (
	SecretKeyRoot = "root"
	MinRootBytes  = 32
)

// DefaultTenantHeader carries the tenant where a policy identifies tenants by a header and names none.
const DefaultTenantHeader = "x-gateway-inference-fairness-id"
