package status

import (
	"slices"

	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
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
	case s.Stats.BlockSizeUnsupported.Load() > 0:
		return ReasonBlockSizeUnsupported
	case s.State == events.Degraded && s.Stats.Overflows.Load() > 0:
		return ReasonLagging
	case s.State == events.Degraded || s.State == events.Unverified:
		return ReasonHistoryLost
	}
	return s.State.String()
}

// Knowledge adds to the state of each pod that a picker sends to the operator whether all blocks of its ranks are known, and why not.
// A pod whose streams are complete has a reason, too, if their events or blocks cannot be used.
func Knowledge(pods map[string]operatorfeed.PodState, streams []events.Status) {
	seen := map[string]bool{}
	for i := range streams {
		stream := &streams[i]
		uid := stream.Endpoint.ID.Pod
		pod, ok := pods[uid]
		if !ok {
			continue
		}
		synced := stream.State == events.Synced
		pod.Synced = synced && (pod.Synced || !seen[uid])
		pod.Degraded = pod.Degraded || stream.State == events.Degraded || stream.State == events.Unverified
		if reason := StreamReason(stream); !synced || reason != StreamSynced {
			pod.Reason = reason
		}
		seen[uid] = true
		pods[uid] = pod
	}
}

// EventsReason is the reason of EventsSynced for what a picker reports of a pod, as Knowledge computes it; empty for a pod whose
// blocks are all known.
func EventsReason(reported string, synced bool) string {
	known := []string{ReasonUnknownLayout, ReasonLagging, ReasonHistoryLost, ReasonBlockSizeUnsupported, ReasonEventsDisabled}
	switch {
	case slices.Contains(known, reported):
		return reported
	case synced:
		return ""
	}
	return ReasonStreamMissing
}
