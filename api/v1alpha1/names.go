package v1alpha1

// Labels and annotations that Kvasir reads or writes.
const (
	// LabelPool names the pool of an engine's pod and of the EndpointSlices of engines. Nothing else carries it.
	LabelPool = "kvasir.dev/pool"
	// LabelFleet names the fleet of a picker's pod, and of the other objects of a fleet.
	LabelFleet = "kvasir.dev/fleet"
	// LabelFleetPrefix and the name of a fleet are the label of the pods of all engines that the fleet serves, with the value
	// FleetEngine. The selector of a gateway's pool has no alternatives, so the engines of several pools need a label in common; and
	// a pod whose pool moves from a fleet to another has both.
	LabelFleetPrefix = "fleet.kvasir.dev/"
	// FleetEngine is the value of that label.
	FleetEngine = "engine"
	// LabelRevision is the revision of an owned pod.
	LabelRevision = "kvasir.dev/revision"
	// LabelSlot is the slot number of an owned pod.
	LabelSlot = "kvasir.dev/slot"
	// LabelIsland names the island of a pod or of an EndpointSlice, unless a pool names another label.
	LabelIsland = "kvasir.dev/island"
	// LabelRole is what the engine of a pod or of an EndpointSlice does of a request: both, prefill or decode. Without it,
	// labels of other projects say so, and without these it does both.
	LabelRole = "kvasir.dev/role"
	// LabelDrain is the drain mark: a pod that carries it gets no more requests. Its value is the reason.
	LabelDrain = "kvasir.dev/drain"
	// LabelInject asks for the reporter sidecar in an adopted pod.
	LabelInject = "kvasir.dev/inject"

	// AnnotationDrainDeadline is when a marked pod is deleted, RFC 3339.
	AnnotationDrainDeadline = "kvasir.dev/drain-deadline"
	// AnnotationEnds is on an owned pod: how many pods of the pool had ended in a row when it was made. The place of the
	// next one that ends stays empty for a while accordingly.
	AnnotationEnds = "kvasir.dev/ends"
	// AnnotationMoves is on an owned pod: how many pods of the pool had been replaced in a row because of their nodes when
	// it was created. If the pod is on such a node as well, it stays there for a while accordingly.
	AnnotationMoves = "kvasir.dev/moves"
	// AnnotationInjected records what was injected into an owned pod: the version of the injection, and a list.
	AnnotationInjected = "kvasir.dev/injected"
	// AnnotationProbes in the template of a pool, with the value Manual, keeps the operator from adding probes to the engine.
	AnnotationProbes = "kvasir.dev/probes"
	// AnnotationLeaveOut in the template of a pool lists, by commas, what the operator shall not add to the engine's container,
	// by the names in status.injected.
	AnnotationLeaveOut = "kvasir.dev/leave-out"
	// AnnotationEngineRelease in the template of a pool is the release of vLLM in the engine's image, such as 0.32, where the
	// image's tag does not show it.
	AnnotationEngineRelease = "kvasir.dev/engine-release"
	// AnnotationReporterImage is on an owned pod with an injected reporter: the image that the operator gave the reporter.
	// The image in the pod can be another one, where admission rewrites images.
	AnnotationReporterImage = "kvasir.dev/reporter-image"
	// AnnotationReporterBefore is on an owned pod whose reporter was changed in place: the image, the container ID and the
	// count of restarts that it had before. It shows whether the new container runs yet, and whether it has ended since.
	AnnotationReporterBefore = "kvasir.dev/reporter-before"
	// AnnotationRotateKey on a pool asks for a new key root: whenever its value differs from that on the Secret that the
	// operator keeps, the root is recreated.
	AnnotationRotateKey = "kvasir.dev/rotate-key"
	// AnnotationOperator on a pool is the namespace of the installation of the operator that manages it. All others leave the pool
	// alone. Without it, an installation keeps its pools until its service account is gone.
	AnnotationOperator = "kvasir.dev/operator"
	// AnnotationRestartedAt in the template of a pool, with a time as its value, makes a new revision of the same pods: a
	// restart as a rollout.
	AnnotationRestartedAt = "kvasir.dev/restarted-at"
	// AnnotationEvictions is on the disruption budget of a pool's engines. It explains to people which evictions the budget
	// admits.
	AnnotationEvictions = "kvasir.dev/evictions"
	// AnnotationEvictionsWaitSince is on that budget while pods whose nodes go away wait for replacements: since when, in RFC 3339. The
	// replica of the operator that leads next reads it.
	AnnotationEvictionsWaitSince = "kvasir.dev/evictions-wait-since"
	// AnnotationStartRank is the global rank of the first rank in a pod or EndpointSlice; 0 by default.
	AnnotationStartRank = "kvasir.dev/start-rank"
	// AnnotationHTTPSocket is the path of a unix socket where an engine answers. It is read from files only.
	AnnotationHTTPSocket = "kvasir.dev/http-socket"
)

// ReporterContainer is the name of the reporter's container in an engine's pod.
const ReporterContainer = "kvasir-reporter"

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
	ConditionModelServed        = "ModelServed"
	ConditionGatewayConforms    = "GatewayConforms"
	ConditionPickerAvailable    = "PickerAvailable"
	ConditionResourcesSuffice   = "ResourcesSuffice"
	ConditionEnginesClosed      = "EnginesClosed"
	ConditionGatewayAccepted    = "GatewayAccepted"
	ConditionAutoscalingActive  = "AutoscalingActive"
	ConditionPolicyAffected     = "kvasir.dev/RoutingPolicyAffected"
)

// ReasonEngineExperimental is the reason of ConditionAccepted, which is True then, of a pool whose engine Kvasir has not
// been tested with; MessageSGLangExperimental is its message.
const (
	ReasonEngineExperimental  = "EngineExperimental"
	MessageSGLangExperimental = "engine.type SGLang is experimental: no release of SGLang has been tested"
)

// ReasonClientsUnchecked is the reason of ConditionAccepted, which is True then, of a pool that serves every client of
// its picker, though its engines require a key; MessageClientsUnchecked is its message.
const (
	ReasonClientsUnchecked  = "ClientsUnchecked"
	MessageClientsUnchecked = "engine.clientAuth is PoolKey and no policy has tenants: clients are served whatever key they show, or none"
)

// ReasonMatchesApproximate is the reason of ConditionPredictionsTrusted, which is True then, of a pool whose matches can
// differ from what the engines find: the message says why.
const ReasonMatchesApproximate = "MatchesApproximate"

// Condition types of a policy, per ancestor, besides ConditionAccepted.
const (
	ConditionResolvedRefs = "ResolvedRefs"
	ConditionProgrammed   = "Programmed"
)

// ConditionAvailable is the condition type of a fleet whether its pickers are ready, besides ConditionProgrammed.
const ConditionAvailable = "Available"

// SecretKeyRoot is the entry of a key space's Secret that holds the root: at least MinRootBytes random bytes.
const (
	SecretKeyRoot = "root"
	MinRootBytes  = 32
)

// DefaultTenantHeader carries the tenant where a policy identifies tenants by a header and names none.
const DefaultTenantHeader = "x-gateway-inference-fairness-id"
