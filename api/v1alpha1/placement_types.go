package v1alpha1

import corev1 "k8s.io/api/core/v1"

// Placement names the islands of a pool: sets of endpoints between which moving KV never pays.
//
// +kubebuilder:validation:MinProperties=0
type Placement struct {
	// islandLabel is the pod label that names a pod's island. Kvasir sets it on pods that it makes.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$') && self.split('/')[size(self.split('/')) - 1].size() <= 63",message="must be a label: a name of at most 63 letters, digits, '-', '_' and '.', after a DNS name and a slash or alone"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('kvasir.dev/') || self == 'kvasir.dev/island'",message="Kvasir uses this label itself; of its own labels only kvasir.dev/island names islands"
	// +kubebuilder:default="kvasir.dev/island"
	// +optional
	IslandLabel string `json:"islandLabel,omitempty"`
	// islands of the pool, at most 16. New pods go to the cheapest one with room.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Islands []Island `json:"islands,omitempty"`
	// pricesFrom names a ConfigMap that maps island names to the price of one pod and hour. It wins over hourlyPrice;
	// an island it does not name keeps its hourlyPrice.
	// +optional
	PricesFrom LocalName `json:"pricesFrom,omitzero"`
}

// Island is a region, a provider or a cluster where pods of the pool can run.
//
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",message="minReplicas must not exceed maxReplicas"
type Island struct {
	// name of the island, a value of the island label.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +required
	Name string `json:"name,omitempty"`
	// nodeSelector of the pods on this island, added to the template's.
	// +kubebuilder:validation:MinProperties=0
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	NodeSelector map[string]LabelValue `json:"nodeSelector,omitempty"`
	// tolerations of the pods on this island, added to the template's; at most 16.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// hourlyPrice of one pod, a decimal number of at least 0 in any currency, the same one for all islands.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[0-9]{1,8}(\.[0-9]{1,6})?$`
	// +optional
	HourlyPrice string `json:"hourlyPrice,omitempty"`
	// latencyMilliseconds from the pickers to this island and back.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	// +optional
	LatencyMilliseconds *int32 `json:"latencyMilliseconds,omitempty"`
	// minReplicas kept on this island.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2000
	// +optional
	MinReplicas *int32 `json:"minReplicas,omitempty"`
	// maxReplicas on this island. Absent, no limit but the pool's.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2000
	// +optional
	MaxReplicas *int32 `json:"maxReplicas,omitempty"`
	// provisionTimeoutSeconds that a pod can wait for a node here before the next island is tried.
	// +kubebuilder:validation:Minimum=30
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:default=900
	// +optional
	ProvisionTimeoutSeconds int32 `json:"provisionTimeoutSeconds,omitempty"`
	// provisioningClassName asks for nodes with a ProvisioningRequest of this class. Absent, a pending pod asks.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ProvisioningClassName string `json:"provisioningClassName,omitempty"`
	// engine changes the engine container for this island's hardware.
	// +optional
	Engine *IslandEngine `json:"engine,omitempty"`
}

// IslandEngine changes the engine container for one island's hardware. The model stays the same.
//
// +kubebuilder:validation:MinProperties=0
type IslandEngine struct {
	// extraArgs are appended to the engine container's arguments; at most 64 of 1024 characters each.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	// +listType=atomic
	// +optional
	ExtraArgs []string `json:"extraArgs,omitempty"`
	// resources replace those of the engine container.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
}
