package lifecycle

import "slices"

// Adopted is the input of Adopt: pods that another controller makes and deletes.
type Adopted struct {
	Input
	// Scalable is whether the owner's size can be set, Owner is that size now.
	Scalable bool
	Owner    int
	// Ordered owners always delete the pod of the highest Slot first (StatefulSets); others the one with the lowest
	// deletion cost (Deployments).
	Ordered bool
}

// Adopt decides for pods of another owner: never a create or a delete. A surplus is marked and drained first, and the
// owner's size is lowered when all of it is idle or past its deadline; then the owner deletes the pods. The second result
// is the size to set on the owner.
func Adopt(in *Adopted) (Result, int) {
	in.Pods = slices.Clone(in.Pods)
	slices.SortFunc(in.Pods, func(a, b Pod) int { return compareNames(&a, &b) })
	r := newPlan(&in.Input)
	owner := in.Owner
	r.followNodes()
	if in.Scalable {
		owner = r.adopt(in)
	}
	r.show()
	r.summarise()
	return *r.out, owner
}

func (r *plan) adopt(in *Adopted) int {
	var stay []*Pod
	for i := range r.Pods {
		switch p := &r.Pods[i]; {
		case p.Deleting || p.Finished:
		case p.draining() && p.Mark.Reason != DrainNode:
			r.draining = append(r.draining, p)
		default: // where there are too many, those that drain because of their nodes can be the victims
			stay = append(stay, p)
		}
	}
	surplus := in.Owner - r.Pool.Size
	// Pods beyond the owner's size are about to be deleted: their marks stay.
	keep := max(in.Owner, len(stay)+len(r.draining)) - r.Pool.Size
	order := r.compare
	if in.Ordered {
		order = func(a, b *Pod) int { return b.Slot - a.Slot }
	}
	// Those that drain are the victims already, the first in order before others; what is too much of them is wanted
	// again.
	slices.SortStableFunc(r.draining, order)
	victims := 0
	var drained []*Pod
	for _, p := range r.draining {
		if victims >= keep && ours(p.Mark.Reason) {
			r.add(Action{Kind: Unmark, UID: p.UID, Name: p.Name, Cause: CauseDemand, Why: "was draining: " + p.Mark.Reason})
			continue
		}
		victims++
		if Idle(p, r.Now, r.Pool.LongestWay) || !p.Mark.Deadline.IsZero() && !r.Now.Before(p.Mark.Deadline) {
			drained = append(drained, p)
		} else {
			r.wake(r.Now.Add(Poll))
		}
	}
	slices.SortStableFunc(stay, order)
	for _, p := range stay {
		if victims >= surplus {
			break
		}
		victims++
		why := r.why(p)
		if in.Ordered {
			why = "its owner deletes the highest ordinal"
		}
		r.add(Action{
			Kind: SetMark, UID: p.UID, Name: p.Name, Cause: CauseSurplus, Why: why,
			Mark: Mark{Reason: DrainScaleDown, Deadline: r.Now.Add(r.Pool.DrainDeadline)},
		})
		r.wake(r.Now.Add(min(Poll, r.Pool.DrainDeadline)))
	}
	switch {
	case surplus < 0:
		return r.Pool.Size
	case surplus > 0 && len(drained) >= surplus:
		return r.Pool.Size
	}
	return in.Owner
}

// followNodes marks pods whose nodes go away, so that no picker chooses them when their owner or a drain deletes them, and
// takes a mark back when its node stays after all. Nothing can be made in their place first. Therefore pods on nodes that
// leave sometime soon are marked one at a time, while all others serve, and never the last one. Pods on nodes that die
// within minutes are all marked.
func (r *plan) followNodes() {
	pods, serving := 0, 0
	for i := range r.Pods {
		p := &r.Pods[i]
		if p.Deleting || p.Finished {
			continue
		}
		pods++
		switch {
		case p.Mark.Reason == DrainNode && p.Node == NodeStays:
			r.add(Action{Kind: Unmark, UID: p.UID, Name: p.Name, Cause: CauseDemand, Why: "its node stays"})
			p.Mark = Mark{}
		case p.Mark.Reason == "" && p.Node == NodeDies && (p.Running || p.Ready):
			r.markForNode(p, CauseNodeDies, "its node goes away now")
		}
		if p.serving() {
			serving++
		}
	}
	for i := range r.Pods {
		p := &r.Pods[i]
		if p.Node != NodeStays && p.serving() && serving >= max(pods, 2) {
			r.markForNode(p, CauseReplaced, "its node goes away")
			serving--
		}
	}
}

func (r *plan) markForNode(p *Pod, cause, why string) {
	p.Mark = Mark{Reason: DrainNode, Deadline: r.Now.Add(r.Pool.DrainDeadline)}
	r.add(Action{Kind: SetMark, UID: p.UID, Name: p.Name, Cause: cause, Why: why, Mark: p.Mark})
	r.wake(r.Now.Add(min(Poll, r.Pool.DrainDeadline)))
}
