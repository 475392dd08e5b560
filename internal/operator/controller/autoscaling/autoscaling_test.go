package autoscaling

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/scaling"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
)

var (
	epoch = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	chat  = types.NamespacedName{Namespace: "llm", Name: "chat"}
)

// world is a loop over a fake API server, and a picker that reports what a test says.
type world struct {
	*Loop
	clock   *testingclock.FakeClock
	pool    operatorfeed.Pool
	totals  operatorfeed.Totals
	pods    map[string]operatorfeed.PodState
	silent  bool
	changed chan event.GenericEvent
}

func (w *world) View(types.NamespacedName) operatorfeed.View {
	if w.silent {
		return operatorfeed.View{}
	}
	now := w.clock.Now()
	w.pool.Receive(now, operatorfeed.State{Picker: "a", Incarnation: 1, Ready: true, Totals: w.totals, Pods: w.pods})
	return w.pool.View(now, []operatorfeed.Expected{{Picker: "a", Ready: true}})
}

func newWorld(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	w := &world{clock: testingclock.NewFakeClock(epoch), changed: make(chan event.GenericEvent, 100)}
	w.Loop = &Loop{
		Reader:  fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(funcs).Build(),
		Pickers: w, Clock: w.clock, Changed: w.changed,
	}
	return w
}

// after plays the loop for a time in which requests of a second of work each wait.
func (w *world) after(t *testing.T, d time.Duration, waiting, load float64) scaling.Decision {
	t.Helper()
	for end := w.clock.Now().Add(d); w.clock.Now().Before(end); {
		w.totals.Waiting = int64(waiting)
		w.totals.WorkSeconds += load * Interval.Seconds()
		w.totals.Requests += int64(load * Interval.Seconds())
		w.totals.LastRequest = w.clock.Now()
		if err := w.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.clock.Step(Interval)
	}
	got, ok := w.Decision(chat, "")
	if !ok {
		t.Fatal("no decision")
	}
	return got
}

func scaled(mode v1alpha1.AutoscalingMode) *v1alpha1.InferencePool {
	p := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: chat.Namespace, Name: chat.Name, UID: "p"}}
	p.Spec.Autoscaling = v1alpha1.Autoscaling{
		Mode: mode, MinReplicas: ptr.To[int32](1), MaxReplicas: 10,
		Up:   v1alpha1.ScaleUp{WaitingPerReplica: 4},
		Down: v1alpha1.ScaleDown{MaxStep: 1},
	}
	return p
}

func pod(name string, edit func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: chat.Namespace, Name: name, UID: types.UID(name), Labels: map[string]string{v1alpha1.LabelPool: chat.Name},
	}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if edit != nil {
		edit(p)
	}
	return p
}

func TestAQueueRaisesTheSizeAndWakesTheController(t *testing.T) {
	w := newWorld(t, interceptor.Funcs{}, scaled(v1alpha1.AutoscalingActive), pod("a", nil), pod("b", nil))
	w.after(t, time.Minute, 0, 1)
	for len(w.changed) > 0 {
		<-w.changed
	}
	if d := w.after(t, Interval, 60, 3); d.Size < 3 || d.Reason != scaling.QueueDepth {
		t.Errorf("%+v one look after 60 requests wait at 2 pods", d)
	}
	if len(w.changed) != 1 {
		t.Errorf("the controller was woken %d times", len(w.changed))
	}
}

func TestOnlyServingPodsCount(t *testing.T) {
	w := newWorld(t, interceptor.Funcs{}, scaled(v1alpha1.AutoscalingActive),
		pod("a", nil),
		pod("loading", func(p *corev1.Pod) { p.Status.Conditions = nil }),
		pod("without its reporter", func(p *corev1.Pod) { // pickers choose it
			p.Status.Conditions[0].Status = corev1.ConditionFalse
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: v1alpha1.ReporterContainer}}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "vllm", Ready: true}}
		}),
		pod("draining", func(p *corev1.Pod) { p.Labels[v1alpha1.LabelDrain] = "manual" }),
		pod("leaving", func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: epoch}, []string{"x/y"}
		}),
		pod("other", func(p *corev1.Pod) { p.Labels[v1alpha1.LabelPool] = "another" }),
	)
	got, err := w.serving(t.Context(), scaled(v1alpha1.AutoscalingActive), "")
	if slices.Sort(got); err != nil || !slices.Equal(got, []string{"a", "without its reporter"}) {
		t.Errorf("serving: %v (%v)", got, err)
	}
}

func TestASizeOutlivesTheLoop(t *testing.T) {
	p := scaled(v1alpha1.AutoscalingActive)
	p.Status.DesiredReplicas = ptr.To[int32](7)
	w := newWorld(t, interceptor.Funcs{}, p)
	w.silent = true
	if d := w.after(t, time.Minute, 0, 0); d.Size != 7 || d.Reason != scaling.NoSamples {
		t.Errorf("%+v, want the size that was steered to", d)
	}
}

func TestARecommendationStartsFromTheReplicas(t *testing.T) {
	p := scaled(v1alpha1.AutoscalingRecommend)
	p.Spec.Replicas = ptr.To[int32](2)
	w := newWorld(t, interceptor.Funcs{}, p, pod("a", nil), pod("b", nil))
	if d := w.after(t, 10*time.Minute, 40, 1); d.Size > 3 {
		t.Errorf("%+v: recommendations pile up on each other", d)
	}
}

func TestADeletedPoolIsForgotten(t *testing.T) {
	p := scaled(v1alpha1.AutoscalingActive)
	w := newWorld(t, interceptor.Funcs{}, p)
	w.after(t, time.Minute, 0, 0)
	if n := testutil.CollectAndCount(w.Loop); n == 0 {
		t.Error("no metrics")
	}
	if err := w.Reader.(client.Client).Delete(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := w.Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, ok := w.Decision(chat, ""); ok || testutil.CollectAndCount(w.Loop) != 0 {
		t.Error("a pool that is gone is still decided about")
	}
}

func TestWhatCannotBeReadChangesNothing(t *testing.T) {
	broken := false
	w := newWorld(t, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if broken {
			return errors.New("no API server")
		}
		return c.List(ctx, list, opts...)
	}}, scaled(v1alpha1.AutoscalingActive), pod("a", nil))
	before := w.after(t, time.Minute, 60, 3)
	broken = true
	if err := w.Step(t.Context()); err == nil {
		t.Error("no error")
	}
	if d, ok := w.Decision(chat, ""); !ok || d != before {
		t.Errorf("%+v, %v; before %+v", d, ok, before)
	}
}

func TestABadScheduleIsNamedAndTheOthersHold(t *testing.T) {
	p := scaled(v1alpha1.AutoscalingActive)
	p.Spec.Autoscaling.Schedules = []v1alpha1.Schedule{{Name: "office", Start: "0 99 * * *", TimeZone: "UTC", DurationSeconds: 60}}
	p.Spec.Autoscaling.Schedules = append(p.Spec.Autoscaling.Schedules, v1alpha1.Schedule{
		Name: "always", Start: "* * * * *", TimeZone: "UTC", DurationSeconds: 3600, MinReplicas: ptr.To[int32](4),
	})
	w := newWorld(t, interceptor.Funcs{}, p)
	if _, err := Spec(&p.Spec.Autoscaling); err == nil || !strings.Contains(err.Error(), "schedule office") {
		t.Errorf("%v", err)
	}
	if err := w.Step(t.Context()); err != nil {
		t.Errorf("%v: the pool's condition names the schedule, and the log says nothing each time", err)
	}
	if d, _ := w.Decision(chat, ""); d.Size != 4 {
		t.Errorf("%+v: the other schedule wants 4", d)
	}
}

func TestMetrics(t *testing.T) {
	w := newWorld(t, interceptor.Funcs{}, scaled(v1alpha1.AutoscalingActive), pod("a", nil))
	w.after(t, time.Minute, 60, 3)
	want := `
# HELP kvasir_pool_waiting_requests Requests that wait, at the pickers and in the engines' queues.
# TYPE kvasir_pool_waiting_requests gauge
kvasir_pool_waiting_requests{namespace="llm",pool="chat",role=""} 60
`
	if err := testutil.CollectAndCompare(w.Loop, strings.NewReader(want), "kvasir_pool_waiting_requests"); err != nil {
		t.Error(err)
	}
}

// TestEachRoleScalesByItself: a queue of prefills raises the prefill role, and requests that wait in pickers, or full caches, the decode role.
func TestEachRoleScalesByItself(t *testing.T) {
	of := func(name, role string) *corev1.Pod {
		return pod(name, func(p *corev1.Pod) { p.Labels[v1alpha1.LabelRole] = role })
	}
	for name, tc := range map[string]struct {
		waiting         int64
		prefill, decode operatorfeed.PodState
		want            map[v1alpha1.RoleName]int
	}{
		"prefills wait": {
			prefill: operatorfeed.PodState{InFlight: 9, UncachedTokens: 300_000, WorkSeconds: 1}, decode: operatorfeed.PodState{InFlight: 1},
			want: map[v1alpha1.RoleName]int{v1alpha1.RolePrefill: 4, v1alpha1.RoleDecode: 2},
		},
		"requests wait for places": {
			waiting: 60, prefill: operatorfeed.PodState{InFlight: 1}, decode: operatorfeed.PodState{InFlight: 30, KVUsage: 0.95, Waiting: 9},
			want: map[v1alpha1.RoleName]int{v1alpha1.RolePrefill: 1, v1alpha1.RoleDecode: 5},
		},
		"nothing waits": {
			prefill: operatorfeed.PodState{InFlight: 1}, decode: operatorfeed.PodState{InFlight: 4, KVUsage: 0.5},
			want: map[v1alpha1.RoleName]int{v1alpha1.RolePrefill: 1, v1alpha1.RoleDecode: 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := scaled(v1alpha1.AutoscalingActive)
			each := o.Spec.Autoscaling
			o.Spec.Autoscaling = v1alpha1.Autoscaling{}
			o.Spec.Roles = []v1alpha1.PoolRole{
				{Name: v1alpha1.RolePrefill, Autoscaling: each}, {Name: v1alpha1.RoleDecode, Autoscaling: each},
			}
			w := newWorld(t, interceptor.Funcs{}, o, of("p", "prefill"), of("d", "decode"), of("e", "decode"), pod("old", nil))
			w.pods = map[string]operatorfeed.PodState{"p": tc.prefill, "d": tc.decode, "e": tc.decode, "old": {InFlight: 99, Waiting: 99}}
			for range 3 {
				w.totals.Waiting, w.totals.LastRequest = tc.waiting, w.clock.Now()
				w.totals.Requests, w.totals.PrefillTokens, w.totals.WorkSeconds = w.totals.Requests+4, w.totals.PrefillTokens+8000, w.totals.WorkSeconds+4
				if err := w.Step(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.clock.Step(Interval)
			}
			for role, want := range tc.want {
				if d, ok := w.Decision(chat, role); !ok || d.Size != want {
					t.Errorf("%s: %+v, want %d", role, d, want)
				}
			}
			if d, ok := w.Decision(chat, ""); ok {
				t.Errorf("the pool itself has a size: %+v", d)
			}
		})
	}
}
