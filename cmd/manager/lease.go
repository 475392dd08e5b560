package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/internal/logging"
)

// leaseName is the Lease by which replicas elect the leader.
const leaseName = "manager.kvasir.dev"

// leaseTimeout is how long a request about the Lease can take: less than the 10 s in which a leader must renew it, so
// that one request that hangs does not cost the lead.
const leaseTimeout = 5 * time.Second

// newLock makes the lock by which replicas elect the leader. Each write of its Lease, including the first, names the
// Deployment of the replica as the owner: the Lease is deleted with the Deployment, and so is one that is written after
// that. If the replica belongs to no Deployment, or its Lease is in another namespace, the Lease stays when all replicas
// are gone.
//
// A user who recreates the Deployment at once might see two replicas lead until the old one renews, 2 s later.
func newLock(ctx context.Context, o *options, cluster *rest.Config, log logr.Logger) (*resourcelock.LeaseLock, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("naming the replica: %w", err)
	}
	config := rest.AddUserAgent(rest.CopyConfig(cluster), "leader-election")
	config.Timeout = leaseTimeout
	leases, err := coordinationv1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of Leases: %w", err)
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: o.leaderElectionNamespace, Name: leaseName},
		Client:     leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())},
	}
	if o.pod == "" || o.leaderElectionNamespace != o.account.Namespace {
		return lock, nil
	}
	pods, err := client.New(config, client.Options{Scheme: newScheme()})
	if err != nil {
		return nil, fmt.Errorf("making a client of pods: %w", err)
	}
	owner, err := deploymentOf(ctx, pods, types.NamespacedName{Namespace: o.account.Namespace, Name: o.pod})
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		logging.Warn(log, "The Lease will stay when the operator is removed", "reason", err.Error())
	case err != nil:
		return nil, err
	case owner != nil:
		lock.Client = ownedLeases{LeasesGetter: leases, owner: owner}
	}
	return lock, nil
}

// deploymentOf finds the Deployment that a pod is of, as an owner that does not wait for what it owns; none where the
// pod is not of one.
func deploymentOf(ctx context.Context, c client.Reader, pod types.NamespacedName) ([]metav1.OwnerReference, error) {
	above := &metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name}
	for _, kind := range []string{"ReplicaSet", "Deployment"} {
		object := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: above.APIVersion, Kind: above.Kind}}
		if err := c.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: above.Name}, object); err != nil {
			return nil, fmt.Errorf("finding the Deployment of the pod %s: %w", pod, err)
		}
		if above = metav1.GetControllerOf(object); above == nil || above.Kind != kind {
			return nil, nil
		}
	}
	return []metav1.OwnerReference{{APIVersion: above.APIVersion, Kind: above.Kind, Name: above.Name, UID: above.UID}}, nil
}

// ownedLeases sets the owner of each Lease that is written through it, replacing the previous one.
type ownedLeases struct {
	coordinationv1client.LeasesGetter
	owner []metav1.OwnerReference
}

// Leases of a namespace.
func (l ownedLeases) Leases(namespace string) coordinationv1client.LeaseInterface {
	return ownedLeasesOfNamespace{LeaseInterface: l.LeasesGetter.Leases(namespace), owner: l.owner}
}

type ownedLeasesOfNamespace struct {
	coordinationv1client.LeaseInterface
	owner []metav1.OwnerReference
}

// Create makes a Lease with the owner.
func (l ownedLeasesOfNamespace) Create(ctx context.Context, lease *coordinationv1.Lease,
	o metav1.CreateOptions) (*coordinationv1.Lease, error) {
	lease.OwnerReferences = l.owner
	return l.LeaseInterface.Create(ctx, lease, o)
}

// Update writes a Lease with the owner.
func (l ownedLeasesOfNamespace) Update(ctx context.Context, lease *coordinationv1.Lease,
	o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	lease.OwnerReferences = l.owner
	return l.LeaseInterface.Update(ctx, lease, o)
}

// leaderEvents records the current leader.
type leaderEvents struct{ recorder events.EventRecorder }

// Eventf implements resourcelock.EventRecorder.
func (e leaderEvents) Eventf(lease runtime.Object, kind, reason, format string, args ...any) {
	e.recorder.Eventf(lease, nil, kind, reason, "Lead", format, args...)
}
