package inferencepool

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// TestAPodConcernsThePoolsThatSelectIt: of all pools that have been reconciled and still exist, those of its namespace that select it or that it serves as
// a picker.
func TestAPodConcernsThePoolsThatSelectIt(t *testing.T) {
	var pools []*v1alpha1.InferencePool
	for _, namespace := range []string{"a", "b"} {
		for i, selector := range []map[string]v1alpha1.LabelValue{nil, {"app": "x"}, {"app": "x", "tier": "spot"}, {"app": ""}} {
			pool := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("pool-", i)}}
			pool.Spec.Selector.MatchLabels = selector
			pools = append(pools, pool)
		}
	}
	r := &Reconciler{}
	check := func(known []*v1alpha1.InferencePool) {
		t.Helper()
		for _, set := range []map[string]string{
			nil, {"app": "x"}, {"app": "x", "tier": "spot", "more": "1"}, {"app": ""}, {"tier": "spot"}, {v1alpha1.LabelPool: "pool-0"},
			{v1alpha1.LabelPool: "pool-0", "app": "x"}, {v1alpha1.LabelPool: "pool-1"},
			{resources.LabelComponent: resources.ComponentPicker, resources.LabelInstance: "pool-3"},
			{resources.LabelComponent: "proxy", resources.LabelInstance: "pool-3"}, {resources.LabelInstance: "pool-3"},
		} {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "pod", Labels: set}}
			var want, got []types.NamespacedName
			for _, pool := range known {
				serves := pod.Labels[resources.LabelComponent] == resources.ComponentPicker && pod.Labels[resources.LabelInstance] == pool.Name
				if pool.Namespace == pod.Namespace && (config.Selects(pool, pod) || serves) {
					want = append(want, client.ObjectKeyFromObject(pool))
				}
			}
			for _, request := range r.poolsOf(t.Context(), pod) {
				got = append(got, request.NamespacedName)
			}
			slices.SortFunc(got, func(a, b types.NamespacedName) int { return slices.Compare([]byte(a.Name), []byte(b.Name)) })
			if !slices.Equal(got, want) {
				t.Errorf("a pod with labels %v concerns %v, want %v", set, got, want)
			}
		}
	}
	check(nil)
	for i, pool := range pools {
		r.recordSelector(client.ObjectKeyFromObject(pool), pool)
		check(pools[:i+1])
	}
	pools[1].Spec.Selector.MatchLabels = map[string]v1alpha1.LabelValue{"tier": "spot"}
	r.recordSelector(client.ObjectKeyFromObject(pools[1]), pools[1])
	check(pools)
	r.forget(client.ObjectKeyFromObject(pools[0]))
	check(pools[1:])
}
