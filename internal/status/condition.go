package status

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
)

// Type is the type of a condition. Its methods make conditions of that type, without a generation and a time: Stamp adds them
// when the conditions are written.
type Type string

// The types of the conditions of a pool.
const (
	Accepted           = Type(v1alpha1.ConditionAccepted)
	Ready              = Type(v1alpha1.ConditionReady)
	UpToDate           = Type(v1alpha1.ConditionUpToDate)
	Scaled             = Type(v1alpha1.ConditionScaled)
	PodsHealthy        = Type(v1alpha1.ConditionPodsHealthy)
	EventsSynced       = Type(v1alpha1.ConditionEventsSynced)
	TokensExact        = Type(v1alpha1.ConditionTokensExact)
	PredictionsTrusted = Type(v1alpha1.ConditionPredictionsTrusted)
	ModelServed        = Type(v1alpha1.ConditionModelServed)
	GatewayConforms    = Type(v1alpha1.ConditionGatewayConforms)
	PickerAvailable    = Type(v1alpha1.ConditionPickerAvailable)
	ResourcesSuffice   = Type(v1alpha1.ConditionResourcesSuffice)
	EnginesClosed      = Type(v1alpha1.ConditionEnginesClosed)
	GatewayAccepted    = Type(v1alpha1.ConditionGatewayAccepted)
	AutoscalingActive  = Type(v1alpha1.ConditionAutoscalingActive)
	PolicyAffected     = Type(v1alpha1.ConditionPolicyAffected)
)

// The types of the conditions of a policy at one of its targets, besides Accepted.
const (
	ResolvedRefs = Type(v1alpha1.ConditionResolvedRefs)
	Programmed   = Type(v1alpha1.ConditionProgrammed)
	Available    = Type(v1alpha1.ConditionAvailable) // of fleets
)

// maxMessage bounds a condition's message, in bytes; the schema takes 32 KiB.
const maxMessage = 1024

// True returns the condition for what is as it should be.
func (t Type) True(reason, format string, args ...any) metav1.Condition {
	return t.condition(metav1.ConditionTrue, reason, fmt.Sprintf(format, args...))
}

// False returns the condition for what is not as it should be.
func (t Type) False(reason, format string, args ...any) metav1.Condition {
	return t.condition(metav1.ConditionFalse, reason, fmt.Sprintf(format, args...))
}

// Unknown returns the condition for what cannot be judged.
func (t Type) Unknown(reason, format string, args ...any) metav1.Condition {
	return t.condition(metav1.ConditionUnknown, reason, fmt.Sprintf(format, args...))
}

func (t Type) condition(status metav1.ConditionStatus, reason, message string) metav1.Condition {
	const more = " ..."
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage-len(more)], "") + more
	}
	return metav1.Condition{Type: string(t), Status: status, Reason: reason, Message: message}
}

// In returns the condition of the type in a list; nil if there is none.
func (t Type) In(conditions []metav1.Condition) *metav1.Condition {
	return meta.FindStatusCondition(conditions, string(t))
}

// Line is a condition in a line of text, TYPE: REASON: MESSAGE, as a picker reports it to people.
func Line(c *metav1.Condition) string {
	if c.Message == "" {
		return c.Type + ": " + c.Reason
	}
	return c.Type + ": " + c.Reason + ": " + c.Message
}

// ParseLine returns the type and the reason of a Line with a message; ok is false for other text.
func ParseLine(line string) (t Type, reason string, ok bool) {
	words := strings.SplitN(line, ": ", 3)
	if len(words) < 3 {
		return "", "", false
	}
	return Type(words[0]), words[1], true
}

// Stamp adds the generation of the judged object to conditions, and the time: now, or that of the condition of the same type and
// status in old.
func Stamp(conditions, old []metav1.Condition, generation int64, now metav1.Time) {
	for i := range conditions {
		c := &conditions[i]
		c.ObservedGeneration, c.LastTransitionTime = generation, now
		if was := meta.FindStatusCondition(old, c.Type); was != nil && was.Status == c.Status {
			c.LastTransitionTime = was.LastTransitionTime
		}
	}
}

// Finding is a condition in the form in which a picker sends it to the operator; the zero value if c is nil.
func Finding(c *metav1.Condition) operatorfeed.Finding {
	if c == nil {
		return operatorfeed.Finding{}
	}
	verdict := operatorfeed.Unclear
	switch c.Status {
	case metav1.ConditionTrue:
		verdict = operatorfeed.Good
	case metav1.ConditionFalse:
		verdict = operatorfeed.Bad
	case metav1.ConditionUnknown:
	}
	return operatorfeed.Finding{Verdict: verdict, Reason: c.Reason, Message: c.Message}
}

// Found is the reverse of Finding, for the type t.
func (t Type) Found(f *operatorfeed.Finding) metav1.Condition {
	status := metav1.ConditionUnknown
	switch f.Verdict {
	case operatorfeed.Good:
		status = metav1.ConditionTrue
	case operatorfeed.Bad:
		status = metav1.ConditionFalse
	case operatorfeed.NoVerdict, operatorfeed.Unclear:
	}
	return t.condition(status, f.Reason, f.Message)
}
