package lifecycle

import (
	"crypto/sha256"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

const fleet = `
apiVersion: kvasir.dev/v1alpha1
kind: PickerFleet
metadata: {name: default}
spec: {replicas: 2, indexMemory: 64Mi}
`

// inTurns has every engine of the pool serve, the one that is removed, too. Clients without a key that the Secret lists are refused.
func inTurns() string {
	return fmt.Sprintf(`
apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: turns}
spec:
  targetRefs: [{name: m}]
  strategy: {type: RoundRobin}
  admission: {tenants: {identification: APIKey, classes: [{name: default}], secretRefs: [{name: tenants}]}}
---
apiVersion: v1
kind: Secret
metadata: {name: tenants}
stringData: {clients: '{"sha256": ["%x"]}'}
`, sha256.Sum256([]byte(tenantKey)))
}

// fleetIs waits until a fleet serves so many pools with all of its pickers.
func (w *world) fleetIs(pools int32) {
	w.Helper()
	w.reaches("the fleet", func() error {
		f := &v1alpha1.PickerFleet{}
		w.must(w.admin.Get(w.Context(), client.ObjectKey{Namespace: namespace, Name: "default"}, f))
		s := &f.Status
		if ptr.Deref(s.Pools, -1) != pools || ptr.Deref(s.ReadyReplicas, 0) != 2 || !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionAvailable) ||
			!meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionProgrammed) {
			return fmt.Errorf("%d pools, conditions %v", ptr.Deref(s.Pools, -1), s.Conditions)
		}
		return nil
	})
}

// behind are the addresses of the ready pickers behind a pool's Service.
func (w *world) behind(pool string) []string {
	s, err := w.set.CoreV1().Services(namespace).Get(w.Context(), resources.PickerName(pool), metav1.GetOptions{})
	if err != nil {
		return nil
	}
	pods, err := w.set.CoreV1().Pods(namespace).List(w.Context(), metav1.ListOptions{LabelSelector: labels.Set(s.Spec.Selector).String()})
	if err != nil {
		return nil
	}
	var all []string
	for i := range pods.Items {
		if p := &pods.Items[i]; ready(p) && p.DeletionTimestamp.IsZero() {
			all = append(all, net.JoinHostPort(p.Status.PodIP, "8080"))
		}
	}
	return all
}

// fleetPods are the pickers of the fleet, by UID.
func (w *world) fleetPods() map[string]bool {
	w.Helper()
	all := map[string]bool{}
	for _, p := range w.podsOf(resources.LabelFleet + "=default") {
		all[string(p.UID)] = true
	}
	return all
}

// TestNoRequestFailsBehindAFleet has one fleet serve three pools under load while the fleet is rolled out, a pool is scaled down, a
// pool gets pickers of its own and returns, and the fleet is deleted and made again. No request fails, no engine is replaced, and no request goes to a pod that the
// pickers have said not to choose.
func TestNoRequestFailsBehindAFleet(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.apply(fleet + "---" + inTurns())
	models := []string{poolName, "second", "third"}
	w.fleetIs(0)
	for _, model := range models {
		manifest := strings.NewReplacer("{name: m}", "{name: "+model+"}", "--served-model-name, m,", "--served-model-name, "+model+",",
			"picker: {replicas: 2, indexMemory: 64Mi}", "picker: {mode: Fleet}").Replace(pool)
		if model != poolName {
			manifest = strings.Replace(manifest, "replicas: 3", "replicas: 1", 1)
		}
		w.apply(manifest)
	}
	w.until("serving", settled(3))
	w.fleetIs(3)
	w.reaches("ready engines", func() error {
		for _, model := range models {
			p := &v1alpha1.InferencePool{}
			w.must(w.admin.Get(w.Context(), client.ObjectKey{Namespace: namespace, Name: model}, p))
			if s := p.Status; ptr.Deref(s.Endpoints.Synced, 0) == 0 || s.Picker.FleetName != "default" || s.Picker.ServiceName != "default-fleet" {
				return fmt.Errorf("pool %s: endpoints %+v, pickers %+v", model, s.Endpoints, s.Picker)
			}
			if len(w.behind(model)) != 2 {
				return fmt.Errorf("pool %s has the pickers %v", model, w.behind(model))
			}
		}
		return nil
	})
	engines := w.podsOf(v1alpha1.LabelSlot)
	m := followMarks(w)
	l := startLoadOf(w, *clients, *longest, models, w.behind)

	before := w.fleetPods()
	w.must(w.admin.Patch(t.Context(), &v1alpha1.PickerFleet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}},
		client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"pod":{"annotations":{"rolled":"out"}}}}`))))
	w.reaches("a rollout of the fleet", func() error {
		now := w.fleetPods()
		for uid := range now {
			if before[uid] {
				return fmt.Errorf("pickers %v, of before %v", now, before)
			}
		}
		if len(now) != 2 {
			return fmt.Errorf("%d pickers", len(now))
		}
		return nil
	})
	w.fleetIs(3)
	w.answers(l, 20)
	t.Logf("rolled out: %d requests", l.asked.Load())

	w.patch(`{"spec":{"replicas":2}}`)
	w.until("scaled down", settled(2))
	w.answers(l, 20)

	for _, mode := range []string{`"Managed"`, `"Fleet"`} {
		began := time.Now()
		w.patch(`{"spec":{"picker":{"mode":%s}}}`, mode)
		own := mode == `"Managed"`
		w.until("with the pickers of mode "+mode, func(p *v1alpha1.InferencePool) bool {
			err := w.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: resources.PickerName(poolName)}, &appsv1.Deployment{})
			c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionPickerAvailable)
			return (err == nil) == own && (p.Status.Picker.FleetName == "") == own && c != nil && c.Reason == "Available"
		})
		w.answers(l, 20)
		t.Logf("mode %s after %s: %d requests", mode, time.Since(began).Round(time.Second), l.asked.Load())
	}
	w.loseFleet(metav1.DeletePropagationForeground)
	w.answers(l, 20)
	w.loseFleet(metav1.DeletePropagationBackground)
	w.answers(l, 20)
	t.Logf("deleted and made again, twice: %d requests", l.asked.Load())
	failures := l.end()
	drained, after, tooLate := m.end()
	t.Logf("%d requests, %d of them streamed, %d failed; %d pods drained, %d requests came after all pickers had acknowledged the mark, %d too late",
		l.asked.Load(), l.streamed.Load(), len(failures), drained, after, tooLate)
	for _, f := range failures[:min(10, len(failures))] {
		t.Error(f)
	}
	if tooLate > 0 || drained != 1 {
		t.Errorf("%d pods drained, %d requests came to draining pods", drained, tooLate)
	}
	w.sameEngines(engines, 1)
}

// loseFleet deletes the fleet under its pools, waits until Kubernetes has taken it from its objects, and makes it again: its pickers stay.
func (w *world) loseFleet(how metav1.DeletionPropagation) {
	w.Helper()
	before := w.fleetPods()
	w.must(w.admin.Delete(w.Context(), &v1alpha1.PickerFleet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}, client.PropagationPolicy(how)))
	w.reaches("objects without their fleet", func() error {
		for name, o := range map[string]client.Object{
			"default-fleet": &appsv1.Deployment{}, "default-fleet-ca": &corev1.ConfigMap{}, "default-fleet-peers": &corev1.Service{},
		} {
			w.must(w.admin.Get(w.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o))
			if owner := metav1.GetControllerOf(o); owner != nil {
				return fmt.Errorf("%s is controlled by %s %s", name, owner.Kind, owner.Name)
			}
		}
		return nil
	})
	w.must(w.admin.Get(w.Context(), client.ObjectKey{Namespace: namespace, Name: "default-fleet-tls"}, &corev1.Secret{}))
	w.until("without its fleet", func(p *v1alpha1.InferencePool) bool {
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionPickerAvailable)
		return c != nil && c.Reason == "FleetNotFound"
	})
	w.apply(fleet)
	w.fleetIs(3)
	after := w.fleetPods()
	for uid := range before {
		if !after[uid] {
			w.Errorf("the pickers were %v and are %v", before, after)
		}
	}
}

// sameEngines checks that no engine was replaced, and so many have gone.
func (w *world) sameEngines(before []corev1.Pod, gone int) {
	w.Helper()
	now := map[string]bool{}
	for _, p := range w.podsOf(v1alpha1.LabelSlot) {
		now[string(p.UID)] = true
	}
	kept := 0
	for _, p := range before {
		if now[string(p.UID)] {
			kept++
		}
	}
	if kept != len(before)-gone || len(now) != kept {
		w.Errorf("of %d engines %d are there, with %d others", len(before), kept, len(now)-kept)
	}
}
