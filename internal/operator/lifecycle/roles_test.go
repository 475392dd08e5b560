package lifecycle

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// rolling is a pool whose pods take random times to become ready and to end, and nothing else happens.
type rolling struct {
	t     *testing.T
	rng   *rand.Rand
	now   time.Time
	pool  Pool
	roles map[string][]endpoint.Role // of each revision
	had   map[endpoint.Role]int
	pods  map[string]*Pod
	due   map[string]time.Time
	uid   int
	most  int // pods that existed at once
	check func(r *rolling, what string)
}

func newRolling(t *testing.T, seed uint64) *rolling {
	return &rolling{
		t: t, rng: rand.New(rand.NewPCG(seed, 9)), now: noon, roles: map[string][]endpoint.Role{}, had: map[endpoint.Role]int{},
		pods: map[string]*Pod{}, due: map[string]time.Time{}, check: func(*rolling, string) {},
		pool: Pool{Name: "p", ProgressDeadline: time.Hour, DrainDeadline: time.Hour, LongestWay: time.Second},
	}
}

// want changes the pool's revision and roles. Without roles all pods do both.
func (r *rolling) want(revision string, roles ...Role) {
	r.pool.Revision, r.pool.Roles = revision, roles
	r.roles[revision] = nil
	for i := range roles {
		r.roles[revision] = append(r.roles[revision], roles[i].Of)
	}
}

func (r *rolling) wanted() []Role { return r.pool.Roles }

func (r *rolling) step() Result {
	r.now = r.now.Add(time.Second)
	in := Input{Now: r.now, Pool: r.pool}
	for uid, p := range r.pods {
		if !r.now.Before(r.due[uid]) {
			if p.Mark.Reason != "" {
				p.Acknowledged = r.now.Add(-time.Minute)
				p.Readings = []Reading{{At: r.now}, {At: r.now}}
			} else if !p.Ready {
				p.Loaded, p.Ready, p.LoadedAt, p.ReadyAt = true, true, r.now, r.now
			}
		}
		in.Pods = append(in.Pods, *p)
	}
	in.Pool.Roles = Transition(r.wanted(), r.roles[r.pool.Current], r.had, in.Pods)
	if in.Pool.Roles == nil {
		in.Pool.Size, in.Pool.Surge, in.Pool.Unavailable = r.pool.Roles[0].Size, r.pool.Roles[0].Surge, r.pool.Roles[0].Unavailable
	}
	for i := range r.pool.Roles {
		r.had[r.pool.Roles[i].Of] = r.pool.Roles[i].Size
	}
	out := Make(in)
	r.pool.Current = out.Current
	for _, a := range out.Actions {
		switch a.Kind {
		case Create:
			r.uid++
			uid := fmt.Sprintf("u%04d", r.uid)
			r.pods[uid] = &Pod{UID: uid, Name: a.Name, Slot: a.Slot, Revision: a.Revision, Role: a.Role, Created: r.now, Running: true}
			r.due[uid] = r.now.Add(time.Duration(1+r.rng.IntN(9)) * time.Second)
		case SetMark:
			r.pods[a.UID].Mark, r.due[a.UID] = a.Mark, r.now.Add(time.Duration(1+r.rng.IntN(9))*time.Second)
			r.check(r, "after the mark of "+a.Name)
		case Unmark:
			r.pods[a.UID].Mark = Mark{}
		case Delete:
			delete(r.pods, a.UID)
			r.check(r, "after the end of "+a.Name)
		case WarmUp, Show:
		}
	}
	r.most = max(r.most, len(r.pods))
	return out
}

// settle steps until nothing changes any more, and fails if the pool is not as it is wanted then.
func (r *rolling) settle() {
	r.t.Helper()
	for steps, still := 0, 0; still < 15; steps++ {
		if out := r.step(); len(out.Actions) > 0 {
			still = 0
		} else {
			still++
		}
		if steps > 5000 {
			r.t.Fatal("the pool does not settle")
		}
	}
	got := map[endpoint.Role]int{}
	for _, p := range r.pods {
		if p.Revision != r.pool.Revision || !p.serving() {
			r.t.Fatalf("%s of revision %s stays, ready: %t", p.Name, p.Revision, p.Ready)
		}
		got[p.Role]++
	}
	for _, role := range r.pool.Roles {
		if got[role.Of] != role.Size {
			r.t.Fatalf("%d pods of role %s, want %d", got[role.Of], role.Of, role.Size)
		}
		delete(got, role.Of)
	}
	if len(got) > 0 {
		r.t.Fatalf("pods of other roles are left: %v", got)
	}
	if r.pool.Current != r.pool.Revision {
		r.t.Fatalf("revision %s is current, not %s", r.pool.Current, r.pool.Revision)
	}
}

// serving counts the pods that serve, by revision and role.
func (r *rolling) serving() map[string]map[endpoint.Role]int {
	out := map[string]map[endpoint.Role]int{}
	for _, p := range r.pods {
		if p.serving() {
			if out[p.Revision] == nil {
				out[p.Revision] = map[endpoint.Role]int{}
			}
			out[p.Revision][p.Role]++
		}
	}
	return out
}

func role(of endpoint.Role, size, surge, unavailable int) Role {
	return Role{Of: of, Size: size, Surge: surge, Unavailable: unavailable}
}

// TestARolloutKeepsPairs: the revisions together serve as many pairs as the pool would without the rollout, where the weaker role of a
// revision counts, and no decode pod of a revision is left without a prefill pod of it.
func TestARolloutKeepsPairs(t *testing.T) {
	for prefill := 1; prefill <= 6; prefill++ {
		for decode := 1; decode <= 10; decode++ {
			for surge := 1; surge <= 3; surge += 2 {
				t.Run(fmt.Sprintf("%d and %d, surge %d", prefill, decode, surge), func(t *testing.T) {
					r := newRolling(t, uint64(prefill*100+decode*10+surge))
					roles := []Role{role(endpoint.Prefill, prefill, surge, 0), role(endpoint.Decode, decode, surge, 0)}
					r.want("a", roles...)
					r.settle()
					r.check = func(r *rolling, what string) {
						weight, decodes, prefills := 0.0, 0, 0
						for revision, n := range r.serving() {
							weight += min(float64(n[endpoint.Prefill])/float64(prefill), float64(n[endpoint.Decode])/float64(decode))
							decodes, prefills = decodes+n[endpoint.Decode], prefills+n[endpoint.Prefill]
							if n[endpoint.Decode] > 0 && n[endpoint.Prefill] == 0 && revision == "a" {
								t.Errorf("%s: %d decode pods of the old revision have no partner: %v", what, n[endpoint.Decode], r.serving())
							}
						}
						if decodes < decode || prefills < prefill {
							t.Errorf("%s: %d and %d pods serve", what, prefills, decodes)
						}
						if weight < 1-1e-9 {
							t.Errorf("%s: pairs of weight %.2f: %v", what, weight, r.serving())
						}
					}
					r.want("b", roles...)
					r.most = 0
					r.settle()
					if limit := prefill + decode + 2*surge; r.most > limit {
						t.Errorf("%d pods existed at once, more than %d", r.most, limit)
					}
				})
			}
		}
	}
}

// TestAPoolChangesItsRoles: while a pool changes from one kind of pods to two and back, some pod decodes at each moment, as many pods serve
// as are wanted, and no more exist than the surges allow.
func TestAPoolChangesItsRoles(t *testing.T) {
	both := func(n int) []Role { return []Role{role(endpoint.Both, n, 1, 0)} }
	two := func(p, d int) []Role { return []Role{role(endpoint.Prefill, p, 1, 0), role(endpoint.Decode, d, 1, 0)} }
	mixed := []Role{role(endpoint.Prefill, 2, 1, 0), role(endpoint.Both, 2, 1, 0)}
	for name, tc := range map[string]struct{ from, to []Role }{
		"to two roles":                       {both(4), two(1, 3)},
		"to two roles, mostly prefill":       {both(6), two(5, 1)},
		"to more pods":                       {both(1), two(2, 6)},
		"to fewer pods":                      {both(10), two(1, 2)},
		"one pod becomes two":                {both(1), two(1, 1)},
		"to one role":                        {two(1, 3), both(4)},
		"to one role, mostly prefill":        {two(5, 1), both(6)},
		"to one pod":                         {two(1, 1), both(1)},
		"to prefill beside both":             {both(4), mixed},
		"from prefill beside both":           {mixed, both(4)},
		"from both beside prefill to decode": {mixed, two(2, 2)},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20) {
				r := newRolling(t, seed)
				r.want("a", tc.from...)
				r.settle()
				before, after, surge := 0, 0, 0
				for _, role := range tc.from {
					before += role.Size
				}
				for _, role := range tc.to {
					after, surge = after+role.Size, surge+role.Surge
				}
				r.check = func(r *rolling, what string) {
					all, decodes := 0, 0
					for _, n := range r.serving() {
						for role, pods := range n {
							all += pods
							if role.Decodes() {
								decodes += pods
							}
						}
					}
					if decodes == 0 {
						t.Fatalf("seed %d, %s: no pod decodes", seed, what)
					}
					if all < min(before, after) {
						t.Fatalf("seed %d, %s: %d pods serve", seed, what, all)
					}
				}
				r.want("b", tc.to...)
				r.most = 0
				r.settle()
				if limit := max(before, after+surge); r.most > limit {
					t.Errorf("seed %d: %d pods existed at once, more than %d", seed, r.most, limit)
				}
			}
		})
	}
}
