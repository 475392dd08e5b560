package inferencepool

import (
	"context"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// recreate deletes the pool, leaving its pods and revisions, and applies it again under another UID.
func (w *world) recreate() {
	w.t.Helper()
	ctx := context.Background()
	pool := w.pool()
	w.must(w.api.Delete(ctx, pool.DeepCopy()))
	for _, pod := range w.all() {
		pod.OwnerReferences = nil
		w.must(w.api.Update(ctx, pod))
	}
	var kept appsv1.ControllerRevisionList
	w.must(w.api.List(ctx, &kept))
	for i := range kept.Items {
		kept.Items[i].OwnerReferences = nil
		w.must(w.api.Update(ctx, &kept.Items[i]))
	}
	pool.UID, pool.ResourceVersion, pool.Status = "another-uid", "", v1alpha1.InferencePoolStatus{}
	w.must(w.api.Create(ctx, pool))
}

func uidsOf(pods []*corev1.Pod) []types.UID {
	var out []types.UID
	for _, pod := range pods {
		out = append(out, pod.UID)
	}
	slices.Sort(out)
	return out
}

func TestAPoolThatIsMadeAgainAdoptsWhatTheFormerOneLeft(t *testing.T) {
	w := newWorld(t)
	w.serve()
	before := uidsOf(w.all())
	w.recreate()
	w.start()
	w.serve()
	if after := uidsOf(w.all()); !slices.Equal(before, after) {
		t.Errorf("pods were %v, and are %v", before, after)
	}
	for _, pod := range w.all() {
		if !metav1.IsControlledBy(pod, w.pool()) {
			t.Errorf("%s belongs to %+v", pod.Name, pod.OwnerReferences)
		}
	}
	if got := w.condition(v1alpha1.ConditionAccepted); got != "True Accepted" {
		t.Errorf("accepted: %s", got)
	}
}

// A pool that is made again has the size of what it finds, until the autoscaler has looked, or for as long as it is paused. The size was
// taken for 0 at first, and all pods got the drain mark.
func TestAPoolThatIsMadeAgainHasTheSizeOfWhatItAdopts(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.InferencePoolSpec){
		"autoscaled": func(s *v1alpha1.InferencePoolSpec) {
			s.Replicas, s.Autoscaling = nil, v1alpha1.Autoscaling{Mode: v1alpha1.AutoscalingActive, MinReplicas: ptr.To(int32(1)), MaxReplicas: 9}
		},
		"paused": func(s *v1alpha1.InferencePoolSpec) { s.Paused = v1alpha1.PauseAll },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(p *v1alpha1.InferencePool) { p.Spec.Replicas = ptr.To(int32(4)) })
			w.serve()
			before := uidsOf(w.all())
			w.edit(change)
			w.settleDown()
			w.recreate()
			w.start()
			for range 4 {
				w.tick()
				w.settleDown()
				if size := w.pool().Status.DesiredReplicas; size == nil || *size != 4 || w.marked() != 0 {
					w.fail("%d pods are marked, the size is %v", w.marked(), ptr.Deref(size, -1))
				}
			}
			if after := uidsOf(w.all()); !slices.Equal(before, after) {
				w.fail("pods were %v, and are %v", before, after)
			}
		})
	}
}

func TestAPoolOnItsWayOutAdoptsNothing(t *testing.T) {
	w := newWorld(t)
	w.serve()
	ctx := context.Background()
	pod := w.all()[0]
	pod.OwnerReferences = nil
	w.must(w.api.Update(ctx, pod))
	seen := w.pool() // as the cache still shows it
	w.must(w.api.Delete(ctx, w.pool()))
	r := w.r.begin(seen)
	if may, err := r.mayAdopt(ctx, pod); may || err != nil {
		t.Errorf("a pod is adopted by a pool that is gone: %v, %v", may, err)
	}
	seen.ResourceVersion, seen.UID = "", "another-uid"
	w.must(w.api.Create(ctx, seen.DeepCopy()))
	seen.UID = "pool-uid"
	r = w.r.begin(seen)
	if may, err := r.mayAdopt(ctx, pod); may || err != nil {
		t.Errorf("a pod is adopted by the former pool of this name: %v, %v", may, err)
	}
}

func TestANameThatSomebodyElseHasIsPassedOver(t *testing.T) {
	for name, stranger := range map[string]func(*corev1.Pod){
		"with the pool's label and another owner": func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "x", UID: "x", Controller: new(bool)}}
			*p.OwnerReferences[0].Controller = true
		},
		"without any label": func(p *corev1.Pod) { p.Labels = nil },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.serve()
			taken := w.all()[0].DeepCopy()
			w.must(w.api.Delete(context.Background(), w.all()[0]))
			taken.UID, taken.ResourceVersion, taken.OwnerReferences = "stranger", "", nil
			stranger(taken)
			w.must(w.api.Create(context.Background(), taken))
			w.serve()
			ours := 0
			for _, pod := range w.all() {
				if metav1.IsControlledBy(pod, w.pool()) {
					ours++
				}
			}
			if ours != 2 {
				t.Errorf("%d pods of the pool are there", ours)
			}
			if got := w.condition(v1alpha1.ConditionAccepted); got != "False NameTaken" {
				t.Errorf("accepted: %s", got)
			}
			before := w.writes
			for range 20 {
				w.clock.SetTime(w.clock.Now().Add(time.Second))
				_, err := w.reconcile()
				w.must(err)
			}
			if made := w.writes - before; made > 2 {
				t.Errorf("%d writes in 20 s", made)
			}
		})
	}
}

func TestSecretsOfAFormerPoolAreAdoptedAndOthersAreNot(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	first, _ := w.keepsKey("")
	name := types.NamespacedName{Namespace: poolKey.Namespace, Name: resources.KeyName(poolKey.Name)}
	secret := &corev1.Secret{}
	orphan := func(change func(*corev1.Secret)) {
		w.must(w.api.Get(ctx, name, secret))
		secret.OwnerReferences = nil
		change(secret)
		w.must(w.api.Update(ctx, secret))
		w.start()
	}
	orphan(func(*corev1.Secret) {})
	again, r := w.keepsKey("")
	w.must(w.api.Get(ctx, name, secret))
	if string(first) != string(again) || !metav1.IsControlledBy(secret, w.pool()) || len(r.problems.taken) > 0 {
		t.Errorf("the key root of a former pool is not taken over: %+v, taken %v", secret.OwnerReferences, r.problems.taken)
	}
	orphan(func(s *corev1.Secret) { s.Labels = nil })
	if _, r := w.keepsKey(""); len(r.problems.taken) != 1 {
		t.Errorf("a secret that the operator has not made counts as taken: %v", r.problems.taken)
	}
}
