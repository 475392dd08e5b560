// Package autoscaling is the loop that decides how many pods each autoscaled pool needs: every few seconds it samples the
// pickers' reports, calls scaling, and wakes the pool's controller when the decision has changed. That controller executes
// the decision and keeps it in status.
package autoscaling

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/scaling"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
)

// Interval between two looks at a pool.
const Interval = 5 * time.Second

// Pickers returns what the pickers of a pool report.
type Pickers interface {
	View(pool types.NamespacedName) operatorfeed.View
}

// Loop follows all pools with autoscaling, including those with recommendations only. It is safe for concurrent use.
type Loop struct {
	Reader  client.Reader
	Pickers Pickers
	Clock   clock.WithTicker
	// Changed receives an event for each pool whose decision has changed. It must be read.
	Changed chan<- event.GenericEvent

	mu    sync.Mutex // guards what follows
	pools map[types.NamespacedName]*pool
}

type pool struct {
	uid      types.UID
	scaler   scaling.Scaler
	meter    scaling.Meter
	sample   *scaling.Sample // the last one; nil without
	decision scaling.Decision
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: one loop decides.
func (l *Loop) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (l *Loop) Start(ctx context.Context) error {
	ticker := l.Clock.NewTicker(Interval)
	defer ticker.Stop()
	for {
		if err := l.Step(ctx); err != nil {
			log.FromContext(ctx).Error(err, "Autoscaling failed, keeping the sizes of pools")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// Decision for a pool; false before the first one, and for pools that do not scale.
func (l *Loop) Decision(name types.NamespacedName, _ v1alpha1.RoleName) (scaling.Decision, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.pools[name]
	if !ok {
		return scaling.Decision{}, false
	}
	return p.decision, true
}

// Step looks at every pool once.
func (l *Loop) Step(ctx context.Context) error {
	var list v1alpha1.InferencePoolList
	if err := l.Reader.List(ctx, &list); err != nil {
		return fmt.Errorf("listing pools: %w", err)
	}
	seen := map[types.NamespacedName]bool{}
	var errs []error
	for i := range list.Items {
		o := &list.Items[i]
		if o.Spec.Autoscaling.MaxReplicas == 0 || !o.DeletionTimestamp.IsZero() {
			continue
		}
		name := client.ObjectKeyFromObject(o)
		seen[name] = true
		changed, err := l.look(ctx, o)
		if err != nil {
			errs = append(errs, fmt.Errorf("pool %s: %w", name, err))
		}
		if changed {
			select {
			case l.Changed <- event.GenericEvent{Object: o}:
			case <-ctx.Done():
				return nil
			}
		}
	}
	l.mu.Lock()
	for name := range l.pools {
		if !seen[name] {
			delete(l.pools, name)
		}
	}
	l.mu.Unlock()
	return errors.Join(errs...)
}

// look decides for one pool, and reports whether the decision has changed.
func (l *Loop) look(ctx context.Context, o *v1alpha1.InferencePool) (bool, error) {
	spec, _ := Spec(&o.Spec.Autoscaling) // the pool's conditions name what cannot be read
	serving, err := l.serving(ctx, o)
	if err != nil {
		return false, err
	}
	name := client.ObjectKeyFromObject(o)
	view := l.Pickers.View(name)
	now := l.Clock.Now()

	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pools[name]
	if p == nil || p.uid != o.UID {
		if l.pools == nil {
			l.pools = map[types.NamespacedName]*pool{}
		}
		p = &pool{uid: o.UID, decision: scaling.Decision{Size: firstSize(o, len(serving))}}
		l.pools[name] = p
	}
	size := p.decision.Size
	if o.Spec.Autoscaling.Mode == v1alpha1.AutoscalingRecommend && o.Spec.Replicas != nil {
		size = int(*o.Spec.Replicas) // what would be done from where the pool is
	}
	p.sample = p.meter.Sample(now, &view, serving)
	before := p.decision
	p.decision = p.scaler.Decide(now, spec, p.sample, size)
	return p.decision != before, nil
}

// firstSize is where a pool begins that this process has not seen: where it was left, or at what it has.
func firstSize(o *v1alpha1.InferencePool, serving int) int {
	if o.Status.DesiredReplicas != nil {
		return int(*o.Status.DesiredReplicas)
	}
	return max(serving, int(ptr.Deref(o.Spec.Autoscaling.MinReplicas, v1alpha1.DefaultMinReplicas)))
}

// serving are the UIDs of the pool's pods that take requests.
func (l *Loop) serving(ctx context.Context, o *v1alpha1.InferencePool) ([]string, error) {
	var pods corev1.PodList
	if err := l.Reader.List(ctx, &pods, client.InNamespace(o.Namespace), client.MatchingLabels(config.PodLabels(o))); err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	var uids []string
	for i := range pods.Items {
		p := &pods.Items[i]
		if !config.Leaving(p) && !config.Worker(p) && config.PodServes(p) {
			uids = append(uids, string(p.UID))
		}
	}
	return uids, nil
}

// Spec translates a pool's autoscaling. The error names the schedules that cannot be read, which are left out: the schema
// cannot validate cron.
func Spec(a *v1alpha1.Autoscaling) (scaling.Spec, error) {
	seconds := func(v *int32, otherwise int32) time.Duration {
		return time.Duration(ptr.Deref(v, otherwise)) * time.Second
	}
	spec := scaling.Spec{
		Min: int(ptr.Deref(a.MinReplicas, v1alpha1.DefaultMinReplicas)), Max: int(a.MaxReplicas),
		Up: scaling.Up{
			WaitingPerReplica: float64(a.Up.WaitingPerReplica),
			TTFTP99:           time.Duration(a.Up.TTFTP99Milliseconds) * time.Millisecond,
			HitRatioFloor:     float64(a.Up.HitRatioFloorPercent) / 100,
			Stabilization:     seconds(a.Up.StabilizationSeconds, 0),
			MaxStep:           int(a.Up.MaxStep),
		},
		Down: scaling.Down{
			WaitingPerReplica: float64(ptr.Deref(a.Down.WaitingPerReplica, 0)),
			UtilizationFloor:  float64(ptr.Deref(a.Down.UtilizationFloorPercent, v1alpha1.DefaultUtilizationFloorPercent)) / 100,
			Stabilization:     seconds(a.Down.StabilizationSeconds, v1alpha1.DefaultDownStabilization),
			MaxStep:           int(a.Down.MaxStep),
			ZeroAfter:         time.Duration(a.Down.ZeroAfterSeconds) * time.Second,
		},
	}
	var errs []error
	for i := range a.Schedules {
		s := &a.Schedules[i]
		schedule, err := scaling.ParseSchedule(s.Name, s.Start, s.TimeZone, time.Duration(s.DurationSeconds)*time.Second,
			int(ptr.Deref(s.MinReplicas, 0)))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		spec.Schedules = append(spec.Schedules, schedule)
	}
	return spec, errors.Join(errs...)
}
