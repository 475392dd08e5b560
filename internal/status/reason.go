package status

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The reasons of conditions that are set in more than one place, or that other code depends on. A reason that only one call sets
// and no code reads is written in that call. docs/operations.md describes all of them.
const (
	// Of Accepted, of pools and policies.
	ReasonAccepted          = "Accepted"
	ReasonNameTaken         = "NameTaken"
	ReasonObjectRefused     = "ObjectRefused"
	ReasonNotForFleets      = "NotForFleets"
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
	ReasonRolloutStopped   = "RolloutStopped"
	ReasonReporterStopped  = "ReporterUpdateStopped"
	ReasonRollingOut       = "RolloutInProgress"
	ReasonRolloutOnDelete  = "RolloutOnDelete"
	ReasonReporterUpdating = "ReporterUpdating"

	// Of Scaled.
	ReasonScalingUp   = "ScalingUp"
	ReasonScalingDown = "ScalingDown"

	// Of PodsHealthy: what the operator could not add to the template.
	ReasonFlagsMissing   = "EngineFlagsMissing"
	ReasonPreStopMissing = "PreStopMissing"
	ReasonProbesMissing  = "ProbesMissing"
	ReasonSidecarMissing = "SidecarMissing"
	// The condition is True: nothing that the pool needs is missing.
	ReasonReleaseUnknown = "ReleaseUnknown"

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

	// Of TokensExact.
	ReasonEngineRender = "EngineRender"
	ReasonApproximate  = "Approximate"
	ReasonProbeFailed  = "ProbeFailed"
	// The messages of these two name what is concerned, and change only with it.
	ReasonTokensDoubted   = "TokensDoubted"
	ReasonEndpointDiffers = "EndpointDiffers"

	// Of PredictionsTrusted, ModelServed and GatewayConforms.
	ReasonMispredicting    = "Mispredicting"
	ReasonTooFewReplies    = "TooFewReplies"
	ReasonModelNotListed   = "ModelNotListed"
	ReasonNoModelList      = "NoModelList"
	ReasonPicksNotFollowed = "PicksNotFollowed"

	// Of PickerAvailable.
	ReasonUnavailable        = "Unavailable"
	ReasonCertificateInvalid = "CertificateInvalid"
	ReasonFleetNotFound      = "FleetNotFound"

	// Of EnginesClosed.
	ReasonOpen               = "Open"
	ReasonGatewayPodsMissing = "GatewayPodsMissing"

	// Of GatewayAccepted.
	ReasonDisabled      = "Disabled"
	ReasonCRDsMissing   = "CRDsMissing"
	ReasonNotReferenced = "NotReferenced"

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
