package rpc

import (
	"maps"
	"slices"
	"time"

	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
)

// maxAge bounds the age of a request.
const maxAge = 10 * 365 * 24 * time.Hour

// stateMessage puts a state into the words of the wire, pods by UID. It is sent now.
func stateMessage(s *operatorfeed.State, now time.Time) *OperateState {
	t := &s.Totals
	m := &OperateState{
		Picker: s.Picker, Incarnation: s.Incarnation, PoolGeneration: s.PoolGeneration,
		PolicyName: s.PolicyName, PolicyGeneration: s.PolicyGeneration, Ready: s.Ready,
		KeyId: s.KeyID, Tokens: findingMessage(&s.Tokens), Predictions: findingMessage(&s.Predictions), Gateways: findingMessage(&s.Gateways),
		Resources: findingMessage(&s.Resources), Model: findingMessage(&s.Model),
		Accepted: findingMessage(&s.Accepted), AcceptedGeneration: s.AcceptedGeneration, Unserved: s.Unserved, Resolved: s.Resolved,
		Totals: &OperateTotals{
			Requests: t.Requests, PromptTokens: t.PromptTokens, HitTokens: t.HitTokens, PrefillTokens: t.PrefillTokens,
			WorkSeconds: t.WorkSeconds, Evictions: t.Evictions, Refused: t.Refused, Ttft: t.TTFT[:], Waiting: t.Waiting,
		},
	}
	if !t.LastRequest.IsZero() {
		age := max(time.Millisecond, now.Sub(t.LastRequest))
		m.Totals.LastRequestAge, m.Totals.LastRequest = age.Milliseconds(), now.Add(-age).UnixMilli()
	}
	for _, uid := range slices.Sorted(maps.Keys(s.Pods)) {
		p := s.Pods[uid]
		m.Pods = append(m.Pods, &OperatePod{
			Uid: uid, Draining: p.Draining, InFlight: int64(p.InFlight), Synced: p.Synced, Degraded: p.Degraded,
			Reason: p.Reason, UncachedTokens: p.UncachedTokens, Value: p.Value,
			Waiting: int64(p.Waiting), KvUsage: p.KVUsage, Blocks: p.Blocks,
			Busy: int64(p.Busy), ReadAge: p.ReadAge.Milliseconds(), WorkSeconds: p.WorkSeconds,
		})
	}
	return m
}

// stateOf decodes a message that is received now. Buckets that this version does not have count as the last one.
func stateOf(m *OperateState, now time.Time) operatorfeed.State {
	t := m.GetTotals()
	s := operatorfeed.State{
		Picker: m.GetPicker(), Incarnation: m.GetIncarnation(), PoolGeneration: m.GetPoolGeneration(),
		PolicyName: m.GetPolicyName(), PolicyGeneration: m.GetPolicyGeneration(), Ready: m.GetReady(),
		KeyID: m.GetKeyId(), Tokens: findingOf(m.GetTokens()), Predictions: findingOf(m.GetPredictions()), Gateways: findingOf(m.GetGateways()),
		Resources: findingOf(m.GetResources()), Model: findingOf(m.GetModel()),
		Accepted: findingOf(m.GetAccepted()), AcceptedGeneration: m.GetAcceptedGeneration(), Unserved: m.GetUnserved(), Resolved: m.GetResolved(),
		Pods: make(map[string]operatorfeed.PodState, len(m.GetPods())),
		Totals: operatorfeed.Totals{
			Requests: t.GetRequests(), PromptTokens: t.GetPromptTokens(), HitTokens: t.GetHitTokens(),
			PrefillTokens: t.GetPrefillTokens(), WorkSeconds: t.GetWorkSeconds(), Evictions: t.GetEvictions(), Refused: t.GetRefused(),
			Waiting: t.GetWaiting(),
		},
	}
	for i, n := range t.GetTtft() {
		s.Totals.TTFT[min(i, len(s.Totals.TTFT)-1)] += n
	}
	if age := t.GetLastRequestAge(); age > 0 {
		s.Totals.LastRequest = now.Add(-time.Duration(min(age, maxAge.Milliseconds())) * time.Millisecond)
	} else if last := t.GetLastRequest(); last != 0 { // an earlier version's
		s.Totals.LastRequest = time.UnixMilli(last)
	}
	for _, p := range m.GetPods() {
		s.Pods[p.GetUid()] = operatorfeed.PodState{
			Draining: p.GetDraining(), InFlight: int(p.GetInFlight()), Synced: p.GetSynced(), Degraded: p.GetDegraded(),
			Reason: p.GetReason(), UncachedTokens: p.GetUncachedTokens(), Value: p.GetValue(),
			Waiting: int(p.GetWaiting()), KVUsage: p.GetKvUsage(), Blocks: p.GetBlocks(),
			Busy: int(p.GetBusy()), ReadAge: time.Duration(p.GetReadAge()) * time.Millisecond, WorkSeconds: p.GetWorkSeconds(),
		}
	}
	return s
}

func findingMessage(f *operatorfeed.Finding) *OperateFinding {
	return &OperateFinding{Verdict: OperateFinding_Verdict(f.Verdict), Reason: f.Reason, Message: f.Message}
}

// findingOf a message. A verdict that this version does not know is none.
func findingOf(m *OperateFinding) operatorfeed.Finding {
	if v := operatorfeed.Verdict(m.GetVerdict()); v > operatorfeed.NoVerdict && v <= operatorfeed.Good {
		return operatorfeed.Finding{Verdict: v, Reason: m.GetReason(), Message: m.GetMessage()}
	}
	return operatorfeed.Finding{}
}
