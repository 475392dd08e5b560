package dashboard

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/hooks"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/respcache"
	"github.com/kvasir-dev/kvasir/internal/status"
	"github.com/kvasir-dev/kvasir/internal/version"
)

// Facts are what a picker knows of one pool, from all its parts.
type Facts struct {
	Spec    picker.Spec // as applied
	Stats   picker.PoolStats
	Totals  operatorfeed.Totals
	Streams []events.Status
	Shares  map[endpoint.ID]kvindex.Share
	// Pods that leave, by UID: they have the drain mark, or are being deleted.
	Leaving map[string]bool
	// Responses are those of the response cache, nil without one. Hooks are the policy's steps.
	Responses *picker.ResponseStats
	Hooks     []picker.HookStats
	// Written is the pool as it is written down, with the status that the operator has given it, if there is one.
	// Judged are its conditions as the picker sees them.
	Written *v1alpha1.InferencePool
	Judged  []metav1.Condition
}

// name is namespace/name.
func (f *Facts) name() string { return f.Stats.Namespace + "/" + f.Stats.Pool }

// Pools converts facts to the form of the API. recent has the earlier values of the counters.
func Pools(all []Facts, recent *Recent) []api.Pool {
	pools := make([]api.Pool, len(all))
	for i := range all {
		pools[i] = all[i].pool(recent.before(all[i].name()))
	}
	return pools
}

func (f *Facts) pool(before poolMark) api.Pool {
	s := &f.Stats
	p := api.Pool{
		Namespace: s.Namespace, Name: s.Pool, Model: f.Spec.Model, Strategy: s.Strategy, Policy: f.Spec.Policy.Name,
		BlockTokens: f.Spec.BlockTokens,
		Waiting:     s.Admission.Waiting, Refused: f.Totals.Refused, Requests: f.Totals.Requests, Outcomes: map[string]int64{},
		TTFT: quantiles(f.Totals.TTFT, before.ttft), Hits: hits(s.Hits, picker.Hits{}), Recent: hits(s.Hits, before.hits),
		Blocks: s.Blocks, Held: s.Held, Speculative: s.Speculative, ExactTokens: 1 - s.Without.Share, Inexact: s.Without.Last,
		Degraded: degraded(f.Judged), Pods: f.pods(before), Rollout: f.rollout(),
		ResponseCache: f.responseCache(), Hooks: f.hookSteps(),
	}
	for outcome, n := range s.Outcomes {
		p.Outcomes[outcome.String()] = n
	}
	if f.Written != nil {
		p.Size.Desired = f.Written.Status.DesiredReplicas
	}
	for i := range p.Pods {
		p.Size.Pods++
		switch p.Pods[i].Phase {
		case api.PhaseServing:
			p.Size.Ready++
		case api.PhaseDraining:
			p.Size.Draining++
		}
	}
	for _, sh := range s.Shadows {
		p.Shadows = append(p.Shadows, api.Shadow{
			Name: sh.Name, Strategy: sh.Strategy, Compared: sh.Compared, Agreed: sh.Agreed, SavedSeconds: sh.SavedSeconds,
			LostSeconds: sh.LostSeconds,
		})
	}
	return p
}

func (f *Facts) responseCache() *api.ResponseCache {
	s := f.Responses
	if s == nil {
		return nil
	}
	out := &api.ResponseCache{
		Hits: s.Results[respcache.Hit], Misses: s.Results[respcache.Miss], NotLookedUp: map[string]int64{},
		Stored: s.Storings[respcache.Stored], NotStored: map[string]int64{},
		Evicted: s.Evicted, Expired: s.Expired, Entries: s.Entries, Bytes: s.Bytes, Limit: s.Limit,
	}
	for i, n := range s.Results {
		if r := respcache.Result(i); n > 0 && r >= respcache.NotAsked {
			out.NotLookedUp[r.String()] = n
		}
	}
	for i, n := range s.Storings {
		if why := respcache.Storing(i); n > 0 && why != respcache.Stored {
			out.NotStored[why.String()] = n
		}
	}
	if s.Compares {
		out.Semantic = semanticCache(&s.Stats)
	}
	if s.Shares {
		out.Store = &api.CacheStore{Results: map[string]int64{}}
		for i, n := range s.Storages {
			if n > 0 {
				out.Store.Results[respcache.Storage(i).String()] = n
			}
		}
		if t := s.StoreTrouble; t != nil {
			out.Store.Trouble, out.Store.TroubleDetail = t.What.String(), t.Detail
		}
	}
	return out
}

func semanticCache(s *respcache.Stats) *api.SemanticCache {
	out := &api.SemanticCache{
		Hits: s.Results[respcache.Similar], Vectors: s.Vectors, Embedded: s.Embeddings[respcache.Embedded], NotEmbedded: map[string]int64{},
	}
	for i, n := range s.Embeddings {
		if e := respcache.Embedding(i); n > 0 && e != respcache.Embedded {
			out.NotEmbedded[e.String()] = n
		}
	}
	if t := s.Trouble; t != nil {
		out.Trouble, out.TroubleDetail = t.What.String(), t.Detail
	}
	return out
}

func (f *Facts) hookSteps() (steps []api.HookStep) {
	for i := range f.Hooks {
		step := api.HookStep{Name: f.Hooks[i].Step, Outcomes: map[string]int64{}}
		for o, n := range f.Hooks[i].Outcomes {
			step.Outcomes[hooks.Outcome(o).String()] = n
		}
		steps = append(steps, step)
	}
	return steps
}

// quantiles of the times recently, of all times where there were none recently.
func quantiles(now, before operatorfeed.Histogram) *api.Quantiles {
	late := now
	for i := range late {
		late[i] -= before[i]
	}
	if late.Count() <= 0 {
		late = now
	}
	if late.Count() == 0 {
		return nil
	}
	return &api.Quantiles{P50: late.Quantile(0.5), P90: late.Quantile(0.9), P99: late.Quantile(0.99)}
}

// degraded are the conditions that are not as they should be. Those that are not known yet are not included.
func degraded(conditions []metav1.Condition) (out []string) {
	for i := range conditions {
		if c := &conditions[i]; c.Status == metav1.ConditionFalse {
			out = append(out, status.Line(c))
		}
	}
	return out
}

// rollout is the progress of the template's rollout that the operator has reported; nil without an operator.
func (f *Facts) rollout() *api.Rollout {
	if f.Written == nil || f.Written.Spec.Template == nil {
		return nil
	}
	s := &f.Written.Status
	c := status.UpToDate.In(s.Conditions)
	if c == nil {
		return nil
	}
	r := &api.Rollout{Reason: c.Reason, Message: c.Message, CurrentRevision: s.CurrentRevision, UpdateRevision: s.UpdateRevision}
	if s.UpdatedReplicas != nil {
		r.Updated = *s.UpdatedReplicas
	}
	if s.Replicas != nil {
		r.Replicas = *s.Replicas
	}
	return r
}

// pods by name, with their endpoints by rank.
func (f *Facts) pods(before poolMark) []api.Pod {
	spec := map[endpoint.ID]*endpoint.Endpoint{}
	for i := range f.Spec.Endpoints {
		spec[f.Spec.Endpoints[i].ID] = &f.Spec.Endpoints[i]
	}
	streams := map[endpoint.ID]*events.Status{}
	for i := range f.Streams {
		streams[f.Streams[i].Endpoint.ID] = &f.Streams[i]
	}
	pods, phases := map[string]*api.Pod{}, map[string]status.Phase{}
	for i := range f.Stats.Endpoints {
		s := &f.Stats.Endpoints[i]
		pod := pods[s.ID.Pod]
		if pod == nil {
			pod = &api.Pod{Name: s.Pod, UID: s.ID.Pod}
			pods[s.ID.Pod] = pod
		}
		ep := spec[s.ID]
		if ep == nil {
			ep = &endpoint.Endpoint{ID: s.ID, Ready: s.Pickable} // it has just left
		}
		pod.Island = cmp.Or(pod.Island, ep.Island)
		phase := status.PhaseOf(ep)
		switch {
		case f.Leaving[s.ID.Pod]:
			phase = status.PhaseDraining
		case s.Stalled:
			phase = max(phase, status.PhaseNotReady)
		case !s.CircuitClosed:
			phase = max(phase, status.PhaseCircuit)
		}
		switch {
		case ep.Unreachable:
			pod.Reason = api.ReasonUnreachable
		case ep.NotAnswering || s.Stalled:
			pod.Reason = cmp.Or(pod.Reason, api.ReasonNotAnswering)
		}
		phases[s.ID.Pod] = max(phases[s.ID.Pod], phase)
		pod.Endpoints = append(pod.Endpoints, f.endpoint(s, ep, streams[s.ID], before.endpoints[s.ID]))
	}
	out := make([]api.Pod, 0, len(pods))
	for uid, pod := range pods {
		pod.Phase = phases[uid].String()
		if phases[uid] != status.PhaseNotReady {
			pod.Reason = ""
		}
		slices.SortFunc(pod.Endpoints, func(a, b api.Endpoint) int { return cmp.Compare(a.Rank, b.Rank) })
		out = append(out, *pod)
	}
	slices.SortFunc(out, func(a, b api.Pod) int { return cmp.Or(natural(a.Name, b.Name), strings.Compare(a.UID, b.UID)) })
	return out
}

func (f *Facts) endpoint(s *picker.EndpointStats, ep *endpoint.Endpoint, stream *events.Status, before picker.Hits) api.Endpoint {
	e := api.Endpoint{
		Rank: s.ID.Rank, Address: cmp.Or(ep.Address, ep.Socket), Events: status.StreamNone,
		Blocks: s.Held, KVUsage: s.Load.KVUsage, InFlight: s.Load.InFlight, Decoding: s.Load.Decoding,
		PendingTokens: s.Load.PendingTokens, Waiting: s.Load.Waiting, Rate: s.Load.Rate, Picks: s.Picks, Failures: s.Failures,
		Hits: hits(s.Hits, picker.Hits{}), Recent: hits(s.Hits, before), Doubted: s.Doubted,
	}
	if stream != nil && !f.Spec.NoEvents {
		e.Events, e.Lag = stream.State.String(), max(0, stream.Stats.Lag().Seconds())
	}
	share := f.Shares[s.ID]
	e.Unique, e.Shared = share.Unique, share.Shared
	if f.Spec.BlockTokens > 0 && s.Load.KVTokens > 0 {
		e.Capacity = s.Load.KVTokens / f.Spec.BlockTokens
		e.Fill = min(1, float64(e.Blocks)/float64(max(1, e.Capacity)))
	}
	return e
}

// natural orders names by their text, and the numbers at their ends by value: pod-2 before pod-10.
func natural(a, b string) int {
	headA, numberA := cutNumber(a)
	headB, numberB := cutNumber(b)
	return cmp.Or(strings.Compare(headA, headB), cmp.Compare(len(numberA), len(numberB)), strings.Compare(numberA, numberB))
}

func cutNumber(s string) (head, number string) {
	i := len(s)
	for i > 0 && s[i-1] >= '0' && s[i-1] <= '9' {
		i--
	}
	return s[:i], strings.TrimLeft(s[i:], "0")
}

// NotReady explains to people why a picker is not ready.
func NotReady(why string) string {
	if why == "" {
		return ""
	}
	return fmt.Sprintf("This replica takes no requests: %s.", why)
}

// documentation is where the page's links to help lead.
const documentation = "https://github.com/kvasir-dev/kvasir/blob/main/docs/"

// Live is what one replica knows now.
func Live(name string, now, started time.Time, notReady string, problems []string, pools []api.Pool) api.Live {
	return api.Live{
		Picker: name, Version: version.Get().Version, Docs: documentation, Time: now.UTC(), Started: started.UTC(),
		Ready: notReady == "", NotReady: NotReady(notReady),
		Problems: problems, Pools: pools,
	}
}
