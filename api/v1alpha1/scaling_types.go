package v1alpha1

import "k8s.io/apimachinery/pkg/util/intstr"

// Autoscaling lets Kvasir choose the size of a pool, or recommend one.
//
// +kubebuilder:validation:XValidation:rule="self.minReplicas <= self.maxReplicas",message="minReplicas must not exceed maxReplicas"
// +kubebuilder:validation:XValidation:rule="!has(self.schedules) || self.schedules.all(s, s.minReplicas <= self.maxReplicas)",message="a schedule's minReplicas must not exceed maxReplicas"
type Autoscaling struct {
	// mode Active steers the size; Recommend writes a recommendation into status and nothing else.
	// +kubebuilder:default=Active
	// +optional
	Mode AutoscalingMode `json:"mode,omitempty"`
	// minReplicas is the smallest size, 0 to 2000. With 0 the pool can go to zero.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2000
	// +kubebuilder:default=1
	// +optional
	MinReplicas *int32 `json:"minReplicas,omitempty"`
	// maxReplicas is the largest size, 1 to 2000.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2000
	// +required
	MaxReplicas int32 `json:"maxReplicas,omitempty"`
	// up defines when the pool grows.
	// +kubebuilder:default={waitingPerReplica: 4}
	// +optional
	Up ScaleUp `json:"up,omitzero"`
	// down defines when the pool shrinks.
	// +kubebuilder:default={maxStep: 1}
	// +optional
	Down ScaleDown `json:"down,omitzero"`
	// schedules raise the smallest size at given times; the highest active one wins. At most 16.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Schedules []Schedule `json:"schedules,omitempty"`
}

// AutoscalingMode controls whether autoscaling acts.
//
// +kubebuilder:validation:Enum=Active;Recommend
type AutoscalingMode string

// The autoscaling modes.
const (
	AutoscalingActive    AutoscalingMode = "Active"
	AutoscalingRecommend AutoscalingMode = "Recommend"
)

// ScaleUp defines when a pool grows. Any one signal is enough.
//
// +kubebuilder:validation:MinProperties=1
type ScaleUp struct {
	// waitingPerReplica is the mean number of waiting requests that asks for more pods.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	// +kubebuilder:default=4
	// +optional
	WaitingPerReplica int32 `json:"waitingPerReplica,omitempty"`
	// timeToFirstTokenP99Milliseconds asks for more pods above this 99th percentile. Absent, the signal is off.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=600000
	// +optional
	TTFTP99Milliseconds int32 `json:"timeToFirstTokenP99Milliseconds,omitempty"`
	// hitRatioFloorPercent asks for more pods below this hit ratio, and only while engines evict. Absent, the signal
	// is off.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	HitRatioFloorPercent int32 `json:"hitRatioFloorPercent,omitempty"`
	// stabilizationSeconds that a signal must last.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	// +kubebuilder:default=0
	// +optional
	StabilizationSeconds *int32 `json:"stabilizationSeconds,omitempty"`
	// maxStep is the most pods added at once. Absent, the whole deficit.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2000
	// +optional
	MaxStep int32 `json:"maxStep,omitempty"`
}

// ScaleDown defines when a pool shrinks. All signals must agree.
//
// +kubebuilder:validation:MinProperties=1
type ScaleDown struct {
	// waitingPerReplica is the mean number of waiting requests at or below which the pool can shrink.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	// +kubebuilder:default=0
	// +optional
	WaitingPerReplica *int32 `json:"waitingPerReplica,omitempty"`
	// utilizationFloorPercent is the utilization below which the pool can shrink.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=40
	// +optional
	UtilizationFloorPercent *int32 `json:"utilizationFloorPercent,omitempty"`
	// stabilizationSeconds that the signals must last.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	// +kubebuilder:default=300
	// +optional
	StabilizationSeconds *int32 `json:"stabilizationSeconds,omitempty"`
	// maxStep is the most pods removed at once.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2000
	// +kubebuilder:default=1
	// +optional
	MaxStep int32 `json:"maxStep,omitempty"`
	// zeroAfterSeconds without a request before the last pods go; only with minReplicas 0.
	// +kubebuilder:validation:Minimum=60
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:default=900
	// +optional
	ZeroAfterSeconds int32 `json:"zeroAfterSeconds,omitempty"`
}

// Schedule raises the smallest size of a pool for some time.
type Schedule struct {
	// name of the schedule.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name,omitempty"`
	// start is a cron expression of five fields: minute, hour, day of month, month, day of week. One that never comes, such as
	// February 30, is ignored, and the condition AutoscalingActive says so; as for an unknown timeZone.
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self.lowerAscii().matches('^([*?]|0*[0-5]?[0-9](-0*[0-5]?[0-9])?)(/[0-9]+)?(,([*?]|0*[0-5]?[0-9](-0*[0-5]?[0-9])?)(/[0-9]+)?)* +([*?]|0*(1?[0-9]|2[0-3])(-0*(1?[0-9]|2[0-3]))?)(/[0-9]+)?(,([*?]|0*(1?[0-9]|2[0-3])(-0*(1?[0-9]|2[0-3]))?)(/[0-9]+)?)* +([*?]|0*([1-9]|[12][0-9]|3[01])(-0*([1-9]|[12][0-9]|3[01]))?)(/[0-9]+)?(,([*?]|0*([1-9]|[12][0-9]|3[01])(-0*([1-9]|[12][0-9]|3[01]))?)(/[0-9]+)?)* +([*?]|(0*([1-9]|1[0-2])|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)(-(0*([1-9]|1[0-2])|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec))?)(/[0-9]+)?(,([*?]|(0*([1-9]|1[0-2])|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)(-(0*([1-9]|1[0-2])|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec))?)(/[0-9]+)?)* +([*?]|(0*[0-6]|sun|mon|tue|wed|thu|fri|sat)(-(0*[0-6]|sun|mon|tue|wed|thu|fri|sat))?)(/[0-9]+)?(,([*?]|(0*[0-6]|sun|mon|tue|wed|thu|fri|sat)(-(0*[0-6]|sun|mon|tue|wed|thu|fri|sat))?)(/[0-9]+)?)*$')",message="must be a cron expression of five fields: minute (0-59), hour (0-23), day of month (1-31), month (1-12 or jan-dec), day of week (0-6 or sun-sat), each a number, a range, a list or *, with an optional /step"
	// +required
	Start string `json:"start,omitempty"`
	// timeZone of start, an IANA name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:default=UTC
	// +optional
	TimeZone string `json:"timeZone,omitempty"`
	// durationSeconds that the schedule stays active after start: a minute to a week.
	// +kubebuilder:validation:Minimum=60
	// +kubebuilder:validation:Maximum=604800
	// +required
	DurationSeconds int32 `json:"durationSeconds,omitempty"`
	// minReplicas while the schedule is active.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2000
	// +required
	MinReplicas *int32 `json:"minReplicas,omitempty"`
}

// Rollout defines how a changed template reaches the pods.
//
// +kubebuilder:validation:MinProperties=0
// +kubebuilder:validation:XValidation:rule="!(string(self.maxSurge) in ['0', '0%'] && string(self.maxUnavailable) in ['0', '0%'])",message="maxSurge and maxUnavailable cannot both be 0"
// +kubebuilder:validation:XValidation:rule="(type(self.maxSurge) != int || self.maxSurge >= 0) && (type(self.maxUnavailable) != int || self.maxUnavailable >= 0)",message="maxSurge and maxUnavailable must not be negative"
type Rollout struct {
	// type RollingUpdate replaces pods by itself; OnDelete waits until somebody deletes them.
	// +kubebuilder:default=RollingUpdate
	// +optional
	Type RolloutType `json:"type,omitempty"`
	// maxSurge is how many pods can exist above the size, a number or a percentage.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:Pattern=`^((100|[0-9]{1,2})%|[0-9]{1,4})$`
	// +kubebuilder:default=1
	// +optional
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty"`
	// maxUnavailable is how many pods can be missing from the size, a number or a percentage. It and maxSurge are not
	// both 0.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:Pattern=`^((100|[0-9]{1,2})%|[0-9]{1,4})$`
	// +kubebuilder:default=0
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// progressDeadlineSeconds without progress after which the rollout stops and the old pods stay.
	// +kubebuilder:validation:Minimum=60
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:default=1800
	// +optional
	ProgressDeadlineSeconds int32 `json:"progressDeadlineSeconds,omitempty"`
	// revisionHistoryLimit is the number of old templates kept.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10
	// +kubebuilder:default=3
	// +optional
	RevisionHistoryLimit int32 `json:"revisionHistoryLimit,omitempty"`
}

// RolloutType selects what replaces pods.
//
// +kubebuilder:validation:Enum=RollingUpdate;OnDelete
type RolloutType string

// The rollout types.
const (
	RollingUpdate RolloutType = "RollingUpdate"
	OnDelete      RolloutType = "OnDelete"
)

// WarmUp fills a new pod's cache with the prefixes in use before it counts as ready. Its presence turns it on.
//
// +kubebuilder:validation:MinProperties=0
type WarmUp struct {
	// maxSeconds after which the pod counts as warm whatever happened.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	// +kubebuilder:default=60
	// +optional
	MaxSeconds int32 `json:"maxSeconds,omitempty"`
	// maxTokens to prefill.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000000
	// +kubebuilder:default=200000
	// +optional
	MaxTokens int32 `json:"maxTokens,omitempty"`
}
