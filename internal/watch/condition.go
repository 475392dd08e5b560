package watch

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/conformance"
	"github.com/kvasir-dev/kvasir/internal/ingest"
)

// enoughAnswers that told what was cached are needed to judge predictions.
const enoughAnswers = 100

// maxMessage bounds a condition's message, in bytes; the schema takes 32 KiB.
const maxMessage = 1024

func condition(typ string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + " ..."
	}
	return metav1.Condition{Type: typ, Status: status, Reason: reason, Message: message}
}

// poolConditions are those that can be known without Kubernetes.
func poolConditions(s *PoolState, f *facts) []metav1.Condition {
	list := []metav1.Condition{accepted(s, f), ready(s, f), eventsSynced(s, f), tokensExact(s, f), predictionsTrusted(f)}
	if s.Policy != nil {
		list = append(list, condition(v1alpha1.ConditionPolicyAffected, metav1.ConditionTrue, "PolicyAffected",
			"RoutingPolicy "+s.Policy.Name+" is in force"))
	}
	for i := range list {
		list[i].ObservedGeneration = s.Object.Generation
	}
	return list
}

func accepted(s *PoolState, f *facts) metav1.Condition {
	const typ = v1alpha1.ConditionAccepted
	if len(s.Problems) > 0 {
		return condition(typ, metav1.ConditionFalse, s.Problems[0].reason, texts(s.Problems))
	}
	if f.refused.Err != nil {
		return condition(typ, metav1.ConditionFalse, "NameTaken", f.refused.Err.Error())
	}
	return condition(typ, metav1.ConditionTrue, "Accepted", "")
}

func texts(problems []Problem) string {
	var list []string
	for i := range problems {
		list = append(list, problems[i].Field+": "+problems[i].Detail)
	}
	return strings.Join(list, "; ")
}

func ready(s *PoolState, f *facts) metav1.Condition {
	const typ = v1alpha1.ConditionReady
	message := fmt.Sprintf("%d of %d endpoints", f.ready, f.total)
	switch {
	case !s.Served:
		return condition(typ, metav1.ConditionFalse, "NotAccepted", "the pool is not served")
	case f.ready == 0:
		return condition(typ, metav1.ConditionFalse, "NoReadyEndpoint", message)
	}
	return condition(typ, metav1.ConditionTrue, "Serving", message)
}

func eventsSynced(s *PoolState, f *facts) metav1.Condition {
	const typ = v1alpha1.ConditionEventsSynced
	no := func(reason, message string) metav1.Condition {
		return condition(typ, metav1.ConditionFalse, reason, message)
	}
	switch source := s.Object.Spec.Engine.Events.Source; {
	case source == v1alpha1.EventsNone:
		return condition(typ, metav1.ConditionTrue, "NotUsed", "the pool takes no events")
	case f.unreadable > 0:
		return no("UnknownLayout", fmt.Sprintf("the events of %d of %d endpoints are of no known layout", f.unreadable, f.total))
	case f.unsupportedBlocks > 0:
		return no("BlockSizeUnsupported", fmt.Sprintf("%d blocks do not fit keySpace.blockTokens %d", f.unsupportedBlocks,
			s.Object.Spec.KeySpace.BlockTokens))
	case f.synced+f.degraded < f.total && source == v1alpha1.EventsReporter:
		return no("ReporterMissing", fmt.Sprintf("%d of %d endpoints have no reporter", f.total-f.synced-f.degraded, f.total))
	case f.synced+f.degraded < f.total && source == v1alpha1.EventsListen:
		return no("StreamMissing", notConnected(f))
	case f.synced+f.degraded < f.total:
		return no("StreamMissing", fmt.Sprintf("%d of %d endpoints have no event stream", f.total-f.synced-f.degraded, f.total))
	case f.degraded > 0:
		return no("Lagging", fmt.Sprintf("what %d of %d endpoints hold is known in part only", f.degraded, f.total))
	}
	return condition(typ, metav1.ConditionTrue, "Synced", fmt.Sprintf("%d of %d endpoints", f.synced, f.total))
}

// notConnected tells what is known of publishers that should have connected to the picker.
func notConnected(f *facts) string {
	message := fmt.Sprintf("%d of %d endpoints have not connected to %s", f.total-f.synced-f.degraded, f.total, f.dialIn.Address)
	if f.dialIn.Err != nil {
		message += ", where nothing listens: " + f.dialIn.Err.Error()
	}
	var strangers []string
	for i, n := range f.dialIn.Strangers {
		if n > 0 {
			strangers = append(strangers, fmt.Sprintf("%d %s", n, ingest.Stranger(i)))
		}
	}
	if len(strangers) > 0 {
		message += "; turned away: " + strings.Join(strangers, ", ")
	}
	return message
}

// tokensExact tells whether block keys are made of the engine's own tokens, and what is done instead.
func tokensExact(s *PoolState, f *facts) metav1.Condition {
	const typ = v1alpha1.ConditionTokensExact
	reason, instead := withoutExact(s, f)
	why := func(known string) metav1.Condition {
		return condition(typ, metav1.ConditionFalse, known, f.tokens.Message+"; "+instead)
	}
	switch f.tokens.State {
	case conformance.Exact:
		if f.inexact.Share >= muchInexact {
			return condition(typ, metav1.ConditionFalse, reason, fmt.Sprintf("%.0f %% of the last requests had no exact tokens, the last one for the reason %s; for these %s",
				100*f.inexact.Share, f.inexact.Last, instead))
		}
		return condition(typ, metav1.ConditionTrue, "Exact", f.tokens.Message+untold(f))
	case conformance.TextsOnly:
		return why("TemplateUnsupported")
	case conformance.Failed:
		return why("ProbeFailed")
	case conformance.FilesMissing:
		return why("FilesMissing")
	case conformance.TokenizerUnsupported:
		return why("TokenizerUnsupported")
	case conformance.Unproven:
		return why(reason)
	}
	return condition(typ, metav1.ConditionFalse, reason, instead)
}

// muchInexact is the share of requests without exact tokens above which a pool does not count as exact, whatever was
// proven.
const muchInexact = 0.1

// unanswered is how many questions in a row must have found no answer for engines to count as not rendering.
const unanswered = 3

// withoutExact tells what is done with requests for which there are no exact tokens in the picker.
func withoutExact(s *PoolState, f *facts) (reason, message string) {
	const approximate = "prompts are matched by chunks of their text with what this picker has routed"
	switch {
	case s.Object.Spec.Model.Tokenizer.Type == v1alpha1.TokenizerNone:
		return "Approximate", "the pool has no tokenizer: " + approximate
	case f.spec != nil && f.spec.Policy.EngineTokens == string(v1alpha1.EngineTokensNever):
		return "Approximate", "the policy lets no engine be asked: " + approximate
	case f.rendering.Failures >= unanswered:
		return "Approximate", fmt.Sprintf("the last %d questions to engines for tokens had no answer (%s): %s",
			f.rendering.Failures, f.rendering.Last, approximate)
	}
	return "EngineRender", "an engine is asked for the tokens of each request"
}

// untold says which requests are not exact because engines are too old to tell their blocks apart.
func untold(f *facts) (message string) {
	if f.tokens.AdaptersUntold {
		message += "; requests for adapters are matched approximately, as engines before v0.14 do not tell adapters by name"
	}
	if f.tokens.SaltsUntold {
		message += "; requests with a cache salt are matched approximately, as engines before v0.17 do not tell salts"
	}
	return message
}

func predictionsTrusted(f *facts) metav1.Condition {
	const typ = v1alpha1.ConditionPredictionsTrusted
	switch h := f.hits; {
	case f.trust.Lost:
		return condition(typ, metav1.ConditionFalse, "Mispredicting",
			"the engines find less than half of what they have announced and not removed; do tokenizer, template, cache salts and block size match? Until they find it, requests are matched against what was routed before, but for one in 16")
	case h.Answers == 0 && f.completed >= enoughAnswers:
		return condition(typ, metav1.ConditionUnknown, "NoCachedTokens",
			"no answer has told how much was cached; start the engines with --enable-prompt-tokens-details")
	case h.Answers < enoughAnswers:
		return condition(typ, metav1.ConditionUnknown, "TooFewReplies", fmt.Sprintf("%d of %d answers", h.Answers, enoughAnswers))
	}
	return condition(typ, metav1.ConditionTrue, "Trusted", "")
}

// policyConditions are those of a policy at one target. refused is why the picker has not taken the target's state.
func policyConditions(s *PolicyState, t *TargetState, refused error) []metav1.Condition {
	var list []metav1.Condition
	add := func(typ string, status metav1.ConditionStatus, reason, message string) {
		c := condition(typ, status, reason, message)
		c.ObservedGeneration = s.Object.Generation
		list = append(list, c)
	}
	ok := false
	switch {
	case len(s.Problems) > 0:
		add(v1alpha1.ConditionAccepted, metav1.ConditionFalse, "Invalid", texts(s.Problems))
	case t.Winner != "":
		add(v1alpha1.ConditionAccepted, metav1.ConditionFalse, "Conflicted", "RoutingPolicy "+t.Winner+" is in force")
	case !t.Found:
		add(v1alpha1.ConditionAccepted, metav1.ConditionFalse, "TargetNotFound", "")
	default:
		ok = true
		add(v1alpha1.ConditionAccepted, metav1.ConditionTrue, "Accepted", "")
	}
	if len(s.MissingSecrets) > 0 {
		add(v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, "SecretNotFound", strings.Join(s.MissingSecrets, ", "))
	} else {
		add(v1alpha1.ConditionResolvedRefs, metav1.ConditionTrue, "ResolvedRefs", "")
	}
	switch {
	case !ok:
	case refused != nil:
		add(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, "Reconciling", refused.Error())
	default:
		add(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, "Programmed", "1 of 1 replicas")
	}
	return list
}
