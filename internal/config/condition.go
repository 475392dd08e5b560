package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/overload"
	"github.com/kvasir-dev/kvasir/internal/status"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokencheck"
)

// enoughAnswers is how many answers that report cached tokens are needed to judge predictions.
const enoughAnswers = 100

// poolConditions are those that can be known without Kubernetes.
func poolConditions(s *PoolState, f *facts) []metav1.Condition {
	list := []metav1.Condition{accepted(s, f), ready(s, f), eventsSynced(s, f), tokensExact(s, f), predictionsTrusted(f)}
	for _, c := range []metav1.Condition{modelServed(s, f), gatewayConforms(f)} {
		if c.Type != "" {
			list = append(list, c)
		}
	}
	list = append(list, resourcesSuffice(f))
	if s.Policy != nil {
		list = append(list, status.PolicyAffected.True("PolicyAffected", "RoutingPolicy %s is in force", s.Policy.Name))
	}
	return list
}

func accepted(s *PoolState, f *facts) metav1.Condition {
	if len(s.Problems) > 0 {
		return status.Accepted.False(s.Problems[0].reason, "%s", texts(s.Problems))
	}
	if f.refused.Err != nil {
		return status.Accepted.False(status.ReasonNameTaken, "%s", f.refused.Err.Error())
	}
	if s.Object.Spec.Engine.ServesAnyone(f.spec != nil && f.spec.Policy.Admission.Tenants != nil) {
		return status.Accepted.True(v1alpha1.ReasonClientsUnchecked, "%s", v1alpha1.MessageClientsUnchecked)
	}
	if s.Object.Spec.Engine.Type == v1alpha1.EngineSGLang {
		return status.Accepted.True(v1alpha1.ReasonEngineExperimental, "%s", v1alpha1.MessageSGLangExperimental)
	}
	return status.Accepted.True(status.ReasonAccepted, "")
}

func texts(problems []Problem) string {
	var list []string
	for i := range problems {
		list = append(list, problems[i].Field+": "+problems[i].Detail)
	}
	return strings.Join(list, "; ")
}

func ready(s *PoolState, f *facts) metav1.Condition {
	if !s.Served {
		return status.Ready.False(status.ReasonNotAccepted, "the pool is not served")
	}
	return status.OfEndpoints(int(f.ready), int(f.total), int(f.unreachable), int(f.unanswering))
}

func eventsSynced(s *PoolState, f *facts) metav1.Condition {
	no := status.EventsSynced.False
	switch source := s.Object.Spec.Engine.Events.Source; {
	case source == v1alpha1.EventsNone:
		return status.EventsSynced.True(status.ReasonEventsNotUsed, "the pool takes no events")
	case f.unreadable > 0:
		return no(status.ReasonUnknownLayout, "the events of %d of %d endpoints are of no known layout", f.unreadable, f.total)
	case f.unsupportedBlocks > 0:
		return no(status.ReasonBlockSizeUnsupported, "%d blocks do not fit keySpace.blockTokens %d", f.unsupportedBlocks,
			s.Object.Spec.KeySpace.BlockTokens)
	case f.unpublished > 0:
		return no(status.ReasonEventsDisabled, "%d of %d engines say that they publish no events on a TCP port: start them with --kv-events-config",
			f.unpublished, f.total)
	case f.synced+f.degraded < f.total && source == v1alpha1.EventsReporter:
		return no(status.ReasonReporterMissing, "%d of %d endpoints have no reporter", f.total-f.synced-f.degraded, f.total)
	case f.synced+f.degraded < f.total && source == v1alpha1.EventsListen:
		return no(status.ReasonStreamMissing, "%s", notConnected(f))
	case f.synced+f.degraded < f.total:
		return no(status.ReasonStreamMissing, "%d of %d endpoints have no event stream", f.total-f.synced-f.degraded, f.total)
	case f.lagging > 0:
		return no(status.ReasonLagging, "what %d of %d endpoints hold is known in part only: events arrived faster than they were applied",
			f.degraded, f.total)
	case f.degraded > 0:
		return no(status.ReasonHistoryLost, "what %d of %d endpoints hold is known in part only: events were missed that the engine's "+
			"replay buffer does not have; prefixes are learned again as they are used", f.degraded, f.total)
	}
	return status.EventsSynced.True(status.ReasonSynced, "%d of %d endpoints", f.synced, f.total)
}

// notConnected describes the publishers that should have connected to the picker.
func notConnected(f *facts) string {
	message := fmt.Sprintf("%d of %d endpoints have not connected to %s", f.total-f.synced-f.degraded, f.total, f.dialIn.Address)
	if f.dialIn.Err != nil {
		message += ", where nothing listens: " + f.dialIn.Err.Error()
	}
	var strangers []string
	for i, n := range f.dialIn.Strangers {
		if n > 0 {
			strangers = append(strangers, fmt.Sprintf("%d %s", n, events.Stranger(i)))
		}
	}
	if len(strangers) > 0 {
		message += "; turned away: " + strings.Join(strangers, ", ")
	}
	return message
}

// tokensExact reports whether block keys are made of the engines' own tokens, from any source.
func tokensExact(s *PoolState, f *facts) metav1.Condition {
	reason, source := tokensOtherwise(s, f)
	doubted, which := tokensDoubted(f.doubts)
	found := f.tokens.Message
	if f.tokens.Origin != "" {
		found += "; " + f.tokens.Origin
	}
	not := func(known string) metav1.Condition {
		message := found + "; " + source
		if doubted != "" {
			message += "; " + which
		}
		return status.TokensExact.False(known, "%s", message)
	}
	state := f.tokens.State
	if s.Object.Spec.Model.Tokenizer.Type == v1alpha1.TokenizerAuto {
		state, source = tokensFound(state, source, found)
	}
	switch state {
	case tokencheck.TextsOnly:
		return not("TemplateUnsupported")
	case tokencheck.Failed:
		return not(status.ReasonProbeFailed)
	case tokencheck.FilesMissing:
		return not("FilesMissing")
	case tokencheck.TokenizerUnsupported:
		return not("TokenizerUnsupported")
	case tokencheck.Unproven:
		return not(reason)
	case tokencheck.Exact, tokencheck.NoFiles:
	default: // nothing is known yet
		return status.TokensExact.False(reason, "%s", source)
	}
	exact := state == tokencheck.Exact
	switch {
	case !exact && reason == status.ReasonApproximate:
		return status.TokensExact.False(reason, "%s", source)
	case doubted != "":
		if !exact {
			which += "; " + source
		}
		return status.TokensExact.False(doubted, "%s", which)
	case f.inexact.Share >= muchInexact:
		return status.TokensExact.False("PartlyExact", "%.0f %% of the last requests had no exact tokens, the last one for the reason %s; %s",
			100*f.inexact.Share, f.inexact.Last, source)
	case exact:
		return status.TokensExact.True("Exact", "%s%s", found, unreported(f))
	}
	return status.TokensExact.True(reason, "%s%s", source, unreported(f))
}

// tokensFound adds to source what was found of a model whose files are looked for, and why it is not used. Engines make the tokens
// where it is not, so that it is no fault: the state is Exact, NoFiles, or one in which nothing is known yet.
func tokensFound(state tokencheck.State, source, found string) (as tokencheck.State, message string) {
	switch state {
	case tokencheck.Exact:
		return state, source
	case tokencheck.TextsOnly, tokencheck.Failed, tokencheck.TokenizerUnsupported, tokencheck.Unproven:
		return tokencheck.NoFiles, source + "; of the model's files only what is proven is used: " + found
	case tokencheck.NoFiles:
		if found != "" {
			source += "; no files of the model: " + found
		}
	case tokencheck.Starting, tokencheck.FilesMissing:
	}
	return state, source
}

// muchInexact is the share of requests without exact tokens above which a pool does not count as exact, whatever was
// proven.
const muchInexact = 0.1

// unanswered is how many questions in a row must have found no answer for engines to count as not rendering.
const unanswered = 3

// mostInexact is the share above which missing comparisons of hits are due to missing tokens.
const mostInexact = 0.5

// tokensOtherwise describes where the tokens of requests come from if they are not made in the picker.
func tokensOtherwise(s *PoolState, f *facts) (reason, message string) {
	const approximate = "prompts are matched by chunks of their text with what this picker has routed"
	switch {
	case s.Object.Spec.Model.Tokenizer.Type == v1alpha1.TokenizerNone:
		return status.ReasonApproximate, "the pool has no tokenizer: " + approximate
	case f.spec != nil && f.spec.Policy.EngineTokens == string(v1alpha1.EngineTokensNever):
		return status.ReasonApproximate, "the policy lets no engine be asked: " + approximate
	case f.rendering.Failures >= unanswered:
		return status.ReasonApproximate, fmt.Sprintf("the last %d questions to engines for tokens had no answer (%s): %s",
			f.rendering.Failures, f.rendering.Last, approximate)
	case f.rendering.Lacking != "":
		return "EngineTokenize", "engines are asked for tokens by /tokenize, which does not know every request: " + f.rendering.Lacking
	}
	return status.ReasonEngineRender, "an engine is asked for the tokens of each request"
}

// unreported describes which requests are not exact because engines are too old to distinguish their blocks.
func unreported(f *facts) (message string) {
	if f.tokens.AdaptersUnreported {
		message += "; requests for adapters are matched approximately, as engines before v0.14 do not tell adapters by name"
	}
	if f.tokens.SaltsUnreported {
		message += "; requests with a cache salt are matched approximately, as engines before v0.17 do not tell salts"
	}
	return message
}

func predictionsTrusted(f *facts) metav1.Condition {
	switch h := f.hits; {
	case f.trust.Lost:
		return status.PredictionsTrusted.False(status.ReasonMispredicting, "%s", mispredicting(f.trust.Distrusted))
	case h.Answers == 0 && f.completed >= enoughAnswers && f.inexact.Share >= mostInexact:
		return status.PredictionsTrusted.Unknown("NoExactTokens",
			"nearly all requests are matched approximately, so that nothing is predicted; see TokensExact")
	case h.Answers == 0 && f.completed >= enoughAnswers && h.Silent > h.Uncached:
		return status.PredictionsTrusted.Unknown("NoUsage", "%d of %d answers have not reported their usage, "+
			"which streams do only if their clients set stream_options.include_usage; set decisions.streamUsage to Always in the policy, or, "+
			"behind a gateway, start the engines with --enable-force-include-usage", h.Silent, h.Silent+h.Uncached)
	case h.Answers == 0 && f.completed >= enoughAnswers:
		return status.PredictionsTrusted.Unknown("NoCachedTokens",
			"no answer has reported cached tokens; start the engines with --enable-prompt-tokens-details")
	case h.Answers < enoughAnswers:
		return status.PredictionsTrusted.Unknown(status.ReasonTooFewReplies, "%d of %d answers", h.Answers, enoughAnswers)
	}
	if why := approximations(f); why != "" {
		return status.PredictionsTrusted.True(v1alpha1.ReasonMatchesApproximate, "%s", why)
	}
	return status.PredictionsTrusted.True("Trusted", "")
}

// approximations are the reasons why matches can differ from what engines find although nothing is wrong; empty if there
// are none.
func approximations(f *facts) string {
	var why []string
	if f.unfollowed > 0 {
		why = append(why, fmt.Sprintf("%d of %d endpoints hold blocks whose conditions for a hit are not known (chunked local attention, "+
			"or windows where an older reporter speaks), so that matches can be too long there", f.unfollowed, f.total))
	}
	if f.unidentified > 0 {
		why = append(why, fmt.Sprintf("%d of %d endpoints announce blocks without what identifies them (models all of whose layers have "+
			"windows announce the end of a prompt only; tiers and adapters of old releases), so that matches can be too short there",
			f.unidentified, f.total))
	}
	if f.dropping > 0 {
		why = append(why, fmt.Sprintf("%d of %d engines use speculative decoding and have not shown that they reuse the last block of a hit, "+
			"so that matches are one block shorter there", f.dropping, f.total))
	}
	if f.lookahead > 0 {
		why = append(why, fmt.Sprintf("%d of %d engines name blocks by tokens that follow them, too (speculative decoding), so that a hit "+
			"can lack its last block and matches are one block shorter there", f.lookahead, f.total))
	}
	return strings.Join(why, "; ")
}

// modelServed reports whether the engines list the pool's model: requests for another one get the engine's 404. It is empty
// until an engine has listed its models.
func modelServed(s *PoolState, f *facts) metav1.Condition {
	model := string(s.Object.Spec.Model.Name)
	switch l := &f.listing; {
	case l.Endpoints == 0:
		return metav1.Condition{}
	case l.Lacking > 0:
		return status.ModelServed.False(status.ReasonModelNotListed, "%d of %d endpoints do not list the model %q and answer "+
			"requests for it with 404; %s lists %s", l.Lacking, l.Endpoints, model, l.Pod, quotedNames(l.Served))
	default:
		return status.ModelServed.True("Served", "all of %d endpoints list the model %q", l.Endpoints, model)
	}
}

func quotedNames(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = strconv.Quote(name)
	}
	return strings.Join(quoted, ", ")
}

// gatewayConforms reports whether the gateways with requests follow the picks and pass streamed answers on as they arrive.
// It is empty if no gateway has shown either.
func gatewayConforms(f *facts) metav1.Condition {
	var ignoring, buffering []string
	reported := false
	for i := range f.gateways {
		g := &f.gateways[i]
		reported = reported || g.Reported+g.Streams > 0
		if g.Ignores {
			ignoring = append(ignoring, g.Gateway)
		}
		if g.Buffers {
			buffering = append(buffering, g.Gateway)
		}
	}
	slices.Sort(ignoring)
	slices.Sort(buffering)
	var reason string
	var found []string
	if len(ignoring) > 0 {
		reason = status.ReasonPicksNotFollowed
		found = append(found, "requests through the gateway at "+strings.Join(ignoring, ", ")+
			" are served by other endpoints than were picked; does it know all pods of the pool, and does its route take the destination from x-gateway-destination-endpoint? "+
			"Or does an engine take connections and fail its requests, which the gateway then sends elsewhere?")
	}
	if len(buffering) > 0 {
		reason = cmp.Or(reason, "AnswersBuffered")
		found = append(found, "the gateway at "+strings.Join(buffering, ", ")+
			" holds streamed answers back until they are complete; set its response_body_mode to FULL_DUPLEX_STREAMED or STREAMED "+
			"(Envoy AI Gateway: remove the annotation aigateway.envoyproxy.io/processing-body-mode from the inference pool)")
	}
	switch {
	case reason != "":
		return status.GatewayConforms.False(reason, "%s", strings.Join(found, " Also, "))
	case reported:
		return status.GatewayConforms.True("Conforms", "")
	}
	return metav1.Condition{}
}

// resourcesSuffice reports whether the picker refuses something because memory, goroutines or descriptors run short, or a port is full.
func resourcesSuffice(f *facts) metav1.Condition {
	switch reason, message := f.overload.Short(); reason {
	case "":
	case overload.ConnectionsFull:
		return status.ResourcesSuffice.False(reason, "%s; see kvasir_connections_turned_away_total, and which clients keep connections open", message)
	default:
		return status.ResourcesSuffice.False(reason, "%s; give the pickers more memory, descriptors or replicas (picker.resources, picker.replicas)", message)
	}
	return status.ResourcesSuffice.True("Sufficient", "")
}

// policyConditions are the conditions of a policy at one target. refused is why the picker has not taken the target's state.
func policyConditions(s *PolicyState, t *TargetState, refused error) []metav1.Condition {
	accepted, resolved := status.Accepted.True(status.ReasonAccepted, ""), status.ResolvedRefs.True(status.ReasonResolvedRefs, "")
	switch {
	case len(s.Problems) > 0:
		accepted = status.Accepted.False(status.ReasonInvalid, "%s", texts(s.Problems))
	case t.Winner != "":
		accepted = status.Accepted.False(status.ReasonConflicted, "RoutingPolicy %s is in force", t.Winner)
	case !t.Found:
		accepted = status.Accepted.False(status.ReasonTargetNotFound, "")
	}
	if len(s.MissingSecrets) > 0 {
		resolved = status.ResolvedRefs.False(status.ReasonSecretNotFound, "%s", strings.Join(s.MissingSecrets, ", "))
	}
	list := []metav1.Condition{accepted, resolved}
	switch {
	case accepted.Status != metav1.ConditionTrue:
	case refused != nil:
		list = append(list, status.Programmed.False(status.ReasonReconciling, "%s", refused.Error()))
	default:
		list = append(list, status.Programmed.True(status.ReasonProgrammed, "1 of 1 replicas"))
	}
	return list
}
