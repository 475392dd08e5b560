package lifecycle

import (
	"cmp"
	"slices"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// Role is what the pods of one role shall be.
type Role struct {
	Of endpoint.Role
	// Size is the wanted number of serving pods. For a role that goes it is the number that it had.
	Size int
	// Surge and Unavailable are as those of a pool.
	Surge, Unavailable int
	// Goes: pods of the newest revision do not have the role. Comes: those of Pool.Current do not.
	Goes, Comes bool
}

// Transition returns the roles of a pool whose newest revision has those that are wanted: these, and those that go. Serving are the roles
// of the revision in service, nil if that is not known; had are the sizes that roles had. It returns none if all pods do both, which needs
// no roles.
func Transition(wanted []Role, serving []endpoint.Role, had map[endpoint.Role]int, pods []Pod) []Role {
	out := slices.Clone(wanted)
	is := map[endpoint.Role]bool{}
	for i := range out {
		is[out[i].Of] = true
		out[i].Comes = serving != nil && !slices.Contains(serving, out[i].Of)
	}
	for _, role := range []endpoint.Role{endpoint.Prefill, endpoint.Decode, endpoint.Both, endpoint.Neither} {
		there := slices.ContainsFunc(pods, func(p Pod) bool { return p.Role == role })
		if !is[role] && (there || slices.Contains(serving, role)) {
			out = append(out, Role{Of: role, Size: had[role], Surge: 1, Goes: true})
		}
	}
	if len(out) == 1 && out[0].Of == endpoint.Both {
		return nil
	}
	return out
}

// group is the plans of a pool's roles.
//
// A rollout moves all roles together. Engines of different revisions hand no prompts over, so a revision serves as much as its
// weaker role: its weight is the part of the wanted pods that it has of that role. A pod of an older revision is removed if its
// role has enough pods without it, and if the weights of all revisions together stay what the pool needs. If several pods could
// be removed, it is the one whose loss costs the least. So a revision keeps its pairs, and prefill pods do not all change to the
// newest revision while decode pods of an older one still need them.
//
//	3 prefill and 2 decode pods, one above each size:  3+2 | 0+0  ->  2+2 | 1+1  ->  2+1 | 2+1 ...  ->  0+0 | 3+2
//
// A change between a pool with roles and one without is such a rollout. Pods that do both count for either role.
type group struct {
	*plan
	roles []*rolePlan
}

// rolePlan is the plan of one role.
type rolePlan struct {
	*plan
	stay    []*Pod // outdated, in the order of their removal
	allowed int    // of them that the role itself can lose
}

// makeRoles plans the pods of all roles.
func (r *plan) makeRoles() {
	g := r.split()
	for _, role := range g.roles {
		role.sort()
	}
	for _, role := range g.roles {
		role.settleEnded()
	}
	slices.SortStableFunc(r.out.Ended, func(a, b *Pod) int { return b.EndedAt.Compare(a.EndedAt) })
	for _, role := range g.roles {
		role.cancel()
	}
	g.replace()
	for _, role := range g.roles {
		role.shrink()
	}
	g.create()
	for _, role := range g.roles {
		role.drain()
	}
}

// split makes a plan for each role. They share the result, the islands and the slots.
func (r *plan) split() *group {
	g := &group{plan: r}
	for i := range r.Pool.Roles {
		role := &r.Pool.Roles[i]
		one := &plan{Input: r.Input, out: r.out, role: role, islands: r.islands, slots: r.slots, moves: r.moves}
		one.Pods = nil
		staying := 0
		for k := range r.Pods {
			if p := &r.Pods[k]; p.Role == role.Of {
				one.Pods = append(one.Pods, *p)
				if !p.Deleting && !p.Finished && !p.draining() {
					staying++
				}
			}
		}
		one.Pool.Size, one.Pool.Surge, one.Pool.Unavailable = r.sizeOf(role, staying), role.Surge, role.Unavailable
		g.roles = append(g.roles, &rolePlan{plan: one})
	}
	// Prefill last: a decode pod without a partner serves requests, a prefill pod does not.
	slices.SortStableFunc(g.roles, func(a, b *rolePlan) int { return cmp.Compare(order(a.role.Of), order(b.role.Of)) })
	return g
}

func order(role endpoint.Role) int {
	return slices.Index([]endpoint.Role{endpoint.Decode, endpoint.Both, endpoint.Prefill, endpoint.Neither}, role)
}

// sizeOf is the size that a role is steered to. While the rollout waits, a role that goes keeps the size that it had, and one that comes
// grows no more, because pods of the revision in service do not have it. Nothing of the operator's replaces the pods of a role that goes
// with the rollout type OnDelete.
func (r *plan) sizeOf(role *Role, staying int) int {
	switch {
	case role.Goes && r.Pool.OnDelete:
		return staying
	case role.Goes && r.holds():
		return role.Size
	case role.Goes:
		return 0
	case role.Comes && r.holds() && r.Pool.Current != "":
		return min(role.Size, staying)
	}
	return role.Size
}

// wanted is the number of pods that the newest revision shall have, with those that can be missing of them, and those above it.
func (g *group) wanted() (size, unavailable, surge int) {
	for _, r := range g.roles {
		if r.Pool.Size > 0 || !r.role.Goes {
			size, unavailable, surge = size+r.Pool.Size, unavailable+min(r.Pool.Unavailable, r.Pool.Size), surge+r.Pool.Surge
		}
	}
	return size, unavailable, surge
}

// replace removes outdated pods of all roles as far as those that serve allow.
func (g *group) replace() {
	size, unavailable, surge := g.wanted()
	all, pods := 0, 0
	for _, r := range g.roles {
		r.stay = r.weed()
		all += r.servingFresh() + countServing(r.stay)
		pods += len(r.stay) + len(r.fresh)
	}
	for _, r := range g.roles {
		serving, keep := r.servingFresh(), r.Pool.Size
		r.allowed = len(r.stay) + serving - max(0, keep-r.Pool.Unavailable)
		if r.role.Goes && keep == 0 { // pods of other roles take over
			r.giveUp(size - all)
			continue
		}
		r.giveUp(keep - serving - len(r.stay))
	}
	for {
		best := g.next(all > size-unavailable)
		if best == nil {
			break
		}
		surplus := pods > size+surge
		if !best.role.Goes {
			surplus = len(best.fresh)+len(best.stay) > best.Pool.Size+best.Pool.Surge
		}
		p := best.stay[0]
		best.stay, best.allowed = best.stay[1:], best.allowed-1
		best.removeOutdated(p, surplus)
		pods--
		if p.serving() {
			all--
		}
	}
	for _, r := range g.roles {
		r.outdated = r.stay
	}
}

func countServing(pods []*Pod) (n int) {
	for _, p := range pods {
		if p.serving() {
			n++
		}
	}
	return n
}

// next is the role that loses its next outdated pod; nil for none. spare reports whether enough pods serve without one. Those that do not
// serve are removed first.
func (g *group) next(spare bool) *rolePlan {
	var best *rolePlan
	most := 0.0
	for _, r := range g.roles {
		switch {
		case len(r.stay) == 0 || r.allowed <= 0:
			continue
		case !r.stay[0].serving():
			return r
		case r.role.Goes && !spare || !g.decodesWithout(r.stay[0]):
			continue
		case r.accepted(r.stay[0]): // because of its node: a pod of the same revision takes its place
			return r
		}
		if w := g.weight(r.stay[0]); best == nil || w > most {
			best, most = r, w
		}
	}
	if best != nil && most < min(g.needed(), g.weight(nil))-tolerance && g.awaits() {
		return nil
	}
	if best == nil {
		return g.blocking()
	}
	return best
}

// blocking is a role with an outdated pod that does not serve, if there is no room for a new pod while a role goes; nil for none. Such
// a pod keeps its place otherwise, as it can be back in a moment.
func (g *group) blocking() *rolePlan {
	if g.room() > 0 || g.holds() {
		return nil
	}
	for _, r := range g.roles {
		if len(r.leaving) > 0 {
			return nil
		}
	}
	for _, r := range g.roles {
		if len(r.stay) > 0 && !r.stay[0].Ready && !r.stay[0].held() {
			return r
		}
	}
	return nil
}

// tolerance of sums of weights.
const tolerance = 1e-9

// needed is what the weights shall be together: what is left of the weaker role when as many pods are missing as can be.
func (g *group) needed() float64 {
	least := 1.0
	for _, r := range g.roles {
		if r.Pool.Size > 0 {
			least = min(least, float64(max(0, r.Pool.Size-r.Pool.Unavailable))/float64(r.Pool.Size))
		}
	}
	return least
}

// awaits reports whether the weights will rise though no outdated pod is removed: pods start, or end and make room.
func (g *group) awaits() bool {
	room := g.room()
	for _, r := range g.roles {
		if len(r.leaving) > 0 || r.servingFresh() < len(r.fresh) || r.backoff > 0 || room > 0 && r.missingBeside(r.stay) > 0 {
			return true
		}
	}
	return false
}

// decodesWithout reports whether some pod decodes without one, if any has to.
func (g *group) decodesWithout(victim *Pod) bool {
	if !victim.Role.Decodes() || !victim.serving() {
		return true
	}
	least, others := 0, 0
	for _, r := range g.roles {
		if r.role.Of.Decodes() {
			least += max(0, r.Pool.Size-r.Pool.Unavailable)
			for _, p := range slices.Concat(r.fresh, r.stay) {
				if p != victim && (p.serving() || r.unmarked(p)) {
					others++
				}
			}
		}
	}
	return others > 0 || least == 0
}

// weight is the sum of the weights of all revisions without a pod, or with all.
func (g *group) weight(without *Pod) float64 {
	type pods struct{ all, prefill, decode int }
	wanted, of := pods{}, map[string]pods{}
	add := func(to pods, role endpoint.Role, n int) pods {
		to.all += n
		if role.Prefills() {
			to.prefill += n
		}
		if role.Decodes() {
			to.decode += n
		}
		return to
	}
	for _, r := range g.roles {
		wanted = add(wanted, r.role.Of, r.Pool.Size)
		for _, p := range r.fresh {
			if r.counts(p) {
				of[p.Revision] = add(of[p.Revision], p.Role, 1)
			}
		}
		for _, p := range r.stay {
			if p != without && p.serving() {
				of[p.Revision] = add(of[p.Revision], p.Role, 1)
			}
		}
	}
	sum := 0.0
	for _, n := range of {
		weight := 1e9
		for _, part := range [][2]int{{n.all, wanted.all}, {n.prefill, wanted.prefill}, {n.decode, wanted.decode}} {
			if part[1] > 0 {
				weight = min(weight, float64(part[0])/float64(part[1]))
			}
		}
		sum += weight
	}
	return sum
}

// missingBeside is missing, while so many outdated pods stay.
func (r *rolePlan) missingBeside(stay []*Pod) int {
	exist := len(r.fresh) + len(stay) + len(r.failing) + len(r.leaving)
	return min(r.Pool.Size-len(r.fresh), r.Pool.Size+r.Pool.Surge-exist) - r.backoff
}

// room is how many pods the pool can have beside those that exist. While a role goes, its pods take the places of others, and each
// role alone does not bound the pods of the pool.
func (g *group) room() int {
	size, _, surge := g.wanted()
	room, goes := size+surge, false
	for _, r := range g.roles {
		taken := len(r.fresh) + len(r.stay) + len(r.failing) + len(r.leaving)
		room -= taken
		goes = goes || r.role.Goes && taken > 0
	}
	switch {
	case !goes:
		return size + surge
	case g.Pool.OnDelete:
		return room - surge
	}
	return room
}

// create creates the pods that are missing, one after another for the role that lacks most of its size.
func (g *group) create() {
	created := map[*rolePlan]int{}
	missing := map[*rolePlan]int{}
	for _, r := range g.roles {
		missing[r] = r.missing()
		if r.role.Goes && !r.holds() || r.role.Comes && r.holds() && r.Pool.Current != "" {
			missing[r] = 0 // the next revision does not have the role
		}
	}
	for room := g.room(); room > 0; room-- {
		var next *rolePlan
		part := func(r *rolePlan) float64 { return float64(len(r.fresh)+created[r]) / float64(r.Pool.Size) }
		for _, r := range g.roles {
			if missing[r] > created[r] && (next == nil || part(r) < part(next)) {
				next = r
			}
		}
		if next == nil || !next.createOne() {
			return
		}
		created[next]++
	}
}
