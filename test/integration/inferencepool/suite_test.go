// Package inferencepool_test runs the pool controller in a manager against a real API server. There is no kubelet: the
// specs say what becomes of pods and of their node.
package inferencepool_test

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/inferencepool"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/operator/scaling"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
	"github.com/kvasir-dev/kvasir/test/kube"
)

func TestInferencePool(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(60 * time.Second)
	SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	RunSpecs(t, "InferencePool controller")
}

// What all specs share.
var (
	api           client.Client // asks the API server
	administrator *rest.Config
	writes        = &written{all: map[string]int{}, statuses: map[string]int{}}
	people        = &pickers{}
	// gateways is whether the cluster is said to have gateways' kinds, and look has a pool looked at again.
	gateways atomic.Bool
	// provisioning is whether it is said to take requests for nodes.
	provisioning atomic.Bool
	look         = make(chan event.GenericEvent)
)

var _ = BeforeSuite(func() {
	log.SetLogger(GinkgoLogr)
	cluster, err := kube.Start(kube.Options{ControllerManager: true})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(cluster.Stop)
	known := runtime.NewScheme()
	utilruntime.Must(scheme.AddToScheme(known))
	utilruntime.Must(v1alpha1.AddToScheme(known))
	api, err = client.New(cluster.Config, client.Options{Scheme: known})
	Expect(err).NotTo(HaveOccurred())

	administrator = cluster.Config
	counted := rest.CopyConfig(administrator)
	counted.QPS, counted.Burst = 200, 400
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper { return counting{next} })
	mgr, err := ctrl.NewManager(counted, ctrl.Options{
		Scheme: known, Metrics: metricsserver.Options{BindAddress: "0"},
		Client: client.Options{Cache: &client.CacheOptions{Unstructured: true, DisableFor: []client.Object{&corev1.Secret{}}}},
	})
	Expect(err).NotTo(HaveOccurred())
	r := &inferencepool.Reconciler{
		Client: mgr.GetClient(), Direct: mgr.GetAPIReader(), Clock: clock.RealClock{}, Pickers: people, Engines: people, Sizer: &decided,
		Recorder: mgr.GetEventRecorder("inferencepool"), ReporterImage: "reporter:v1", Version: "v1", NodeSignals: true,
		Children: func() resources.Config {
			return resources.Config{PickerImage: "picker:v1", Operator: types.NamespacedName{Namespace: "kvasir", Name: "manager"}, GIE: gateways.Load(), Routes: gateways.Load(), Provisioning: provisioning.Load()}
		},
	}
	Expect(r.SetupWithManager(mgr, look, 4)).To(Succeed())
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	DeferCleanup(func() {
		stop()
		Expect(<-ended).To(Succeed())
	})
})

// decided are the sizes of the pools for which the autoscaler has decided one; those of roles by the pool, a blank and the role.
var decided sizes

type sizes struct{ sync.Map }

// Decision implements inferencepool.Sizer.
func (s *sizes) Decision(pool types.NamespacedName, role v1alpha1.RoleName) (scaling.Decision, bool) {
	n, ok := s.Load(pool)
	if role != "" {
		n, ok = s.Load(pool.String() + " " + string(role))
	}
	if !ok {
		return scaling.Decision{}, false
	}
	return scaling.Decision{Size: n.(int), Wanted: n.(int), Reason: scaling.LowUtilization}, true
}

// written counts the writes of the controller, by namespace. Events and leases are none of the state.
type written struct {
	mu            sync.Mutex
	all, statuses map[string]int
}

// count counts a request.
func (w *written) count(path string) {
	_, rest, _ := strings.Cut(path, "/namespaces/")
	namespace, _, _ := strings.Cut(rest, "/")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all[namespace]++
	if lastWord(path) == "status" {
		w.statuses[namespace]++
	}
}

// to is how many writes there were to a namespace.
func (w *written) to(namespace string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all[namespace]
}

// beyondStatus is how many of them were not to a status.
func (w *written) beyondStatus(namespace string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all[namespace] - w.statuses[namespace]
}

// counting counts what is written.
type counting struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead && !slices.Contains([]string{"events", "leases"}, lastWord(r.URL.Path)) {
		writes.count(r.URL.Path)
	}
	return c.next.RoundTrip(r)
}

func lastWord(path string) string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return path[i+1:]
		}
	}
	return path
}

// pickers are one replica, which follows marks at once, and engines that are idle unless a spec says otherwise.
type pickers struct {
	mu      sync.Mutex
	reports operatorfeed.Pool
	busy    map[types.UID]int
}

// see reports what the replica knows.
func (p *pickers) see(pods []corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := operatorfeed.State{Picker: "a", Incarnation: 1, Ready: true, Resolved: true, Pods: map[string]operatorfeed.PodState{}}
	for i := range pods {
		_, marked := pods[i].Labels[v1alpha1.LabelDrain]
		s.Pods[string(pods[i].UID)] = operatorfeed.PodState{Draining: marked, Synced: true}
	}
	p.reports.Receive(time.Now(), s)
}

// View implements inferencepool.Pickers.
func (p *pickers) View(types.NamespacedName) operatorfeed.View {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reports.View(time.Now(), []operatorfeed.Expected{{Picker: "a", Ready: true}})
}

// Warm implements inferencepool.Pickers.
func (p *pickers) Warm(context.Context, types.NamespacedName, string, int) error { return nil }

// Watch implements inferencepool.Engines.
func (p *pickers) Watch(*v1alpha1.InferencePool, []*corev1.Pod) {}

// Forget implements inferencepool.Engines.
func (p *pickers) Forget(types.NamespacedName) {}

// Readings implements inferencepool.Engines.
func (p *pickers) Readings(uid string) []lifecycle.Reading {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, now := p.busy[types.UID(uid)], time.Now()
	return []lifecycle.Reading{{At: now.Add(-time.Millisecond), Busy: n}, {At: now, Busy: n}}
}

func (p *pickers) setBusy(busy map[types.UID]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy = maps.Clone(busy)
}
