package lifecycle

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

var reclaims = flag.Int("lifecycle.reclaims", 1, "nodes that a provider takes away after a notice")

const (
	// notice is how long before its end a spot instance is announced to end, by the provider with the shortest notice.
	notice = 30 * time.Second
	// longestOnSpot is how many tokens the longest answers have: more than a notice is long, with 9 ms each.
	longestOnSpot = 5000
)

// TestASpotNodeIsReclaimed takes nodes away as providers take spot instances: a taint announces the end, the pods are evicted, and
// 30 s later the machine is off. No request fails that begins after the notice, and none before the machine is off: what ends
// within the notice is answered. Only answers that the node's pods were sending for all of it can be cut.
func TestASpotNodeIsReclaimed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, *late)
	w.apply(pool)
	w.apply(explained)
	w.until("serving", func(p *v1alpha1.InferencePool) bool { return settled(3)(p) && len(w.proxies()) == 2 })
	lost, cut := 0, 0
	for i := range *reclaims {
		node := w.nodes[i%len(w.nodes)]
		l := startLoad(w, *clients, longestOnSpot)
		w.answers(l, 10)
		// The operator sees the taint late, the pickers see its mark late, and a pick can be on its way.
		noticed := time.Now().Add(2**late + 5*time.Second)
		there := w.on(node)
		off := w.reclaim(node)
		w.until("with three pods elsewhere", settled(3))
		w.answers(l, 10)
		failures := l.end()
		for _, f := range failures {
			switch {
			case f.failed.Before(off):
				t.Errorf("before the machine was off: %s", f)
			case f.began.After(noticed):
				t.Errorf("begun after the notice: %s", f)
			case !f.cutAt(there...):
				t.Errorf("not an answer that a pod of the node had begun: %s", f)
			default:
				cut++
			}
		}
		lost += len(failures)
		t.Logf("node %s: %d requests, the longest answer %s, %d failed", node, l.asked.Load(),
			time.Duration(l.slowest.Load()).Round(100*time.Millisecond), len(failures))
		w.nodes[i%len(w.nodes)] = fmt.Sprintf("node-again-%d", i+1)
		w.must(w.runner.AddNode(t.Context(), w.nodes[i%len(w.nodes)]))
	}
	t.Logf("%d nodes reclaimed: %d requests failed, %d of them answers that %s were not enough for", *reclaims, lost, cut, notice)
}

// on returns the names of the engines on a node.
func (w *world) on(node string) (names []string) {
	for _, p := range w.podsOf(v1alpha1.LabelSlot) {
		if p.Spec.NodeName == node {
			names = append(names, p.Name)
		}
	}
	return names
}

// reclaim takes a node away: the taint of AWS's termination handler and the evictions that follow it, and after the notice no
// machine and no node. It returns the time at which the machine was switched off.
func (w *world) reclaim(node string) (off time.Time) {
	w.Helper()
	nodes := w.set.CoreV1().Nodes()
	w.kubectl("taint", "node", node, "aws-node-termination-handler/spot-itn=1:NoSchedule")
	over := time.After(notice)
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		// It ends with the machine, whatever is left there.
		_, _ = w.cluster.Kubectl(ctx, nil, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data")
	}()
	<-over
	off = time.Now()
	w.runner.LoseNode(node)
	cancel()
	<-done
	w.must(nodes.Delete(w.Context(), node, metav1.DeleteOptions{}))
	for _, p := range w.podsOf("") {
		if p.Spec.NodeName == node && p.DeletionTimestamp.IsZero() && p.Status.Phase == corev1.PodRunning {
			w.Errorf("pod %s was not evicted from node %s", p.Name, node)
		}
	}
	return off
}
