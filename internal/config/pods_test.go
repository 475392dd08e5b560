package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// translator of objects that the API server has admitted.
func newTranslator(t *testing.T) *Translator {
	t.Helper()
	a, err := admitter()
	if err != nil {
		t.Fatal(err)
	}
	defaults, err := a.DefaultPolicy()
	if err != nil {
		t.Fatal(err)
	}
	tr, err := NewTranslator(Settings{ModelRoot: "/models", Root: testRoot}, defaults)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// admitted is the pool of a manifest, with its defaults.
func admitted(t *testing.T, manifest string) *v1alpha1.InferencePool {
	t.Helper()
	s, problems := load(t, open(t, "pool.yaml", manifest))
	wantNoProblem(t, problems)
	return s.Pools[0].Object
}

// podOf is a ready pod with the labels of the small pool.
func podOf(uid string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m-" + uid, UID: types.UID(uid), Labels: map[string]string{"app": "m"}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.0.0.7",
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	if change != nil {
		change(p)
	}
	return p
}

// unready makes containers not ready, and so the pod. It has the gate Warm.
func unready(p *corev1.Pod, warm bool, containers ...string) {
	const gate = "kvasir.dev/Warm"
	p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gate}}
	p.Status.Conditions[0].Status = corev1.ConditionFalse
	if warm {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: gate, Status: corev1.ConditionTrue})
	}
	status := func(name string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, Ready: !slices.Contains(containers, name)}
	}
	p.Status.InitContainerStatuses = []corev1.ContainerStatus{status("kvasir-reporter"), status("proxy"), status("download")}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{status("vllm")}
}

func TestEndpointsOfPods(t *testing.T) {
	at := func(change func(*endpoint.Endpoint)) []endpoint.Endpoint {
		e := endpoint.Endpoint{
			ID: endpoint.ID{Pod: "u"}, Pod: "m-u", Namespace: "default", Address: "10.0.0.7:8000", RankHeader: -1,
			EventsAddress: "10.0.0.7:5557", ReplayAddress: "10.0.0.7:5657", EventsAssumed: true, ReplayAssumed: true, Ready: true, Serving: true,
		}
		if change != nil {
			change(&e)
		}
		return []endpoint.Endpoint{e}
	}
	now := metav1.Now()
	for name, tc := range map[string]struct {
		pool string
		pod  func(*corev1.Pod)
		want []endpoint.Endpoint
	}{
		"ready": {want: at(nil)},
		"not ready": {
			pod:  func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse },
			want: at(func(e *endpoint.Endpoint) { e.Ready, e.Serving = false, false }),
		},
		"nothing known of its readiness": {
			pod:  func(p *corev1.Pod) { p.Status.Conditions = nil },
			want: at(func(e *endpoint.Endpoint) { e.Ready, e.Serving = false, false }),
		},
		"the engine is ready, and its reporter is not": {
			pod:  func(p *corev1.Pod) { unready(p, true, "kvasir-reporter") },
			want: at(nil),
		},
		"its reporter, which serves the pool's port, is not": {
			pod: func(p *corev1.Pod) {
				unready(p, true, "kvasir-reporter")
				p.Spec.InitContainers = []corev1.Container{{Name: "kvasir-reporter", Args: []string{"--serve-address=:8000"}}}
			},
			want: at(func(e *endpoint.Endpoint) { e.Ready, e.Serving = false, false }),
		},
		"neither is": {
			pod:  func(p *corev1.Pod) { unready(p, true, "vllm", "kvasir-reporter") },
			want: at(func(e *endpoint.Endpoint) { e.Ready, e.Serving = false, false }),
		},
		"another sidecar is not": {
			pod:  func(p *corev1.Pod) { unready(p, true, "proxy", "kvasir-reporter") },
			want: at(func(e *endpoint.Endpoint) { e.Ready, e.Serving = false, false }),
		},
		"the reporter is not, and the pod is not warm": {
			pod:  func(p *corev1.Pod) { unready(p, false, "kvasir-reporter") },
			want: at(func(e *endpoint.Endpoint) { e.Ready, e.Serving = false, false }),
		},
		"its node is not ready": {
			pod:  func(p *corev1.Pod) { unready(p, true) },
			want: at(func(e *endpoint.Endpoint) { e.Ready, e.Serving = false, false }),
		},
		"the reporter has not let the engine start": {
			pod: func(p *corev1.Pod) {
				unready(p, true, "kvasir-reporter")
				p.Status.ContainerStatuses = nil
			},
			want: at(func(e *endpoint.Endpoint) { e.Ready, e.Serving = false, false }),
		},
		"marked": {
			pod:  func(p *corev1.Pod) { p.Labels[v1alpha1.LabelDrain] = "manual" },
			want: at(func(e *endpoint.Endpoint) { e.Terminating = true }),
		},
		"marked with an empty value": {
			pod:  func(p *corev1.Pod) { p.Labels[v1alpha1.LabelDrain] = "" },
			want: at(func(e *endpoint.Endpoint) { e.Terminating = true }),
		},
		"being deleted": {
			pod:  func(p *corev1.Pod) { p.DeletionTimestamp = &now },
			want: at(func(e *endpoint.Endpoint) { e.Terminating = true }),
		},
		"without an address": {pod: func(p *corev1.Pod) { p.Status.PodIP = "" }},
		"ended":              {pod: func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }},
		"without labels":     {pod: func(p *corev1.Pod) { p.Labels = nil }},
		"IPv6": {
			pod: func(p *corev1.Pod) { p.Status.PodIP = "fd00::7" },
			want: at(func(e *endpoint.Endpoint) {
				e.Address, e.EventsAddress, e.ReplayAddress = "[fd00::7]:8000", "[fd00::7]:5557", "[fd00::7]:5657"
			}),
		},
		"on an island": {
			pod:  func(p *corev1.Pod) { p.Labels[v1alpha1.LabelIsland] = "eu" },
			want: at(func(e *endpoint.Endpoint) { e.Island = "eu" }),
		},
		"on an island by another label": {
			pool: "placement: {islandLabel: region, islands: [{name: eu}]}",
			pod:  func(p *corev1.Pod) { p.Labels["region"] = "eu" },
			want: at(func(e *endpoint.Endpoint) { e.Island = "eu" }),
		},
		"ports of the pool": {
			pool: "engine: {ports: {http: 81, events: 82, replay: 83}}",
			want: at(func(e *endpoint.Endpoint) {
				e.Address, e.EventsAddress, e.ReplayAddress = "10.0.0.7:81", "10.0.0.7:82", "10.0.0.7:83"
				e.EventsAssumed, e.ReplayAssumed = false, false
			}),
		},
		"a later node of many": {
			pod: func(p *corev1.Pod) { p.Annotations = map[string]string{v1alpha1.AnnotationStartRank: "3"} },
			want: at(func(e *endpoint.Endpoint) {
				e.RankHeader, e.EventRank, e.EventsAddress, e.ReplayAddress = 3, 3, "10.0.0.7:5560", "10.0.0.7:5660"
			}),
		},
		"a start rank that is none": {
			pod: func(p *corev1.Pod) { p.Annotations = map[string]string{v1alpha1.AnnotationStartRank: "x"} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			manifest := smallPool
			if tc.pool != "" {
				manifest = poolWith(tc.pool)
			}
			s := newTranslator(t).Translate(Objects{Pools: []*v1alpha1.InferencePool{admitted(t, manifest)}, Pods: []*corev1.Pod{podOf("u", tc.pod)}})
			if diff := cmp.Diff(tc.want, only(t, s).Endpoints); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPodsOfAPoolWithATemplateAreThoseWithItsLabel(t *testing.T) {
	pool := admitted(t, `apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: m}
spec: {model: {name: m}, replicas: 1, template: {spec: {containers: [{name: vllm, image: i}]}}}
`)
	ours := podOf("u", func(p *corev1.Pod) { p.Labels = map[string]string{v1alpha1.LabelPool: "m"} })
	s := newTranslator(t).Translate(Objects{Pools: []*v1alpha1.InferencePool{pool}, Pods: []*corev1.Pod{ours, podOf("v", nil)}})
	if got := only(t, s).Endpoints; len(got) != 1 || got[0].ID.Pod != "u" {
		t.Errorf("endpoints %v, want the one with the label", got)
	}
	want := []Pod{{UID: "u", Namespace: "default", Name: "m-u", Pool: "m"}}
	if diff := cmp.Diff(want, s.Pods); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
}

func TestAPodOfTwoPoolsIsTheOlderOnes(t *testing.T) {
	at := func(name string, second int64, labels map[string]v1alpha1.LabelValue) *v1alpha1.InferencePool {
		p := &v1alpha1.InferencePool{}
		p.Namespace, p.Name, p.CreationTimestamp = "default", name, metav1.Unix(second, 0)
		p.Spec.Selector.MatchLabels = labels
		return p
	}
	app, other := map[string]v1alpha1.LabelValue{"app": "m"}, map[string]v1alpha1.LabelValue{"app": "o"}
	both := map[string]v1alpha1.LabelValue{"app": "m", "tier": "gold"}
	for name, tc := range map[string]struct {
		pools []*v1alpha1.InferencePool
		want  string
	}{
		"the older":             {[]*v1alpha1.InferencePool{at("a", 2, app), at("b", 1, app)}, "b"},
		"the first by name":     {[]*v1alpha1.InferencePool{at("b", 1, app), at("a", 1, app)}, "a"},
		"not one that wants":    {[]*v1alpha1.InferencePool{at("a", 1, other), at("b", 2, app)}, "b"},
		"not one that has less": {[]*v1alpha1.InferencePool{at("a", 1, both)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if p := PoolOf(podOf("u", nil), tc.pools); p != nil {
				got = p.Name
			}
			if got != tc.want {
				t.Errorf("pool %q, want %q", got, tc.want)
			}
		})
	}
}

// TestBrokenPodsKeepTheirEndpointsButNotTheirReadiness: what cannot be translated any more stays as it was, but for what
// decides whether requests go there.
func TestBrokenPodsKeepTheirEndpointsButNotTheirReadiness(t *testing.T) {
	tr := newTranslator(t)
	pools := []*v1alpha1.InferencePool{admitted(t, smallPool)}
	tr.Translate(Objects{Pools: pools, Pods: []*corev1.Pod{podOf("u", nil)}})
	broken := func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.AnnotationStartRank: "x"}
		p.Labels[v1alpha1.LabelDrain] = "manual"
	}
	s := tr.Translate(Objects{Pools: pools, Pods: []*corev1.Pod{podOf("u", broken)}})
	if got := only(t, s).Endpoints; len(got) != 1 || got[0].Pickable() {
		t.Errorf("endpoints %v, want the one there was, not to be picked", got)
	}
	if len(s.Problems) != 1 || !strings.Contains(s.Problems[0].Error(), "Pod default/m-u") {
		t.Errorf("problems %v", s.Problems)
	}
	again := podOf("v", broken)
	again.Name = "m-u" // another pod of the same name
	if got := only(t, tr.Translate(Objects{Pools: pools, Pods: []*corev1.Pod{again}})).Endpoints; len(got) != 0 {
		t.Errorf("endpoints %v of a pod that is gone", got)
	}
}

func TestWorkersOfAGroupAreOfNoPool(t *testing.T) {
	pool := &v1alpha1.InferencePool{}
	pool.Spec.Selector.MatchLabels = map[string]v1alpha1.LabelValue{"app": "m"}
	for member, want := range map[string]bool{"": true, "0": true, "1": false, "12": false} {
		pod := &corev1.Pod{}
		pod.Labels = map[string]string{"app": "m"}
		if member != "" {
			pod.Labels[LabelMember] = member
		}
		if got := PoolOf(pod, []*v1alpha1.InferencePool{pool}) != nil; got != want {
			t.Errorf("member %q is of the pool: %v", member, got)
		}
	}
}

func TestTheOlderPoolComesFirst(t *testing.T) {
	a, b := &v1alpha1.InferencePool{}, &v1alpha1.InferencePool{}
	a.Name, b.Name = "a", "b"
	if !Older(a, b) || Older(b, a) {
		t.Error("of one age, the name decides")
	}
	b.CreationTimestamp, a.CreationTimestamp = metav1.Unix(1, 0), metav1.Unix(2, 0)
	if Older(a, b) {
		t.Error("age decides first")
	}
}

// TestAPoolSelectsByOneSetOfLabels: what a list by PodLabels returns is what Selects accepts.
func TestAPoolSelectsByOneSetOfLabels(t *testing.T) {
	adopts, owns := &v1alpha1.InferencePool{}, &v1alpha1.InferencePool{}
	adopts.Spec.Selector.MatchLabels = map[string]v1alpha1.LabelValue{"app": "m", "tier": "", "kvasir.dev/x": "y"}
	owns.Name, owns.Spec.Template = "llama", &corev1.PodTemplateSpec{}
	for name, tc := range map[string]struct {
		pool   *v1alpha1.InferencePool
		labels map[string]string
		want   bool
	}{
		"all labels, and more":   {adopts, map[string]string{"app": "m", "tier": "", "kvasir.dev/x": "y", "z": "z"}, true},
		"another value":          {adopts, map[string]string{"app": "n", "tier": "", "kvasir.dev/x": "y"}, false},
		"no label, empty wanted": {adopts, map[string]string{"app": "m", "kvasir.dev/x": "y"}, false},
		"no labels":              {adopts, nil, false},
		"made from the template": {owns, map[string]string{v1alpha1.LabelPool: "llama"}, true},
		"of another pool":        {owns, map[string]string{v1alpha1.LabelPool: "qwen"}, false},
		"of no pool":             {owns, map[string]string{"app": "m"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: tc.labels}}
			listed := labels.SelectorFromSet(PodLabels(tc.pool)).Matches(labels.Set(tc.labels))
			if got := Selects(tc.pool, pod); got != tc.want || listed != tc.want {
				t.Errorf("selected %v, listed %v, want %v", got, listed, tc.want)
			}
		})
	}
}
