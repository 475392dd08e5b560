package scale

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// fleetWorld is a cluster with an operator, nodes and pickers.
type fleetWorld struct {
	*world
	p *players
}

func newFleetWorld(t *testing.T) *fleetWorld {
	t.Helper()
	w := newWorld(t)
	ctx, stop := context.WithCancel(t.Context())
	k := startKubelet(ctx, w)
	p := startPickers(ctx, w, k)
	t.Cleanup(func() { stop(); k.done.Wait(); p.done.Wait() })
	w.startManager()
	return &fleetWorld{w, p}
}

// until waits for what the operator is about to do. The function says what is missing, or nothing.
func (w *fleetWorld) until(what string, missing func() string) {
	w.Helper()
	last := ""
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if last = missing(); last == "" {
			return
		}
	}
	w.Fatalf("%s: %s", what, last)
}

func (w *fleetWorld) fleet(name string) *v1alpha1.PickerFleet {
	f := &v1alpha1.PickerFleet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	w.must(w.admin.Create(w.Context(), f))
	return f
}

// of makes a pool of a fleet; empty for pickers of its own.
func (w *fleetWorld) of(name, fleet string) {
	p := pool(name, 1)
	if fleet != "" {
		p.Spec.Picker.Mode, p.Spec.Picker.FleetRef.Name = v1alpha1.PickerOfFleet, fleet
	}
	w.must(w.admin.Create(w.Context(), p))
}

// move gives a pool to a fleet; empty for pickers of its own.
func (w *fleetWorld) move(name, fleet string) {
	w.Helper()
	p := w.pool(name)
	before := p.DeepCopy()
	p.Spec.Picker.Mode, p.Spec.Picker.FleetRef.Name = v1alpha1.PickerManaged, ""
	if fleet != "" {
		p.Spec.Picker.Mode, p.Spec.Picker.FleetRef.Name = v1alpha1.PickerOfFleet, fleet
	}
	w.must(w.admin.Patch(w.Context(), p, client.MergeFrom(before)))
}

func (w *fleetWorld) pool(name string) *v1alpha1.InferencePool {
	w.Helper()
	p := &v1alpha1.InferencePool{}
	w.must(w.admin.Get(w.Context(), client.ObjectKey{Namespace: namespace, Name: name}, p))
	return p
}

// there reports whether an object exists.
func (w *fleetWorld) there(o client.Object, name string) bool {
	w.Helper()
	err := w.admin.Get(w.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o)
	if err != nil && !apierrors.IsNotFound(err) {
		w.Fatal(err)
	}
	return err == nil
}

// servedBy says what a pool lacks to be served by a fleet, or by pickers of its own, and by nothing else.
func (w *fleetWorld) servedBy(name, fleet string) func() string {
	return func() string {
		p := w.pool(name)
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionPickerAvailable)
		leads := func(service string) string {
			s := &corev1.Service{}
			if !w.there(s, service) {
				return "nothing"
			}
			return s.Spec.Selector[resources.LabelFleet]
		}
		own := w.there(&appsv1.Deployment{}, resources.PickerName(name))
		at := fmt.Sprintf("condition %v, status %q, clients at %q, reporters at %q, own pickers %t, ready %d", c, p.Status.Picker.FleetName,
			leads(resources.PickerName(name)), leads(resources.PeersName(name)), own, ptr.Deref(p.Status.ReadyReplicas, 0))
		if c == nil || c.Status != metav1.ConditionTrue || c.Reason != "Available" || p.Status.Picker.FleetName != fleet || own != (fleet == "") ||
			leads(resources.PickerName(name)) != fleet || leads(resources.PeersName(name)) != fleet || ptr.Deref(p.Status.ReadyReplicas, 0) == 0 {
			return at
		}
		return ""
	}
}

// reason of a pool's condition about its pickers.
func (w *fleetWorld) reason(name, want string) func() string {
	return func() string {
		if c := meta.FindStatusCondition(w.pool(name).Status.Conditions, v1alpha1.ConditionPickerAvailable); c == nil || c.Reason != want {
			return fmt.Sprintf("%v, want %s", c, want)
		}
		return ""
	}
}

// watchClients checks until its end that clients of a pool always find a picker that is ready, and only such that serve the pool.
func (w *fleetWorld) watchClients(name string) (stop func()) {
	ctx, cancel := context.WithCancel(w.Context())
	var done sync.WaitGroup
	done.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
			s, pods := &corev1.Service{}, &corev1.PodList{}
			if w.admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: resources.PickerName(name)}, s) != nil ||
				w.admin.List(ctx, pods, client.InNamespace(namespace), client.MatchingLabels(s.Spec.Selector)) != nil {
				continue
			}
			ready := 0
			for i := range pods.Items {
				pod := &pods.Items[i]
				if !config.PodReady(pod) {
					continue
				}
				ready++
				if _, serves := w.p.state(pod.Name, pod.Labels[resources.LabelInstance], pod.Labels[resources.LabelFleet], namespace+"/"+name); !serves {
					w.Errorf("clients of pool %s find %s, which does not serve it", name, pod.Name)
				}
			}
			if ready == 0 && ctx.Err() == nil {
				w.Errorf("clients of pool %s find no ready picker by %v", name, s.Spec.Selector)
			}
		}
	})
	return func() { cancel(); done.Wait() }
}

func TestAPoolMovesIntoAFleetAndBack(t *testing.T) {
	w := newFleetWorld(t)
	w.of("default", "") // as the fleet is called
	w.until("pickers of its own", w.servedBy("default", ""))
	engine := w.pods("default")
	defer w.watchClients("default")()

	w.move("default", "default")
	w.until("a fleet that does not exist", w.reason("default", "FleetNotFound"))
	if !w.there(&appsv1.Deployment{}, resources.PickerName("default")) {
		t.Fatal("the pickers were given up for a fleet that does not exist")
	}
	w.p.deaf.Store(true)
	w.fleet("default")
	w.until("the way", w.reason("default", "Moving"))
	w.p.deaf.Store(false)
	w.until("the fleet", w.servedBy("default", "default"))
	if c := w.pool("default").Status.Picker; c.ServiceName != "default-fleet" || ptr.Deref(c.ReadyReplicas, 0) != 2 {
		t.Errorf("the pickers of the pool are %+v", c)
	}
	if got := w.pods("default"); got != engine {
		t.Errorf("the engines were %s and are %s", engine, got)
	}
	for range 6 { // as fast as a script can
		w.move("default", "")
		w.move("default", "default")
	}
	w.move("default", "")
	w.until("pickers of its own again", w.servedBy("default", ""))
	if got := w.pods("default"); got != engine {
		t.Errorf("the engines were %s and are %s", engine, got)
	}
}

// pods are the engines of a pool.
func (w *fleetWorld) pods(name string) string {
	w.Helper()
	var list corev1.PodList
	w.must(w.admin.List(w.Context(), &list, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelPool: name}))
	var uids []string
	for i := range list.Items {
		uids = append(uids, string(list.Items[i].UID))
	}
	return strings.Join(uids, " ")
}

// fleetIs says what a fleet lacks to serve so many pools.
func (w *fleetWorld) fleetIs(name string, pools int) func() string {
	return func() string {
		f := &v1alpha1.PickerFleet{}
		w.must(w.admin.Get(w.Context(), client.ObjectKey{Namespace: namespace, Name: name}, f))
		s := &f.Status
		if ptr.Deref(s.Pools, -1) != int32(pools) || ptr.Deref(s.ReadyReplicas, 0) != 2 || s.Address != "http://"+name+"-fleet."+namespace+".svc" ||
			!meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionAvailable) || !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionProgrammed) {
			return fmt.Sprintf("%d pools, %s, conditions %v", ptr.Deref(s.Pools, -1), s.Address, s.Conditions)
		}
		return ""
	}
}

func TestTwoFleets(t *testing.T) {
	w := newFleetWorld(t)
	w.fleet("before")
	w.of("a", "before")
	w.of("b", "after")
	w.until("a fleet that was there before its pool", w.servedBy("a", "before"))
	w.until("a fleet that does not exist", w.reason("b", "FleetNotFound"))
	w.fleet("after")
	w.until("a fleet that comes after its pool", w.servedBy("b", "after"))
	w.until("one pool", w.fleetIs("before", 1))
	w.until("one pool", w.fleetIs("after", 1))

	stop := w.watchClients("a")
	w.move("a", "after")
	w.until("the other fleet", w.servedBy("a", "after"))
	w.until("no pool", w.fleetIs("before", 0))
	w.until("two pools", w.fleetIs("after", 2))

	// The fleet goes while two pools use it. Their pickers stay.
	deployment := &appsv1.Deployment{}
	if !w.there(deployment, "after-fleet") {
		t.Fatal("the fleet has no pickers")
	}
	made := deployment.UID
	w.must(w.admin.Delete(w.Context(), &v1alpha1.PickerFleet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "after"}}))
	w.until("a fleet that was deleted", w.reason("a", "FleetNotFound"))
	if !w.there(deployment, "after-fleet") || deployment.UID != made {
		t.Fatal("the pickers went with the fleet")
	}
	w.fleet("after") // as it was
	w.until("the same pickers", w.servedBy("a", "after"))
	if !w.there(deployment, "after-fleet") || deployment.UID != made {
		t.Fatal("a fleet that is made again has other pickers")
	}

	// It goes for good, and its pools leave.
	w.must(w.admin.Delete(w.Context(), &v1alpha1.PickerFleet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "after"}}))
	w.until("a fleet that was deleted", w.reason("a", "FleetNotFound"))
	w.move("a", "before")
	w.until("the fleet of before", w.servedBy("a", "before"))
	stop()
	w.must(w.admin.Delete(w.Context(), &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "b"}}))
	w.until("what the fleet leaves", func() string {
		for name, o := range map[string]client.Object{"after-fleet": &appsv1.Deployment{}, "after-fleet-peers": &corev1.Service{}, "after-fleet-ca": &corev1.ConfigMap{}} {
			if w.there(o, name) {
				return name
			}
		}
		return ""
	})
}

// TestManyPoolsOfOneFleet: what the operator writes for a fleet does not grow with the square of its pools, and it rests in the end.
func TestManyPoolsOfOneFleet(t *testing.T) {
	const many = 50
	w := newFleetWorld(t)
	w.fleet("default")
	for i := range many {
		w.of(fmt.Sprintf("m%03d", i), "default")
	}
	w.until("all pools", w.fleetIs("default", many))
	for i := range many {
		w.until("each pool", w.servedBy(fmt.Sprintf("m%03d", i), "default"))
	}
	w.waitForQuiet()
	wrote := w.writes()
	t.Logf("written: %v", wrote)
	// Each change of the pools writes each of the fleet's objects once; a Role of a pool of its own would be one write, too.
	for _, what := range []string{"APPLY roles", "APPLY deployments", "PATCH roles", "PATCH deployments"} {
		if n := wrote[what]; n > 2*many {
			t.Errorf("%d times %s for %d pools", n, what, many)
		}
	}
	if n := wrote["PATCH inferencepools"] + wrote["APPLY inferencepools"]; n > 20*many {
		t.Errorf("the status of %d pools was written %d times", many, n)
	}
	// One more pool is no work for the others.
	w.of("one", "default")
	w.until("one more", w.servedBy("one", "default"))
	w.waitForQuiet()
	late := more(wrote, w.writes())
	t.Logf("written for one more: %v", late)
	for what, n := range late {
		if n > many {
			t.Errorf("one more pool: %d times %s", n, what)
		}
	}
}
