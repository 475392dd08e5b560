package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
}

// PickerFleetStatus is what was observed of a fleet.
//
// +kubebuilder:validation:MinProperties=1
type PickerFleetStatus struct {
	// conditions of the fleet: Available, whether its pickers are ready, and Programmed, whether they serve its pools.
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
