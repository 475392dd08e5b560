package lifecycle

import "slices"

// replace removes outdated pods as far as those that serve allow.
func (r *plan) replace() {
	stay := r.weed()
	serving := r.servingFresh()
	r.giveUp(r.Pool.Size - serving - len(stay))
	allowed := len(stay) + serving - max(0, r.Pool.Size-r.Pool.Unavailable)
	surplus := len(r.fresh)+len(stay) > r.Pool.Size+r.Pool.Surge
	r.outdated = nil
	for _, p := range stay {
		if allowed <= 0 {
			r.outdated = append(r.outdated, p)
			continue
		}
		allowed--
		r.removeOutdated(p, surplus)
	}
}

// removeOutdated removes a pod that is to be replaced, or is too much if there is a surplus.
func (r *plan) removeOutdated(p *Pod, surplus bool) {
	if surplus {
		r.remove(p, DrainScaleDown, CauseSurplus, r.why(p))
	} else {
		r.remove(p, r.reason(p), CauseReplaced, r.why(p))
	}
}

// weed removes the outdated pods whose places nothing needs to take, and returns the others in the order of their removal.
func (r *plan) weed() []*Pod {
	slices.SortFunc(r.outdated, r.compare)
	var stay []*Pod
	for _, p := range r.outdated {
		switch {
		case p.Node == NodeDies:
			r.remove(p, DrainNode, CauseNodeDies, "its node goes away now")
		case p.hopeless():
			r.remove(p, r.reason(p), CauseReplaced, "it does not serve")
		case p.lost():
			r.lost = append(r.lost, p)
		default:
			stay = append(stay, p)
		}
	}
	return stay
}

// servingFresh counts the pods that are as they should be and serve.
//
// Outdated pods count as serving, new pods only if they serve. So no further pod is removed because some are not ready
// for a moment. Pods that do not serve are removed first, so that enough serving pods are left. Engines that serve without
// their reporters stop a rollout, but no move away from a node, which would end with them.
func (r *plan) servingFresh() int {
	serving := 0
	for _, p := range r.fresh {
		if r.counts(p) {
			serving++
		}
	}
	return serving
}

// counts reports whether a pod that is as it should be counts as serving.
func (r *plan) counts(p *Pod) bool {
	alone := p.Serves && p.Mark.Reason == "" && r.out.Progress == UpToDate
	return p.serving() || alone || r.unmarked(p)
}

// giveUp removes lost pods, except keep of them: those without a replacement that serves, which can serve again if their node comes back.
func (r *plan) giveUp(keep int) {
	for i, p := range r.lost {
		if i < len(r.lost)-max(0, keep) {
			r.remove(p, DrainNode, CauseReplaced, r.why(p))
		} else {
			r.islands[p.Island]-- // its replacement can take its room
		}
	}
}
