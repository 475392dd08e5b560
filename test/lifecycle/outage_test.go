package lifecycle

import (
	"flag"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

var outage = flag.Duration("lifecycle.outage", 40*time.Second, "how long the API server is away: half of it it hangs, then it is not there")

// parts of an outage: in each of them requests must be answered.
const parts = 10

// TestAnOutageOfTheAPIServer takes the API server away from under a pool that serves: nothing changes for the traffic, no
// pod goes, and afterwards the pool follows its spec as before.
func TestAnOutageOfTheAPIServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.apply(pool)
	w.until("serving", func(p *v1alpha1.InferencePool) bool { return settled(3)(p) && len(w.proxies()) == 2 })
	before := w.restartsOf()
	l := startLoad(w, *clients, *longest)

	w.must(w.cluster.Freeze())
	for i := range parts {
		if i == parts/2 {
			w.must(w.cluster.Crash())
		}
		asked := l.answered.Load()
		time.Sleep(*outage / parts)
		if l.answered.Load() == asked {
			t.Errorf("no answer in %s, a tenth of the outage", *outage/parts)
		}
	}
	during := l.answered.Load()
	w.must(w.cluster.Recover(t.Context()))

	w.until("as it was", settled(3))
	if after := w.restartsOf(); !maps.Equal(before, after) {
		t.Errorf("pods and their restarts were %v, and are %v", before, after)
	}
	w.patch(`{"spec":{"replicas":4}}`)
	w.until("larger", settled(4))
	w.patch(`{"spec":{"replicas":2}}`)
	w.until("smaller", settled(2))
	failures := l.end()
	t.Logf("%d answers in an outage of %s, %d in all, %d requests failed; the operator started again %d times", during, *outage, l.answered.Load(),
		len(failures), w.restarts.Load())
	for _, f := range failures[:min(10, len(failures))] {
		t.Error(f)
	}
}

// restartsOf all pods of engines and pickers, by UID.
func (w *world) restartsOf() map[types.UID]int32 {
	w.Helper()
	var list corev1.PodList
	w.must(w.admin.List(w.Context(), &list, client.InNamespace(namespace)))
	all := map[types.UID]int32{}
	for i := range list.Items {
		p := &list.Items[i]
		all[p.UID] = 0
		for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
			all[p.UID] += c.RestartCount
		}
	}
	return all
}
