package main

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// lookEvery is how often optional APIs are looked for: they can be installed while the operator runs.
const lookEvery = 30 * time.Second

// apis knows which optional APIs the cluster has. It is a manager's Runnable, in every replica.
type apis struct {
	finder discovery.DiscoveryInterface
	log    logr.Logger
	// changed is called when an API was installed or removed.
	changed func(context.Context)

	mu   sync.Mutex // guards what follows
	seen map[schema.GroupVersionKind]bool
}

// NeedLeaderElection makes it run in all replicas.
func (*apis) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (a *apis) Start(ctx context.Context) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if a.look() {
				a.changed(ctx)
			}
		}
	}
}

// optionalKinds are those that are looked for.
var optionalKinds = []schema.GroupVersionKind{
	resources.GIEKind, resources.RouteKind, resources.CertificateKind, resources.ProvisioningKind, resources.DestinationRuleKind,
	resources.BackendTrafficPolicyKind, resources.HealthCheckPolicyKind, resources.GCPBackendPolicyKind,
}

// there reports whether the cluster has a kind.
func (a *apis) there(kind schema.GroupVersionKind) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen[kind]
}

// look asks the cluster, and reports whether something has changed. What cannot be asked stays as it was.
func (a *apis) look() (changed bool) {
	for _, kind := range optionalKinds {
		is, err := a.serves(kind)
		if err != nil {
			a.log.V(1).Info("Discovering the cluster's APIs failed", "error", err.Error())
			return changed
		}
		a.mu.Lock()
		if a.seen[kind] != is {
			a.log.Info("Optional API installed or removed", "kind", kind.String(), "served", is)
			changed = true
		}
		if a.seen == nil {
			a.seen = map[schema.GroupVersionKind]bool{}
		}
		a.seen[kind] = is
		a.mu.Unlock()
	}
	return changed
}

// serves reports whether the API server knows a kind.
func (a *apis) serves(kind schema.GroupVersionKind) (bool, error) {
	groups, err := a.finder.ServerGroups()
	if err != nil {
		return false, err
	}
	for _, group := range groups.Groups {
		if group.Name != kind.Group {
			continue
		}
		for _, version := range group.Versions {
			if version.Version != kind.Version {
				continue
			}
			resources, err := a.finder.ServerResourcesForGroupVersion(version.GroupVersion)
			if err != nil {
				return false, err
			}
			for i := range resources.APIResources {
				if resources.APIResources[i].Kind == kind.Kind {
					return true, nil
				}
			}
		}
	}
	return false, nil
}
