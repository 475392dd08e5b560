// Package podrunner is a kubelet for tests: it binds the pods of a namespace to one node that it makes up, and runs their
// containers as processes of this machine. It knows what matters to a pod's life: sidecars, readiness probes and gates,
// preStop hooks, termination in its order and with its grace, restarts. It knows nothing of isolation: each pod has a
// loopback address of its own, and whatever names 127.0.0.1, an unnamed address or a mount path in arguments and
// environment is replaced by the pod's.
package podrunner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// Options are the source of the pods and what runs them.
type Options struct {
	Config    *rest.Config
	Namespace string
	// Node is the name of the node.
	Node string
	// Programs by image.
	Programs map[string]string
	// Dir keeps volumes and logs.
	Dir string
	// Rewrite changes the arguments of a container; nil leaves them.
	Rewrite func(pod *corev1.Pod, container string, args []string) []string
	// Address gives a pod its address; nil, or "", the next free one.
	Address func(pod *corev1.Pod) string
	// Subnet is the second byte of the pods' addresses, 127.Subnet.0.0, so that runners of one machine keep apart.
	Subnet byte
	// Log receives messages; nil drops them.
	Log func(format string, args ...any)
}

// Runner runs pods. It is safe for concurrent use.
type Runner struct {
	Options
	client kubernetes.Interface
	stop   context.CancelFunc
	done   sync.WaitGroup

	mu   sync.Mutex // guards what follows
	pods map[types.UID]*pod
	next int // the next address
}

// Start makes the node and begins to run pods. The caller of Start must Stop the runner.
func Start(ctx context.Context, o Options) (*Runner, error) {
	client, err := kubernetes.NewForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	ctx, stop := context.WithCancel(ctx)
	r := &Runner{Options: o, client: client, stop: stop, pods: map[types.UID]*pod{}}
	if err := r.makeNode(ctx); err != nil {
		stop()
		return nil, err
	}
	list := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", o.Namespace, nothing)
	_, _, informer, _ := watchtools.NewIndexerInformerWatcher(list, &corev1.Pod{})
	r.done.Add(1)
	go func() {
		defer r.done.Done()
		beats := time.NewTicker(heartbeat)
		defer beats.Stop()
		for {
			select {
			case <-ctx.Done():
				informer.Stop()
				return
			case <-beats.C:
				if err := r.beat(ctx); err != nil {
					r.Log("%v", err)
				}
			case e, ok := <-informer.ResultChan():
				if !ok {
					return
				}
				r.see(ctx, e)
			}
		}
	}()
	return r, nil
}

// Stop ends every process that the runner started, at once, and waits for them. Pods stay in the API server.
func (r *Runner) Stop() {
	r.stop()
	r.done.Wait()
}

// Kill ends a container of a pod by SIGKILL, as if it had crashed.
func (r *Runner) Kill(uid types.UID, container string) error {
	r.mu.Lock()
	p := r.pods[uid]
	r.mu.Unlock()
	if p == nil {
		return fmt.Errorf("pod %s does not run", uid)
	}
	return p.kill(container)
}

// makeNode makes the node, ready and with room for everything.
func (r *Runner) makeNode(ctx context.Context) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: r.Node, Labels: map[string]string{corev1.LabelHostname: r.Node}}}
	if _, err := r.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("making the node: %w", err)
	}
	return r.beat(ctx)
}

// beat reports that the node is well, and has room.
func (r *Runner) beat(ctx context.Context) error {
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
	if _, err := r.client.CoreV1().Nodes().Patch(ctx, r.Node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("telling that the node is ready: %w", err)
	}
	return nil
}

// heartbeat is how often a node reports that it is well. Controllers miss it after 40 s.
const heartbeat = 10 * time.Second

// see takes an event about a pod.
func (r *Runner) see(ctx context.Context, e watch.Event) {
	o, ok := e.Object.(*corev1.Pod)
	if !ok {
		return
	}
	r.mu.Lock()
	p := r.pods[o.UID]
	r.mu.Unlock()
	switch {
	case e.Type == watch.Deleted:
		if p != nil {
			p.abandon()
		}
	case p != nil:
		p.update(o)
	case o.Spec.NodeName == "" && o.DeletionTimestamp.IsZero() && len(o.Spec.SchedulingGates) == 0 && !r.unwanted(o):
		binding := &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: o.Name, Namespace: o.Namespace, UID: o.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: r.Node},
		}
		if err := r.client.CoreV1().Pods(o.Namespace).Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
			r.Log("binding %s: %v", o.Name, err)
		}
	case o.Spec.NodeName == r.Node:
		r.begin(ctx, o)
	}
}

// unwanted reports whether a pod asks for another node.
func (r *Runner) unwanted(o *corev1.Pod) bool {
	for key, value := range o.Spec.NodeSelector {
		if key != corev1.LabelHostname || value != r.Node {
			return true
		}
	}
	return false
}

// begin starts the life of a pod.
func (r *Runner) begin(ctx context.Context, o *corev1.Pod) {
	r.mu.Lock()
	r.next++
	p := &pod{
		Runner: r, uid: o.UID, ip: fmt.Sprintf("127.%d.%d.%d", r.Subnet, r.next/250, r.next%250+1),
		dir: filepath.Join(r.Dir, string(o.UID)), changed: make(chan struct{}, 1), gone: make(chan struct{}),
	}
	if r.Address != nil {
		if ip := r.Address(o); ip != "" {
			p.ip = ip
		}
	}
	p.object = o
	r.pods[o.UID] = p
	r.mu.Unlock()
	r.done.Add(1)
	go func() {
		defer r.done.Done()
		p.run(ctx)
		r.mu.Lock()
		delete(r.pods, o.UID)
		r.mu.Unlock()
	}()
}

// remove takes an ended pod out of the API server, as kubelets do.
func (r *Runner) remove(ctx context.Context, o *corev1.Pod) {
	now := int64(0)
	err := r.client.CoreV1().Pods(o.Namespace).Delete(ctx, o.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &o.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !errors.Is(err, context.Canceled) {
		r.Log("removing %s: %v", o.Name, err)
	}
	_ = os.RemoveAll(filepath.Join(r.Dir, string(o.UID), "volumes"))
}

// tick is how often probes are made and processes looked at.
const tick = 100 * time.Millisecond
