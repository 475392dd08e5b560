package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/overload"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/status"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokencheck"
)

// controllerName is the writer of the status of policies.
const controllerName = gwapiv1.GatewayController("kvasir.dev/picker")

// maxPods is how many pods a status lists.
const maxPods = 32

// Live is what the running picker knows. Maps are by pool.
type Live struct {
	Pools   []picker.PoolStats
	Streams map[types.NamespacedName][]events.Status
	// DialIn is about publishers that connect to the picker.
	DialIn DialIn
	// Tokens reports which request kinds have exact tokens in the picker.
	Tokens map[types.NamespacedName]tokencheck.Status
	// Overload is what the picker refuses because resources run short.
	Overload overload.State
	// Refused is why the picker has not applied a pool's present state.
	Refused map[types.NamespacedName]Refusal
}

// DialIn is how the picker does with publishers that connect to it.
type DialIn struct {
	// Address where they connect; Err is why nothing listens there.
	Address string
	Err     error
	// Strangers were turned away, by events.Stranger.
	Strangers [events.NumStrangers]uint64
}

// Refusal is why the picker has not taken a pool's state: a name is taken by another pool.
type Refusal struct{ Err error }

// List is what exists, with its status.
type List struct {
	metav1.TypeMeta `json:",inline"`
	// Problems are why parts of the configuration are not applied.
	Problems []string `json:"problems,omitempty"`
	Items    []any    `json:"items"`
}

// Board keeps the status of all pools and policies, to know since when each condition holds. It is not safe for concurrent
// use.
type Board struct {
	conditions map[string][]metav1.Condition // by object, or policy and ancestor
	stages     map[string]stage              // by pool and pod
}

type stage struct {
	stage v1alpha1.PodStage
	since metav1.Time
}

// NewBoard returns an empty board.
func NewBoard() *Board {
	return &Board{conditions: map[string][]metav1.Condition{}, stages: map[string]stage{}}
}

// Update makes the status of everything, at now. Objects of the state are not changed.
func (b *Board) Update(now time.Time, state State, live Live) *List {
	next := NewBoard()
	list := &List{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}, Items: []any{}}
	for i := range state.Problems {
		list.Problems = append(list.Problems, state.Problems[i].Error())
	}
	for _, name := range slices.SortedFunc(maps.Keys(live.Refused), byString) {
		list.Problems = append(list.Problems, fmt.Sprintf("InferencePool %s: %v", name, live.Refused[name].Err))
	}
	for i := range state.Pools {
		list.Items = append(list.Items, b.pool(next, now, &state, &state.Pools[i], live))
	}
	for i := range state.Policies {
		list.Items = append(list.Items, b.policy(next, now, &state.Policies[i], live))
	}
	for i := range state.Routes {
		list.Items = append(list.Items, b.route(next, now, &state.Routes[i]))
	}
	*b = *next
	return list
}

func byString(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }

// set completes the conditions of an object: unchanged ones keep the time of their last transition.
func (b *Board) set(next *Board, now time.Time, key string, generation int64, conditions []metav1.Condition) []metav1.Condition {
	status.Stamp(conditions, b.conditions[key], generation, metav1.NewTime(now))
	next.conditions[key] = conditions
	return slices.Clone(conditions)
}

func (b *Board) pool(next *Board, now time.Time, state *State, s *PoolState, live Live) *v1alpha1.InferencePool {
	p := s.Object.DeepCopy()
	name := nameOf(p).String()
	facts := gather(state, s, live)
	p.Status = v1alpha1.InferencePoolStatus{
		ObservedGeneration: p.Generation,
		Conditions:         b.set(next, now, "pool "+name, p.Generation, poolConditions(s, facts)),
		Replicas:           ptr.To(int32(len(facts.pods))),
		ReadyReplicas:      ptr.To(facts.readyPods),
		DrainingReplicas:   ptr.To(facts.drainingPods),
		Endpoints: v1alpha1.EndpointCounts{
			Total: ptr.To(facts.total), Ready: ptr.To(facts.ready), Synced: ptr.To(facts.synced), Degraded: ptr.To(facts.degraded),
		},
		Pods: b.pods(next, now, name, facts.pods),
	}
	if s.Served {
		p.Status.KeySpace = v1alpha1.KeySpaceStatus{KeyID: s.KeyID, BlockTokens: p.Spec.KeySpace.BlockTokens}
	}
	if facts.spec != nil && facts.spec.Policy.Name != "" {
		// The applied generation can be older than the policy's, which then cannot be applied.
		p.Status.RoutingPolicy = v1alpha1.PolicyInForce{Name: facts.spec.Policy.Name, Generation: facts.spec.Policy.Generation}
	}
	return p
}

// pods that do not simply serve, those that drain first.
func (b *Board) pods(next *Board, now time.Time, pool string, pods []status.Pod) []v1alpha1.PodSummary {
	var list []v1alpha1.PodSummary
	for i := range pods {
		pod := &pods[i]
		if pod.Phase == status.PhaseServing {
			continue
		}
		at := v1alpha1.StageLoading
		if pod.Phase == status.PhaseDraining {
			at = v1alpha1.StageDraining
		}
		key := pool + " " + pod.UID
		was, ok := b.stages[key]
		if !ok || was.stage != at {
			was = stage{stage: at, since: metav1.NewTime(now)}
		}
		next.stages[key] = was
		list = append(list, v1alpha1.PodSummary{Name: pod.Name, Stage: at, Since: ptr.To(was.since)})
	}
	slices.SortFunc(list, func(x, y v1alpha1.PodSummary) int {
		return cmp.Or(strings.Compare(string(x.Stage), string(y.Stage)), strings.Compare(x.Name, y.Name))
	})
	return list[:min(len(list), maxPods)]
}

func (b *Board) policy(next *Board, now time.Time, s *PolicyState, live Live) *v1alpha1.RoutingPolicy {
	p := s.Object.DeepCopy()
	p.Status = gwapiv1.PolicyStatus{}
	for i, ref := range p.Spec.TargetRefs {
		group, kind := gwapiv1.Group(v1alpha1.GroupName), gwapiv1.Kind(v1alpha1.KindInferencePool)
		if ref.Group != nil {
			group = gwapiv1.Group(*ref.Group)
		}
		target := types.NamespacedName{Namespace: p.Namespace, Name: ref.Name}
		conditions := policyConditions(s, &s.Targets[i], live.Refused[target].Err)
		p.Status.Ancestors = append(p.Status.Ancestors, gwapiv1.PolicyAncestorStatus{
			AncestorRef:    gwapiv1.ParentReference{Group: &group, Kind: &kind, Name: gwapiv1.ObjectName(ref.Name)},
			ControllerName: controllerName,
			Conditions:     b.set(next, now, fmt.Sprintf("policy %s %s/%s", nameOf(p), group, ref.Name), p.Generation, conditions),
		})
	}
	return p
}

// deviations are numbers of streams and endpoints where matches can differ from what engines find.
type deviations struct {
	// unfollowed are the streams with blocks whose conditions for a hit are not known, unidentified those with blocks that
	// lack what identifies them.
	unfollowed, unidentified int32
	// dropping are the endpoints whose engines drop the last block of a hit, lookahead those whose block hashes cover tokens
	// that follow the block.
	dropping, lookahead int32
}

// observed is what gateways have done, what engines list, and which tokens do not fit theirs.
type observed struct {
	gateways []picker.GatewayStats
	listing  picker.Listing
	doubts   []picker.Doubt
}

// serving counts endpoints.
type serving struct {
	total, ready, unreachable int32
	// unanswering endpoints take requests and answer nothing, or show no progress with any.
	unanswering int32
}

// facts are the figures that the status of a pool is made from.
type facts struct {
	endpoints []endpoint.Endpoint
	serving
	pods                    []status.Pod
	readyPods, drainingPods int32
	// synced endpoints are known, degraded ones in part; others are not connected yet.
	synced, degraded int32
	// lagging endpoints are degraded because their events arrived faster than they were applied.
	lagging int32
	// unreadable are the streams whose last batch was of no known layout, unsupportedBlocks a sum over the streams.
	unreadable int32
	// unpublished are the endpoints whose engines report that they publish no events.
	unpublished       int32
	unsupportedBlocks uint64
	deviations
	hits      picker.Hits
	trust     picker.Trust
	completed int64
	spec      *picker.Spec
	refused   Refusal
	dialIn    DialIn
	tokens    tokencheck.Status
	rendering picker.Rendering
	inexact   picker.Inexact
	observed
	overload overload.State
}

func gather(state *State, s *PoolState, live Live) *facts {
	name := nameOf(s.Object)
	f := &facts{refused: live.Refused[name], dialIn: live.DialIn, tokens: live.Tokens[name], overload: live.Overload}
	for i := range state.Specs {
		if spec := &state.Specs[i]; spec.Namespace == s.Object.Namespace && spec.Name == s.Object.Name {
			f.spec, f.endpoints = spec, spec.Endpoints
		}
	}
	stats := &picker.PoolStats{} // of a pool that is not served
	if i := slices.IndexFunc(live.Pools, func(p picker.PoolStats) bool {
		return p.Namespace == s.Object.Namespace && p.Pool == s.Object.Name
	}); i >= 0 {
		stats = &live.Pools[i]
	}
	stalled := map[endpoint.ID]bool{}
	for i := range stats.Endpoints {
		ep := &stats.Endpoints[i]
		stalled[ep.ID] = ep.Stalled
		count(&f.dropping, ep.DropsLast && !ep.Lookahead)
		count(&f.lookahead, ep.Lookahead)
	}
	for i := range f.endpoints {
		ep := &f.endpoints[i]
		count(&f.total, true)
		count(&f.ready, status.PhaseOf(ep) == status.PhaseServing && !stalled[ep.ID])
		count(&f.unreachable, ep.Unreachable)
		count(&f.unanswering, !ep.Unreachable && !ep.Terminating && (ep.NotAnswering || stalled[ep.ID]))
	}
	f.pods = status.Pods(f.endpoints)
	for i := range f.pods {
		count(&f.readyPods, f.pods[i].Phase == status.PhaseServing)
		count(&f.drainingPods, f.pods[i].Phase == status.PhaseDraining)
	}
	for _, stream := range live.Streams[name] {
		count(&f.synced, stream.State == events.Synced)
		count(&f.degraded, stream.State == events.Unverified || stream.State == events.Degraded)
		count(&f.lagging, status.StreamReason(&stream) == status.ReasonLagging)
		count(&f.unfollowed, stream.Stats.Partial.Load() > 0)
		count(&f.unidentified, stream.Stats.Unkeyed.Load() > 0)
		count(&f.unpublished, stream.Stats.Silent.Load())
		count(&f.unreadable, stream.Stats.Unreadable.Load())
		f.unsupportedBlocks += stream.Stats.BlockSizeUnsupported.Load()
	}
	f.hits, f.trust, f.completed = stats.Hits, stats.Trust, stats.Outcomes[picker.Completed]
	f.rendering, f.inexact = stats.Rendering, stats.Without
	f.observed = observed{stats.Gateways, stats.Listing, stats.Doubts}
	return f
}

func count(n *int32, when bool) {
	if when {
		*n++
	}
}
