package lifecycle

import (
	"cmp"
	"slices"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// Stage of a pod's life.
type Stage string

// The stages, in the order of a pod's life.
const (
	StageScheduled Stage = "Scheduled"
	StageLoading   Stage = "Loading"
	StageSynced    Stage = "Synced"
	StageWarm      Stage = "Warm"
	StageReady     Stage = "Ready"
	StageDraining  Stage = "Draining"
	StageIdle      Stage = "Idle"
	StageEnded     Stage = "Ended" // kept to be looked at
)

// Counts of pods, as they were seen.
type Counts struct {
	// Total counts all but those that have ended, Staying those of them without a mark that are not being deleted, Ready
	// those that serve, Updated those of the newest revision that do
	// not drain, Draining those with a mark, Synced and Degraded by what pickers know of them.
	Total, Staying, Ready, Updated, Draining, Synced, Degraded int
	// Islands by name.
	Islands map[string]IslandCounts
	// Roles of a pool with roles, also those without pods.
	Roles map[endpoint.Role]RoleCounts
}

// RoleCounts are Counts of the pods of one role.
type RoleCounts struct{ Total, Staying, Ready, Updated int }

// IslandCounts are the pods of one island that do not drain: all, those that serve, those without a node.
type IslandCounts struct{ Total, Ready, Pending int }

// Seen is a pod with its stage.
type Seen struct {
	Pod   *Pod
	Stage Stage
	// Trouble is why it does not start, SlowStart and crashes included.
	Trouble Trouble
}

// stage of a pod.
func (r *plan) stage(p *Pod) Stage {
	switch {
	case p.Mark.Reason != "" && r.idle(p):
		return StageIdle
	case p.Mark.Reason != "" || p.Deleting:
		return StageDraining
	case p.Ready:
		return StageReady
	case !p.Running:
		return StageScheduled
	case p.WarmGate && p.Shown.Warm:
		return StageWarm
	case p.Synced && p.Loaded:
		return StageSynced
	}
	return StageLoading
}

func (r *plan) summarise() {
	c := &r.out.Counts
	c.Islands = map[string]IslandCounts{}
	if len(r.Pool.Roles) > 0 {
		c.Roles = map[endpoint.Role]RoleCounts{}
		for i := range r.Pool.Roles {
			c.Roles[r.Pool.Roles[i].Of] = RoleCounts{}
		}
	}
	for i := range r.Pods {
		p := &r.Pods[i]
		if p.Finished {
			continue
		}
		c.Total++
		role := c.Roles[p.Role]
		role.Total++
		if p.Synced {
			c.Synced++
		}
		if p.Degraded {
			c.Degraded++
		}
		switch {
		case p.Mark.Reason != "":
			c.Draining++
		case p.Deleting:
		default:
			c.Staying++
			role.Staying++
			if p.Revision == r.Pool.Revision {
				c.Updated++
				role.Updated++
			}
		}
		if p.serving() {
			c.Ready++
			role.Ready++
		}
		if c.Roles != nil {
			c.Roles[p.Role] = role
		}
		if !p.draining() && !p.Deleting {
			n := c.Islands[p.Island]
			n.Total++
			if p.serving() {
				n.Ready++
			}
			if !p.Assigned {
				n.Pending++
			}
			c.Islands[p.Island] = n
		}
		r.out.Pods = append(r.out.Pods, Seen{Pod: p, Stage: r.stage(p), Trouble: r.trouble(p)})
	}
	slices.SortStableFunc(r.out.Pods, func(a, b Seen) int {
		return cmp.Or(cmp.Compare(urgency(a), urgency(b)), compareNames(a.Pod, b.Pod))
	})
}

// trouble of a pod; a recent crash is one, and so is a start that takes longer than the deadline.
func (r *plan) trouble(p *Pod) Trouble {
	switch {
	case p.Trouble.Reason != "" || p.Deleting:
	case p.Crashed.Reason != "":
		return p.Crashed
	case p.Failing.Reason != "" && p.Mark.Reason == "" && !p.Finished:
		return p.Failing
	}
	if p.Trouble.Reason != "" || p.Ready || p.Deleting || p.Mark.Reason != "" || !p.Running || p.Loaded || r.Pool.ProgressDeadline == 0 {
		return p.Trouble
	}
	starts := p.Created
	if p.LoadedAt.After(starts) { // since then its containers are not ready
		starts = p.LoadedAt
	}
	late := starts.Add(r.Pool.ProgressDeadline)
	if r.Now.Before(late) {
		r.wake(late)
		return Trouble{}
	}
	return Trouble{Reason: SlowStart, Message: "not ready after " + r.Pool.ProgressDeadline.String()}
}

// urgency orders pods for display: troubles, then those that start or end, then those that serve.
func urgency(s Seen) int {
	switch {
	case s.Trouble.Reason != "":
		return 0
	case s.Stage == StageReady:
		return 2
	}
	return 1
}
