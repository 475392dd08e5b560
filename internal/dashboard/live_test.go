package dashboard

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/hooks"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/respcache"
)

func facts() Facts {
	f := Facts{
		Spec:  picker.Spec{Namespace: "llm", Name: "m", Model: "M", BlockTokens: 16},
		Stats: picker.PoolStats{Namespace: "llm", Pool: "m", Strategy: "MarginalCost"},
		Shares: map[endpoint.ID]kvindex.Share{
			{Pod: "u10"}: {Unique: 60, Shared: 40},
		},
		Leaving: map[string]bool{"u2": true},
	}
	for _, one := range []struct {
		uid, pod        string
		rank            int
		ready, circuits bool
	}{{"u10", "pod-10", 0, true, true}, {"u2", "pod-2", 0, true, true}, {"u3", "pod-3", 1, true, true}, {"u3", "pod-3", 0, false, true}, {"u4", "pod-4", 0, true, false}} {
		id := endpoint.ID{Pod: one.uid, Rank: one.rank}
		f.Spec.Endpoints = append(f.Spec.Endpoints, endpoint.Endpoint{ID: id, Pod: one.pod, Address: "10.0.0.1:8000", Ready: one.ready, Island: "eu"})
		f.Stats.Endpoints = append(f.Stats.Endpoints, picker.EndpointStats{
			ID: id, Pod: one.pod, Pickable: one.ready, CircuitClosed: one.circuits, Held: 100, Load: load.View{KVTokens: 3200},
		})
	}
	f.Streams = []events.Status{{Endpoint: f.Spec.Endpoints[0], State: events.Synced, Stats: &events.Stats{}}}
	return f
}

// TestAPoolWithoutACacheShowsNone: the JSON has the cache and the steps of a pool only where there are some, and of counts of 0 those alone
// that every cache has.
func TestAPoolWithoutACacheShowsNone(t *testing.T) {
	f := facts()
	if p := Pools([]Facts{f}, new(Recent))[0]; p.ResponseCache != nil || p.Hooks != nil {
		t.Errorf("%+v, %+v", p.ResponseCache, p.Hooks)
	}
	text, err := json.Marshal(Pools([]Facts{f}, new(Recent))[0])
	if err != nil || strings.Contains(string(text), "responseCache") || strings.Contains(string(text), "hooks") {
		t.Errorf("%s %v", text, err)
	}
	s := picker.ResponseStats{Stats: respcache.Stats{Evicted: 1, Expired: 2, Bytes: 3, Limit: 4, Entries: 5}}
	s.Results[respcache.Hit], s.Results[respcache.Miss], s.Results[respcache.NoTenant] = 6, 7, 8
	s.Storings[respcache.Stored], s.Storings[respcache.NoRoom] = 9, 10
	step := picker.HookStats{Step: "one"}
	step.Outcomes[hooks.Applied] = 11
	f.Responses, f.Hooks = &s, []picker.HookStats{step}
	p := Pools([]Facts{f}, new(Recent))[0]
	want := &api.ResponseCache{
		Hits: 6, Misses: 7, NotLookedUp: map[string]int64{"no_tenant": 8}, Stored: 9, NotStored: map[string]int64{"no_room": 10},
		Evicted: 1, Expired: 2, Bytes: 3, Limit: 4, Entries: 5,
	}
	if diff := cmp.Diff(want, p.ResponseCache); diff != "" {
		t.Error(diff)
	}
	s.Compares, s.Results[respcache.Similar], s.Vectors = true, 12, 13
	s.Embeddings[respcache.Embedded], s.Embeddings[respcache.EmbeddingAlike] = 14, 15
	s.Trouble = &respcache.Trouble{What: respcache.EmbeddingAlike, Detail: "why"}
	s.Shares, s.Storages[respcache.StoreFailed], s.StoreTrouble = true, 16, &respcache.StoreTrouble{What: respcache.StoreFailed, Detail: "gone"}
	want.Store = &api.CacheStore{Results: map[string]int64{"failed": 16}, Trouble: "failed", TroubleDetail: "gone"}
	want.Semantic = &api.SemanticCache{
		Hits: 12, Vectors: 13, Embedded: 14, NotEmbedded: map[string]int64{"alike": 15}, Trouble: "alike", TroubleDetail: "why",
	}
	if diff := cmp.Diff(want, Pools([]Facts{f}, new(Recent))[0].ResponseCache); diff != "" {
		t.Error(diff)
	}
	outcomes := map[string]int64{"skipped": 0, "applied": 11, "refused": 0, "failed_open": 0, "failed_closed": 0}
	if diff := cmp.Diff([]api.HookStep{{Name: "one", Outcomes: outcomes}}, p.Hooks); diff != "" {
		t.Error(diff)
	}
}

func TestPodsAreShownByNameWithTheirPhase(t *testing.T) {
	p := Pools([]Facts{facts()}, new(Recent))[0]
	type row struct {
		Name, Phase string
		Endpoints   int
	}
	var got []row
	for _, pod := range p.Pods {
		got = append(got, row{pod.Name, pod.Phase, len(pod.Endpoints)})
	}
	want := []row{{"pod-2", api.PhaseDraining, 1}, {"pod-3", api.PhaseNotReady, 2}, {"pod-4", api.PhaseCircuit, 1}, {"pod-10", api.PhaseServing, 1}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(api.Size{Pods: 4, Ready: 1, Draining: 1}, p.Size); diff != "" {
		t.Error(diff)
	}
	e := p.Pods[3].Endpoints[0]
	if e.Capacity != 200 || e.Fill != 0.5 || e.Unique != 60 || e.Shared != 40 || e.Events != "Synced" {
		t.Errorf("%+v", e)
	}
	if e := p.Pods[1].Endpoints; e[0].Rank != 0 || e[0].Events != "None" {
		t.Errorf("%+v", e)
	}
}

func TestPodsThatCannotBeReachedSaySo(t *testing.T) {
	f := facts()
	for i := range f.Spec.Endpoints { // also of one that drains, which says that instead
		f.Spec.Endpoints[i].Unreachable = f.Spec.Endpoints[i].Pod != "pod-10"
	}
	got := map[string]string{}
	for _, pod := range Pools([]Facts{f}, new(Recent))[0].Pods {
		got[pod.Name] = pod.Phase + " " + pod.Reason
	}
	want := map[string]string{"pod-2": "Draining ", "pod-3": "NotReady Unreachable", "pod-4": "NotReady Unreachable", "pod-10": "Serving "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestPodsThatDoNotAnswerSaySo: those that answer no questions, and those that make no progress with requests.
func TestPodsThatDoNotAnswerSaySo(t *testing.T) {
	f := facts()
	for i := range f.Spec.Endpoints {
		f.Spec.Endpoints[i].NotAnswering = f.Spec.Endpoints[i].Pod == "pod-3"
	}
	for i := range f.Stats.Endpoints {
		f.Stats.Endpoints[i].Stalled = f.Stats.Endpoints[i].Pod == "pod-10"
	}
	got := map[string]string{}
	for _, pod := range Pools([]Facts{f}, new(Recent))[0].Pods {
		got[pod.Name] = pod.Phase + " " + pod.Reason
	}
	want := map[string]string{"pod-2": "Draining ", "pod-3": "NotReady NotAnswering", "pod-4": "Circuit ", "pod-10": "NotReady NotAnswering"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestConditionsThatAreFalseAreShown(t *testing.T) {
	f := facts()
	f.Judged = []metav1.Condition{
		{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Serving"},
		{Type: "EventsSynced", Status: metav1.ConditionFalse, Reason: "StreamMissing", Message: "2 of 8"},
		{Type: "PredictionsTrusted", Status: metav1.ConditionUnknown, Reason: "TooFewReplies"},
	}
	if diff := cmp.Diff([]string{"EventsSynced: StreamMissing: 2 of 8"}, Pools([]Facts{f}, new(Recent))[0].Degraded); diff != "" {
		t.Error(diff)
	}
}

func TestARolloutIsShownAsTheOperatorTellsIt(t *testing.T) {
	f := facts()
	if r := Pools([]Facts{f}, new(Recent))[0].Rollout; r != nil {
		t.Errorf("%+v without an operator", r)
	}
	f.Written = &v1alpha1.InferencePool{}
	f.Written.Spec.Template = &corev1.PodTemplateSpec{}
	f.Written.Status = v1alpha1.InferencePoolStatus{
		DesiredReplicas: ptr.To(int32(5)), Replicas: ptr.To(int32(6)), UpdatedReplicas: ptr.To(int32(4)), CurrentRevision: "a", UpdateRevision: "b",
		Conditions: []metav1.Condition{{Type: "UpToDate", Status: metav1.ConditionFalse, Reason: "RolloutInProgress", Message: "4 of 5"}},
	}
	p := Pools([]Facts{f}, new(Recent))[0]
	want := &api.Rollout{Reason: "RolloutInProgress", Message: "4 of 5", CurrentRevision: "a", UpdateRevision: "b", Updated: 4, Replicas: 6}
	if diff := cmp.Diff(want, p.Rollout); diff != "" || *p.Size.Desired != 5 {
		t.Error(diff, p.Size)
	}
}

// TestRecentCountersReachAMinuteBack: whatever was before has no part in them.
func TestRecentCountersReachAMinuteBack(t *testing.T) {
	recent, f := new(Recent), facts()
	for i := range 100 {
		f.Stats.Hits = picker.Hits{Answers: int64(i), PromptTokens: int64(1000 * i), Predicted: int64(500 * i), Delivered: int64(490 * i), Deviation: int64(10 * i)}
		f.Stats.Endpoints[0].Hits = f.Stats.Hits
		recent.Observe(start.Add(time.Duration(5*i)*time.Second), []Facts{f})
		p := Pools([]Facts{f}, recent)[0]
		n := int64(min(i, 12))
		if p.Recent.Answers != n || p.Recent.Prompt != 1000*n || p.Recent.Deviation != 10*n || p.Hits.Answers != int64(i) {
			t.Fatalf("after %d s: recent %+v of %+v", 5*i, p.Recent, p.Hits)
		}
		if e := p.Pods[3].Endpoints[0]; e.Recent.Answers != n {
			t.Fatalf("after %d s: the endpoint's are %+v", 5*i, e.Recent)
		}
	}
	if len(recent.marks) > 14 {
		t.Errorf("%d marks are kept", len(recent.marks))
	}
	f.Stats.Hits = picker.Hits{Answers: 3} // a pool of that name was made again
	if p := Pools([]Facts{f}, recent)[0]; p.Recent.Answers != 3 {
		t.Errorf("%+v", p.Recent)
	}
}

// TestWhatWasCountedBeforeTheFirstObservationIsRecent: what a picker serves in its first seconds shows until it is a minute old.
func TestWhatWasCountedBeforeTheFirstObservationIsRecent(t *testing.T) {
	recent, f := new(Recent), facts()
	f.Stats.Hits = picker.Hits{Answers: 4, PromptTokens: 800, Predicted: 400, Delivered: 400}
	for _, seconds := range []int{5, 10, 60, 65, 70} {
		recent.Observe(start.Add(time.Duration(seconds)*time.Second), []Facts{f})
		want := int64(4)
		if seconds > 60 {
			want = 0
		}
		if p := Pools([]Facts{f}, recent)[0]; p.Recent.Answers != want {
			t.Errorf("after %d s: recent %+v of %+v", seconds, p.Recent, p.Hits)
		}
	}
}
