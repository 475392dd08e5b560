package doctor

import (
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/cli/console"
	"github.com/kvasir-dev/kvasir/internal/cli/live"
	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
)

// TestTheOperationsPageAdvisesOnEveryCondition that a pool can have.
func TestTheOperationsPageAdvisesOnEveryCondition(t *testing.T) {
	all := readCures()
	seen := map[string]bool{}
	for key, cure := range all {
		seen[key[0]] = true
		if cure == "" || strings.ContainsAny(cure, "`[]") {
			t.Errorf("%v: %q", key, cure)
		}
	}
	for _, condition := range []string{
		v1alpha1.ConditionAccepted, v1alpha1.ConditionReady, v1alpha1.ConditionUpToDate, v1alpha1.ConditionScaled, v1alpha1.ConditionPodsHealthy, v1alpha1.ConditionEventsSynced,
		v1alpha1.ConditionTokensExact, v1alpha1.ConditionPredictionsTrusted, v1alpha1.ConditionPickerAvailable, v1alpha1.ConditionEnginesClosed, v1alpha1.ConditionGatewayAccepted, v1alpha1.ConditionAutoscalingActive,
	} {
		if !seen[condition] {
			t.Errorf("no advice on %s", condition)
		}
	}
	for _, key := range [][2]string{{"EventsSynced", "BlockSizeUnsupported"}, {"EventsSynced", "ReporterMissing"}, {"Scaled", "ScalingDown"}} {
		if all[key] == "" {
			t.Errorf("no advice on %v", key)
		}
	}
}

const (
	fromPickers = `{spec: {podSelector: {matchLabels: {app: m}}, ingress: [{from: [{podSelector: {matchLabels: {app: picker}}}], ports: [{port: 8000}]}]}}`
	denyIngress = `{metadata: {name: deny}, spec: {podSelector: {}, policyTypes: [Ingress]}}`
)

// TestPoliciesAddUp: a way is open when no policy selects its ends, or one that does lets it through.
func TestPoliciesAddUp(t *testing.T) {
	pod := func(app string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8000}},
		}}}}
	}
	for name, tc := range map[string]struct {
		policies []string
		open     bool
	}{
		"no policy":                     {nil, true},
		"one that denies all":           {[]string{denyIngress}, false},
		"one that denies, one that not": {[]string{denyIngress, fromPickers}, true},
		"one for other pods":            {[]string{`{spec: {podSelector: {matchLabels: {app: db}}}}`}, true},
		"another port":                  {[]string{strings.Replace(fromPickers, "8000", "8001", 1)}, false},
		"a range of ports":              {[]string{strings.Replace(fromPickers, "port: 8000", "port: 7000, endPort: 9000", 1)}, true},
		"a range that ends before":      {[]string{strings.Replace(fromPickers, "port: 8000", "port: 7000, endPort: 7999", 1)}, false},
		"a port by its name":            {[]string{strings.Replace(fromPickers, "port: 8000", "port: http", 1)}, true},
		"a name that is none":           {[]string{strings.Replace(fromPickers, "port: 8000", "port: grpc", 1)}, false},
		"another protocol":              {[]string{strings.Replace(fromPickers, "port: 8000", "port: 8000, protocol: UDP", 1)}, false},
		"other sources":                 {[]string{strings.Replace(fromPickers, "app: picker", "app: web", 1)}, false},
		"all sources":                   {[]string{`{spec: {podSelector: {}, ingress: [{}]}}`}, true},
		"the namespace":                 {[]string{`{spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: a}}}]}]}}`}, true},
		"another namespace":             {[]string{`{spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: b}}}]}]}}`}, false},
		"egress is denied":              {[]string{`{spec: {podSelector: {matchLabels: {app: picker}}, policyTypes: [Egress]}}`}, false},
		"egress to all":                 {[]string{`{spec: {podSelector: {matchLabels: {app: picker}}, egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}]}}`}, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := &policies{namespaces: map[string]map[string]string{"": {"team": "a"}}}
			for _, text := range tc.policies {
				var p networkingv1.NetworkPolicy
				if err := yaml.UnmarshalStrict([]byte(text), &p); err != nil {
					t.Fatal(err)
				}
				n.all = append(n.all, p)
			}
			if by := n.closedBy(way{pod("picker"), pod("m"), 8000, "requests"}); (by == "") != tc.open {
				t.Errorf("closed by %q", by)
			}
		})
	}
}

// TestTheOperatorComesFromAnotherNamespace: there a rule for pods alone does not reach it, and its own policies hold.
func TestTheOperatorComesFromAnotherNamespace(t *testing.T) {
	const (
		denied  = `{metadata: {namespace: llm}, spec: {podSelector: {}, policyTypes: [Ingress]}}`
		pods    = `{metadata: {namespace: llm}, spec: {podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}}`
		both    = `{metadata: {namespace: llm}, spec: {podSelector: {}, ingress: [{from: [{podSelector: {}, namespaceSelector: {matchLabels: {team: kvasir}}}]}]}}`
		another = `{metadata: {namespace: llm}, spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: b}}}]}]}}`
		shut    = `{metadata: {namespace: kvasir-system}, spec: {podSelector: {}, policyTypes: [Egress]}}`
		foreign = `{metadata: {namespace: kvasir-system}, spec: {podSelector: {}, policyTypes: [Ingress]}}`
	)
	pod := func(namespace string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Labels: map[string]string{"app": "m"}}}
	}
	pool := &v1alpha1.InferencePool{}
	pool.Spec.Engine.Ports.HTTP = 8000
	for name, tc := range map[string]struct {
		policies []string
		open     bool
	}{
		"no policy":                     {nil, true},
		"one that denies all":           {[]string{denied}, false},
		"pods of the pool's own":        {[]string{pods}, false},
		"pods of its namespace":         {[]string{denied, both}, true},
		"pods of another one":           {[]string{another}, false},
		"its own namespace is shut":     {[]string{shut}, false},
		"no pod is allowed to reach it": {[]string{foreign}, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := &policies{namespaces: map[string]map[string]string{"llm": {"team": "a"}, "kvasir-system": {"team": "kvasir"}}}
			for _, text := range tc.policies {
				var p networkingv1.NetworkPolicy
				if err := yaml.UnmarshalStrict([]byte(text), &p); err != nil {
					t.Fatal(err)
				}
				n.all = append(n.all, p)
			}
			for _, w := range operatorWays(pool, pod("kvasir-system"), pod("llm"), pod("llm")) {
				if by := n.closedBy(w); (by == "") != tc.open {
					t.Errorf("%s, port %d: closed by %q", w.what, w.port, by)
				}
			}
		})
	}
}

// TestWaysFollowWhoSpeaks: engines with a reporter call, others are called.
func TestWaysFollowWhoSpeaks(t *testing.T) {
	pool := &v1alpha1.InferencePool{}
	pool.Spec.Engine.Ports.HTTP, pool.Spec.Engine.Ports.Events = 8000, 5557
	pool.Spec.Engine.Events.Source = v1alpha1.EventsAuto
	ports := func(engine *corev1.Pod) (out []int32) {
		for _, w := range ways(pool, &corev1.Pod{}, engine) {
			out = append(out, w.port)
		}
		return out
	}
	plain, reporting := &corev1.Pod{}, &corev1.Pod{Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "kvasir-reporter"}}}}
	if got := ports(plain); len(got) != 3 || got[1] != 5557 {
		t.Errorf("without a reporter %v", got)
	}
	if got := ports(reporting); len(got) != 3 || got[1] != 9004 {
		t.Errorf("with one %v", got)
	}
	pool.Spec.Engine.Events.Source = v1alpha1.EventsNone
	if got := ports(plain); len(got) != 2 {
		t.Errorf("without events %v", got)
	}
}

// TestFindings of one picker: which findings are reported, and with which severity.
func TestFindings(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	endpoint := func(state string) api.Pod { return api.Pod{Name: state, Endpoints: []api.Endpoint{{Events: state}}} }
	for name, tc := range map[string]struct {
		change func(*api.Live)
		check  string
		level  Level
		words  string
	}{
		"all is well":                {nil, "events", OK, "1 of 1"},
		"a picker that is not ready": {func(l *api.Live) { l.Ready, l.NotReady = false, "no objects" }, "picker", Fail, "no objects"},
		"an object that is wrong":    {func(l *api.Live) { l.Problems = []string{"pool.yaml: bad"} }, "picker", Fail, "pool.yaml"},
		"a clock that is off":        {func(l *api.Live) { l.Time = now.Add(-7 * time.Second) }, "clock", Warn, "-7s off"},
		"a clock that is far off":    {func(l *api.Live) { l.Time = now.Add(2 * time.Minute) }, "clock", Fail, "2m0s off"},
		"a stream that is lost":      {func(l *api.Live) { l.Pools[0].Pods = append(l.Pools[0].Pods, endpoint("Disconnected")) }, "events", Fail, "1 of 2 endpoints: Disconnected"},
		"a stream without proof":     {func(l *api.Live) { l.Pools[0].Pods = append(l.Pools[0].Pods, endpoint("Unverified")) }, "events", Warn, "Unverified"},
		"no endpoint":                {func(l *api.Live) { l.Pools[0].Pods = nil }, "events", Warn, "no endpoint"},
		"tokens that are guessed":    {func(l *api.Live) { l.Pools[0].ExactTokens, l.Pools[0].Inexact = 0.4, "no tokenizer" }, "tokens", Warn, "40 %"},
		"a budget that is too small": {func(l *api.Live) { l.Pools[0].ExactTokens, l.Pools[0].Inexact = 0.4, "budget" }, "tokens", Warn, "tokens.budgetMilliseconds"},
		"an endpoint that differs":   {func(l *api.Live) { l.Pools[0].Degraded = []string{"TokensExact: EndpointDiffers: a/0"} }, "degraded", Warn, "a/0"},
		"tokens that are not used":   {func(l *api.Live) { l.Pools[0].Degraded = []string{"TokensExact: TokensDoubted: of tools"} }, "degraded", Warn, "of tools"},
		"an engine is silent":        {func(l *api.Live) { l.Pools[0].Pods[0].Reason = api.ReasonNotAnswering }, "engines", Warn, "NotAnswering in chat"},
		"hits that are not there":    {func(l *api.Live) { l.Pools[0].Recent.Deviation = 50 }, "predictions", Warn, "50 %"},
	} {
		t.Run(name, func(t *testing.T) {
			told := &api.Live{Time: now, Ready: true, Pools: []api.Pool{{
				Name: "chat", Requests: 9, ExactTokens: 1, Pods: []api.Pod{endpoint("Synced")}, Recent: api.Hits{Prompt: 100, Predicted: 80, Delivered: 80},
			}}}
			if tc.change != nil {
				tc.change(told)
			}
			d := &Doctor{Now: func() time.Time { return now }, cures: readCures()}
			d.picker(nil, pickerAt(t), told, nil)
			found := false
			for _, r := range d.report.Results {
				if r.Check == tc.check && r.Level == tc.level && strings.Contains(r.Message, tc.words) {
					found = true
					if (r.Level == OK) != (r.Cure == "") {
						t.Errorf("%+v", r)
					}
				}
			}
			if !found || (d.report.Failed > 0) != (tc.level == Fail) || (d.report.Warned > 0) != (tc.level == Warn) {
				t.Errorf("%s", strings.Join(d.report.Lines(&console.Console{}), "\n"))
			}
		})
	}
}

// TestEveryReasonForInexactTokensIsExplained that the page on tokens lists.
func TestEveryReasonForInexactTokensIsExplained(t *testing.T) {
	page, err := os.ReadFile("../../../docs/tokens.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| reason | what it means |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	listed := strings.Split(table, "\n")
	if !found || len(listed) != len(inexact) {
		t.Errorf("the page lists %d reasons, doctor explains %d", len(listed), len(inexact))
	}
	for _, line := range listed {
		if reason := strings.Trim(strings.Split(line, "|")[1], " `"); inexact[reason] == "" {
			t.Errorf("doctor does not explain %q", reason)
		}
	}
}

func pickerAt(t *testing.T) *live.Picker {
	p, err := live.At("127.0.0.1:9090")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestAPoolOfAnOperatorThatIsNotThereIsFound, where it is known which operators there are.
func TestAPoolOfAnOperatorThatIsNotThereIsFound(t *testing.T) {
	pool := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "chat", Annotations: map[string]string{}}}
	for named, found := range map[string]bool{"": false, "kvasir-system": false, "gone": true} {
		pool.Annotations[v1alpha1.AnnotationOperator] = named
		for _, known := range []map[string]bool{nil, {"kvasir-system": true}} {
			d := &Doctor{operators: known}
			d.managed(pool)
			if is := d.report.Failed == 1; is != (found && known != nil) {
				t.Errorf("the pool of %q, with the operators %v: %+v", named, known, d.report.Results)
			}
		}
	}
}
