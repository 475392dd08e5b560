// Package cluster follows the objects of one pool, or of the pools of one fleet, on an API server, in place of a directory.
//
//	informers --> objects --translate--> State --> picker.Apply
//	Secrets, ConfigMaps --get every 10 s--^
//
// All objects are in one namespace and only read: InferencePools, RoutingPolicies and Pods are watched, for a fleet ModelRoutes, too,
// and the pools of Gateway API's inference extension where one of these is served without a Kvasir pool; Secrets and ConfigMaps
// that these name are requested one by one, so that no right to list them is needed. What the API server cannot return at
// the moment stays unchanged: informers keep their objects during an outage, and an object that cannot be read keeps its
// last good state. A pool that is deleted, or leaves its fleet, is served on for a while (deleted.go).
package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

const (
	// settle is how long changes are gathered before they are applied, from the first of them on.
	settle = 20 * time.Millisecond
	// pollEvery is how often Secrets and ConfigMaps are asked for, and getTimeout bounds each question.
	pollEvery  = 10 * time.Second
	getTimeout = 3 * time.Second
)

// Kvasir kinds that are watched.
var (
	poolResource = schema.GroupVersionResource{Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version,
		Resource: "inferencepools"}
	policyResource = schema.GroupVersionResource{Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version,
		Resource: "routingpolicies"}
	routeResource = schema.GroupVersionResource{Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version,
		Resource: "modelroutes"}
)

// Options of a Source.
type Options struct {
	// Config is how to reach the API server.
	Config *rest.Config
	// Pool that is followed; empty with a Fleet.
	Pool types.NamespacedName
	// Fleet whose pools are followed, in place of one Pool: those of its namespace that have picker.mode Fleet and name it.
	// The object of the fleet itself is not read.
	Fleet types.NamespacedName
	// Bare reports whether Pool is one of the Gateway API Inference Extension, served with all defaults. ModelOf asks the
	// engine at an address for the name of its model; required then.
	Bare     bool
	ModelOf  func(ctx context.Context, address string, wire endpoint.Wire) (string, error)
	Settings config.Settings
	Log      logr.Logger
}

// Source follows a pool, or the pools of a fleet. Follow can be called once.
type Source struct {
	scope      scope
	translator *config.Translator
	log        logr.Logger

	pools, policies cache.SharedIndexInformer
	pods            cache.SharedIndexInformer
	named           *named
	bare            *bare   // nil for a Kvasir pool
	routes          *routes // nil for one pool
	read            reader
	served          map[string]*v1alpha1.InferencePool // by name, as they were last
	departed        map[string]*departed               // by name: those served that are no longer of the scope
	// changed holds a token when something has changed that was not translated yet.
	changed chan struct{}
}

// New makes a source. It sends no request yet.
func New(o Options) (*Source, error) {
	admitter, err := crdadmission.New()
	if err != nil {
		return nil, fmt.Errorf("loading the definitions: %w", err)
	}
	defaults, err := admitter.DefaultPolicy()
	if err != nil {
		return nil, err
	}
	translator, err := config.NewTranslator(o.Settings, defaults)
	if err != nil {
		return nil, err
	}
	core, err := corev1client.NewForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the API server: %w", err)
	}
	own, err := dynamic.NewForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the API server: %w", err)
	}
	in := scope{namespace: o.Pool.Namespace, pool: o.Pool.Name}
	if o.Fleet.Name != "" {
		in = scope{namespace: o.Fleet.Namespace, fleet: o.Fleet.Name}
	}
	s := &Source{
		scope: in, translator: translator, log: o.Log, changed: make(chan struct{}, 1),
		named: newNamed(core, in.namespace), read: reader{good: map[types.UID]*entry{}}, departed: map[string]*departed{},
	}
	s.pools = ownInformer(own.Resource(poolResource).Namespace(in.namespace))
	s.policies = ownInformer(own.Resource(policyResource).Namespace(in.namespace))
	s.pods = podInformer(core.Pods(in.namespace))
	if o.Bare {
		s.bare = &bare{
			pool: o.Pool, admitter: admitter, modelOf: o.ModelOf,
			objects: ownInformer(own.Resource(gatewayResource).Namespace(o.Pool.Namespace)),
		}
	}
	if in.fleet != "" {
		s.routes = newRoutes(ownInformer(own.Resource(routeResource).Namespace(in.namespace)), o.Log)
	}
	if err := s.listen(); err != nil {
		return nil, err
	}
	return s, nil
}

// informers are all that are watched.
func (s *Source) informers() []cache.SharedIndexInformer {
	all := []cache.SharedIndexInformer{s.pools, s.policies, s.pods}
	if s.bare != nil {
		all = append(all, s.bare.objects)
	}
	if s.routes != nil {
		all = append(all, s.routes)
	}
	return all
}

// listen rings when objects change in a way that matters.
func (s *Source) listen() error {
	ring := func() {
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
	for _, i := range s.informers() {
		_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { ring() },
			UpdateFunc: func(old, now any) {
				if !same(old, now) {
					ring()
				}
			},
			DeleteFunc: func(any) { ring() },
		})
		if err != nil {
			return fmt.Errorf("listening to the API server: %w", err)
		}
		handle := s.broken
		if r, is := i.(*routes); is {
			handle = r.broken
		}
		if err := i.SetWatchErrorHandlerWithContext(handle); err != nil {
			return fmt.Errorf("listening to the API server: %w", err)
		}
	}
	return nil
}

// broken handles a watch that has ended with an error. What it has brought stays.
func (s *Source) broken(_ context.Context, _ *cache.Reflector, err error) {
	s.log.V(1).Info("Watching the API server failed, keeping the last known objects", "reason", err.Error())
}

// Follow calls onChange with the state now, once all of it is known, and after each change, until ctx ends. onChange is
// called by one goroutine, the caller's.
func (s *Source) Follow(ctx context.Context, onChange func(config.State)) {
	informers := s.informers()
	ended := make(chan struct{}, len(informers))
	var synced []cache.InformerSynced
	for _, i := range informers {
		if _, is := i.(*routes); !is {
			synced = append(synced, i.HasSynced)
		}
		go func() { i.RunWithContext(ctx); ended <- struct{}{} }()
	}
	defer func() {
		for range informers {
			<-ended
		}
	}()
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return
	}
	if s.routes != nil {
		s.routes.wait(ctx)
	}
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for {
		select {
		case <-s.changed: // changes that arrived meanwhile are in this translation
		default:
		}
		onChange(s.translate(ctx))
		if !s.wait(ctx, poll) {
			return
		}
	}
}

// wait returns true after a change, and false when ctx has ended.
func (s *Source) wait(ctx context.Context, poll *time.Ticker) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-s.changed:
			select {
			case <-ctx.Done():
				return false
			case <-time.After(settle):
				return true
			}
		case <-poll.C:
			if s.named.ask(ctx) || s.bare.waiting() || s.over(time.Now()) {
				return true
			}
		}
	}
}

// translate makes the state of the objects as they are now.
func (s *Source) translate(ctx context.Context) config.State {
	pools, policies := s.read.pools(s.pools.GetStore()), s.read.policies(s.policies.GetStore())
	var routes []*v1alpha1.ModelRoute
	if s.routes != nil {
		routes = s.read.routes(s.routes.GetStore())
	}
	for _, err := range s.read.settle() {
		s.log.Error(err, "Reading an object failed, keeping its last valid state")
	}
	var pods []*corev1.Pod
	for _, o := range s.pods.GetStore().List() {
		pods = append(pods, o.(*corev1.Pod))
	}
	bare := false
	if s.bare == nil {
		pools = s.keep(pools, pods, time.Now())
	} else if s.served = s.scope.of(pools); len(s.served) == 0 {
		made, err := s.bare.find(ctx, pods)
		if err != nil {
			s.log.Error(err, "Pool served with problems")
		}
		if made != nil {
			pools, bare = append(pools, made), true
		}
	}
	o := objectsOf(s.isServed, pools, policies, pods)
	if bare {
		o.RankPorts = map[types.NamespacedName][]int32{s.bare.pool: s.bare.ports}
	}
	if s.routes != nil {
		o.Routes, o.Elsewhere = routes, s.elsewhere(pools)
	}
	s.named.want(ctx, referred(&o))
	o.Secrets, o.ConfigMaps = s.named.objects()
	return s.translator.Translate(o)
}
