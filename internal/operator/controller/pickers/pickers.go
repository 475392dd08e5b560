// Package pickers finds the picker replicas of each pool in the cluster and listens to them, for the operator.
package pickers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
	"github.com/kvasir-dev/kvasir/internal/rpc"
)

const (
	// dialTimeout bounds what is asked of the API server before replicas are dialled.
	dialTimeout = 5 * time.Second
	// sweepEvery is how often removed pools are looked for.
	sweepEvery = 10 * time.Second
)

// Options of a Listener.
type Options struct {
	// Reader of pools and pods, from a cache; ConfigMaps of single names.
	Reader client.Reader
	// Direct reads the Services of pickers that the operator does not run from the API server: the cache can contain only
	// the operator's own Services.
	Direct client.Reader
	// Token is the file with the operator's own token, of the audience rpc.OperateAudience.
	Token string
	// Changed functions are called for a pool when news of its pickers can advance a drain or a status. They must
	// be read.
	Changed []chan<- event.GenericEvent
	Log     logr.Logger
}

// Listener receives the state of the pickers of all requested pools. It is a manager's Runnable: Start ends its streams
// with its context. It is safe for concurrent use.
type Listener struct {
	o       Options
	pickers *rpc.Pickers

	mu    sync.Mutex // guards what follows
	known map[types.NamespacedName]bool
	woken map[types.NamespacedName]bool // pending calls of Changed
	wake  chan struct{}
}

// New connects to no picker yet.
func New(o Options) *Listener {
	l := &Listener{o: o, known: map[types.NamespacedName]bool{}, woken: map[types.NamespacedName]bool{}, wake: make(chan struct{}, 1)}
	l.pickers = rpc.NewPickers(rpc.PickersOptions{Dial: l.dial, OnChange: l.notify, Log: o.Log})
	return l
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: a replica that does not lead connects to no picker.
func (l *Listener) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (l *Listener) Start(ctx context.Context) error {
	defer l.pickers.Close()
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			l.sweep(ctx)
		case <-l.wake:
			l.publish(ctx)
		}
	}
}

// View merges what a pool's replicas have reported. The replicas are listed first: a ready replica that never reported is
// in the view, as one that does not report.
func (l *Listener) View(pool types.NamespacedName) operatorfeed.View {
	replicas, err := l.replicas(context.Background(), pool)
	if err == nil {
		l.mu.Lock()
		l.known[pool] = true
		l.mu.Unlock()
		l.pickers.Set(pool.String(), replicas)
	}
	return l.pickers.View(pool.String())
}

// Known is View without a look at the replicas that there are now: what those have reported that the last View has found. It reads nothing.
func (l *Listener) Known(pool types.NamespacedName) operatorfeed.View {
	return l.pickers.View(pool.String())
}

// Warm fills a pod's cache, and returns when that is done, cannot be done, or ctx ends.
func (l *Listener) Warm(ctx context.Context, pool types.NamespacedName, podUID string, tokens int) error {
	limit := time.Hour
	if end, ok := ctx.Deadline(); ok {
		limit = time.Until(end)
	}
	_, err := l.pickers.Warm(ctx, pool.String(), podUID, tokens, limit)
	return err
}

// replicas are the pods of a pool's pickers, from the cache.
func (l *Listener) replicas(ctx context.Context, pool types.NamespacedName) ([]rpc.Replica, error) {
	var o v1alpha1.InferencePool
	if err := l.o.Reader.Get(ctx, pool, &o); err != nil {
		return nil, fmt.Errorf("reading pool %s: %w", pool, err)
	}
	selectors := []map[string]string{{
		"app.kubernetes.io/name": "kvasir", resources.LabelComponent: resources.ComponentPicker, resources.LabelInstance: pool.Name,
	}}
	// A pool that moves can be served by pickers of its own and those of two fleets: what is asked of pickers concerns all of them.
	fleet, before := o.Spec.Picker.FleetName(), o.Status.Picker.FleetName
	if fleet != "" {
		selectors = append(selectors, resources.FleetPods(fleet))
	}
	if before != "" && before != fleet {
		selectors = append(selectors, resources.FleetPods(before))
	}
	if o.Spec.Picker.Mode == v1alpha1.PickerExternal {
		var service corev1.Service
		timed, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		if err := l.o.Direct.Get(timed, types.NamespacedName{Namespace: pool.Namespace, Name: o.Spec.Picker.External.ServiceName},
			&service); err != nil {
			return nil, fmt.Errorf("reading the Service of pool %s's pickers: %w", pool, err)
		}
		if len(service.Spec.Selector) == 0 { // which would be every pod there is
			return nil, fmt.Errorf("the Service of pool %s's pickers selects no pods", pool)
		}
		selectors = []map[string]string{service.Spec.Selector}
	}
	var all []rpc.Replica
	for _, selector := range selectors {
		found, err := l.pods(ctx, pool.Namespace, selector)
		if err != nil {
			return nil, fmt.Errorf("listing the pickers of pool %s: %w", pool, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// pods are the pickers with some labels.
func (l *Listener) pods(ctx context.Context, namespace string, selector map[string]string) ([]rpc.Replica, error) {
	var list corev1.PodList
	// The pods are shared with the cache and only read.
	err := l.o.Reader.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels(selector), client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, err
	}
	var all []rpc.Replica
	for i := range list.Items {
		p := &list.Items[i]
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		r := rpc.Replica{Name: p.Name, Ready: config.PodReady(p)}
		if p.Status.PodIP != "" {
			r.Address = net.JoinHostPort(p.Status.PodIP, strconv.Itoa(resources.SyncPort))
		}
		all = append(all, r)
	}
	return all, nil
}

// dial returns how to reach the pickers of a pool: their certificate must be of the pool's CA, and they receive the
// operator's token.
func (l *Listener) dial(pool string) (rpc.DialOptions, error) {
	key := config.ParseKey(pool)
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	var trusted corev1.ConfigMap
	if err := l.o.Reader.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: resources.CAName(key.Name)}, &trusted); err != nil {
		return rpc.DialOptions{}, fmt.Errorf("reading what pool %s trusts: %w", pool, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(trusted.Data[resources.CAEntry])) {
		return rpc.DialOptions{}, fmt.Errorf("pool %s has no CA to trust yet", pool)
	}
	return rpc.DialOptions{
		Credentials: credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: resources.Host(resources.PickerName(key.Name), key.Namespace),
		}),
		Token: func() ([]byte, error) { return os.ReadFile(l.o.Token) },
	}, nil
}

// notify marks that a pool's pickers have news. It does not block.
func (l *Listener) notify(pool string) {
	l.mu.Lock()
	l.woken[config.ParseKey(pool)] = true
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// publish passes the news on to the channel.
func (l *Listener) publish(ctx context.Context) {
	l.mu.Lock()
	woken := l.woken
	l.woken = map[types.NamespacedName]bool{}
	l.mu.Unlock()
	for pool := range woken {
		o := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: pool.Namespace, Name: pool.Name}}
		for _, changed := range l.o.Changed {
			select {
			case changed <- event.GenericEvent{Object: o}:
			case <-ctx.Done():
				return
			}
		}
	}
}

// sweep forgets removed pools.
func (l *Listener) sweep(ctx context.Context) {
	var list v1alpha1.InferencePoolList
	if err := l.o.Reader.List(ctx, &list); err != nil {
		return // what is known stays
	}
	there := map[types.NamespacedName]bool{}
	for i := range list.Items {
		there[client.ObjectKeyFromObject(&list.Items[i])] = true
	}
	l.mu.Lock()
	var gone []types.NamespacedName
	for pool := range l.known {
		if !there[pool] {
			gone = append(gone, pool)
			delete(l.known, pool)
		}
	}
	l.mu.Unlock()
	for _, pool := range gone {
		l.pickers.Forget(pool.String())
	}
}
