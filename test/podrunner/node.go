package podrunner

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// AddNode makes a node, ready and with room for everything. A name is used once: pods of a lost node stay bound to it.
func (r *Runner) AddNode(ctx context.Context, name string) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	if _, err := r.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("making node %s: %w", name, err)
	}
	if err := r.beat(ctx, name); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes = append(r.nodes, name)
	return nil
}

// LoseNode ends all processes of a node at once, and its heartbeats, as when a machine is switched off. Its objects stay in
// the API server.
func (r *Runner) LoseNode(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes = slices.DeleteFunc(r.nodes, func(n string) bool { return n == name })
	for _, p := range r.pods {
		if p.node == name {
			p.stop()
		}
	}
}

// alive returns the nodes that are not lost.
func (r *Runner) alive() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.nodes)
}

// beat reports that a node is well, and has room.
func (r *Runner) beat(ctx context.Context, name string) error {
	plenty := corev1.ResourceList{}
	for name, n := range map[corev1.ResourceName]string{"cpu": "1000", "memory": "10000Gi", "pods": "10000", "nvidia.com/gpu": "10000"} {
		plenty[name] = resource.MustParse(n)
	}
	now := metav1.Now()
	patch, err := json.Marshal(map[string]any{"status": corev1.NodeStatus{
		Capacity: plenty, Allocatable: plenty,
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: now, LastTransitionTime: now}},
	}})
	if err != nil {
		return fmt.Errorf("writing a heartbeat: %w", err)
	}
	if _, err := r.client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("reporting that node %s is ready: %w", name, err)
	}
	return nil
}

// place binds a pod to the node with the fewest pods, of those that it can have. A pod that finds none is tried again.
func (r *Runner) place(ctx context.Context, o *corev1.Pod) {
	name := r.choose(ctx, o)
	r.mu.Lock()
	delete(r.unplaced, o.UID)
	if name == "" {
		r.unplaced[o.UID] = o
	} else {
		r.placed[o.UID] = name
	}
	r.mu.Unlock()
	if name == "" {
		return
	}
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: o.Name, Namespace: o.Namespace, UID: o.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: name},
	}
	if err := r.client.CoreV1().Pods(o.Namespace).Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
		r.Log("binding %s: %v", o.Name, err)
	}
}

// choose returns the node of a pod; "" for none.
func (r *Runner) choose(ctx context.Context, o *corev1.Pod) string {
	best, fewest := "", 0
	for _, name := range r.alive() {
		node, err := r.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil || !fits(node, o) {
			continue
		}
		r.mu.Lock()
		n := 0
		for _, on := range r.placed {
			if on == name {
				n++
			}
		}
		r.mu.Unlock()
		if best == "" || n < fewest {
			best, fewest = name, n
		}
	}
	return best
}

// fits reports whether a pod can be scheduled to a node. Taints of nodes that have just been made are ignored: without a
// controller manager they stay.
func fits(node *corev1.Node, o *corev1.Pod) bool {
	taints := slices.Clone(node.Spec.Taints)
	if node.Spec.Unschedulable {
		taints = append(taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	for i := range taints {
		t := &taints[i]
		tolerated := slices.ContainsFunc(o.Spec.Tolerations, func(x corev1.Toleration) bool { return x.ToleratesTaint(klog.Background(), t, false) })
		if t.Key != corev1.TaintNodeNotReady && t.Effect != corev1.TaintEffectPreferNoSchedule && !tolerated {
			return false
		}
	}
	return labels.SelectorFromSet(o.Spec.NodeSelector).Matches(labels.Set(node.Labels))
}

// placeAgain tries the pods that found no node.
func (r *Runner) placeAgain(ctx context.Context) {
	r.mu.Lock()
	var all []*corev1.Pod
	for _, o := range r.unplaced {
		all = append(all, o)
	}
	r.mu.Unlock()
	for _, o := range all {
		r.place(ctx, o)
	}
}
