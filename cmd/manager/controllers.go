package main

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/engines/scrape"
	kvasirmetrics "github.com/kvasir-dev/kvasir/internal/metrics"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/autoscaling"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/inferencepool"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/modelroute"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/pickerfleet"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/pickers"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/routingpolicy"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/version"
)

const (
	// workers reconcile pools at the same time.
	workers = 4
	// news of pools that can wait until a controller has begun to read.
	news = 256
	// injected names what is put into pods: it changes with that, and no earlier pod is touched for it.
	injected = "v2"
)

// addControllers adds what the operator does.
func addControllers(mgr ctrl.Manager, o *options) error {
	ofPools, ofPolicies := make(chan event.GenericEvent, news), make(chan event.GenericEvent, news)
	ofFleets := make(chan event.GenericEvent, news)
	reports := pickers.New(pickers.Options{
		Reader: mgr.GetClient(), Direct: mgr.GetAPIReader(), Token: o.token, Changed: []chan<- event.GenericEvent{ofPools, ofPolicies, ofFleets},
		Log: mgr.GetLogger().WithName("pickers"),
	})
	sizes := &autoscaling.Loop{Reader: mgr.GetClient(), Pickers: reports, Clock: clock.RealClock{}, Changed: ofPools}
	warmups := &inferencepool.Warmups{Pickers: reports, Changed: ofPools}
	finder, err := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("asking for the cluster's APIs: %w", err)
	}
	optional := &apis{finder: finder, log: mgr.GetLogger().WithName("apis"),
		changed: func(ctx context.Context) { notifyAll(ctx, mgr.GetClient(), ofPools, ofFleets) }}
	optional.look()
	engines := inferencepool.NewScraped(scrape.Options{Log: mgr.GetLogger().WithName("engines")})
	for _, r := range []manager.Runnable{reports, sizes, warmups, optional, closer{engines.Close}} {
		if err := mgr.Add(r); err != nil {
			return fmt.Errorf("adding the controllers' dependencies: %w", err)
		}
	}
	if o.kedaAddress != "" {
		if err := mgr.Add(o.kedaServer(mgr.GetClient())); err != nil {
			return fmt.Errorf("adding the scaler for KEDA: %w", err)
		}
	}
	for _, c := range []prometheus.Collector{sizes, kvasirmetrics.BuildInfo()} {
		if err := metrics.Registry.Register(c); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}

	others := &inferencepool.Others{Reader: mgr.GetClient(), Direct: mgr.GetAPIReader(), Own: o.account, Clock: clock.RealClock{}}
	policies := &routingpolicy.Reconciler{
		Client: mgr.GetClient(), Direct: mgr.GetAPIReader(), Pickers: reports, Others: others,
		Recorder: mgr.GetEventRecorder("kvasir-operator"), Clock: clock.RealClock{},
	}
	if err := policies.SetupWithManager(mgr, ofPolicies); err != nil {
		return fmt.Errorf("adding the controller of policies: %w", err)
	}
	children := func() resources.Config { return childrenConfig(o, optional) }
	fleets := &pickerfleet.Reconciler{
		Client: mgr.GetClient(), Direct: mgr.GetAPIReader(), Pickers: reports, Recorder: mgr.GetEventRecorder("kvasir-operator"),
		Clock: clock.RealClock{}, Config: children, Others: others,
	}
	if err := fleets.SetupWithManager(mgr, ofFleets); err != nil {
		return fmt.Errorf("adding the controller of fleets: %w", err)
	}
	if err := addRoutes(mgr, others); err != nil {
		return fmt.Errorf("adding the controller of routes: %w", err)
	}
	pools := &inferencepool.Reconciler{
		Client: mgr.GetClient(), Direct: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder("kvasir-operator"),
		Clock: clock.RealClock{}, Pickers: reports, Engines: engines, Sizer: sizes, Warmups: warmups,
		Children:      children,
		ReporterImage: o.reporterImage, ReporterLogLevel: o.reporterLogLevel, Version: injected,
		// Nodes are not namespaced: an operator limited to some namespaces cannot read them.
		NodeSignals: len(o.namespaces) == 0,
		Others:      others,
		Namespaces:  o.namespaces,
	}
	if err := pools.SetupWithManager(mgr, ofPools, workers); err != nil {
		return fmt.Errorf("adding the controller of pools: %w", err)
	}
	return nil
}

// childrenConfig is what pickers and other objects are made with, by the cluster's APIs as they are now.
func childrenConfig(o *options, optional *apis) resources.Config {
	return resources.Config{
		PickerImage: o.pickerImage, Operator: o.account, LogLevel: o.pickerLogLevel, Version: version.Get().Version,
		HubEndpoint: o.hubEndpoint, HubAuthorities: o.hubAuthorities,
		GIE: optional.there(resources.GIEKind), Routes: optional.there(resources.RouteKind),
		CertManager: optional.there(resources.CertificateKind), Provisioning: optional.there(resources.ProvisioningKind),
		Traffic: resources.Traffic{
			DestinationRule:      optional.there(resources.DestinationRuleKind),
			BackendTrafficPolicy: optional.there(resources.BackendTrafficPolicyKind),
			HealthCheckPolicy:    optional.there(resources.HealthCheckPolicyKind),
			GCPBackendPolicy:     optional.there(resources.GCPBackendPolicyKind),
		},
	}
}

// addRoutes adds the controller of routes, if their kind is defined. Without it, an informer of routes would keep the operator from
// starting.
func addRoutes(mgr ctrl.Manager, others modelroute.Others) error {
	kind := v1alpha1.GroupVersion.WithKind(v1alpha1.KindModelRoute)
	switch _, err := mgr.GetRESTMapper().RESTMapping(kind.GroupKind(), kind.Version); {
	case meta.IsNoMatchError(err):
		mgr.GetLogger().Info("The definition of ModelRoute is not installed: routes have no status until the operator starts with it")
		return nil
	case err != nil:
		return fmt.Errorf("asking for the definition of %s: %w", kind.Kind, err)
	}
	return (&modelroute.Reconciler{Client: mgr.GetClient(), Clock: clock.RealClock{}, Others: others}).SetupWithManager(mgr)
}

// notifyAll has every pool and every fleet looked at.
func notifyAll(ctx context.Context, reader client.Reader, news, ofFleets chan<- event.GenericEvent) {
	var fleets v1alpha1.PickerFleetList
	if err := reader.List(ctx, &fleets); err != nil {
		return // of a cache that has ended
	}
	for i := range fleets.Items {
		select {
		case ofFleets <- event.GenericEvent{Object: &fleets.Items[i]}:
		case <-ctx.Done():
			return
		}
	}
	var list v1alpha1.InferencePoolList
	if err := reader.List(ctx, &list); err != nil {
		return // of a cache that has ended
	}
	for i := range list.Items {
		select {
		case news <- event.GenericEvent{Object: &list.Items[i]}:
		case <-ctx.Done():
			return
		}
	}
}

// closer closes something when the manager ends.
type closer struct{ close func() error }

// Start implements manager.Runnable.
func (c closer) Start(ctx context.Context) error {
	<-ctx.Done()
	return c.close()
}
