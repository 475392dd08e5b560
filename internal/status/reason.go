package status

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/internal/events"
)

// The reasons of conditions that are set in more than one place, or that other code depends on. A reason that only one call sets
// and no code reads is written in that call. docs/operations.md describes all of them.
const (
	// Of Accepted, of pools and policies.
	ReasonAccepted          = "Accepted"
	ReasonNameTaken         = "NameTaken"
	ReasonObjectRefused     = "ObjectRefused"
	ReasonReferenceNotFound = "ReferenceNotFound"
	ReasonInvalid           = "Invalid"
	ReasonConflicted        = "Conflicted"
	ReasonTargetNotFound    = "TargetNotFound"

	// Of Ready.
	ReasonServing           = "Serving"
	ReasonAtZero            = "AtZero"
	ReasonNoReadyEndpoint   = "NoReadyEndpoint"
	ReasonNotAccepted       = "NotAccepted"
	ReasonPickerUnavailable = "PickerUnavailable"

	// Of UpToDate.
	ReasonRolloutStopped  = "RolloutStopped"
	ReasonReporterStopped = "ReporterUpdateStopped"

	// Of PodsHealthy: what the operator could not add to the template.
	ReasonFlagsMissing   = "EngineFlagsMissing"
	ReasonPreStopMissing = "PreStopMissing"
	ReasonProbesMissing  = "ProbesMissing"

	// Of EventsSynced.
	ReasonEventsNotUsed        = "NotUsed"
	ReasonSynced               = "Synced"
	ReasonStreamMissing        = "StreamMissing"
	ReasonEventsDisabled       = "EventsDisabled"
	ReasonUnknownLayout        = "UnknownLayout"
	ReasonLagging              = "Lagging"
	ReasonHistoryLost          = "HistoryLost"
	ReasonBlockSizeUnsupported = "BlockSizeUnsupported"
	ReasonReporterMissing      = "ReporterMissing"
	ReasonReporterRejected     = "ReporterRejected"

	// Of TokensExact.
	ReasonEngineRender = "EngineRender"
	ReasonApproximate  = "Approximate"
	ReasonProbeFailed  = "ProbeFailed"

	// Of PredictionsTrusted, ModelServed and GatewayConforms.
	ReasonMispredicting    = "Mispredicting"
	ReasonTooFewReplies    = "TooFewReplies"
	ReasonModelNotListed   = "ModelNotListed"
	ReasonPicksNotFollowed = "PicksNotFollowed"

	// Of PickerAvailable.
	ReasonUnavailable        = "Unavailable"
	ReasonCertificateInvalid = "CertificateInvalid"

	// Of EnginesClosed.
	ReasonOpen               = "Open"
	ReasonGatewayPodsMissing = "GatewayPodsMissing"

	// Of GatewayAccepted.
	ReasonDisabled    = "Disabled"
	ReasonCRDsMissing = "CRDsMissing"

	// Of ResolvedRefs and Programmed.
	ReasonSecretNotFound = "SecretNotFound"
	ReasonResolvedRefs   = "ResolvedRefs"
	ReasonReconciling    = "Reconciling"
	ReasonProgrammed     = "Programmed"

	// Of conditions that only pickers can judge.
	ReasonStarting = "Starting" // of Ready, too
	ReasonNoPicker = "NoPicker"
)

// Absent reports whether a condition is unknown because what it judges is switched off or not installed.
func Absent(c *metav1.Condition) bool {
	return c.Status == metav1.ConditionUnknown && (c.Reason == ReasonDisabled || c.Reason == ReasonCRDsMissing)
}

// StreamReason is why not all blocks of an endpoint are known although its events are wanted: a reason of EventsSynced, or the
// state of the stream where no more is known.
func StreamReason(s *events.Status) string {
	switch {
	case s.Stats.Silent.Load():
		return ReasonEventsDisabled
	case s.Stats.Unreadable.Load():
		return ReasonUnknownLayout
	case s.State == events.Degraded && s.Stats.Overflows.Load() > 0:
		return ReasonLagging
	case s.State == events.Degraded || s.State == events.Unverified:
		return ReasonHistoryLost
	}
	return s.State.String()
}

// EventsReason is the reason of EventsSynced for what a picker reports of an endpoint, as StreamReason computes it.
func EventsReason(reported string) string {
	known := []string{ReasonUnknownLayout, ReasonReporterRejected, ReasonLagging, ReasonHistoryLost, ReasonBlockSizeUnsupported,
		ReasonReporterMissing, ReasonEventsDisabled}
	if slices.Contains(known, reported) {
		return reported
	}
	return ReasonStreamMissing
}
