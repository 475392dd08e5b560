package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// InferencePoolStatus is what the operator saw last. Nothing live stands here: hit ratios, queues and latencies are
// metrics, so that a steady pool makes no writes.
//
// +kubebuilder:validation:MinProperties=1
type InferencePoolStatus struct {
	// conditions of the pool, worst first. All are positive: True is good.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// observedGeneration is the generation of the spec that this status describes.
	// +kubebuilder:validation:Minimum=1
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// desiredReplicas is the size that the operator steers to.
	// +kubebuilder:validation:Minimum=0
	// +optional
	DesiredReplicas *int32 `json:"desiredReplicas,omitempty"`
	// replicas is the number of pods that are not draining or being deleted.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// readyReplicas is the number of pods that serve.
	// +kubebuilder:validation:Minimum=0
	// +optional
	ReadyReplicas *int32 `json:"readyReplicas,omitempty"`
	// updatedReplicas is the number of pods of the newest revision.
	// +kubebuilder:validation:Minimum=0
	// +optional
	UpdatedReplicas *int32 `json:"updatedReplicas,omitempty"`
	// drainingReplicas is the number of pods that carry the drain mark.
	// +kubebuilder:validation:Minimum=0
	// +optional
	DrainingReplicas *int32 `json:"drainingReplicas,omitempty"`
	// selector of the pool's pods that are not draining, in its text form, for the scale subresource.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Selector string `json:"selector,omitempty"`
	// currentRevision is the revision that the pool served with before the running rollout.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	CurrentRevision string `json:"currentRevision,omitempty"`
	// updateRevision is the revision that the pool rolls out to.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	UpdateRevision string `json:"updateRevision,omitempty"`
	// injected lists what the operator adds to the template for new pods: flags, environment variables, probes, volumes and
	// hooks. The template's annotation kvasir.dev/leave-out keeps it from adding those of the engine.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	// +listType=set
	// +optional
	Injected []string `json:"injected,omitempty"`
	// endpoints counts the pool's endpoints: pods times ranks.
	// +optional
	Endpoints EndpointCounts `json:"endpoints,omitzero"`
	// picker is the state of the pickers.
	// +optional
	Picker PickerStatus `json:"picker,omitzero"`
	// keySpace is the key space in use.
	// +optional
	KeySpace KeySpaceStatus `json:"keySpace,omitzero"`
	// routingPolicy is the policy in force. Absent, all defaults.
	// +optional
	RoutingPolicy PolicyInForce `json:"routingPolicy,omitzero"`
	// autoscaling is what the autoscaler thinks.
	// +optional
	Autoscaling AutoscalingStatus `json:"autoscaling,omitzero"`
	// roles is the state of each role of a pool with roles. While a pool changes its roles, those that go are in the list,
	// too, until the rollout that ends them is over.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=3
	// +listType=map
	// +listMapKey=name
	// +optional
	Roles []RoleStatus `json:"roles,omitempty"`
	// islands is the state of each island, at most 16.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Islands []IslandStatus `json:"islands,omitempty"`
	// pods lists those that are not simply serving, worst first, at most 32.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	// +optional
	Pods []PodSummary `json:"pods,omitempty"`
}

// EndpointCounts counts endpoints: pods times ranks.
type EndpointCounts struct {
	// total number of endpoints.
	// +kubebuilder:validation:Minimum=0
	// +required
	Total *int32 `json:"total,omitempty"`
	// ready to serve.
	// +kubebuilder:validation:Minimum=0
	// +required
	Ready *int32 `json:"ready,omitempty"`
	// synced endpoints: what they cache is known.
	// +kubebuilder:validation:Minimum=0
	// +required
	Synced *int32 `json:"synced,omitempty"`
	// degraded endpoints: what they cache is known in part only.
	// +kubebuilder:validation:Minimum=0
	// +required
	Degraded *int32 `json:"degraded,omitempty"`
}

// PickerStatus is the state of a pool's pickers.
type PickerStatus struct {
	// replicas of the picker.
	// +kubebuilder:validation:Minimum=0
	// +required
	Replicas *int32 `json:"replicas,omitempty"`
	// readyReplicas of the picker.
	// +kubebuilder:validation:Minimum=0
	// +required
	ReadyReplicas *int32 `json:"readyReplicas,omitempty"`
	// serviceName where they are reached.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	ServiceName string `json:"serviceName,omitempty"`
	// fleetName is the PickerFleet whose pickers serve the pool; absent for pickers of its own. While the pool moves, it can
	// differ from picker.fleetRef: the pickers before serve until the others do.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=45
	// +optional
	FleetName string `json:"fleetName,omitempty"`
}

// KeySpaceStatus is the key space in use.
type KeySpaceStatus struct {
	// keyID is a fingerprint of the root in use, 16 hexadecimal digits. The root cannot be computed from it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	// +required
	KeyID string `json:"keyID,omitempty"`
	// blockTokens per key.
	// +kubebuilder:validation:Minimum=8
	// +kubebuilder:validation:Maximum=1024
	// +required
	BlockTokens int32 `json:"blockTokens,omitempty"`
}

// PolicyInForce names the policy that a pool's pickers follow.
type PolicyInForce struct {
	// name of the RoutingPolicy.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name,omitempty"`
	// generation of it that all pickers follow.
	// +kubebuilder:validation:Minimum=1
	// +required
	Generation int64 `json:"generation,omitempty"`
}

// AutoscalingStatus is what the autoscaler thinks.
type AutoscalingStatus struct {
	// recommendedReplicas is the size it would choose.
	// +kubebuilder:validation:Minimum=0
	// +required
	RecommendedReplicas *int32 `json:"recommendedReplicas,omitempty"`
	// reason in one word.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +required
	Reason string `json:"reason,omitempty"`
	// lastScaleTime is when the size was changed last.
	// +optional
	LastScaleTime *metav1.Time `json:"lastScaleTime,omitempty"`
}

// RoleStatus is the state of one role.
type RoleStatus struct {
	// name of the role.
	// +required
	Name RoleName `json:"name,omitempty"`
	// desiredReplicas is the size that the operator steers the role to. For a role that goes, it is the size that it had.
	// +kubebuilder:validation:Minimum=0
	// +required
	DesiredReplicas *int32 `json:"desiredReplicas,omitempty"`
	// replicas is the number of pods of the role that are not draining or being deleted.
	// +kubebuilder:validation:Minimum=0
	// +required
	Replicas *int32 `json:"replicas,omitempty"`
	// readyReplicas is the number of pods of the role that serve.
	// +kubebuilder:validation:Minimum=0
	// +required
	ReadyReplicas *int32 `json:"readyReplicas,omitempty"`
	// updatedReplicas is the number of pods of the role that are of the newest revision.
	// +kubebuilder:validation:Minimum=0
	// +required
	UpdatedReplicas *int32 `json:"updatedReplicas,omitempty"`
	// autoscaling is what the autoscaler thinks of the role.
	// +optional
	Autoscaling AutoscalingStatus `json:"autoscaling,omitzero"`
}

// IslandStatus is the state of one island.
type IslandStatus struct {
	// name of the island.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name,omitempty"`
	// replicas on the island.
	// +kubebuilder:validation:Minimum=0
	// +required
	Replicas *int32 `json:"replicas,omitempty"`
	// readyReplicas on the island.
	// +kubebuilder:validation:Minimum=0
	// +required
	ReadyReplicas *int32 `json:"readyReplicas,omitempty"`
	// pendingReplicas wait for a node on the island.
	// +kubebuilder:validation:Minimum=0
	// +required
	PendingReplicas *int32 `json:"pendingReplicas,omitempty"`
	// state of the island: Available, Waiting for a node, or Exhausted after the provision timeout.
	// +required
	State IslandState `json:"state,omitempty"`
	// lastTransitionTime is when state changed last.
	// +optional
	LastTransitionTime *metav1.Time `json:"lastTransitionTime,omitempty"`
}

// IslandState reports whether an island provides nodes.
//
// +kubebuilder:validation:Enum=Available;Waiting;Exhausted
type IslandState string

// The states of an island.
const (
	IslandAvailable IslandState = "Available"
	IslandWaiting   IslandState = "Waiting"
	IslandExhausted IslandState = "Exhausted"
)

// PodSummary is one pod that is not simply serving.
type PodSummary struct {
	// name of the pod.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name,omitempty"`
	// stage of its life.
	// +required
	Stage PodStage `json:"stage,omitempty"`
	// reason in one word.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Reason string `json:"reason,omitempty"`
	// message for people, written at stage changes only.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Message string `json:"message,omitempty"`
	// since when the pod is in this stage.
	// +required
	Since *metav1.Time `json:"since,omitempty"`
}

// PodStage is a stage of a pod's life.
//
// +kubebuilder:validation:Enum=Scheduled;Loading;Synced;Warm;Ready;Draining;Idle;Ended
type PodStage string

// The stages, in the order of a pod's life.
const (
	StageScheduled PodStage = "Scheduled"
	StageLoading   PodStage = "Loading"
	StageSynced    PodStage = "Synced"
	StageWarm      PodStage = "Warm"
	StageReady     PodStage = "Ready"
	StageDraining  PodStage = "Draining"
	StageIdle      PodStage = "Idle"
	// StageEnded is of pods that failed or exited for good and are kept to be looked at.
	StageEnded PodStage = "Ended"
)
