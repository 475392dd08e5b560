// Package autoscaling is the loop that decides how many pods each autoscaled pool needs: every few seconds it samples the
// pickers' reports, calls scaling, and wakes the pool's controller when the decision has changed. That controller executes
// the decision and keeps it in status.
package autoscaling

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
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
	pools map[target]*pool
}

// target is what has a size: a pool, or one of its roles.
type target struct {
	types.NamespacedName
	role v1alpha1.RoleName // empty for a pool without roles
}

// sized is a target with its configuration, and the size that the status shows; nil for none.
type sized struct {
	target
	autoscaling *v1alpha1.Autoscaling
	replicas    *int32
	desired     *int32
	part        scaling.Part
}

// targets are what of a pool is scaled.
func targets(o *v1alpha1.InferencePool) []sized {
	name := client.ObjectKeyFromObject(o)
	all := []sized{{
		target: target{NamespacedName: name}, autoscaling: &o.Spec.Autoscaling, replicas: o.Spec.Replicas, desired: o.Status.DesiredReplicas,
	}}
	if len(o.Spec.Roles) > 0 {
		all = nil
	}
	for i := range o.Spec.Roles {
		role := &o.Spec.Roles[i]
		one := sized{target: target{name, role.Name}, autoscaling: &role.Autoscaling, replicas: role.Replicas}
		switch {
		case len(o.Spec.Roles) == 1: // all pods are of the role
		case role.Name == v1alpha1.RolePrefill:
			one.part = scaling.Prefills
		default:
			one.part = scaling.Decodes
		}
		for k := range o.Status.Roles {
			if s := &o.Status.Roles[k]; s.Name == role.Name {
				one.desired = s.DesiredReplicas
			}
		}
		all = append(all, one)
	}
	return slices.DeleteFunc(all, func(s sized) bool { return s.autoscaling.MaxReplicas == 0 })
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

// Decision for a pool, or for one of its roles; false before the first one, and for those that do not scale.
func (l *Loop) Decision(name types.NamespacedName, role v1alpha1.RoleName) (scaling.Decision, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.pools[target{name, role}]
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
	seen := map[target]bool{}
	var errs []error
	for i := range list.Items {
		o := &list.Items[i]
		all := targets(o)
		if len(all) == 0 || !o.DeletionTimestamp.IsZero() {
			continue
		}
		changed := false
		for k := range all {
			seen[all[k].target] = true
			one, err := l.look(ctx, o, &all[k])
			if err != nil {
				errs = append(errs, fmt.Errorf("pool %s: %w", all[k].NamespacedName, err))
			}
			changed = changed || one
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

// look decides for one target, and reports whether the decision has changed.
func (l *Loop) look(ctx context.Context, o *v1alpha1.InferencePool, of *sized) (bool, error) {
	spec, _ := Spec(of.autoscaling) // the pool's conditions name what cannot be read
	serving, err := l.serving(ctx, o, of.role)
	if err != nil {
		return false, err
	}
	view := l.Pickers.View(of.NamespacedName)
	now := l.Clock.Now()

	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pools[of.target]
	if p == nil || p.uid != o.UID {
		if l.pools == nil {
			l.pools = map[target]*pool{}
		}
		p = &pool{uid: o.UID, decision: scaling.Decision{Size: of.firstSize(len(serving))}}
		l.pools[of.target] = p
	}
	p.meter.Part = of.part
	size := p.decision.Size
	if of.autoscaling.Mode == v1alpha1.AutoscalingRecommend && of.replicas != nil {
		size = int(*of.replicas) // what would be done from where the pool is
	}
	p.sample = p.meter.Sample(now, &view, serving)
	before := p.decision
	p.decision = p.scaler.Decide(now, spec, p.sample, size)
	return p.decision != before, nil
}

// firstSize is where a target begins that this process has not seen: where it was left, or at what it has.
func (s *sized) firstSize(serving int) int {
	if s.desired != nil {
		return int(*s.desired)
	}
	return max(serving, int(ptr.Deref(s.autoscaling.MinReplicas, v1alpha1.DefaultMinReplicas)))
}

// serving are the UIDs of the pods of a pool, or of one of its roles, that take requests. While a pool changes its roles, the pods without
// a role are none of theirs.
func (l *Loop) serving(ctx context.Context, o *v1alpha1.InferencePool, role v1alpha1.RoleName) ([]string, error) {
	var pods corev1.PodList
	if err := l.Reader.List(ctx, &pods, client.InNamespace(o.Namespace), client.MatchingLabels(config.PodLabels(o))); err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	var uids []string
	for i := range pods.Items {
		p := &pods.Items[i]
		of := role == "" || p.Labels[v1alpha1.LabelRole] == podtemplate.RoleOf(role).String()
		if of && !config.Leaving(p) && !config.Worker(p) && config.PodServes(p) {
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
