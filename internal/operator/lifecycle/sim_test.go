package lifecycle

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// The simulation drives a pool in virtual time: an API server with versions, a cache that lags, kubelets, nodes, two
// pickers whose views lag too, requests on their way and in engines, people who edit everything, and a caller that can die
// between any two actions. It is deterministic from its seed.

const (
	simLag   = 3 * time.Second // of caches
	simWay   = 6 * time.Second // from a pick to an engine
	simNodes = 6
)

// simPod is the truth about a pod.
type simPod struct {
	Pod
	version  int
	node     int
	bad      bool      // never becomes ready
	next     time.Time // of the kubelet's doings
	inFlight []time.Time
	arriving []arrival
	gone     time.Time // when a deleted pod is removed
	acks     [2]ack    // by picker
}

type arrival struct{ at, until time.Time }

// ack is what a picker says of a mark: which, and since when.
type ack struct {
	mark  Mark
	since time.Time
}

func (p *simPod) busy() int { return len(p.inFlight) + len(p.arriving) }

type sim struct {
	t   *testing.T
	rng *rand.Rand
	now time.Time
	log []string

	pool     Pool
	pods     map[string]*simPod
	nodes    [simNodes]Node
	version  int
	uid      int
	history  []view // the newest last
	seen     int    // index in history of the caller's cache; the base moves with drops
	pickers  [2]int
	expect   int // version that the cache has to show before the next decision
	unplan   time.Time
	wake     time.Time
	dirty    bool
	warming  map[string]time.Time
	quiet    bool
	kinds    map[kind]int
	decision int
	roles    *simRoles // nil in a pool without roles
}

// kind of an action, and its cause.
type kind struct {
	action Kind
	cause  string
}

// view is what the API server had at a time.
type view struct {
	at      time.Time
	version int
	pool    Pool
	pods    map[string]Pod
	at2     map[string]int // versions
}

func newSim(t *testing.T, seed uint64) *sim {
	s := &sim{
		t: t, rng: rand.New(rand.NewPCG(seed, 7)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		pods: map[string]*simPod{}, warming: map[string]time.Time{}, kinds: map[kind]int{},
	}
	s.pool = Pool{
		Name: "p", Size: 1 + s.rng.IntN(5), Revision: "r0", Surge: 1, ProgressDeadline: 10 * time.Minute,
		DrainDeadline: 5 * time.Minute, LongestWay: simWay,
	}
	if s.rng.IntN(2) == 0 {
		s.pool.WarmUp = time.Minute
	}
	s.save()
	return s
}

func (s *sim) fail(format string, args ...any) {
	s.t.Helper()
	tail := s.log[max(0, len(s.log)-60):]
	s.t.Fatalf("%s\n%s", fmt.Sprintf(format, args...), strings.Join(tail, "\n"))
}

func (s *sim) say(format string, args ...any) {
	s.log = append(s.log, s.now.Format("15:04:05.0 ")+fmt.Sprintf(format, args...))
}

// save appends what is now to the history.
func (s *sim) save() {
	s.version++
	v := view{at: s.now, version: s.version, pool: s.pool, pods: map[string]Pod{}, at2: map[string]int{}}
	for uid, p := range s.pods {
		q := p.Pod
		if p.Assigned {
			q.Node = s.nodes[p.node]
		}
		v.pods[uid], v.at2[uid] = q, p.version
	}
	s.history = append(s.history, v)
}

// touch writes a pod.
func (s *sim) touch(p *simPod) {
	p.version = s.version + 1
	s.save()
}

func (s *sim) chance(percent float64) bool { return s.rng.Float64()*100 < percent }

func (s *sim) between(a, b time.Duration) time.Duration {
	return a + time.Duration(s.rng.Int64N(int64(b-a)))
}

func (s *sim) sorted() []*simPod {
	out := slices.Collect(maps.Values(s.pods))
	slices.SortFunc(out, func(a, b *simPod) int { return strings.Compare(a.UID, b.UID) })
	return out
}

// advance moves a lagging index forward, by chance, but never beyond the longest lag behind.
func (s *sim) advance(i int) int {
	for i+1 < len(s.history) && (s.chance(60) || s.now.Sub(s.history[i+1].at) > simLag) {
		i++
	}
	return i
}

// kubelet moves pods on.
func (s *sim) kubelet() {
	for _, p := range s.sorted() {
		switch {
		case !p.gone.IsZero():
			if !s.now.Before(p.gone) {
				delete(s.pods, p.UID)
				s.save()
			}
		case p.Finished || s.now.Before(p.next) || p.Assigned && s.nodes[p.node] == NodeUnready:
		case !p.Assigned:
			var free []int
			for i, n := range s.nodes {
				if n == NodeStays {
					free = append(free, i)
				}
			}
			if len(free) > 0 {
				p.Assigned, p.node = true, free[s.rng.IntN(len(free))]
				p.next = s.now.Add(s.between(time.Second, 20*time.Second))
				s.touch(p)
			}
		case !p.Running:
			p.Running, p.next, p.Trouble = true, s.now.Add(s.between(time.Second, 2*time.Minute)), Trouble{}
			s.touch(p)
		case !p.Loaded && !p.bad:
			p.Loaded, p.LoadedAt, p.Synced = true, s.now, true
			s.touch(p)
		case p.Loaded && !p.Ready && (!p.WarmGate || p.Shown.Warm):
			p.Ready, p.ReadyAt = true, s.now
			s.touch(p)
		}
	}
}

// traffic lets pickers pick and engines work.
func (s *sim) traffic() {
	for i := range s.pickers {
		s.pickers[i] = s.advance(s.pickers[i])
		v := s.history[s.pickers[i]]
		var open []*simPod
		for _, p := range s.sorted() {
			known, ok := v.pods[p.UID]
			if !ok {
				p.acks[i] = ack{}
				continue
			}
			if known.serving() {
				open = append(open, p)
			}
			if known.Mark.Reason == "" {
				p.acks[i] = ack{}
			} else if p.acks[i].mark != known.Mark {
				p.acks[i] = ack{known.Mark, s.now}
			}
		}
		if len(open) > 0 && s.chance(70) {
			p := open[s.rng.IntN(len(open))]
			at := s.now.Add(time.Duration(s.rng.Int64N(int64(simWay))))
			p.arriving = append(p.arriving, arrival{at, at.Add(s.between(time.Second, 40*time.Second))})
		}
	}
	for _, p := range s.sorted() {
		var later []arrival
		for _, a := range p.arriving {
			switch {
			case a.at.After(s.now):
				later = append(later, a)
			case p.Running:
				p.inFlight = append(p.inFlight, a.until)
			}
		}
		p.arriving = later
		p.inFlight = slices.DeleteFunc(p.inFlight, func(end time.Time) bool { return !end.After(s.now) })
		if p.Mark.Reason != "" && p.Running && s.chance(60) {
			p.Readings = append(p.Readings, Reading{s.now, len(p.inFlight)})
			if len(p.Readings) > 3 {
				p.Readings = p.Readings[1:]
			}
		}
		p.Value, p.Load = float64(s.rng.IntN(3)), len(p.inFlight)
	}
}

// disturb is what people, nodes and engines do.
func (s *sim) disturb() {
	all := s.sorted()
	one := func() *simPod { return all[s.rng.IntN(len(all))] }
	unplanned := func(what string, args ...any) {
		s.unplan = s.now
		s.say(what, args...)
	}
	what := s.rng.IntN(12)
	if s.roles != nil && what <= 3 {
		s.changeRoles()
		s.save()
		return
	}
	switch what {
	case 0:
		s.pool.Size = s.rng.IntN(7)
		unplanned("edit: size %d", s.pool.Size)
	case 1, 2:
		s.pool.Revision = []string{"r0", "r1", "r2", "bad"}[s.rng.IntN(4)]
		unplanned("edit: revision %s", s.pool.Revision)
	case 3:
		s.pool.Surge, s.pool.Unavailable = s.rng.IntN(3), s.rng.IntN(3)
		if s.pool.Surge+s.pool.Unavailable == 0 {
			s.pool.Surge = 1
		}
		unplanned("edit: surge %d, unavailable %d", s.pool.Surge, s.pool.Unavailable)
	case 4:
		s.pool.OnDelete = s.chance(25)
		s.pool.DrainDeadline = []time.Duration{0, 10 * time.Second, 5 * time.Minute}[s.rng.IntN(3)]
		s.pool.Paused = s.chance(25)
		unplanned("edit: on delete %t, paused %t", s.pool.OnDelete, s.pool.Paused)
	case 5, 6:
		i := s.rng.IntN(simNodes)
		s.nodes[i] = []Node{NodeStays, NodeStays, NodeLeaves, NodeUnready, NodeDies}[s.rng.IntN(5)]
		for _, p := range all { // as the node controller does
			if s.nodes[i] == NodeUnready && p.node == i && p.Ready {
				p.Ready = false
				s.touch(p)
			}
		}
		unplanned("node %d: %d", i, s.nodes[i])
	case 7: // an engine's process ends
		if len(all) > 0 {
			if p := one(); p.Running && p.gone.IsZero() {
				p.Running, p.Loaded, p.Ready, p.inFlight, p.Synced = false, false, false, nil, false
				p.next = s.now.Add(s.between(time.Second, time.Minute))
				if s.chance(30) {
					p.Trouble = Trouble{CrashLooping, "back-off"}
				}
				s.touch(p)
				unplanned("crash of %s", p.Name)
			}
		}
	case 8: // somebody deletes, or evicts
		if len(all) > 0 {
			if p := one(); p.gone.IsZero() {
				p.Deleting, p.gone = true, s.now.Add(s.between(time.Second, time.Minute))
				s.touch(p)
				unplanned("somebody deletes %s", p.Name)
			}
		}
	case 9:
		if len(all) > 0 {
			p := one()
			p.Mark = []Mark{{}, {Reason: DrainManual}, {DrainManual, s.now.Add(time.Minute)}, {Reason: DrainScaleDown}}[s.rng.IntN(4)]
			s.touch(p)
			unplanned("somebody marks %s %v", p.Name, p.Mark)
		}
	case 10: // readiness changes back and forth
		if len(all) > 0 {
			if p := one(); p.Ready {
				p.Ready, p.next = false, s.now.Add(s.between(time.Second, 20*time.Second))
				s.touch(p)
				unplanned("%s is not ready for a moment", p.Name)
			}
		}
	case 11:
		if len(all) > 0 {
			if p := one(); p.gone.IsZero() {
				p.Finished, p.Running, p.Loaded, p.Ready, p.inFlight = true, false, false, false, nil
				p.EndedAt, p.Lived = s.now, s.now.Sub(p.Created)
				s.touch(p)
				unplanned("%s fails for good", p.Name)
			}
		}
	}
	s.save()
}

func simPlace(held map[string]int) (string, bool) {
	switch {
	case held["cheap"] < 3:
		return "cheap", true
	case held["dear"] < 20:
		return "dear", true
	}
	return "", false
}

// reconcile is the caller: it reads its lagging cache, asks, and executes until it fails or dies.
func (s *sim) reconcile(exact bool) {
	next := s.advance(s.seen)
	changed := next != s.seen
	s.seen = next
	v := s.history[s.seen]
	due := !s.wake.IsZero() && !s.now.Before(s.wake)
	if !changed && !due && !s.dirty || v.version < s.expect && !exact {
		return
	}
	s.dirty = false
	in := Input{Now: s.now, Pool: v.pool, Place: simPlace}
	for uid, p := range v.pods {
		truth := s.pods[uid]
		if truth != nil { // reports of pickers and engines do not pass the cache
			p.Readings, p.Value, p.Load, p.Acknowledged = slices.Clone(truth.Readings), truth.Value, truth.Load, time.Time{}
			if p.Mark.Reason != "" && truth.acks[0].mark == p.Mark && truth.acks[1].mark == p.Mark {
				p.Acknowledged = truth.acks[0].since
				if truth.acks[1].since.After(p.Acknowledged) {
					p.Acknowledged = truth.acks[1].since
				}
			}
		}
		end, ok := s.warming[uid]
		p.WarmedUp = ok && !s.now.Before(end)
		in.Pods = append(in.Pods, p)
	}
	s.roles.ask(&in)
	out := Make(in)
	s.roles.note(&in, &out)
	s.decision++
	s.wake = out.Wake
	if s.pool.Current != out.Current { // status
		s.pool.Current = out.Current
		s.save()
		s.expect = s.version
	}
	for _, a := range out.Actions {
		if !s.quiet && s.chance(3) {
			s.say("the caller dies before %v of %s", a.Kind, a.Name)
			s.seen, s.expect, s.dirty, s.warming = len(s.history)-1, 0, true, map[string]time.Time{}
			return
		}
		if !s.do(v, a) {
			s.dirty = true
			return
		}
		s.expect = s.version
	}
}

func (s *sim) step() {
	s.now = s.now.Add(s.between(100*time.Millisecond, 2*time.Second))
	s.kubelet()
	s.traffic()
	s.reconcile(false)
	if drop := min(s.seen, s.pickers[0], s.pickers[1]); drop > 100 {
		s.history = slices.Clone(s.history[drop:])
		s.seen, s.pickers[0], s.pickers[1] = s.seen-drop, s.pickers[0]-drop, s.pickers[1]-drop
	}
}

// settle ends all disturbances and waits for the desired state.
func (s *sim) settle() {
	s.quiet = true
	if kind, bad := strings.CutPrefix(s.pool.Revision, "bad"); bad {
		s.pool.Revision = "r3" + kind
	}
	if s.roles != nil {
		s.roles.revise(s)
		s.pool.Paused, s.pool.OnDelete = false, false // roles that go stay with these
	}
	if strings.HasPrefix(s.pool.Current, "bad") { // what is lost would be made of it again
		s.pool.Paused = false
	}
	s.nodes, s.unplan = [simNodes]Node{}, s.now
	for _, p := range s.sorted() {
		if p.held() {
			p.Mark = Mark{}
			s.touch(p)
		}
	}
	s.save()
	s.say("quiet: %+v", s.pool)
	steady := 0
	for range 20000 {
		s.step()
		for _, p := range s.sorted() {
			if p.bad && !p.Deleting && (s.pool.OnDelete || s.pool.Paused) { // it is for people to delete them
				p.Deleting, p.gone = true, s.now.Add(time.Second)
				s.touch(p)
			}
		}
		if s.settled() == "" {
			if steady++; steady > 20 {
				break
			}
		} else {
			steady = 0
		}
	}
	if why := s.settled(); why != "" {
		s.fail("not in the desired state: %s", why)
	}
	s.seen = len(s.history) - 1
	in := Input{Now: s.now, Pool: s.pool, Place: simPlace}
	for _, p := range s.history[s.seen].pods {
		in.Pods = append(in.Pods, p)
	}
	s.roles.ask(&in)
	if out := Make(in); len(out.Actions) > 0 {
		s.fail("a steady pool is changed: %+v", out.Actions)
	}
}

// settled says what is not as desired.
func (s *sim) settled() string {
	slots := map[int]bool{}
	for _, p := range s.sorted() {
		switch {
		case !p.serving():
			return p.Name + " does not serve"
		case p.Revision != s.pool.Revision && !s.pool.OnDelete && !s.pool.Paused:
			return p.Name + " has an old revision"
		case slots[p.Slot]:
			return p.Name + " shares its slot"
		}
		slots[p.Slot] = true
	}
	if s.roles != nil {
		return s.roles.settled(s)
	}
	if len(s.pods) != s.pool.Size {
		return fmt.Sprintf("%d pods", len(s.pods))
	}
	return ""
}
