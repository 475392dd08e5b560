package status

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// Conditions of pods that the operator writes.
const (
	PodSynced corev1.PodConditionType = "kvasir.dev/Synced"
	PodIdle   corev1.PodConditionType = "kvasir.dev/Idle"
)

// Phase is how a picker sees an endpoint. A pod is in the worst phase of its endpoints, which is the greatest.
type Phase int

// The phases, worst last.
const (
	PhaseServing  Phase = iota
	PhaseCircuit        // kept out for its failures
	PhaseNotReady       // not ready, the picker cannot connect to it, or it does not answer
	PhaseDraining
)

// String is the phase as documents have it.
func (p Phase) String() string {
	return [...]string{api.PhaseServing, api.PhaseCircuit, api.PhaseNotReady, api.PhaseDraining}[p]
}

// PhaseOf returns the phase of an endpoint as far as the cluster or the files show it.
func PhaseOf(ep *endpoint.Endpoint) Phase {
	switch {
	case ep.Terminating:
		return PhaseDraining
	case !ep.Pickable() || ep.Unreachable || ep.NotAnswering:
		return PhaseNotReady
	}
	return PhaseServing
}

// Pod is a pod as its endpoints show it.
type Pod struct {
	UID, Name string
	Phase     Phase
}

// Pods returns the pods of endpoints, in the order of their first endpoints.
func Pods(endpoints []endpoint.Endpoint) []Pod {
	var list []Pod
	at := map[string]int{}
	for i := range endpoints {
		ep := &endpoints[i]
		n, ok := at[ep.ID.Pod]
		if !ok {
			n = len(list)
			at[ep.ID.Pod] = n
			list = append(list, Pod{UID: ep.ID.Pod, Name: ep.Pod})
		}
		list[n].Phase = max(list[n].Phase, PhaseOf(ep))
	}
	return list
}

// OfEndpoints returns the condition Ready of an accepted pool: ready of total endpoints serve, the picker cannot connect to
// unreachable ones, and unanswering ones take requests and answer nothing.
func OfEndpoints(ready, total, unreachable, unanswering int) metav1.Condition {
	judge, reason := Ready.True, ReasonServing
	if ready == 0 {
		judge, reason = Ready.False, ReasonNoReadyEndpoint
	}
	message := fmt.Sprintf("%d of %d endpoints", ready, total)
	if unreachable > 0 {
		message += fmt.Sprintf("; the picker cannot connect to %d", unreachable)
	}
	if unanswering > 0 {
		message += fmt.Sprintf("; without an answer: %d", unanswering)
	}
	return judge(reason, "%s", message)
}
