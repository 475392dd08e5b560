package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// DefaultFleet is the fleet of a pool in mode Fleet that names none.
const DefaultFleet = "default"

// PickerFleet runs pickers that serve all pools of its namespace that have picker.mode Fleet and name it, at one address.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=pickerfleets,scope=Namespaced,shortName=kvfleet,categories={kvasir}
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.status.readyReplicas`
// +kubebuilder:printcolumn:name="Pools",type=integer,JSONPath=`.status.pools`
// +kubebuilder:printcolumn:name="Available",type=string,JSONPath=`.status.conditions[?(@.type=="Available")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 45 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="metadata.name must be a DNS label that starts with a letter, at most 45 characters: the names of pods and Services are derived from it"
type PickerFleet struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// spec describes the pickers.
	// +kubebuilder:default={replicas: 2}
	// +optional
	Spec PickerFleetSpec `json:"spec,omitzero"`
	// status is what was observed.
	// +optional
	Status PickerFleetStatus `json:"status,omitempty,omitzero"`
}

// PickerFleetList is a list of fleets.
//
// +kubebuilder:object:root=true
type PickerFleetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PickerFleet `json:"items"`
}

// PickerFleetSpec describes the pickers of a fleet.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="!has(self.proxyTLS) || self.proxy == 'Enabled'",message="proxyTLS needs the proxy"
type PickerFleetSpec struct {
	PickerSettings `json:",inline"`

	// gateway connects the fleet to Gateway API: one backend for all of its pools.
	// +kubebuilder:default={mode: Auto}
	// +optional
	Gateway FleetGateway `json:"gateway,omitzero"`
}

// FleetGateway connects a fleet to Gateway API and its inference extension: gateways get one InferencePool, named FLEET-fleet, with
// the pods of all pools of the fleet, and the model of a request chooses among them.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="self.mode == 'Auto' || !has(self.parentRefs) || size(self.parentRefs) == 0",message="parentRefs need mode Auto"
// +kubebuilder:validation:XValidation:rule="!has(self.hostnames) || size(self.hostnames) == 0 || (has(self.parentRefs) && size(self.parentRefs) > 0)",message="hostnames need parentRefs"
// +kubebuilder:validation:XValidation:rule="has(self.requestTimeoutSeconds) == (has(self.requestTimeout) && self.requestTimeout == 'Limited')",message="requestTimeoutSeconds is required when requestTimeout is Limited, and only then"
type FleetGateway struct {
	// mode Auto makes the gateway's pool object when its kind is installed, Existing checks one that somebody else
	// makes, Disabled does neither.
	// +kubebuilder:default=Auto
	// +optional
	Mode GatewayMode `json:"mode,omitempty"`
	// failureMode defines what the gateway does when no picker answers: FailClose refuses the request, FailOpen sends it
	// to any pod, which can be that of another model.
	// +kubebuilder:default=FailClose
	// +optional
	FailureMode FailureMode `json:"failureMode,omitempty"`
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
	// requestTimeoutSeconds, GatewayDefault leaves the setting out, for gateways that refuse it (GKE).
	// +kubebuilder:default=Unlimited
	// +optional
	RequestTimeout RequestTimeout `json:"requestTimeout,omitempty"`
	// requestTimeoutSeconds of a whole answer; only with requestTimeout Limited.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +optional
	RequestTimeoutSeconds int32 `json:"requestTimeoutSeconds,omitempty"`
	// trafficPolicies Managed makes objects of the gateway's own kinds where the cluster has them, as for a pool. Objects of
	// these names that somebody else has made are left alone. None makes none.
	// +kubebuilder:default=Managed
	// +optional
	TrafficPolicies TrafficPolicyMode `json:"trafficPolicies,omitempty"`
}

// PickerFleetStatus is what was observed of a fleet.
//
// +kubebuilder:validation:MinProperties=1
type PickerFleetStatus struct {
	// conditions of the fleet: Available, whether its pickers are ready, Programmed, whether they serve its pools, and
	// GatewayAccepted, whether gateways send requests to them.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// observedGeneration is the generation of the spec that the status is about.
	// +kubebuilder:validation:Minimum=0
	// +optional
	ObservedGeneration *int64 `json:"observedGeneration,omitempty"`
	// readyReplicas of the pickers.
	// +kubebuilder:validation:Minimum=0
	// +optional
	ReadyReplicas *int32 `json:"readyReplicas,omitempty"`
	// pools that the fleet serves.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Pools *int32 `json:"pools,omitempty"`
	// address of the Service for clients, such as http://NAME-fleet.NAMESPACE.svc.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Address string `json:"address,omitempty"`
}
