package routingpolicy

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// ControllerName is the controller name of the operator's entries in status.ancestors.
const ControllerName = gwapiv1.GatewayController("kvasir.dev/operator")

// maxAncestors is how many entries the schema takes.
const maxAncestors = 16

// facts are what the status of a policy follows from.
type facts struct {
	// invalid is why no picker can act on the policy; empty where they can.
	invalid string
	// note is what an accepted policy does not do; empty for nothing.
	note string
	// missing are the names of Secrets that are referred to and do not exist, malformed what is wrong in others.
	missing, malformed []string
	// targets in the order of spec.targetRefs.
	targets []target
}

// target is a pool that a policy names.
type target struct {
	found bool
	// winner is the policy that the pool follows instead; empty when it follows this one.
	winner string
	// note is what an accepted policy does not do there; empty for nothing.
	note string
	// programmed of replicas follow this generation.
	programmed, replicas int
}

// policyStatus makes the status of a policy: one entry for each target. Entries of other controllers stay, and so do the
// transition times of unchanged conditions.
func policyStatus(p *v1alpha1.RoutingPolicy, f facts, now metav1.Time) gwapiv1.PolicyStatus {
	var next gwapiv1.PolicyStatus
	for _, a := range p.Status.Ancestors {
		if a.ControllerName != ControllerName {
			next.Ancestors = append(next.Ancestors, a)
		}
	}
	for i, ref := range p.Spec.TargetRefs {
		if len(next.Ancestors) == maxAncestors {
			break
		}
		entry := gwapiv1.PolicyAncestorStatus{AncestorRef: ancestorRef(&ref), ControllerName: ControllerName}
		entry.Conditions = conditions(f, f.targets[i])
		status.Stamp(entry.Conditions, conditionsOf(p.Status, entry.AncestorRef), p.Generation, now)
		next.Ancestors = append(next.Ancestors, entry)
	}
	return next
}

// conditions of a policy at one target: whether it is applied there, has all that it refers to, and is followed.
func conditions(f facts, t target) []metav1.Condition {
	list := []metav1.Condition{accepted(f, t), resolvedRefs(f)}
	if list[0].Status == metav1.ConditionTrue {
		list = append(list, programmed(t))
	}
	return list
}

func accepted(f facts, t target) metav1.Condition {
	switch {
	case f.invalid != "":
		return status.Accepted.False(status.ReasonInvalid, "%s", f.invalid)
	case !t.found:
		return status.Accepted.False(status.ReasonTargetNotFound, "there is no such pool")
	case t.winner != "":
		return status.Accepted.False(status.ReasonConflicted, "RoutingPolicy %s, which is older, or as old and first by name, is in force", t.winner)
	}
	return status.Accepted.True(status.ReasonAccepted, "%s", strings.Join(slices.DeleteFunc([]string{f.note, t.note}, isEmpty), "; "))
}

func resolvedRefs(f facts) metav1.Condition {
	switch {
	case len(f.missing) > 0:
		return status.ResolvedRefs.False(status.ReasonSecretNotFound, "%s", strings.Join(f.missing, ", "))
	case len(f.malformed) > 0:
		return status.ResolvedRefs.False("SecretInvalid", "%s", strings.Join(f.malformed, "; "))
	}
	return status.ResolvedRefs.True(status.ReasonResolvedRefs, "")
}

func programmed(t target) metav1.Condition {
	switch {
	case t.replicas == 0:
		return status.Programmed.Unknown(status.ReasonNoPicker, "no picker replica reports")
	case t.programmed < t.replicas:
		return status.Programmed.False(status.ReasonReconciling, "%d of %d replicas", t.programmed, t.replicas)
	}
	return status.Programmed.True(status.ReasonProgrammed, "%d of %d replicas", t.programmed, t.replicas)
}

// ancestorRef is the target of a policy as its status names it.
func ancestorRef(ref *v1alpha1.PolicyTarget) gwapiv1.ParentReference {
	group, kind := gwapiv1.Group(v1alpha1.GroupName), gwapiv1.Kind(cmp.Or(ref.Kind, v1alpha1.KindInferencePool))
	if ref.Group != nil {
		group = gwapiv1.Group(*ref.Group)
	}
	return gwapiv1.ParentReference{Group: &group, Kind: &kind, Name: gwapiv1.ObjectName(ref.Name)}
}

// conditionsOf a target, as the operator has written them.
func conditionsOf(s gwapiv1.PolicyStatus, ref gwapiv1.ParentReference) []metav1.Condition {
	i := slices.IndexFunc(s.Ancestors, func(a gwapiv1.PolicyAncestorStatus) bool {
		r := a.AncestorRef
		return a.ControllerName == ControllerName && r.Name == ref.Name && r.Group != nil && *r.Group == *ref.Group && r.Kind != nil &&
			*r.Kind == *ref.Kind
	})
	if i < 0 {
		return nil
	}
	return s.Ancestors[i].Conditions
}

func isEmpty(text string) bool { return text == "" }
