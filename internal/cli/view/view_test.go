package view

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/cli/console"
	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
)

var update = flag.Bool("update", false, "write the golden files")

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// chat is a pool of three pods. One of them drains and one loads.
func chat() (*v1alpha1.InferencePool, []corev1.Pod) {
	p := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "chat", Generation: 3}}
	p.Spec.Model.Name = "Qwen/Qwen3-32B"
	p.Status = v1alpha1.InferencePoolStatus{
		ObservedGeneration: 3, DesiredReplicas: ptr.To[int32](2), RoutingPolicy: v1alpha1.PolicyInForce{Name: "gold", Generation: 1},
		Conditions: []metav1.Condition{
			{Type: "Ready", Status: "True", Reason: "Serving"},
			{Type: "UpToDate", Status: "False", Reason: "RolloutInProgress", Message: "1 of 2 pods are of the newest revision"},
			{Type: "GatewayAccepted", Status: "Unknown", Reason: "CRDsMissing", Message: "no gateways here"},
			{Type: "PredictionsTrusted", Status: "Unknown", Reason: "TooFewReplies", Message: "3 of 100 answers"},
		},
		Pods: []v1alpha1.PodSummary{
			{Name: "chat-b-1", Stage: v1alpha1.StageDraining, Reason: "Rollout", Message: "deadline 12:10:00"},
			{Name: "chat-c-2", Stage: v1alpha1.StageLoading},
			// The mark of this one has been lifted since.
			{Name: "chat-b-0", Stage: v1alpha1.StageDraining, Reason: "Manual", Message: "no deadline"},
		},
	}
	pod := func(name, revision string, ready bool) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "llm", Name: name, CreationTimestamp: metav1.NewTime(noon.Add(-3 * time.Hour)),
				Labels: map[string]string{v1alpha1.LabelRevision: revision, v1alpha1.LabelIsland: "spot"},
			},
			Spec: corev1.PodSpec{NodeName: "node-1"},
			Status: corev1.PodStatus{
				Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: map[bool]corev1.ConditionStatus{true: "True", false: "False"}[ready]}},
				ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
			},
		}
	}
	pods := []corev1.Pod{pod("chat-b-0", "b", true), pod("chat-b-1", "b", true), pod("chat-c-2", "c", false)}
	pods[1].Labels[v1alpha1.LabelDrain] = "rollout"
	pods[1].Annotations = map[string]string{v1alpha1.AnnotationDrainDeadline: "2026-11-20T12:10:00Z"}
	return p, pods
}

// replica is what one of two pickers sees, which has answered so many requests.
func replica(name string, answers int64) *api.Live {
	hits := api.Hits{Answers: answers, Prompt: 100 * answers, Predicted: 80 * answers, Confirmed: 80 * answers, Delivered: 70 * answers, Deviation: 10 * answers}
	endpoint := func(rank int, events string) api.Endpoint {
		return api.Endpoint{Rank: rank, Events: events, Lag: 0.25, Blocks: 500, Unique: 300, Shared: 200, Capacity: 1000, Fill: 0.5, KVUsage: 0.125,
			InFlight: 2, Waiting: 1, PendingTokens: 1000, Picks: answers, Hits: hits, Recent: hits}
	}
	return &api.Live{Picker: name, Time: noon, Ready: true, Pools: []api.Pool{{
		Namespace: "llm", Name: "chat", Model: "Qwen/Qwen3-32B", Strategy: "MarginalCost", Waiting: 2, Refused: 1, Requests: answers,
		TTFT: &api.Quantiles{P50: 0.1, P90: 0.2, P99: float64(answers) / 10}, Hits: hits, Recent: hits, Blocks: 900, ExactTokens: 0.75,
		Degraded: []string{"TokensExact: EngineRender: an engine is asked"}, Size: api.Size{Pods: 3, Ready: 2, Draining: 1},
		Pods: []api.Pod{
			{Name: "chat-b-0", Phase: api.PhaseServing, Endpoints: []api.Endpoint{endpoint(0, "Synced"), endpoint(1, "Disconnected")}},
			{Name: "chat-b-1", Phase: api.PhaseDraining, Endpoints: []api.Endpoint{endpoint(0, "Synced")}},
		},
	}}}
}

// golden compares a text with a file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: %s", name, diff)
	}
}

// printed is an answer in all formats.
func printed(t *testing.T, name string, v any, lines func(*console.Console) []string) {
	t.Helper()
	for _, format := range []console.Format{console.Table, console.JSON, console.YAML} {
		var out bytes.Buffer
		c := console.Console{Out: &out}
		err := c.Print(format, v, func() error { _, err := fmt.Fprintln(&out, strings.Join(lines(&c), "\n")); return err })
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name+"."+string(format), out.String())
	}
}

func TestStatus(t *testing.T) {
	p := OfCluster(ptrs(chat()))
	p.Join([]PickerReport{{Picker: "chat-picker-0", Live: replica("chat-picker-0", 10)}, {Picker: "chat-picker-1", Live: replica("chat-picker-1", 30)}, {Picker: "chat-picker-2", Err: errors.New("connection refused")}})
	s := &Statuses{Pools: []*Pool{p}}
	printed(t, "status", s, s.Lines)
	if p.Live.Requests != 40 || p.Live.Waiting != 4 || p.Live.InFlight != 6 || p.Live.Hits.Answers != 40 || p.Live.TTFT.P99 != 3 {
		t.Errorf("joined to %+v", p.Live)
	}
	colored := strings.Join(s.Lines(&console.Console{Color: true}), "\n")
	for _, want := range []string{"\x1b[32mServing\x1b[0m", "\x1b[33mDraining\x1b[0m", "\x1b[31mDisconnected\x1b[0m"} {
		if !strings.Contains(colored, want) {
			t.Errorf("no %q in %q", want, colored)
		}
	}
}

// TestStatusOfRoles: a pool changes from one kind of pods to two roles.
func TestStatusOfRoles(t *testing.T) {
	pool, pods := chat()
	n := ptr.To[int32]
	pool.Status.Roles = []v1alpha1.RoleStatus{
		{Name: v1alpha1.RolePrefill, DesiredReplicas: n(1), Replicas: n(1), ReadyReplicas: n(0), UpdatedReplicas: n(1)},
		{Name: v1alpha1.RoleDecode, DesiredReplicas: n(3), Replicas: n(1), ReadyReplicas: n(1), UpdatedReplicas: n(1)},
		{Name: v1alpha1.RoleBoth, DesiredReplicas: n(2), Replicas: n(1), ReadyReplicas: n(1), UpdatedReplicas: n(0)},
	}
	pods[2].Labels[v1alpha1.LabelRole] = "prefill"
	s := &Statuses{Pools: []*Pool{OfCluster(pool, pods, noon)}}
	printed(t, "roles", s, s.Lines)
}

// TestCachesOfReplicasAreAddedUp, and so are hook steps; a pool without them has no line for them.
func TestCachesOfReplicasAreAddedUp(t *testing.T) {
	one, two := replica("a", 10), replica("b", 30)
	for i, live := range []*api.Live{one, two} {
		n := int64(i + 1)
		live.Pools[0].ResponseCache = &api.ResponseCache{Hits: n, Misses: 2 * n, NotLookedUp: map[string]int64{"stateful": n}, Entries: int(n), Bytes: n << 20, Limit: n << 24}
		live.Pools[0].ResponseCache.Semantic = &api.SemanticCache{Hits: n, Embedded: 3 * n, Vectors: int(n), NotEmbedded: map[string]int64{"failed": n}}
		live.Pools[0].ResponseCache.Store = &api.CacheStore{Results: map[string]int64{"hit": n, "miss": n, "written": 4 * n}}
		if i == 1 {
			live.Pools[0].ResponseCache.Store.Trouble, live.Pools[0].ResponseCache.Store.TroubleDetail = "failed", "gone"
			live.Pools[0].ResponseCache.Semantic.Trouble, live.Pools[0].ResponseCache.Semantic.TroubleDetail = "failed", "why"
		}
		live.Pools[0].Hooks = []api.HookStep{{Name: "plan", Outcomes: map[string]int64{"applied": n, "refused": 2 * n}}}
	}
	p := OfCluster(ptrs(chat()))
	p.Join([]PickerReport{{Picker: "a", Live: one}, {Picker: "b", Live: two}})
	text := strings.Join((&Statuses{Pools: []*Pool{p}}).Lines(&console.Console{}), "\n")
	for _, want := range []string{
		"  response cache: 3 hits, 6 misses, 3 not looked up; 3 answers, 3.0 of 48.0 MiB, in all replicas together",
		"  shared answers: 3 of 6 questions to Redis, 12 written, 0 invalid",
		"  answers are not shared (failed): gone",
		"  similar questions: 3 hits, 9 compared, 3 vectors",
		"  similar questions are not found (failed): why",
		"  hook step plan: 3 applied, 6 refused",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if one.Pools[0].ResponseCache.Hits != 1 || one.Pools[0].Hooks[0].Outcomes["applied"] != 1 {
		t.Errorf("what a replica reports was changed: %+v", one.Pools[0])
	}
	p = OfCluster(ptrs(chat()))
	p.Join([]PickerReport{{Picker: "a", Live: replica("a", 10)}})
	text = strings.Join((&Statuses{Pools: []*Pool{p}}).Lines(&console.Console{}), "\n")
	if strings.Contains(text, "response cache") || strings.Contains(text, "hook step") {
		t.Errorf("without both:\n%s", text)
	}
	similar := strings.Join(Explanation(&console.Console{}, &api.Explanation{ResponseCache: &api.CacheResult{Result: "miss", Similar: true}}), "\n")
	if !strings.Contains(similar, "similar questions are not looked for here") {
		t.Errorf("a miss that would be compared:\n%s", similar)
	}
	for _, r := range []string{"hit", "miss", "no_tenant"} {
		lines := strings.Join(Explanation(&console.Console{}, &api.Explanation{ResponseCache: &api.CacheResult{Result: r, AgeSeconds: 7}}), "\n")
		if !strings.Contains(lines, "Response cache of this replica: ") || strings.Contains(lines, "7 s ago") != (r == "hit") {
			t.Errorf("%s:\n%s", r, lines)
		}
	}
}

// TestAWideStatusCountsTheAnswersThatReport what their engine found in its cache, and says why a pod gets no requests.
func TestAWideStatusCountsTheAnswersThatReport(t *testing.T) {
	p, live := OfCluster(ptrs(chat())), replica("chat-picker-0", 10)
	live.Pools[0].Recent.Unreported = 5
	live.Pools[0].Pods[0].Phase, live.Pools[0].Pods[0].Reason = api.PhaseNotReady, api.ReasonNotAnswering
	p.Join([]PickerReport{{Picker: "chat-picker-0", Live: live}})
	text := strings.Join((&Statuses{Pools: []*Pool{p}}).Wide(&console.Console{}), "\n")
	for _, want := range []string{"REPORTED", " 10/15 ", api.ReasonNotAnswering} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// TestWhatAConditionTellsIsNotToldAgain by each picker.
func TestWhatAConditionTellsIsNotToldAgain(t *testing.T) {
	for reason, want := range map[string]int{"EngineRender": 0, "Approximate": 2} {
		p := OfCluster(ptrs(chat()))
		p.Problems = []Problem{{"TokensExact", reason, "as all pickers say"}}
		p.Join([]PickerReport{{Picker: "a", Live: replica("a", 10)}, {Picker: "b", Live: replica("b", 10)}})
		if got := len(p.Problems) - 1; got != want {
			t.Errorf("with the condition %s pickers tell %d problems, want %d: %+v", reason, got, want, p.Problems)
		}
	}
}

func ptrs(p *v1alpha1.InferencePool, pods []corev1.Pod) (*v1alpha1.InferencePool, []corev1.Pod, time.Time) {
	return p, pods, noon
}

func TestPoolsOfPickersAlone(t *testing.T) {
	all := OfPickers([]PickerReport{{Picker: "127.0.0.1:9090", Live: replica("picker-0", 10)}})
	if len(all) != 1 || all[0].Status != "Serving" || all[0].Pods != 3 || len(all[0].Members) != 2 || all[0].Members[1].Stage != api.PhaseDraining {
		t.Errorf("%+v", all)
	}
	killed := replica("picker-0", 10)
	killed.Pools[0].Pods[0].Phase, killed.Pools[0].Pods[0].Reason = api.PhaseNotReady, api.ReasonUnreachable
	if all := OfPickers([]PickerReport{{Picker: "127.0.0.1:9090", Live: killed}}); all[0].Members[0].Reason != api.ReasonUnreachable {
		t.Errorf("why a pod is not ready is lost: %+v", all[0].Members[0])
	}
	// One replica connects and the other cannot.
	both := []PickerReport{{Picker: "a", Live: replica("a", 10)}, {Picker: "b", Live: killed}}
	if all := OfPickers(both); all[0].Members[0].Reason != api.ReasonUnreachable {
		t.Errorf("what the second replica reports is lost: %+v", all[0].Members[0])
	}
	p := OfCluster(ptrs(chat()))
	if p.Join(both); p.Members[0].Reason != api.ReasonUnreachable {
		t.Errorf("what the second replica reports is lost beside the API server's pods: %+v", p.Members[0])
	}
	p = OfCluster(ptrs(chat()))
	p.Join([]PickerReport{{Picker: "a", Live: &api.Live{Picker: "a", Pools: []api.Pool{{Namespace: "llm", Name: "other"}}}}})
	if p.Live != nil || p.Problems[len(p.Problems)-1].Message != "it does not serve the pool" {
		t.Errorf("%+v", p)
	}
}

var explained = api.Explanation{
	Namespace: "llm", Pool: "chat", Model: "Qwen/Qwen3-32B", Strategy: "MarginalCost", Tokens: "engine", TokensMissing: "no tokenizer", PromptTokens: 384, Prefix: "454e52420775",
	Unit: "seconds",
	Candidates: []api.Candidate{
		{Pod: "chat-b-0", Rank: 1, Matched: 320, Confirmed: 304, Uncached: 64, InFlight: 2, PendingTokens: 100, KVUsage: 0.25, Cost: 0.0125, Terms: []api.Term{{Name: "wait", Value: 0.01, Unit: "seconds"}, {Name: "own", Value: 0.0025, Unit: "seconds"}}},
		{Pod: "chat-b-1", Uncached: 384, Cost: 1.5, Terms: []api.Term{{Name: "wait", Value: 1.5, Unit: "seconds"}, {Name: "crowd", Value: 1.25}}},
	},
	LeftOut: []api.LeftOut{{Pod: "chat-c-2", Reason: "not-ready"}},
	Fleet:   []api.Term{{Name: "waste", Value: 0.00089}},
}

func TestExplanation(t *testing.T) {
	printed(t, "explanation", &explained, func(c *console.Console) []string { return Explanation(c, &explained) })
	none := strings.Join(Explanation(&console.Console{}, &api.Explanation{Strategy: "Sticky"}), "\n")
	if !strings.Contains(none, "No endpoint could take it") {
		t.Error(none)
	}
}

func TestDecision(t *testing.T) {
	d := api.Decision{Request: "id-1", Time: noon.Local(), Explanation: explained, Attempt: 1, Outcome: "completed", Cached: 0}
	ended := Decision(&console.Console{}, &d)
	d.Outcome, d.Cached, d.Attempt = "", -1, 0
	begun := Decision(&console.Console{}, &d)
	for line, want := range map[string][]string{
		ended: {"chat-b-1", "1.50 s", "completed", "llm/chat", "id-1"},
		begun: {"chat-b-0#1", "320", "12.50 ms", "under way"},
	} {
		for _, w := range want {
			if !strings.Contains(line, w) {
				t.Errorf("no %q in %q", w, line)
			}
		}
	}
}

func TestPrefixesOfReplicasAreAddedUp(t *testing.T) {
	holder := func(pod string, tokens int) api.Holder {
		return api.Holder{Pod: pod, Tokens: tokens, Tiers: map[string]int{"GPU": min(tokens, 160), "CPU": max(tokens-160, 0)}}
	}
	one := &api.Prefixes{Prefixes: []api.Prefix{
		{Namespace: "llm", Pool: "chat", Hash: "aa", Tokens: 320, Hits: 3, Holders: []api.Holder{holder("chat-b-0", 320), holder("chat-b-1", 160)}},
		{Namespace: "llm", Pool: "chat", Hash: "bb", Tokens: 160, Hits: 2, Holders: []api.Holder{holder("chat-b-0", 160)}},
		{Namespace: "llm", Pool: "other", Hash: "cc", Tokens: 160, Hits: 9},
	}}
	two := &api.Prefixes{Prefixes: []api.Prefix{{Namespace: "llm", Pool: "chat", Hash: "bb", Tokens: 160, Hits: 4}}}
	all := MergePrefixes([]*api.Prefixes{one, two}, "chat", 10)
	if len(all) != 2 || all[0].Hash != "bb" || all[0].Hits != 6 || len(all[0].Holders) != 1 {
		t.Errorf("%+v", all)
	}
	if got := MergePrefixes([]*api.Prefixes{one, two}, "", 1); len(got) != 1 || got[0].Hash != "cc" {
		t.Errorf("%+v", got)
	}
	printed(t, "prefixes", map[string]any{"prefixes": all}, func(c *console.Console) []string { return Prefixes(c, all) })
}

// TestFill: an empty cache is 0 % full; the fill is unknown only where the size of the cache is.
func TestFill(t *testing.T) {
	for want, e := range map[string]api.Endpoint{
		"-":      {Blocks: 5},
		"0.0 %":  {Capacity: 100},
		"50.0 %": {Blocks: 50, Capacity: 100, Fill: 0.5},
	} {
		if got := livePod([]*api.Pod{{Endpoints: []api.Endpoint{e}}}).cells()[1].Text; got != want {
			t.Errorf("%+v: %q, want %q", e, got, want)
		}
	}
}

func TestPlansShowTheChoiceAndItsReason(t *testing.T) {
	step := func(does, pod string, parts ...api.Term) api.Step {
		return api.Step{Does: does, Pod: pod, Seconds: 0.25, Parts: parts}
	}
	p := api.Plans{HandedOver: true, Alone: api.Plan{Seconds: 0.75, Steps: []api.Step{step("serve", "d-0")}}, Handoff: &api.Plan{
		Seconds: 0.5, Steps: []api.Step{step("prefill", "p-0"), step("decode", "d-1", api.Term{Name: "transfer", Value: 0.1, Unit: "seconds"})},
	}}
	both := strings.Join(Explanation(&console.Console{}, &api.Explanation{Plans: &p}), "\n")
	for _, want := range []string{"alone at d-0", "750.00 ms", "hand-off from p-0 to d-1", "500.00 ms", "decode 250.00 ms (transfer 100.00 ms)", "It would be handed over."} {
		if !strings.Contains(both, want) {
			t.Errorf("no %q in:\n%s", want, both)
		}
	}
	pull := &api.Plan{Seconds: 0.25, Steps: []api.Step{{Does: "lend", Pod: "d-1"}, step("serve", "d-0", api.Term{Name: "transfer", Value: 0.1, Unit: "seconds"})}}
	for because, last := range map[string]string{
		"pull":    "One endpoint would serve it, and load a part of the prompt from another one.",
		"cheaper": "It would load nothing from another endpoint: it is cheaper alone.",
	} {
		p = api.Plans{Because: because, Alone: api.Plan{Seconds: 0.75, Steps: []api.Step{step("serve", "d-1")}}, Pull: pull}
		text := strings.Join(Explanation(&console.Console{}, &api.Explanation{Plans: &p}), "\n")
		for _, want := range []string{"alone at d-1", "at d-0, with blocks of d-1", "lend; serve 250.00 ms (transfer 100.00 ms)", last} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in:\n%s", want, text)
			}
		}
	}
	p = api.Plans{Because: "short", Alone: api.Plan{Steps: []api.Step{{Does: "serve", Pod: "d-0"}}}}
	text := strings.Join(Explanation(&console.Console{}, &api.Explanation{Plans: &p}), "\n")
	if !strings.Contains(text, "It would not be handed over: the endpoint lacks no more than a block of the prompt.") || strings.Contains(text, "0.00 ms") {
		t.Errorf("explained:\n%s", text)
	}
}
