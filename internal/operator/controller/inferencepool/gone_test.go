package inferencepool

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
)

// remove deletes a node's object.
func (w *world) remove(node *corev1.Node) {
	w.t.Helper()
	w.must(w.api.Delete(context.Background(), node))
	if !nodeChanges.Delete(event.DeleteEvent{Object: node}) {
		w.fail("no pool is reconciled when a node is deleted")
	}
	if len(w.r.poolsOn(context.Background(), node)) != 1 {
		w.fail("node %s does not concern the pool", node.Name)
	}
	w.settleDown()
}

func TestPodsOfANodeThatDoesNotExistGetNoMorePicks(t *testing.T) {
	w := newWorld(t)
	w.serve()
	w.remove(w.join("node"))
	w.expect("new-0 node", "new-1 node", "new-2", "new-3")
}

// The mark of a spot notice must outlive the node, and pods that run there without a mark get one.
func TestAdoptedPodsOfANodeThatDoesNotExistAreMarked(t *testing.T) {
	w := adoptedWorld(t)
	node := w.join("node")
	node.Spec.Taints = []corev1.Taint{{Key: "aws-node-termination-handler/spot-itn", Effect: corev1.TaintEffectNoSchedule}}
	w.must(w.api.Update(context.Background(), node))
	w.settleDown()
	marked := []string{"vllm-0 node", "vllm-1 node", "vllm-2 node"}
	expect := func(want []string) {
		t.Helper()
		if got := w.names(); !slices.Equal(got, want) {
			w.fail("pods %v, want %v", got, want)
		}
	}
	expect(marked)
	w.remove(node)
	expect(marked)
	w.join("node") // its kubelet has registered it again, without the taint
	w.clock.SetTime(w.clock.Now().Add(goneFor))
	w.settleDown()
	expect([]string{"vllm-0", "vllm-1", "vllm-2"})
	w.remove(w.join("node"))
	expect(marked)
}

// A scheduler can know a new node earlier than the operator's cache, and the cache can be late by any time.
func TestANodeThatTheCacheDoesNotHaveYetStays(t *testing.T) {
	w := newWorld(t)
	w.serve()
	asked := 0
	gone := func(key client.ObjectKey) error {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, key.Name)
	}
	w.r.Client = interceptor.NewClient(w.cache, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if _, ok := obj.(*corev1.Node); ok {
				return gone(key)
			}
			return c.Get(ctx, key, obj, opts...)
		},
	})
	w.settleDown()
	w.expect("new-0", "new-1")
	node := w.join("node")
	node.Spec.Unschedulable = true // which only the API server knows yet
	w.must(w.api.Update(context.Background(), node))
	w.settleDown()
	w.expect("new-0", "new-1", "new-2")

	// The API server is asked for a node that does not exist once in a while, not for each pod and each reconciliation.
	w.r.Direct = interceptor.NewClient(w.api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if _, ok := obj.(*corev1.Node); ok {
				asked++
				return gone(key)
			}
			return c.Get(ctx, key, obj, opts...)
		},
	})
	w.settleDown()
	w.settleDown()
	if asked != 1 {
		t.Errorf("the API server was asked %d times", asked)
	}
	w.clock.SetTime(w.clock.Now().Add(goneFor))
	w.settleDown()
	if asked != 2 || len(w.r.memory(poolKey).gone) != 1 {
		t.Errorf("the API server was asked %d times, and %v are remembered", asked, w.r.memory(poolKey).gone)
	}
}

func TestPodsStayWhereNodesCannotBeRead(t *testing.T) {
	w := newWorld(t)
	w.serve()
	w.r.NodeSignals = false // limited to some namespaces
	w.must(w.api.Delete(context.Background(), w.join("node")))
	w.settleDown()
	w.expect("new-0", "new-1")

	// An answer other than that the node does not exist is no reason to move pods.
	w.r.NodeSignals = true
	w.r.Direct = interceptor.NewClient(w.api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if _, ok := obj.(*corev1.Node); ok {
				return errBroken
			}
			return c.Get(ctx, key, obj, opts...)
		},
	})
	if _, err := w.reconcile(); err == nil || !strings.Contains(err.Error(), "reading node node") {
		t.Errorf("error %v", err)
	}
	w.expect("new-0", "new-1")
}

// A pod without a node is not on one that does not exist.
func TestAPodWithoutANodeStays(t *testing.T) {
	w := newWorld(t)
	s := w.r.begin(w.pool())
	if state, err := (&nodes{s}).node(t.Context(), &corev1.Pod{}); state != lifecycle.NodeStays || err != nil {
		t.Errorf("state %d, error %v", state, err)
	}
	if state, err := (&nodes{s}).node(t.Context(), &corev1.Pod{Spec: corev1.PodSpec{NodeName: "gone"}}); state != lifecycle.NodeDies || err != nil {
		t.Errorf("state %d, error %v", state, err)
	}
	if s.wake.IsZero() || s.wake.Sub(s.now) > time.Minute {
		t.Errorf("next at %s", s.wake)
	}
}
