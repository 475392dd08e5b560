package status

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// byImportance are the types of a pool's conditions: causes before what they cause, and what keeps requests from being served before
// what makes them slower.
var byImportance = []Type{
	Accepted, PodsHealthy, PickerAvailable, Scaled, UpToDate, ModelServed, Ready, EventsSynced, GatewayAccepted, EnginesClosed,
	GatewayConforms, ResourcesSuffice, AutoscalingActive, TokensExact, PredictionsTrusted, PolicyAffected,
}

// How urgent a condition is that is False, by its reason. It is a fault unless it is one of these.
const (
	fault  = iota
	advice // all is well for now, and the template could be better
	waits  // it ends by itself, or was chosen
	unknown
	good
)

var lessUrgent = map[string]int{
	ReasonFlagsMissing: advice, ReasonPreStopMissing: advice, ReasonProbesMissing: advice, ReasonSidecarMissing: advice,
	ReasonRollingOut: waits, ReasonRolloutOnDelete: waits, ReasonReporterUpdating: waits, ReasonScalingUp: waits, ReasonScalingDown: waits,
	ReasonNotReferenced: waits, ReasonEngineRender: waits, ReasonApproximate: waits,
}

// WorstFirst sorts the conditions of a pool by how urgent they are. The columns of kubectl get show the first one that is False, as
// a JSONPath cannot choose between several.
func WorstFirst(conditions []metav1.Condition) {
	slices.SortStableFunc(conditions, func(a, b metav1.Condition) int {
		return cmp.Or(cmp.Compare(urgency(&a), urgency(&b)), cmp.Compare(importance(Type(a.Type)), importance(Type(b.Type))))
	})
}

func urgency(c *metav1.Condition) int {
	switch c.Status {
	case metav1.ConditionFalse:
		return lessUrgent[c.Reason]
	case metav1.ConditionUnknown:
		return unknown
	case metav1.ConditionTrue:
	}
	return good
}

func importance(t Type) int {
	if i := slices.Index(byImportance, t); i >= 0 {
		return i
	}
	return len(byImportance)
}
