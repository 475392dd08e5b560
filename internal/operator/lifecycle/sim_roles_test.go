package lifecycle

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// simRoles is what a simulated pool with roles has beside one without. It can be nil.
type simRoles struct {
	of     map[string][]endpoint.Role // of each revision
	had    map[endpoint.Role]int      // the status
	asked  []Role                     // in the last decision
	waited bool                       // whether the rollout waited then
}

// kinds of pools by their roles, as revisions end.
var simKinds = map[string][]endpoint.Role{
	"-whole": {endpoint.Both}, "-two": {endpoint.Prefill, endpoint.Decode}, "-mixed": {endpoint.Prefill, endpoint.Both},
	"-three": {endpoint.Prefill, endpoint.Decode, endpoint.Both},
}

func (r *simRoles) ask(in *Input) {
	if r == nil {
		return
	}
	wanted := in.Pool.Roles
	in.Pool.Roles = Transition(wanted, r.of[in.Pool.Current], r.had, in.Pods)
	if r.asked = in.Pool.Roles; r.asked == nil {
		in.Pool.Size, in.Pool.Surge, in.Pool.Unavailable = wanted[0].Size, wanted[0].Surge, wanted[0].Unavailable
		r.asked = wanted
	}
}

func (r *simRoles) note(in *Input, out *Result) {
	if r == nil {
		return
	}
	r.waited = out.Progress != UpToDate && out.Progress != RollingOut
	r.had = map[endpoint.Role]int{}
	for _, role := range in.Pool.Roles {
		r.had[role.Of] = role.Size
	}
	if in.Pool.Roles == nil {
		r.had[endpoint.Both] = in.Pool.Size
	}
}

// changeRoles edits the pool: its sizes, the kind of its pods, its template, or what can be missing.
func (s *sim) changeRoles() {
	kind := []string{"-whole", "-two", "-mixed", "-three"}[s.rng.IntN(4)]
	if s.chance(60) { // the same kind
		for name := range simKinds {
			if slices.Equal(s.roles.of[s.pool.Revision], simKinds[name]) {
				kind = name
			}
		}
	}
	if s.chance(60) {
		s.pool.Revision = []string{"r0", "r1", "r2", "bad"}[s.rng.IntN(4)] + kind
	} else {
		s.pool.Revision = s.pool.Revision[:2] + kind
		if s.pool.Revision[:2] == "ba" {
			s.pool.Revision = "bad" + kind
		}
	}
	s.roles.revise(s)
	var wanted []Role
	for _, of := range simKinds[kind] {
		role := Role{Of: of, Size: s.rng.IntN(4), Surge: s.rng.IntN(3), Unavailable: s.rng.IntN(2)}
		if of.Decodes() && role.Size == 0 {
			role.Size = 1
		}
		if role.Surge+role.Unavailable == 0 {
			role.Surge = 1
		}
		wanted = append(wanted, role)
	}
	s.pool.Roles, s.unplan = wanted, s.now
	s.say("edit: revision %s, roles %+v", s.pool.Revision, wanted)
}

// revise notes the roles of the pool's revision, by the end of its name.
func (r *simRoles) revise(s *sim) {
	for kind, roles := range simKinds {
		if len(s.pool.Revision) > len(kind) && s.pool.Revision[len(s.pool.Revision)-len(kind):] == kind {
			r.of[s.pool.Revision] = roles
		}
	}
}

// settled says what is not as desired.
func (r *simRoles) settled(s *sim) string {
	got := map[endpoint.Role]int{}
	for _, p := range s.pods {
		got[p.Role]++
	}
	for _, role := range s.pool.Roles {
		if got[role.Of] != role.Size {
			return fmt.Sprintf("%d pods of role %s, %d wanted", got[role.Of], role.Of, role.Size)
		}
		delete(got, role.Of)
	}
	if len(got) > 0 {
		return fmt.Sprintf("pods of other roles: %v", got)
	}
	return ""
}

// checkFloor looks whether the mark of a pod leaves enough pods that serve: of its role, of the pool if its role goes, and one that decodes.
func (r *simRoles) checkFloor(s *sim, victim *simPod) {
	of, all, decodes := map[endpoint.Role]int{}, 0, 0
	for _, p := range s.pods {
		if p.serving() {
			of[p.Role]++
			all++
			if p.Role.Decodes() {
				decodes++
			}
		}
	}
	size, least := 0, 0
	for _, role := range r.asked {
		switch {
		case role.Goes:
			continue
		case role.Of == victim.Role && !r.waited && of[role.Of] < role.Size-role.Unavailable:
			s.fail("%d pods of role %s serve after the mark of %s, of %d, %d may be missing", of[role.Of], role.Of, victim.Name, role.Size, role.Unavailable)
		case role.Of.Decodes():
			least += max(0, role.Size-role.Unavailable)
		}
		size += max(0, role.Size-role.Unavailable)
	}
	goes := slices.ContainsFunc(r.asked, func(role Role) bool { return role.Goes && role.Of == victim.Role })
	if goes && !r.waited && all < size {
		s.fail("%d pods serve after the mark of %s, whose role goes, of %d", all, victim.Name, size)
	}
	if least > 0 && decodes == 0 && victim.Role.Decodes() {
		s.fail("no pod decodes after the mark of %s", victim.Name)
	}
}

// checkSurge checks that not more pods exist than the surge of the role allows, or, while a role goes, than all surges allow together.
func (r *simRoles) checkSurge(s *sim, made *simPod, all, ofRole int) {
	most, goes := 0, false
	for _, role := range r.asked {
		switch {
		case role.Goes:
			for _, p := range s.pods {
				goes = goes || p.Role == role.Of && !p.Deleting && !p.Finished && (!p.draining() || p.Mark.Reason == DrainRollout)
			}
		case role.Of == made.Role && !r.waited && ofRole > role.Size+role.Surge:
			s.fail("%d pods of role %s exist, size %d, surge %d", ofRole, role.Of, role.Size, role.Surge)
		default:
			most += role.Size + role.Surge
		}
	}
	if goes && !r.waited && all > most {
		s.fail("%d pods exist while a role goes, more than %d", all, most)
	}
}

func TestAnyHistoryOfAPoolWithRolesEndsInTheDesiredState(t *testing.T) {
	seeds := uint64(1000)
	if testing.Short() {
		seeds = 200
	}
	for seed := range seeds {
		s := newSim(t, seed)
		s.roles = &simRoles{of: map[string][]endpoint.Role{}, had: map[endpoint.Role]int{}}
		s.pool.Revision = "r0-two"
		s.changeRoles()
		s.save()
		s.say("seed %d", seed)
		for range 200 {
			s.step()
			if s.chance(8) {
				s.disturb()
			}
		}
		s.settle()
	}
}
