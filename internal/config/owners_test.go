package config

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// TestOwnersAreThoseThatPoolOfFinds, for random pools and pods with few labels, so that many pools select a pod.
func TestOwnersAreThoseThatPoolOfFinds(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	label := func() (key, value string) { return string(rune('a' + random.IntN(3))), fmt.Sprint(random.IntN(3)) }
	namespace := func() string { return fmt.Sprintf("n%d", random.IntN(2)) }
	owned := 0
	for range 500 {
		var pools []*v1alpha1.InferencePool
		for i := range random.IntN(8) {
			p := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace(), Name: fmt.Sprint(i), CreationTimestamp: metav1.Unix(int64(random.IntN(2)), 0),
			}}
			for range random.IntN(3) { // none: it selects by its name
				if p.Spec.Selector.MatchLabels == nil {
					p.Spec.Selector.MatchLabels = map[string]v1alpha1.LabelValue{}
				}
				key, value := label()
				p.Spec.Selector.MatchLabels[key] = v1alpha1.LabelValue(value)
			}
			pools = append(pools, p)
		}
		owners := NewOwners(pools)
		for range 20 {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace(), Labels: map[string]string{}}}
			for range random.IntN(5) {
				key, value := label()
				pod.Labels[key] = value
			}
			if random.IntN(4) == 0 {
				pod.Labels[v1alpha1.LabelPool] = fmt.Sprint(random.IntN(8))
			}
			if random.IntN(8) == 0 {
				pod.Labels[LabelMember] = fmt.Sprint(random.IntN(2))
			}
			want := PoolOf(pod, pools)
			if got := owners.PoolOf(pod); got != want {
				t.Fatalf("pod %v: pool %v, want %v", pod.Labels, got, want)
			}
			if want != nil {
				owned++
			}
		}
	}
	if owned < 1000 {
		t.Errorf("only %d pods had a pool", owned)
	}
}

// BenchmarkOwners is the work of a picker of a fleet after a change, beside PoolOf for each pod.
func BenchmarkOwners(b *testing.B) {
	var pools []*v1alpha1.InferencePool
	var pods []*corev1.Pod
	for i := range 1000 {
		p := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint(i), CreationTimestamp: metav1.NewTime(time.Unix(0, 0))}}
		pools = append(pools, p)
		for range 2 {
			pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Labels: map[string]string{v1alpha1.LabelPool: p.Name, "app": "vllm"}}})
		}
	}
	b.Run("owners", func(b *testing.B) {
		for b.Loop() {
			owners := NewOwners(pools)
			for _, pod := range pods {
				owners.PoolOf(pod)
			}
		}
	})
	b.Run("one by one", func(b *testing.B) {
		for b.Loop() {
			for _, pod := range pods {
				PoolOf(pod, pools)
			}
		}
	})
}
