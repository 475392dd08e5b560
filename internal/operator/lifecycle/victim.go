package lifecycle

import (
	"cmp"
	"fmt"
)

// compare is the removal order: pods that do not serve, pods on nodes that are going away, pods of a revision that cannot
// stay, pods of older revisions, pods on islands that give up pods first, then the least valuable cache, the least load,
// the name. The order does not depend on time, so that a stale view picks the same victim.
func (r *plan) compare(a, b *Pod) int {
	return cmp.Or(
		cmp.Compare(standing(a), standing(b)),
		cmp.Compare(b.Node, a.Node),
		first(!r.accepted(a), !r.accepted(b)),
		first(a.Revision != r.Pool.Revision, b.Revision != r.Pool.Revision),
		cmp.Compare(r.leave(a), r.leave(b)),
		cmp.Compare(a.Value, b.Value),
		cmp.Compare(a.Load, b.Load),
		compareNames(a, b),
	)
}

// standing is how near a pod is to serving.
func standing(p *Pod) int {
	switch {
	case p.Ready && (p.Mark.Reason == "" || p.draining()): // among draining pods, readiness alone counts
		return 3
	case p.hopeless():
		return 0
	case !p.Ready && !p.Serves:
		return 1
	}
	return 2 // held, or without its reporter
}

func first(a, b bool) int {
	switch {
	case a && !b:
		return -1
	case b && !a:
		return 1
	}
	return 0
}

func (r *plan) leave(p *Pod) int {
	if r.Leave == nil {
		return 0
	}
	return r.Leave(r.islands, p.Island)
}

// why explains to people why this pod is removed and not another.
func (r *plan) why(p *Pod) string {
	switch {
	case p.lost():
		return "its node is not ready"
	case !p.Ready:
		return "it does not serve"
	case p.held():
		return "people have stopped its picks"
	case p.Node != NodeStays:
		return "its node goes away"
	case p.Misplaced:
		return "its island gives no node"
	case !r.accepted(p):
		return "its revision is " + p.Revision
	}
	return fmt.Sprintf("least cache value (%.0f tokens of hits on blocks that only it holds), %d requests", p.Value, p.Load)
}
