// Package view is what people are shown of pools: what the API server knows and what pickers see, side by side, as
// tables and as documents.
package view

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// Pool is all that is shown of a pool.
type Pool struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Model     string `json:"model"`
	// Status is the reason of the condition Ready, or the pickers' report where there is no operator.
	Status string `json:"status"`
	// Desired size in pods, absent if unknown; all pods, those that serve, and those that drain.
	Desired  *int32 `json:"desired,omitempty"`
	Pods     int    `json:"pods"`
	Ready    int    `json:"ready"`
	Draining int    `json:"draining"`
	Policy   string `json:"policy,omitempty"`
	Strategy string `json:"strategy,omitempty"`
	// Fleet is the PickerFleet whose pickers serve the pool; absent for pickers of its own.
	Fleet string `json:"fleet,omitempty"`
	// Rollout is the reason of the condition UpToDate, empty without an operator.
	Rollout string `json:"rollout,omitempty"`
	// Roles of a pool with roles, with those that go; absent for others.
	Roles []Role `json:"roles,omitempty"`
	// Live is absent where no picker could be asked.
	Live *Live `json:"live,omitempty"`
	// Problems describe in sentences what is wrong.
	Problems []Problem `json:"problems"`
	Members  []Pod     `json:"members"`
}

// Problem is something that is not as it should be.
type Problem struct {
	// Source is a condition of the pool, or a picker.
	Source string `json:"source"`
	// Reason in a word, where there is one.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message"`
}

// Live is what the pickers of a pool see, all replicas together.
type Live struct {
	Pickers []string `json:"pickers"`
	// Hit, Predicted and Divergence are parts of the prompt tokens, 0 to 1: those that engines found in their caches,
	// those that were expected there, and by how much the two differ, answer by answer. Of about the last minute, or of
	// all the time where nothing was answered recently; absent before the first answer.
	Hits     *Ratios `json:"hits,omitempty"`
	Waiting  int     `json:"waiting"`
	InFlight int     `json:"inFlight"`
	Requests int64   `json:"requests"`
	Refused  int64   `json:"refused"`
	// TTFT is that of the replica with the slowest 99th percentile, in seconds.
	TTFT *api.Quantiles `json:"ttft,omitempty"`
	// ExactTokens is the least of all replicas.
	ExactTokens float64 `json:"exactTokens"`
	Blocks      int     `json:"blocks"`
	// ResponseCache adds up the caches of all replicas; each has its own. It is absent without one. Hooks are the steps of the
	// policy; absent without steps.
	ResponseCache *api.ResponseCache `json:"responseCache,omitempty"`
	Hooks         []api.HookStep     `json:"hooks,omitempty"`
}

// Ratios compares what was expected in caches with what engines found.
type Ratios struct {
	Hit        float64 `json:"hit"`
	Predicted  float64 `json:"predicted"`
	Divergence float64 `json:"divergence"`
	// Hit and Divergence are of this many answers, and unknown if there are none; Predicted is of all picks. Untold answers
	// have not reported what their engine found.
	Answers    int64 `json:"answers"`
	Unreported int64 `json:"untold"`
	// Recent reports that they are of about the last minute.
	Recent bool `json:"recent"`
}

// Pod is a pod of a pool.
type Pod struct {
	Name string `json:"name"`
	// Stage of its life, and why it is there; by the operator, or by pickers where there is none.
	Stage    string     `json:"stage"`
	Reason   string     `json:"reason,omitempty"`
	Message  string     `json:"message,omitempty"`
	Age      string     `json:"age,omitempty"`
	Node     string     `json:"node,omitempty"`
	Island   string     `json:"island,omitempty"`
	Role     string     `json:"role,omitempty"`
	Revision string     `json:"revision,omitempty"`
	Deadline *time.Time `json:"deadline,omitempty"`
	Live     *LivePod   `json:"live,omitempty"`
}

// LivePod is what pickers see of a pod, all its ranks together.
type LivePod struct {
	Phase string `json:"phase"`
	// Events is how far it is known what the pod holds, of its worst rank; Lag is that rank's, in seconds.
	Events string  `json:"events"`
	Lag    float64 `json:"lag"`
	Ranks  int     `json:"ranks"`
	// Blocks held, and all that have room (0: not known); of those held, the ones that no other pod holds, and the ones that others hold,
	// too; the part of the cache that is filled, 0 to 1.
	Blocks        int     `json:"blocks"`
	Capacity      int     `json:"capacity"`
	Unique        int     `json:"unique"`
	Shared        int     `json:"shared"`
	Fill          float64 `json:"fill"`
	KVUsage       float64 `json:"kvUsage"`
	InFlight      int     `json:"inFlight"`
	Waiting       int     `json:"waiting"`
	PendingTokens float64 `json:"pendingTokens"`
	Picks         int64   `json:"picks"`
	Failures      int64   `json:"failures"`
	Hits          *Ratios `json:"hits,omitempty"`
}

// PickerReport is what one picker reports about itself.
type PickerReport struct {
	Picker string
	Live   *api.Live
	Err    error
}

// OfCluster is a pool as the API server has it, without what pickers see.
func OfCluster(pool *v1alpha1.InferencePool, pods []corev1.Pod, now time.Time) *Pool {
	s := &pool.Status
	out := &Pool{
		Namespace: pool.Namespace, Name: pool.Name, Model: string(pool.Spec.Model.Name), Status: "Unknown", Desired: s.DesiredReplicas,
		Pods: len(pods), Policy: s.RoutingPolicy.Name, Fleet: s.Picker.FleetName, Problems: []Problem{}, Members: []Pod{},
		Roles: rolesOf(s),
	}
	if c := status.Ready.In(s.Conditions); c != nil {
		out.Status = c.Reason
	}
	if c := status.UpToDate.In(s.Conditions); c != nil {
		out.Rollout = c.Reason
	}
	if s.ObservedGeneration < pool.Generation {
		out.Problems = append(out.Problems, Problem{"operator", "Waiting", "the newest spec has not been seen by the operator: does it run?"})
	}
	for _, c := range s.Conditions {
		if c.Status != metav1.ConditionTrue && !needsNoAction(&c) {
			out.Problems = append(out.Problems, Problem{c.Type, c.Reason, c.Message})
		}
	}
	summaries := map[string]*v1alpha1.PodSummary{}
	for i := range s.Pods {
		summaries[s.Pods[i].Name] = &s.Pods[i]
	}
	for i := range pods {
		p := podOf(pool, &pods[i], summaries[pods[i].Name], now)
		switch v1alpha1.PodStage(p.Stage) {
		case v1alpha1.StageReady:
			out.Ready++
		case v1alpha1.StageDraining, v1alpha1.StageIdle:
			out.Draining++
		}
		out.Members = append(out.Members, p)
	}
	return out
}

func podOf(pool *v1alpha1.InferencePool, pod *corev1.Pod, said *v1alpha1.PodSummary, now time.Time) Pod {
	p := Pod{Name: pod.Name, Node: pod.Spec.NodeName, Revision: pod.Labels[v1alpha1.LabelRevision],
		Age: duration.HumanDuration(now.Sub(pod.CreationTimestamp.Time))}
	label := v1alpha1.LabelIsland
	if at := pool.Spec.Placement; at != nil && at.IslandLabel != "" {
		label = at.IslandLabel
	}
	p.Island, p.Role = pod.Labels[label], pod.Labels[v1alpha1.LabelRole]
	p.Stage = string(stage(pod))
	// The operator knows more, and reports it for pods that do not simply serve. Its reports from before a mark was set or
	// lifted do not count.
	drains := func(s v1alpha1.PodStage) bool { return s == v1alpha1.StageDraining || s == v1alpha1.StageIdle }
	if said != nil && drains(said.Stage) == drains(stage(pod)) {
		p.Stage, p.Reason, p.Message = string(said.Stage), said.Reason, said.Message
	} else if reason, marked := pod.Labels[v1alpha1.LabelDrain]; marked {
		p.Reason = reason
	}
	if t, err := time.Parse(time.RFC3339, pod.Annotations[v1alpha1.AnnotationDrainDeadline]); err == nil {
		p.Deadline = &t
	}
	return p
}

// stage of a pod, from the pod's own fields alone.
func stage(pod *corev1.Pod) v1alpha1.PodStage {
	is := func(kind corev1.PodConditionType) bool {
		return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == kind && c.Status == corev1.ConditionTrue
		})
	}
	_, marked := pod.Labels[v1alpha1.LabelDrain]
	running := slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
	switch {
	case pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded:
		return v1alpha1.StageEnded
	case marked && is(status.PodIdle):
		return v1alpha1.StageIdle
	case marked || pod.DeletionTimestamp != nil:
		return v1alpha1.StageDraining
	case is(corev1.PodReady):
		return v1alpha1.StageReady
	case !running:
		return v1alpha1.StageScheduled
	case is(status.PodSynced):
		return v1alpha1.StageSynced
	}
	return v1alpha1.StageLoading
}

// Join adds what pickers see. Counters of replicas are added up; what each knows of the engines is taken from the first.
func (p *Pool) Join(told []PickerReport) {
	live, recent, all := &Live{ExactTokens: 1}, api.Hits{}, api.Hits{}
	seen := map[string][]*api.Pod{}
	for _, t := range told {
		if t.Err != nil {
			p.Problems = append(p.Problems, Problem{"picker", t.Picker, t.Err.Error()})
			continue
		}
		name := cmp.Or(t.Live.Picker, t.Picker)
		for _, text := range t.Live.Problems {
			p.Problems = append(p.Problems, Problem{"picker", name, text})
		}
		pool := find(t.Live, p.Namespace, p.Name)
		if pool == nil {
			p.Problems = append(p.Problems, Problem{"picker", name, "it does not serve the pool"})
			continue
		}
		live.Pickers = append(live.Pickers, name)
		if t.Live.NotReady != "" {
			p.Problems = append(p.Problems, Problem{"picker", name, "not ready: " + t.Live.NotReady})
		}
		for _, text := range pool.Degraded {
			if !p.hasProblem(text) {
				p.Problems = append(p.Problems, Problem{"picker", name, text})
			}
		}
		p.Strategy = cmp.Or(p.Strategy, pool.Strategy)
		live.add(pool)
		add(&recent, &pool.Recent)
		add(&all, &pool.Hits)
		for i := range pool.Pods {
			seen[pool.Pods[i].Name] = append(seen[pool.Pods[i].Name], &pool.Pods[i])
		}
	}
	if len(live.Pickers) == 0 {
		return
	}
	live.Hits = ratios(&recent, &all)
	p.Live = live
	p.members(seen)
}

// hasProblem reports whether a condition of the pool contains what a picker reports.
func (p *Pool) hasProblem(text string) bool {
	t, reason, ok := status.ParseLine(text)
	return ok && slices.ContainsFunc(p.Problems, func(b Problem) bool { return b.Source == string(t) && b.Reason == reason })
}

// members joins pods, and adds those that only pickers know.
func (p *Pool) members(seen map[string][]*api.Pod) {
	for i := range p.Members {
		m := &p.Members[i]
		if views := seen[m.Name]; len(views) > 0 {
			m.Live = livePod(views)
			p.Live.InFlight += m.Live.InFlight
			m.Reason = cmp.Or(m.Reason, reasonOf(views))
		}
		delete(seen, m.Name)
	}
	for name, views := range seen {
		m := Pod{Name: name, Stage: views[0].Phase, Reason: reasonOf(views), Island: views[0].Island, Live: livePod(views)}
		p.Live.InFlight += m.Live.InFlight
		p.Members = append(p.Members, m)
	}
	slices.SortFunc(p.Members, func(a, b Pod) int { return cmp.Compare(a.Name, b.Name) })
}

// reasonOf is the first reason that a replica reports: one replica can be unable to connect to a pod while others can.
func reasonOf(views []*api.Pod) string {
	for _, v := range views {
		if v.Reason != "" {
			return v.Reason
		}
	}
	return ""
}

// OfPickers are the pools that pickers without a cluster serve.
func OfPickers(told []PickerReport) []*Pool {
	var all []*Pool
	for _, t := range told {
		if t.Err != nil {
			continue
		}
		for i := range t.Live.Pools {
			in := &t.Live.Pools[i]
			if slices.ContainsFunc(all, func(p *Pool) bool { return p.Namespace == in.Namespace && p.Name == in.Name }) {
				continue
			}
			p := &Pool{
				Namespace: in.Namespace, Name: in.Name, Model: in.Model, Policy: in.Policy,
				Status:  status.OfEndpoints(in.Size.Ready, in.Size.Pods, 0, 0).Reason,
				Desired: in.Size.Desired, Pods: in.Size.Pods, Ready: in.Size.Ready, Draining: in.Size.Draining,
				Problems: []Problem{}, Members: []Pod{},
			}
			if in.Rollout != nil {
				p.Rollout = in.Rollout.Reason
			}
			p.Join(told)
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *Pool) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all
}

func find(live *api.Live, namespace, name string) *api.Pool {
	for i := range live.Pools {
		if p := &live.Pools[i]; p.Namespace == namespace && p.Name == name {
			return p
		}
	}
	return nil
}

// add what one more replica sees.
func (l *Live) add(p *api.Pool) {
	l.Waiting += p.Waiting
	l.Requests += p.Requests
	l.Refused += p.Refused
	l.Blocks = max(l.Blocks, p.Blocks)
	l.ExactTokens = min(l.ExactTokens, p.ExactTokens)
	if p.TTFT != nil && (l.TTFT == nil || p.TTFT.P99 > l.TTFT.P99) {
		l.TTFT = p.TTFT
	}
	l.addCache(p.ResponseCache)
	l.addHooks(p.Hooks)
}

// addCache adds the response cache of one more replica; nil adds nothing.
func (l *Live) addCache(r *api.ResponseCache) {
	if r == nil {
		return
	}
	if l.ResponseCache == nil {
		l.ResponseCache = &api.ResponseCache{NotLookedUp: map[string]int64{}, NotStored: map[string]int64{}}
	}
	sum := l.ResponseCache
	sum.Hits += r.Hits
	sum.Misses += r.Misses
	sum.Stored += r.Stored
	sum.Evicted += r.Evicted
	sum.Expired += r.Expired
	sum.Entries += r.Entries
	sum.Bytes += r.Bytes
	sum.Limit += r.Limit
	for why, n := range r.NotLookedUp {
		sum.NotLookedUp[why] += n
	}
	for why, n := range r.NotStored {
		sum.NotStored[why] += n
	}
	if r.Semantic != nil {
		addSemantic(sum, r.Semantic)
	}
	if r.Store != nil {
		addStore(sum, r.Store)
	}
}

// addStore adds what one more replica has done with the store. The trouble is that of any replica.
func addStore(sum *api.ResponseCache, r *api.CacheStore) {
	if sum.Store == nil {
		sum.Store = &api.CacheStore{Results: map[string]int64{}}
	}
	for result, n := range r.Results {
		sum.Store.Results[result] += n
	}
	if sum.Store.Trouble == "" {
		sum.Store.Trouble, sum.Store.TroubleDetail = r.Trouble, r.TroubleDetail
	}
}

// addSemantic adds what one more replica has done for similar questions. The trouble is that of any replica.
func addSemantic(sum *api.ResponseCache, r *api.SemanticCache) {
	if sum.Semantic == nil {
		sum.Semantic = &api.SemanticCache{NotEmbedded: map[string]int64{}}
	}
	s := sum.Semantic
	s.Hits += r.Hits
	s.Vectors += r.Vectors
	s.Embedded += r.Embedded
	for why, n := range r.NotEmbedded {
		s.NotEmbedded[why] += n
	}
	if s.Trouble == "" {
		s.Trouble, s.TroubleDetail = r.Trouble, r.TroubleDetail
	}
}

// addHooks adds the steps of one more replica, by their names.
func (l *Live) addHooks(steps []api.HookStep) {
	for _, step := range steps {
		i := slices.IndexFunc(l.Hooks, func(s api.HookStep) bool { return s.Name == step.Name })
		if i < 0 {
			i = len(l.Hooks)
			l.Hooks = append(l.Hooks, api.HookStep{Name: step.Name, Outcomes: map[string]int64{}})
		}
		for outcome, n := range step.Outcomes {
			l.Hooks[i].Outcomes[outcome] += n
		}
	}
}

func add(sum, h *api.Hits) {
	sum.Answers += h.Answers
	sum.Prompt += h.Prompt
	sum.Predicted += h.Predicted
	sum.Confirmed += h.Confirmed
	sum.Delivered += h.Delivered
	sum.Deviation += h.Deviation
	sum.Picks += h.Picks
	sum.PickedPrompt += h.PickedPrompt
	sum.PickedPredicted += h.PickedPredicted
	sum.Unreported += h.Unreported
}

// ratios recently, else of all the time; nil where nothing was picked.
func ratios(recent, all *api.Hits) *Ratios {
	h := recent
	if h.PickedPrompt+h.Prompt == 0 {
		h = all
	}
	if h.PickedPrompt+h.Prompt == 0 {
		return nil
	}
	of := func(part, n int64) float64 { return float64(part) / float64(max(n, 1)) }
	predicted := of(h.PickedPredicted, h.PickedPrompt)
	if h.PickedPrompt == 0 { // a picker of an earlier version
		predicted = of(h.Predicted, h.Prompt)
	}
	return &Ratios{
		Hit: of(h.Delivered, h.Prompt), Predicted: predicted, Divergence: of(h.Deviation, h.Prompt),
		Answers: h.Answers, Unreported: h.Unreported, Recent: h == recent,
	}
}

// livePod joins what replicas see of a pod. Requests in flight are counted by each for all.
func livePod(views []*api.Pod) *LivePod {
	first := views[0]
	l := &LivePod{Phase: first.Phase, Ranks: len(first.Endpoints)}
	var fill, usage float64
	for i := range first.Endpoints {
		e := &first.Endpoints[i]
		if i == 0 || status.WorseStream(e.Events, l.Events) {
			l.Events, l.Lag = e.Events, e.Lag
		}
		l.Blocks += e.Blocks
		l.Capacity += e.Capacity
		l.Unique += e.Unique
		l.Shared += e.Shared
		l.InFlight += e.InFlight
		l.Waiting += e.Waiting
		l.PendingTokens += e.PendingTokens
		fill, usage = fill+e.Fill, usage+e.KVUsage
	}
	if l.Ranks > 0 {
		l.Fill, l.KVUsage = fill/float64(l.Ranks), usage/float64(l.Ranks)
	}
	var recent, all api.Hits
	for _, v := range views {
		for i := range v.Endpoints {
			e := &v.Endpoints[i]
			l.Picks += e.Picks
			l.Failures += e.Failures
			add(&recent, &e.Recent)
			add(&all, &e.Hits)
		}
	}
	l.Hits = ratios(&recent, &all)
	return l
}
