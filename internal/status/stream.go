package status

import (
	"slices"

	"github.com/kvasir-dev/kvasir/internal/events"
)

// The states of an endpoint's events, as documents have them: how far it is known what the endpoint holds.
var (
	StreamSynced       = events.Synced.String()
	StreamSyncing      = events.Syncing.String()
	StreamUnverified   = events.Unverified.String()
	StreamDegraded     = events.Degraded.String()
	StreamDisconnected = events.Disconnected.String()
)

// StreamNone is the state of endpoints whose events are not wanted.
const StreamNone = "None"

// streamStates, worst last.
var streamStates = []string{StreamNone, StreamSynced, StreamSyncing, StreamUnverified, StreamDegraded, StreamDisconnected}

// WorseStream reports whether less is known of an endpoint in state a than of one in state b.
func WorseStream(a, b string) bool {
	return slices.Index(streamStates, a) > slices.Index(streamStates, b)
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
