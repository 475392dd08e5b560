package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	kvasirv1alpha1 "github.com/kvasir-dev/kvasir/api/v1alpha1"
	poolconfig "github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/inferencepool"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/version"
)

// shutdown is how long running work can take at the end. It is less than the grace period of a pod.
const shutdown = 10 * time.Second

// newManager makes a manager without controllers, and finds which newer kinds they can follow.
func newManager(ctx context.Context, o *options, cluster *rest.Config, log logr.Logger) (ctrl.Manager, *newerKinds, error) {
	lock, err := newLock(ctx, o, cluster, log)
	if err != nil {
		return nil, nil, err
	}
	mgr, err := ctrl.NewManager(cluster, ctrl.Options{
		Scheme: newScheme(),
		Logger: log,
		Cache: cache.Options{
			DefaultNamespaces: namespaces(o.namespaces),
			DefaultTransform:  cache.TransformStripManagedFields(),
			ByObject:          onlyOurs(),
		},
		// Secrets can only be read one by one, and ConfigMaps of an entire cluster are not worth their memory.
		Client: client.Options{Cache: &client.CacheOptions{Unstructured: true,
			DisableFor: []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}}}},
		LeaderElection:                      o.leaderElection,
		LeaderElectionResourceLockInterface: lock,
		LeaderElectionReleaseOnCancel:       true, // the program ends when the manager does
		HealthProbeBindAddress:              o.healthAddress,
		Metrics: metricsserver.Options{
			BindAddress:    o.metricsAddress,
			SecureServing:  true,
			FilterProvider: filters.WithAuthenticationAndAuthorization,
			CertDir:        o.metricsCerts,
			TLSOpts:        []func(*tls.Config){withoutHTTP2},
		},
		GracefulShutdownTimeout: ptr.To(shutdown),
		// Those that do not lead keep their caches and queues filled, so that a new leader acts at once.
		Controller: config.Controller{EnableWarmup: ptr.To(true)},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("making the manager: %w", err)
	}
	lock.LockConfig.EventRecorder = leaderEvents{mgr.GetEventRecorder("kvasir-operator")}
	kinds := &newerKinds{reader: mgr.GetAPIReader(), namespaces: o.namespaces, log: mgr.GetLogger().WithName("apis")}
	if err := kinds.find(ctx); err != nil {
		return nil, nil, err
	}
	ready := &readiness{cache: mgr.GetCache(), kinds: kinds}
	err = errors.Join(mgr.Add(ready), mgr.Add(kinds), mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("caches", ready.check))
	if err != nil {
		return nil, nil, fmt.Errorf("adding the health checks: %w", err)
	}
	return mgr, kinds, nil
}

// onlyOurs keeps objects that the operator has not made out of the caches. All pods are cached: pools can select any.
func onlyOurs() map[client.Object]cache.ByObject {
	ours := labels.SelectorFromSet(labels.Set{"app.kubernetes.io/managed-by": resources.Manager})
	all := map[client.Object]cache.ByObject{&corev1.Pod{}: {Transform: leanPod}, &corev1.Node{}: {Transform: leanNode}}
	for _, kind := range []client.Object{
		&appsv1.Deployment{}, &appsv1.ControllerRevision{}, &corev1.ConfigMap{}, &corev1.Service{}, &corev1.ServiceAccount{},
		&networkingv1.NetworkPolicy{},
		&policyv1.PodDisruptionBudget{}, &rbacv1.Role{}, &rbacv1.RoleBinding{},
	} {
		all[kind] = cache.ByObject{Label: ours}
	}
	return all
}

// leanPod drops the parts of a cached pod that no controller reads, which is most of it: a cluster has thousands of pods.
// Pods are only written by patches, never as complete objects.
func leanPod(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok || pod.ManagedFields == nil { // every pod arrives with some; one without them is in the cache already
		return o, nil
	}
	pod.ManagedFields = nil
	pod.Spec.Volumes, pod.Spec.Affinity, pod.Spec.SecurityContext = nil, nil, nil
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			lean := corev1.Container{Name: c.Name, Image: c.Image, Resources: c.Resources}
			if c.Name == kvasirv1alpha1.ReporterContainer {
				lean.Args = poolconfig.ServeArgs(c.Args)
			}
			*c = lean
		}
	}
	return pod, nil
}

// leanNode leaves out of a node in the cache what no controller reads: all but its taints, whether it is ready, and whether it
// is a spot instance. The list of images alone is often longer than the rest, and kubelets update the status all the time.
func leanNode(o any) (any, error) {
	node, ok := o.(*corev1.Node)
	if !ok || node.ManagedFields == nil { // as of pods
		return o, nil
	}
	node.ManagedFields, node.Annotations = nil, nil
	maps.DeleteFunc(node.Labels, func(key, value string) bool { return !inferencepool.SpotLabel(key, value) })
	node.Spec = corev1.NodeSpec{Unschedulable: node.Spec.Unschedulable, Taints: node.Spec.Taints}
	var ready []corev1.NodeCondition
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == corev1.NodeReady {
			ready = []corev1.NodeCondition{{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime}}
		}
	}
	node.Status = corev1.NodeStatus{Conditions: ready}
	return node, nil
}

func namespaces(names []string) map[string]cache.Config {
	if len(names) == 0 {
		return nil // all
	}
	all := map[string]cache.Config{}
	for _, name := range names {
		all[name] = cache.Config{}
	}
	return all
}

// withoutHTTP2 keeps unauthenticated clients from opening unlimited streams.
func withoutHTTP2(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }

// readiness reports when the caches are filled, whether this replica leads or not.
type readiness struct {
	cache  cache.Cache
	kinds  *newerKinds
	filled atomic.Bool
}

// NeedLeaderElection makes it run in all replicas.
func (*readiness) NeedLeaderElection() bool { return false }

// Start waits until the caches are filled.
func (r *readiness) Start(ctx context.Context) error {
	kinds := []client.Object{&kvasirv1alpha1.InferencePool{}, &kvasirv1alpha1.RoutingPolicy{}, &corev1.Pod{}}
	if !r.kinds.absent[kvasirv1alpha1.KindPickerFleet] {
		kinds = append(kinds, &kvasirv1alpha1.PickerFleet{})
	}
	for _, kind := range kinds {
		_, err := r.cache.GetInformer(ctx, kind)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the end, not a failure
		case err != nil:
			return fmt.Errorf("filling the caches: %w", err)
		}
	}
	r.filled.Store(true)
	return nil
}

func (r *readiness) check(*http.Request) error {
	if !r.filled.Load() {
		return errors.New("the caches are not filled yet")
	}
	return nil
}

// run acts until ctx ends. A replica that leads gives up the Lease then, so that another leads at once.
func run(ctx context.Context, o *options, config *rest.Config, log logr.Logger) error {
	mgr, kinds, err := newManager(ctx, o, config, log)
	if err != nil {
		return err
	}
	if err := addControllers(mgr, o, kinds); err != nil {
		return err
	}
	log.Info("Starting", "version", version.Get().String())
	switch err := mgr.Start(ctx); {
	case errors.Is(err, errNewKind):
		log.Info("Stopped, to be started again", "reason", err.Error())
		return nil
	case err != nil:
		return fmt.Errorf("running: %w", err)
	}
	log.Info("Stopped")
	return nil
}
