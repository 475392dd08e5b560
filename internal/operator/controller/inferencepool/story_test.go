package inferencepool

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/config/crd"
	"github.com/kvasir-dev/kvasir/docs"
	"github.com/kvasir-dev/kvasir/internal/cli/doctor"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
)

// cause is something that a person did or that happened, and where the pool reports it.
type cause struct {
	what              string
	pool              func(*testing.T) *world // nil for a pool of two pods that serve
	do                func(*world)
	condition, reason string
	// names is what the message must contain, so that a reader knows what to change.
	names string
	// printed is the reason of another condition, where that one names the cause in the columns of kubectl get.
	printed string
}

// spec returns a cause that edits the pool.
func spec(change func(*v1alpha1.InferencePoolSpec)) func(*world) {
	return func(w *world) { w.edit(change) }
}

// container returns a cause that makes a pod's container wait.
func container(reason, message string) func(*world) {
	return func(w *world) {
		w.setStatus(w.all()[0], func(s *corev1.PodStatus) {
			setCondition(s, corev1.PodReady, false, w.clock.Now())
			s.ContainerStatuses = []corev1.ContainerStatus{{Name: "vllm",
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
		})
	}
}

// deploy makes the Deployment of the pickers, with so many pods that are ready and not.
func (w *world) deploy(ready, not int32) {
	w.t.Helper()
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: poolKey.Namespace, Name: resources.PickerName(poolKey.Name), OwnerReferences: []metav1.OwnerReference{resources.Owner(w.pool())}},
		Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: pickerLabels}},
		Status:     appsv1.DeploymentStatus{ReadyReplicas: ready, UnavailableReplicas: not},
	}
	w.must(client.IgnoreNotFound(w.api.Delete(w.t.Context(), d.DeepCopy())))
	w.must(w.api.Create(w.t.Context(), d))
}

var pickerLabels = map[string]string{resources.LabelComponent: resources.ComponentPicker, resources.LabelInstance: poolKey.Name}

// stuckPicker returns a cause that leaves so many pickers ready and not, and one of these with a container that waits.
func stuckPicker(ready, not int32, reason, message string) func(*world) {
	return func(w *world) {
		w.deploy(ready, not)
		name := resources.PickerName(poolKey.Name)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: poolKey.Namespace, Name: name + "-new", Labels: maps.Clone(pickerLabels),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name + "-6f9", Controller: ptr.To(true)}}}}
		pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = "6f9"
		w.must(w.api.Create(w.t.Context(), pod))
		w.setStatus(pod, func(s *corev1.PodStatus) {
			s.ContainerStatuses = []corev1.ContainerStatus{{Name: "picker",
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
		})
	}
}

// crashing returns a cause that ends an engine and starts it again, so that its container runs while people look.
func crashing(reason string, code int32) func(*world) {
	return func(w *world) {
		uid := w.all()[0].UID
		w.crash(uid, reason, code)
		w.restart(uid)
	}
}

// refusing returns a cause that makes the API server refuse pods while the pool needs one more.
func refusing(why string) func(*world) {
	return func(w *world) {
		w.broken = func(verb string, obj client.Object) (error, error) {
			if _, ok := obj.(*corev1.Pod); ok && verb == "create" {
				return forbidden("pods", obj.GetName(), why), nil
			}
			return nil, nil
		}
		w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To[int32](3) })
	}
}

// stream returns a cause that leaves the event streams of all pods in a state, with what they have counted.
func stream(state events.State, counted func(*events.Stats)) func(*world) {
	return func(w *world) {
		stats := &events.Stats{}
		if counted != nil {
			counted(stats)
		}
		w.stream = &events.Status{State: state, Stats: stats}
	}
}

func found(reason, message string) operatorfeed.Finding {
	return operatorfeed.Finding{Verdict: operatorfeed.Bad, Reason: reason, Message: message}
}

// refusingChild is a pool for which the API server refuses objects of a kind.
func refusingChild(kind string, err error) func(*testing.T) *world {
	return func(t *testing.T) *world {
		w := newWorld(t, func(p *v1alpha1.InferencePool) {
			p.Spec.Gateway = v1alpha1.Gateway{Mode: v1alpha1.GatewayAuto, ParentRefs: []gwapiv1.ParentReference{{Name: "web"}}}
		})
		w.withChildren(func(o *unstructured.Unstructured) error {
			if o.GetKind() == kind {
				return err
			}
			return nil
		})
		return w
	}
}

var causes = []cause{
	{what: "a quota is used up", do: refusing("exceeded quota: gpus"), condition: v1alpha1.ConditionScaled, reason: "QuotaExceeded", names: "gpus"},
	{what: "an admission policy or webhook refuses the pods", do: refusing("violates PodSecurity restricted"),
		condition: v1alpha1.ConditionAccepted, reason: "NotPermitted", names: "PodSecurity"},
	{what: "an image that does not exist, or cannot be pulled", do: container("ErrImagePull", "vllm:v9: not found"),
		condition: v1alpha1.ConditionPodsHealthy, reason: "ImagePullFailed", names: "vllm:v9"},
	{what: "no node has a free GPU", do: func(w *world) {
		w.setStatus(w.all()[0], func(s *corev1.PodStatus) {
			setCondition(s, corev1.PodReady, false, w.clock.Now())
			s.Conditions = append(s.Conditions, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				Reason: corev1.PodReasonUnschedulable, Message: "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."})
		})
	}, condition: v1alpha1.ConditionPodsHealthy, reason: "Unschedulable", names: "nvidia.com/gpu"},
	{what: "the engine crashes again and again", do: crashing("Error", 1),
		condition: v1alpha1.ConditionPodsHealthy, reason: "CrashLooping", names: "exit code 1. See kubectl logs --previous"},
	{what: "the engine is killed because it uses more memory than it may", do: crashing("OOMKilled", 137),
		condition: v1alpha1.ConditionPodsHealthy, reason: "CrashLooping", names: "OOMKilled. Raise its memory limit"},
	{what: "a Secret of the pod's environment is missing", do: container("CreateContainerConfigError", `secret "hf-token" not found`),
		condition: v1alpha1.ConditionPodsHealthy, reason: "CrashLooping", names: "hf-token"},
	{what: "pods end as soon as they start", do: func(w *world) {
		for range 4 { // a first end has no pause, and a second one a short one
			w.clock.SetTime(w.clock.Now().Add(time.Minute))
			w.settleDown()
			for _, pod := range w.living() {
				w.end(pod)
			}
			w.settleDown()
		}
	}, condition: v1alpha1.ConditionPodsHealthy, reason: "PodsEnded", names: "no healthy devices"},
	{what: "a rollout whose pods do not become ready", do: func(w *world) {
		w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Template.Spec.Containers[0].Image = "vllm/vllm-openai:broken" })
		w.settleDown()
		w.clock.SetTime(w.clock.Now().Add(31 * time.Minute))
	}, condition: v1alpha1.ConditionUpToDate, reason: "RolloutStopped", names: "the old pods stay"},
	{what: "a rollout whose pods the API server would refuse", do: func(w *world) {
		w.refusingImage(unsigned, "images must be signed")
		w.edit(useUnsigned)
	}, condition: v1alpha1.ConditionUpToDate, reason: "RolloutRefused", names: "Accepted", printed: "NotPermitted"},
	{what: "a template without the engine's container", do: spec(func(s *v1alpha1.InferencePoolSpec) { s.Engine.ContainerName = "engine" }),
		condition: v1alpha1.ConditionAccepted, reason: "TemplateRefused", names: "engine"},
	{what: "an engine that a shell starts", do: spec(func(s *v1alpha1.InferencePoolSpec) {
		c := &s.Template.Spec.Containers[0]
		c.Command, c.Args = []string{"sh", "-c"}, []string{"vllm serve m"}
	}), condition: v1alpha1.ConditionPodsHealthy, reason: "EngineFlagsMissing", names: "--"},
	{what: "an engine without a readiness probe, which the operator does not add", do: spec(func(s *v1alpha1.InferencePoolSpec) { s.Engine.Flags = v1alpha1.FlagsManual }),
		condition: v1alpha1.ConditionPodsHealthy, reason: "ProbesMissing", names: "readinessProbe of container vllm: engine.flags is Manual"},
	{what: "a policy names the sidecar of Kvasir, which the operator cannot put into the pods", do: func(w *world) { w.follow(v1alpha1.SidecarKvasir) },
		condition: v1alpha1.ConditionPodsHealthy, reason: "SidecarMissing", names: "spec.roles is not set"},
	{what: "the Secret of the API key is missing", do: spec(func(s *v1alpha1.InferencePoolSpec) { s.Engine.APIKey.Name = "key" }),
		condition: v1alpha1.ConditionAccepted, reason: "ReferenceNotFound", names: "Secret key"},
	{what: "the Secret of the key space is missing", do: spec(func(s *v1alpha1.InferencePoolSpec) { s.KeySpace.SecretRef.Name = "root" }),
		condition: v1alpha1.ConditionAccepted, reason: "ReferenceNotFound", names: "Secret root"},
	{what: "the ConfigMap of the tokenizer is missing", do: spec(func(s *v1alpha1.InferencePoolSpec) {
		s.Model.Tokenizer.Volume = &v1alpha1.TokenizerVolume{}
		s.Model.Tokenizer.Volume.ConfigMap.Name = "files"
	}), condition: v1alpha1.ConditionAccepted, reason: "ReferenceNotFound", names: "ConfigMap files"},
	{what: "the CA of pickers that run elsewhere is missing", do: spec(func(s *v1alpha1.InferencePoolSpec) { s.Picker.Mode = v1alpha1.PickerExternal }),
		condition: v1alpha1.ConditionAccepted, reason: "ReferenceNotFound", names: "ConfigMap chat-picker-ca"},
	{what: "an object of another owner has a name that the pool needs", pool: func(t *testing.T) *world {
		w := newWorld(t)
		w.must(w.api.Create(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: poolKey.Namespace, Name: resources.PickerName(poolKey.Name)}}))
		w.withChildren(func(*unstructured.Unstructured) error { return nil })
		return w
	}, condition: v1alpha1.ConditionAccepted, reason: "NameTaken", names: "chat-picker"},
	{what: "a policy refuses the pickers' Deployment", pool: refusingChild("Deployment", forbidden("deployments", "chat-picker", "images must be signed")),
		condition: v1alpha1.ConditionAccepted, reason: "ObjectRefused", names: "signed"},
	{what: "the gateway's route is refused", pool: refusingChild("HTTPRoute", apierrors.NewInvalid(resources.RouteKind.GroupKind(), "chat", nil)),
		do: func(w *world) {
			w.deploy(2, 0)
			w.lasting()
		},
		condition: v1alpha1.ConditionGatewayAccepted, reason: "ObjectRefused", names: "HTTPRoute"},
	{what: "an older pool selects the same pods", pool: adoptedWorld, do: func(w *world) {
		older := w.pool()
		older.ResourceVersion, older.Name, older.UID = "", "older", ""
		now := w.clock.Now()
		w.clock.SetTime(now.Add(-time.Hour))
		w.must(w.api.Create(context.Background(), older))
		w.clock.SetTime(now)
		younger := w.pool()
		younger.CreationTimestamp = metav1.NewTime(now)
		younger.Generation++
		w.must(w.api.Update(context.Background(), younger))
	}, condition: v1alpha1.ConditionAccepted, reason: "SelectorOverlap", names: "older"},
	{what: "the workload to scale does not exist", pool: adoptedWorld,
		do:        spec(func(s *v1alpha1.InferencePoolSpec) { s.Adoption.ScaleTargetRef.Name = "wrong" }),
		condition: v1alpha1.ConditionScaled, reason: "ScaleTargetRefused", names: "wrong"},
	{what: "a schedule that never begins", pool: adoptedWorld, do: spec(func(s *v1alpha1.InferencePoolSpec) {
		s.Autoscaling.Schedules = []v1alpha1.Schedule{{Name: "never", Start: "0 8 30 2 *", TimeZone: "UTC"}}
	}), condition: v1alpha1.ConditionAutoscalingActive, reason: "ScheduleInvalid", names: "never"},
	{what: "the size is paused", pool: adoptedWorld, do: func(w *world) {
		w.r.Sizer = fixedSize(5)
		w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Paused = v1alpha1.PauseAll })
	}, condition: v1alpha1.ConditionAutoscalingActive, reason: "ScalingPaused", names: "spec.paused", printed: "ScalingPaused"},
	{what: "a rollout is paused", do: spec(func(s *v1alpha1.InferencePoolSpec) {
		s.Paused = v1alpha1.PauseRollout
		s.Template.Spec.Containers[0].Image = "vllm/vllm-openai:next"
	}), condition: v1alpha1.ConditionUpToDate, reason: "RolloutPaused", names: "spec.paused"},
	{what: "no replica of the picker is ready", do: stuckPicker(0, 2, "CreateContainerConfigError", `secret "chat-picker-tls" not found`),
		condition: v1alpha1.ConditionPickerAvailable, reason: "Unavailable", names: "0 of 2 replicas are ready; chat-picker-new: CrashLooping: picker: secret"},
	{what: "a new image of the picker cannot be pulled", do: stuckPicker(2, 1, "ErrImagePull", "picker:v9: not found"),
		condition: v1alpha1.ConditionPickerAvailable, reason: "UpdateStopped", names: "chat-picker-new: ImagePullFailed: picker: picker:v9"},
	{what: "the last engine dies", do: func(w *world) {
		for _, pod := range w.all() {
			w.failProbe(pod)
		}
	}, condition: v1alpha1.ConditionReady, reason: "NoReadyEndpoint", names: "none of 2"},
	{what: "an engine that served hangs", do: func(w *world) { w.failProbe(w.all()[0]) },
		condition: v1alpha1.ConditionPodsHealthy, reason: "Unready", names: "vllm fails its readiness probe since"},
	{what: "the kubelet of a node does not answer", do: func(w *world) { w.loseNode() },
		condition: v1alpha1.ConditionPodsHealthy, reason: "NodeNotReady", names: "node node is not ready since"},
	{what: "no events come from an engine", do: stream(events.Disconnected, nil), condition: v1alpha1.ConditionEventsSynced, reason: "StreamMissing", names: "chat-"},
	{what: "the engine publishes no events", do: stream(events.Disconnected, func(s *events.Stats) { s.Silent.Store(true) }), condition: v1alpha1.ConditionEventsSynced, reason: "EventsDisabled", names: "chat-"},
	{what: "the pod has no reporter", pool: adoptedWorld, do: func(w *world) {
		w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Engine.Events.Source = v1alpha1.EventsReporter })
		stream(events.Disconnected, nil)(w)
	}, condition: v1alpha1.ConditionEventsSynced, reason: "ReporterMissing", names: "vllm-"},
	{what: "events of a layout that is not known", do: stream(events.Synced, func(s *events.Stats) { s.Unreadable.Store(true) }), condition: v1alpha1.ConditionEventsSynced, reason: "UnknownLayout", names: "chat-"},
	{what: "events come faster than they are read", do: stream(events.Degraded, func(s *events.Stats) { s.Overflows.Add(1) }), condition: v1alpha1.ConditionEventsSynced, reason: "Lagging", names: "chat-"},
	{what: "events were lost that the engine no longer has", do: stream(events.Degraded, nil), condition: v1alpha1.ConditionEventsSynced, reason: "HistoryLost", names: "chat-"},
	{what: "blocks of a size that does not fit the pool", do: stream(events.Synced, func(s *events.Stats) { s.BlockSizeUnsupported.Add(1) }),
		condition: v1alpha1.ConditionEventsSynced, reason: "BlockSizeUnsupported", names: "chat-"},
	{what: "the wrong tokenizer", do: func(w *world) { w.tokens = found("ProbeFailed", "texts: 3 of 8 differ from those of the engine") },
		condition: v1alpha1.ConditionTokensExact, reason: "ProbeFailed", names: "differ"},
	{what: "files of the tokenizer are missing", do: func(w *world) { w.tokens = found("FilesMissing", "tokenizer.json is not in /models") },
		condition: v1alpha1.ConditionTokensExact, reason: "FilesMissing", names: "tokenizer.json"},
	{what: "engines do not find what was predicted", do: func(w *world) { w.predictions = found("Mispredicting", "of 100 answers 40 found less") },
		condition: v1alpha1.ConditionPredictionsTrusted, reason: "Mispredicting", names: "40"},
	{what: "engines of another model", do: func(w *world) { w.model = found("ModelNotListed", "chat-0 lists \"other\"") },
		condition: v1alpha1.ConditionModelServed, reason: "ModelNotListed", names: "other"},
}

var inCode = regexp.MustCompile("`([A-Za-z]+)`")

// cures reads what to do about each reason of each condition from the page that kubectl kvasir doctor prints from.
func cures() map[string]string {
	out := map[string]string{}
	_, page, _ := strings.Cut(docs.Operations, "\n## Conditions of a pool\n")
	page, _, _ = strings.Cut(page, "\n## ")
	condition := ""
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 3 {
			continue
		}
		if name := inCode.FindStringSubmatch(cells[0]); name != nil {
			condition = name[1]
		}
		for _, reason := range inCode.FindAllStringSubmatch(cells[1], -1) {
			out[condition+" "+reason[1]] = strings.TrimSpace(cells[2])
		}
	}
	return out
}

// TestAPoolTellsItsStory plays each cause. Within ten seconds a condition must be False for the reason that the documentation
// explains, with a message that names what is wrong, and kubectl get -o wide must show it. It keeps the table of docs/troubleshooting.md.
func TestAPoolTellsItsStory(t *testing.T) {
	cures := cures()
	rows := []string{}
	for i := range causes {
		c := &causes[i]
		newPool := c.pool
		if newPool == nil {
			newPool = func(t *testing.T) *world { return newWorld(t) }
		}
		w := newPool(t)
		if w.applies == nil {
			w.deploy(2, 0)
		}
		if w.pool().Spec.Template != nil && c.do != nil {
			w.serve()
		}
		if c.do != nil {
			c.do(w)
		}
		message, after := w.tells(c.condition, c.reason)
		if after > 10*time.Second || !strings.Contains(message, c.names) {
			t.Errorf("%s: %s %s after %s, %q, want one that names %q", c.what, c.condition, w.condition(c.condition), after, message, c.names)
		}
		cells := printed(t, w.pool())
		if want := cmp.Or(c.printed, c.reason); cells["Trouble"] != want {
			t.Errorf("%s: kubectl get shows the trouble %q, want %q", c.what, cells["Trouble"], want)
		}
		if shown := cells["Message"]; c.printed == "" && shown != message || shown == "" || strings.ContainsAny(shown, "\r\n") {
			t.Errorf("%s: kubectl get -o wide shows the message %q, want %q", c.what, shown, message)
		}
		cure := cures[c.condition+" "+c.reason]
		if cure == "" {
			t.Errorf("%s: docs/operations.md has no cure for %s %s", c.what, c.condition, c.reason)
		}
		if !diagnosed(w.pool(), c.condition, message) {
			t.Errorf("%s: kubectl kvasir doctor names no cure: %+v", c.what, doctor.Conditions(w.pool()).Results)
		}
		rows = append(rows, fmt.Sprintf("| %s | `%s`: `%s` | %s |", c.what, c.condition, c.reason, cure))
	}
	if len(rows) < 30 {
		t.Errorf("%d causes", len(rows))
	}
	slices.Sort(rows)
	keepTable(t, "../../../../docs/troubleshooting.md", "causes", "| cause | shown as | what to do |\n|---|---|---|\n"+strings.Join(rows, "\n")+"\n")
}

// diagnosed reports whether kubectl kvasir doctor shows a condition with its message and a cure.
func diagnosed(pool *v1alpha1.InferencePool, condition, message string) bool {
	return slices.ContainsFunc(doctor.Conditions(pool).Results, func(r doctor.Result) bool {
		return r.Level != doctor.OK && strings.HasPrefix(r.Message, condition+" is False") && strings.HasSuffix(r.Message, message) && r.Cure != ""
	})
}

// TestAPoolWithoutTroubleShowsNone: the columns are empty, and the status is as it should be.
func TestAPoolWithoutTroubleShowsNone(t *testing.T) {
	w := newWorld(t)
	w.deploy(2, 0)
	w.serve()
	cells := printed(t, w.pool())
	if cells["Status"] != "Serving" || cells["Trouble"] != "" || cells["Message"] != "" {
		t.Errorf("kubectl get shows %q", cells)
	}
}

// printed are the columns of a pool that kubectl get -o wide shows, by their names, as an API server makes them from the definition.
func printed(t *testing.T, pool *v1alpha1.InferencePool) map[string]string {
	t.Helper()
	definitions, err := crd.Definitions()
	if err != nil {
		t.Fatal(err)
	}
	cells := map[string]string{}
	for _, d := range definitions {
		if d.Spec.Names.Kind != "InferencePool" {
			continue
		}
		convertor, err := tableconvertor.New(d.Spec.Versions[0].AdditionalPrinterColumns)
		if err != nil {
			t.Fatal(err)
		}
		table, err := convertor.ConvertToTable(t.Context(), pool, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, cell := range table.Rows[0].Cells {
			if cell != nil {
				cells[table.ColumnDefinitions[i].Name] = fmt.Sprint(cell)
			}
		}
	}
	if cells["Name"] != pool.Name {
		t.Fatalf("columns %q", cells)
	}
	return cells
}

// tells lets time pass until a condition is False for a reason, and returns its message and how long that took. The operator looks at
// the pool when something has changed, when pickers report for the first time, a second later, and when it has asked for it.
func (w *world) tells(condition, reason string) (message string, after time.Duration) {
	w.t.Helper()
	due := w.clock.Now()
	for ; after <= 20*time.Second; after += time.Second {
		if after%(2*time.Second) == time.Second {
			for name := range w.pickers {
				w.speak(name)
			}
		}
		if now := w.clock.Now(); after == time.Second || !now.Before(due) {
			due = w.looks(now)
		}
		c := meta.FindStatusCondition(w.pool().Status.Conditions, condition)
		if c != nil && c.Status == metav1.ConditionFalse && c.Reason == reason {
			return c.Message, after
		}
		w.clock.SetTime(w.clock.Now().Add(time.Second))
	}
	return "", after
}

// looks reconciles until nothing more is written, and returns when the operator wants to be called next.
func (w *world) looks(now time.Time) (due time.Time) {
	w.t.Helper()
	for range 50 {
		before := w.writes
		again, err := w.reconcile()
		if err != nil {
			w.fail("%v", err)
		}
		if w.writes != before {
			continue
		}
		if again == 0 {
			again = time.Hour
		}
		return now.Add(again)
	}
	w.fail("it writes for ever")
	return now
}
