// Package podrunner is scheduler and kubelet for tests: it binds the pods of a namespace to nodes that it makes up, and runs their
// containers as processes of this machine. It knows what matters to a pod's life: cordons and taints, sidecars, probes, readiness
// gates, preStop hooks, termination in its order and with its grace, restarts, changed images, nodes that are lost. It knows nothing of isolation: each pod has a
// loopback address of its own, and whatever names 127.0.0.1, an unnamed address or a mount path in arguments and
// environment is replaced by the pod's.
package podrunner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/kvasir-dev/kvasir/test/kube"
)

// Options are the source of the pods and what runs them.
type Options struct {
	Config    *rest.Config
	Namespace string
	// Nodes are the names of the nodes at the start.
	Nodes []string
	// Programs by image. An image that is not listed cannot be pulled.
	Programs map[string]string
	// Dir keeps volumes and logs.
	Dir string
	// Rewrite changes the arguments of a container; nil leaves them.
	Rewrite func(pod *corev1.Pod, container string, args []string) []string
	// Address gives a pod its address; nil, or "", the next free one.
	Address func(pod *corev1.Pod) string
	// Subnet is a part of the pods' addresses (see kube.Address), so that runners of one machine keep apart.
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

	mu       sync.Mutex // guards what follows
	nodes    []string   // that are not lost
	pods     map[types.UID]*pod
	placed   map[types.UID]string // nodes of pods
	unplaced map[types.UID]*corev1.Pod
	next     int // the next address
}

// Start makes the nodes and begins to run pods. The caller of Start must Stop the runner.
func Start(ctx context.Context, o Options) (*Runner, error) {
	client, err := kubernetes.NewForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	ctx, stop := context.WithCancel(ctx)
	r := &Runner{
		Options: o, client: client, stop: stop,
		pods: map[types.UID]*pod{}, placed: map[types.UID]string{}, unplaced: map[types.UID]*corev1.Pod{},
	}
	for _, name := range o.Nodes {
		if err := r.AddNode(ctx, name); err != nil {
			stop()
			return nil, err
		}
	}
	list := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", o.Namespace, nothing)
	_, _, informer, _ := watchtools.NewIndexerInformerWatcher(list, &corev1.Pod{})
	r.done.Add(1)
	go func() {
		defer r.done.Done()
		beats := time.NewTicker(heartbeat)
		defer beats.Stop()
		again := time.NewTicker(patience)
		defer again.Stop()
		for {
			select {
			case <-ctx.Done():
				informer.Stop()
				return
			case <-beats.C:
				for _, name := range r.alive() {
					if err := r.beat(ctx, name); err != nil {
						r.Log("%v", err)
					}
				}
			case <-again.C:
				r.placeAgain(ctx)
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

// addresses of a pod in its status. Of two families its processes serve at the first, as many programs do; nothing answers at the
// second, so that a test sees who uses it.
func addresses(first string) []corev1.PodIP {
	switch all := []corev1.PodIP{{IP: first}}; kube.Family() {
	case kube.IPv4IPv6:
		return append(all, corev1.PodIP{IP: "2001:db8::1"})
	case kube.IPv6IPv4:
		return append(all, corev1.PodIP{IP: "192.0.2.1"})
	default:
		return all
	}
}

// Stop ends every process that the runner started, at once, and waits for them. Pods stay in the API server.
func (r *Runner) Stop() {
	r.stop()
	r.done.Wait()
}

// Kill ends a container of a pod by SIGKILL, as if it had crashed.
func (r *Runner) Kill(uid types.UID, name string) error {
	c, err := r.container(uid, name)
	if err != nil {
		return err
	}
	return c.signal(syscall.SIGKILL)
}

// container finds a container of a pod that runs.
func (r *Runner) container(uid types.UID, name string) (*container, error) {
	r.mu.Lock()
	p := r.pods[uid]
	r.mu.Unlock()
	if p == nil {
		return nil, fmt.Errorf("pod %s does not run", uid)
	}
	p.lock.Lock()
	defer p.lock.Unlock()
	for _, c := range p.containers {
		if c.spec.Name == name {
			return c, nil
		}
	}
	return nil, fmt.Errorf("pod %s has no container %s", uid, name)
}

// heartbeat is how often a node reports that it is well. Controllers miss it after 40 s.
const heartbeat = 10 * time.Second

// patience is how often a pod is tried again that found no node.
const patience = time.Second

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
		r.mu.Lock()
		delete(r.placed, o.UID)
		delete(r.unplaced, o.UID)
		r.mu.Unlock()
		if p != nil {
			p.abandon()
		}
	case p != nil:
		p.update(o)
	case o.Spec.NodeName == "" && o.DeletionTimestamp.IsZero() && len(o.Spec.SchedulingGates) == 0:
		r.place(ctx, o)
	case o.Spec.NodeName != "":
		r.begin(ctx, o)
	}
}

// begin starts the life of a pod, unless its node is lost or not of this runner.
func (r *Runner) begin(ctx context.Context, o *corev1.Pod) {
	r.mu.Lock()
	if !slices.Contains(r.nodes, o.Spec.NodeName) {
		r.mu.Unlock()
		return
	}
	ctx, stop := context.WithCancel(ctx)
	r.next++
	p := &pod{
		Runner: r, uid: o.UID, node: o.Spec.NodeName, stop: stop, ip: kube.Address(r.Subnet, r.next/250, r.next%250+1),
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
		defer stop()
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
