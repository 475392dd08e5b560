package scale

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/test/kube"
)

// kubelet plays scheduler and nodes: a pod that appears is bound, and runs at once.
type kubelet struct {
	w       *world
	pods    cache.Indexer // of engines, by pool
	fresh   chan *corev1.Pod
	running atomic.Int64
	done    sync.WaitGroup
}

const (
	byPool = "pool"
	// nodeName of the node that all engines are bound to.
	nodeName = "node"
	// hands work at the same time.
	hands = 8
)

func startKubelet(ctx context.Context, w *world) *kubelet {
	// The API server taints new nodes, and no controller that would remove the taint runs here.
	node, err := w.set.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, metav1.CreateOptions{})
	w.must(err)
	node.Spec.Taints = nil
	_, err = w.set.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
	w.must(err)
	k := &kubelet{w: w, fresh: make(chan *corev1.Pod, 100_000)}
	factory := informers.NewSharedInformerFactoryWithOptions(w.set, 0, informers.WithNamespace(namespace), informers.WithTransform(stripped))
	informer := factory.Core().V1().Pods().Informer()
	w.must(informer.AddIndexers(cache.Indexers{byPool: func(o any) ([]string, error) {
		if pod, ok := o.(*corev1.Pod); ok {
			return []string{pod.Labels[v1alpha1.LabelPool]}, nil
		}
		return nil, nil
	}}))
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
		if pod, ok := o.(*corev1.Pod); ok && pod.Labels[v1alpha1.LabelPool] != "" && pod.Spec.NodeName == "" {
			k.fresh <- pod
		}
	}})
	w.must(err)
	k.pods = informer.GetIndexer()
	k.done.Go(func() { factory.Start(ctx.Done()); <-ctx.Done(); factory.Shutdown() })
	for range hands {
		k.done.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case pod := <-k.fresh:
					k.run(ctx, pod)
				}
			}
		})
	}
	return k
}

// stripped are objects without the fields that no test here reads.
func stripped(o any) (any, error) {
	if pod, ok := o.(*corev1.Pod); ok {
		pod.ManagedFields = nil
	}
	return o, nil
}

// engineAddress is the address of the n-th engine's pod, in the family that the run begins with. Nothing listens there.
func engineAddress(n int64) string {
	four := [4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}
	if strings.HasPrefix(kube.Family(), kube.IPv6) {
		return netip.AddrFrom16([16]byte{0: 0xfd, 12: four[0], 13: four[1], 14: four[2], 15: four[3]}).String()
	}
	return netip.AddrFrom4(four).String()
}

// run binds a pod and lets its containers be ready.
func (k *kubelet) run(ctx context.Context, pod *corev1.Pod) {
	n := k.running.Add(1)
	err := k.w.set.CoreV1().Pods(namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: namespace, UID: pod.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: nodeName},
	}, metav1.CreateOptions{})
	if err == nil {
		var containers []corev1.ContainerStatus
		for _, c := range pod.Spec.Containers {
			containers = append(containers, corev1.ContainerStatus{
				Name: c.Name, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
			})
		}
		err = k.patchStatus(ctx, pod.Name, runningStatus(engineAddress(n), containers))
	}
	if err != nil && ctx.Err() == nil {
		k.w.Errorf("running %s: %v", pod.Name, err)
	}
}

func runningStatus(ip string, containers []corev1.ContainerStatus) corev1.PodStatus {
	status := corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}, ContainerStatuses: containers}
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
	}
	return status
}

func (k *kubelet) patchStatus(ctx context.Context, pod string, status corev1.PodStatus) error {
	raw, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return fmt.Errorf("writing a status: %w", err)
	}
	_, err = k.w.set.CoreV1().Pods(namespace).Patch(ctx, pod, types.StrategicMergePatchType, raw, metav1.PatchOptions{}, "status")
	return err
}

// of the pods of a pool.
func (k *kubelet) of(pool string) map[string]operatorfeed.PodState {
	objects, err := k.pods.ByIndex(byPool, pool)
	k.w.check(err)
	all := map[string]operatorfeed.PodState{}
	for _, o := range objects {
		pod, ok := o.(*corev1.Pod)
		if !ok {
			continue
		}
		_, draining := pod.Labels[v1alpha1.LabelDrain]
		all[string(pod.UID)] = operatorfeed.PodState{Draining: draining, Synced: pod.Status.Phase == corev1.PodRunning, Blocks: 1000, InFlight: 3}
	}
	return all
}

// players plays the pickers: for each Deployment of one, two replicas that report their state as real ones do. Those of a fleet serve
// the pools that name it, by their specs or their status, as they were a moment ago.
type players struct {
	w     *world
	k     *kubelet
	next  int
	begun map[types.UID]*group // by Deployment; of the goroutine that plays
	pools atomic.Pointer[map[string]*v1alpha1.InferencePool]
	// deaf fleets do not see any pool.
	deaf atomic.Bool
	done sync.WaitGroup
}

// group are the replicas of a Deployment.
type group struct {
	servers []*rpc.Server
	pods    []string
}

// anybody is taken for the operator.
type anybody struct{}

// Authenticate implements rpc.Authenticator.
func (anybody) Authenticate(context.Context) (rpc.Identity, error) {
	return rpc.Identity{Any: true}, nil
}

func startPickers(ctx context.Context, w *world, k *kubelet) *players {
	p := &players{w: w, k: k, begun: map[types.UID]*group{}}
	p.pools.Store(&map[string]*v1alpha1.InferencePool{})
	p.done.Go(func() {
		for ctx.Err() == nil {
			every := time.Second
			if p.look(ctx) {
				every /= 2
			}
			select {
			case <-ctx.Done():
			case <-time.After(every):
			}
		}
		for _, g := range p.begun {
			g.close()
		}
	})
	return p
}

// look begins the replicas of new Deployments, ends those of deleted ones, and reports whether one is of a fleet.
func (p *players) look(ctx context.Context) (fleets bool) {
	list, err := p.w.set.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return false
	}
	for i := range list.Items {
		fleets = fleets || list.Items[i].Labels[resources.LabelFleet] != ""
	}
	var pools v1alpha1.InferencePoolList
	if fleets && p.w.admin.List(ctx, &pools, client.InNamespace(namespace)) == nil {
		known := map[string]*v1alpha1.InferencePool{}
		for i := range pools.Items {
			known[namespace+"/"+pools.Items[i].Name] = &pools.Items[i]
		}
		p.pools.Store(&known)
	}
	there := map[types.UID]bool{}
	for i := range list.Items {
		d := &list.Items[i]
		there[d.UID] = true
		if p.begun[d.UID] == nil {
			p.begun[d.UID] = p.begin(ctx, d)
		}
	}
	for uid, g := range p.begun {
		if g == nil || there[uid] {
			continue
		}
		for _, pod := range g.pods {
			p.w.check(p.w.set.CoreV1().Pods(namespace).Delete(ctx, pod, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
		}
		g.close()
		delete(p.begun, uid)
	}
	return fleets
}

func (g *group) close() {
	if g == nil {
		return
	}
	for _, s := range g.servers {
		s.Close()
	}
}

// state is what a replica reports of a pool; false if it does not serve it.
func (p *players) state(name, own, fleet, asked string) (operatorfeed.State, bool) {
	if fleet == "" {
		return operatorfeed.State{Picker: name, Incarnation: 1, PoolGeneration: 1, Ready: true, Resolved: true, Pods: p.k.of(own)}, asked == namespace+"/"+own
	}
	pool := (*p.pools.Load())[asked]
	if pool == nil || p.deaf.Load() || pool.Spec.Picker.FleetName() != fleet && pool.Status.Picker.FleetName != fleet {
		return operatorfeed.State{}, false
	}
	return operatorfeed.State{Picker: name, Incarnation: 1, PoolGeneration: pool.Generation, Ready: true, Resolved: true, Pods: p.k.of(pool.Name)}, true
}

// begin starts the replicas of a Deployment, once there is a certificate; nil before.
func (p *players) begin(ctx context.Context, d *appsv1.Deployment) *group {
	own, fleet := d.Labels[resources.LabelInstance], d.Labels[resources.LabelFleet]
	names := resources.NamesOf(own)
	if fleet != "" {
		names = resources.NamesOfFleet(fleet)
	}
	secret, err := p.w.set.CoreV1().Secrets(namespace).Get(ctx, names.TLS, metav1.GetOptions{})
	if err != nil {
		return nil // not yet
	}
	g := &group{}
	certificate, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		p.w.check(err)
		return g
	}
	for range *d.Spec.Replicas {
		p.next++
		// Runs at the same time must not meet.
		ip := kube.Address(byte(50+os.Getpid()%200), p.next/250, p.next%250+1)
		name := fmt.Sprintf("%s-%d", d.Name, p.next)
		state := func(asked string) (operatorfeed.State, bool) { return p.state(name, own, fleet, asked) }
		if err := p.replica(ctx, g, state, name, ip, d.Spec.Template.Labels, certificate); err != nil {
			p.w.Errorf("starting a picker of %s: %v", d.Name, err)
		}
	}
	// One that was deleted meanwhile, or made again with the name, is not this one.
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": d.UID}, "status": appsv1.DeploymentStatus{
		ObservedGeneration: d.Generation, Replicas: *d.Spec.Replicas, ReadyReplicas: *d.Spec.Replicas, AvailableReplicas: *d.Spec.Replicas, UpdatedReplicas: *d.Spec.Replicas,
	}})
	p.w.check(err)
	_, err = p.w.set.AppsV1().Deployments(namespace).Patch(ctx, d.Name, types.MergePatchType, raw, metav1.PatchOptions{}, "status")
	if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		p.w.check(err)
	}
	return g
}

func (p *players) replica(ctx context.Context, g *group, state func(string) (operatorfeed.State, bool), name, ip string, labels labels.Set, certificate tls.Certificate) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(ip, strconv.Itoa(resources.SyncPort)))
	if err != nil {
		return err
	}
	server := rpc.NewServer(rpc.ServerOptions{
		Operate:     &rpc.OperateService{Auth: anybody{}, State: state},
		Credentials: credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}}),
	})
	g.servers, g.pods = append(g.servers, server), append(g.pods, name)
	p.done.Go(func() { _ = server.Serve(listener) })
	_, err = p.w.set.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: labels},
		Spec:       corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{{Name: "picker", Image: "picker"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return p.k.patchStatus(ctx, name, runningStatus(ip, nil))
}
