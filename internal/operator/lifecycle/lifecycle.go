// Package lifecycle decides the next actions on the pods of a pool: which are made, marked, kept or deleted. It is pure: facts
// and a time go in, ordered actions and counts come out, and nothing sleeps; the caller executes the actions with
// preconditions, stops at the first that fails, and calls again. Every decision follows from the present facts, so that a
// caller can die between any two actions.
//
// The life of a pod:
//
//	create -> Scheduled -> Loading -> Synced -> Warm -> Ready --mark--> Draining -> Idle -> delete
//	                                                      ^              |
//	                                                      +---unmark-----+   when it is wanted again
package lifecycle

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// Limits and pauses.
const (
	// IdleReadings is how many readings in a row must find an engine idle.
	IdleReadings = 2
	// ReadingFresh is the age beyond which a reading is ignored.
	ReadingFresh = 10 * time.Second
	// Poll is the wait until draining pods are looked at again.
	Poll = time.Second
)

// Pool is what the pods of a pool shall be.
type Pool struct {
	// Name of the pool; those of pods begin with it.
	Name string
	// Size is the wanted number of serving pods.
	Size int
	// Roles are the parts of a pool whose pods have different roles. Each has its own size, surge and missing pods; those of the
	// pool are not used then.
	Roles []Role
	// Revision is the hash of the newest template.
	Revision string
	// Current is the hash of the template that served before; empty when there was none or it cannot be made again.
	Current string
	// Taken are slots whose names another object has.
	Taken []int
	// OnDelete leaves pods of older revisions alone: the operator does not delete them.
	OnDelete bool
	// Paused keeps revisions as they are: no pod is replaced because of its revision, and new ones are of Current.
	Paused bool
	// Refused is whether pods of Revision would be refused now: as with Paused, pods of other revisions stay.
	Refused bool
	// Surge is how many pods can exist above Size while pods are replaced, Unavailable how many of Size can be missing
	// then. Not both are 0.
	Surge, Unavailable int
	// ProgressDeadline is how long new pods can fail to become ready before a rollout stops.
	ProgressDeadline time.Duration
	// DrainDeadline is the longest time from a mark to the delete.
	DrainDeadline time.Duration
	// LongestWay is the longest time that a request takes from a pick to the engine.
	LongestWay time.Duration
	// WarmUp is how long a new pod can be warmed up before it counts as ready; 0 for no warm-up.
	WarmUp time.Duration
}

// Node is the state of a pod's node.
type Node int

// What a pod's node does.
const (
	// NodeStays or is not known.
	NodeStays Node = iota
	// NodeLeaves soon: its pods are replaced, then drained.
	NodeLeaves
	// NodeUnready for long: its pods are replaced, and those that are not ready take no place meanwhile. They stay without a mark until
	// their replacements serve, so that they serve again if the node comes back.
	NodeUnready
	// NodeDies within minutes in any case: its pods get no more requests.
	NodeDies
)

// Drain reasons, the values of the mark.
const (
	DrainScaleDown = "scale-down"
	DrainRollout   = "rollout"
	DrainNode      = "node"
	DrainManual    = "manual"
)

// Mark stops picks. The zero value is no mark.
type Mark struct {
	// Reason is one of the drain reasons; empty for no mark. Reasons that the operator does not set were set by people,
	// like DrainManual.
	Reason string
	// Deadline is when the pod is deleted, idle or not; zero for none.
	Deadline time.Time
}

// Kind of an action.
type Kind int

// The actions.
const (
	// Create a pod: Name, Slot, Revision, Island.
	Create Kind = iota
	// SetMark sets the drain mark (Mark) with its deadline.
	SetMark
	// Unmark takes the mark away.
	Unmark
	// Delete the pod.
	Delete
	// WarmUp begins to warm the pod up.
	WarmUp
	// Show sets the pod's conditions (Shown).
	Show
)

// Action is one thing to do. All but Create name a pod by UID. Role is for Create.
type Action struct {
	Kind     Kind
	UID      string
	Name     string
	Slot     int
	Revision string
	Island   string
	Role     endpoint.Role
	Mark     Mark
	Shown    Shown
	// Ends and Moves are for Create: how many pods in a row have ended, and have been replaced because of their nodes.
	Ends, Moves int
	// Cause is one of the causes, for an event; Why explains it to people.
	Cause, Why string
}

// Causes of actions.
const (
	CauseMissing  = "Missing"  // Create: there are too few
	CauseDemand   = "Demand"   // Unmark: the pod is wanted again
	CauseReplaced = "Replaced" // SetMark, Delete: another revision, node or island takes over
	CauseSurplus  = "Surplus"  // SetMark, Delete: there are too many
	CauseIdle     = "Idle"     // Delete: drained
	CauseDeadline = "Deadline" // Delete: not drained in time
	CauseFinished = "Finished" // Delete: ended, and looked at long enough
	CauseNodeDies = "NodeDies" // SetMark
)

// Input of Make.
type Input struct {
	Now  time.Time
	Pool Pool
	Pods []Pod
	// Place chooses the island of the next pod, given how many there are and will be on each; false when none has
	// room. Nil puts all pods on the island "".
	Place func(held map[string]int) (string, bool)
	// Leave reports which of two islands gives up a pod first, the one with the lower number; nil for no preference.
	Leave func(held map[string]int, island string) int
}

// Progress of a rollout.
type Progress int

// How far a rollout is.
const (
	UpToDate Progress = iota
	RollingOut
	Stopped         // new pods did not become ready in time
	WaitingOnDelete // old pods must be deleted from outside the operator
	Paused          // the pool is
	Refused         // new pods would be
)

// Result of Make.
type Result struct {
	Actions []Action
	// Progress of the rollout and the revision in service, to be Pool.Current next time.
	Progress Progress
	Current  string
	// NoRoom is whether a pod was not made because no island had room.
	NoRoom bool
	Counts Counts
	// Pods are all pods with the stage of their lives, those that need attention first.
	Pods []Seen
	// Ended are pods that ended and are kept to be looked at, the newest first. Backoff places stay empty because of
	// them, the last until Retry.
	Ended   []*Pod
	Backoff int
	Retry   time.Time
	// Wake is when to check again though nothing has changed; zero for never.
	Wake time.Time
}

// plan is the plan of one pool being made, or of one of its roles. Pods move from one list to another as it goes.
type plan struct {
	Input
	out *Result // all roles of a pool have one

	role *Role // nil in a pool without roles

	fresh    []*Pod // as they should be
	outdated []*Pod // to be replaced
	failing  []*Pod // new pods that stopped a rollout, kept to be looked at
	draining []*Pod
	leaving  []*Pod // draining ones that keep their place in a rollout
	lost     []*Pod // not ready on nodes that are not ready: to be replaced, whatever the surge
	ended    []*Pod
	backoff  int // places that stay empty because of pods that ended
	series   int // the longest series of ends
	moves    int // the longest series of moves
	islands  map[string]int
	slots    map[int]bool
}

// Make decides. It does not change its input.
func Make(in Input) Result {
	in.Pods = slices.Clone(in.Pods)
	slices.SortFunc(in.Pods, func(a, b Pod) int { return compareNames(&a, &b) })
	r := newPlan(&in)
	r.out.Progress = r.progress()
	r.settleMoves()
	if len(in.Pool.Roles) > 0 {
		r.makeRoles()
	} else {
		r.sort()
		r.settleEnded()
		r.cancel()
		r.replace()
		r.shrink()
		r.create()
		r.drain()
	}
	r.show()
	r.out.Current = r.current()
	r.summarise()
	return *r.out
}

func newPlan(in *Input) *plan {
	return &plan{Input: *in, out: &Result{}, islands: map[string]int{}, slots: map[int]bool{}}
}

func compareNames(a, b *Pod) int {
	switch {
	case a.Name < b.Name:
		return -1
	case a.Name > b.Name:
		return 1
	}
	return 0
}

// sort puts each pod into its list.
func (r *plan) sort() {
	for _, slot := range r.Pool.Taken {
		r.slots[slot] = true
	}
	for i := range r.Pods {
		p := &r.Pods[i]
		r.slots[p.Slot] = true
		switch {
		case p.Deleting:
			continue
		case p.Finished:
			if p.draining() {
				r.delete(p, CauseFinished, "it ended while it drained")
			} else {
				r.ended = append(r.ended, p)
			}
			continue
		}
		if !p.draining() {
			r.islands[p.Island]++
		}
		switch {
		case p.draining():
			r.draining = append(r.draining, p)
		case r.keepForLooks(p):
			r.failing = append(r.failing, p)
		case r.toBeReplaced(p):
			r.outdated = append(r.outdated, p)
		default:
			r.fresh = append(r.fresh, p)
		}
	}
}

// keepForLooks reports whether a pod is one of those that stopped a rollout.
func (r *plan) keepForLooks(p *Pod) bool {
	return r.out.Progress == Stopped && p.Revision == r.Pool.Revision && !p.Ready && r.fits(p)
}

// fits reports whether a pod can stay where it is.
func (r *plan) fits(p *Pod) bool { return p.Node == NodeStays && !p.Misplaced }

// accepted reports whether a pod's revision is one that can stay.
func (r *plan) accepted(p *Pod) bool {
	return p.Revision == r.Pool.Revision || r.Pool.OnDelete || r.holds()
}

// holds reports whether the rollout waits, so that pods of older revisions stay and new pods are of Current.
func (r *plan) holds() bool {
	return r.out.Progress == Stopped || r.out.Progress == Paused || r.out.Progress == Refused
}

func (r *plan) toBeReplaced(p *Pod) bool { return !r.fits(p) || !r.accepted(p) }

// cancel takes marks back where pods are missing: the best of the draining pods is worth more than a new one.
func (r *plan) cancel() {
	slices.SortFunc(r.draining, func(a, b *Pod) int { return -r.compare(a, b) })
	var still []*Pod
	for _, p := range r.draining {
		missing := r.Pool.Size - len(r.fresh)
		old := !r.accepted(p)
		if old {
			missing -= len(r.outdated)
		}
		wanted := missing > 0 && ours(p.Mark.Reason) && r.fits(p) && p.Ready && p.Trouble.Reason == "" &&
			(!old || p.Mark.Reason == DrainScaleDown)
		if !wanted {
			still = append(still, p)
			continue
		}
		r.add(Action{Kind: Unmark, UID: p.UID, Name: p.Name, Cause: CauseDemand, Why: "was draining: " + p.Mark.Reason})
		r.islands[p.Island]++
		if old {
			r.outdated = append(r.outdated, p)
		} else {
			r.fresh = append(r.fresh, p)
		}
	}
	r.draining = still
	for _, p := range still {
		if p.Mark.Reason == DrainRollout {
			r.leaving = append(r.leaving, p)
		}
	}
}

// unmarked reports whether this plan takes the pod's mark away.
func (r *plan) unmarked(p *Pod) bool {
	return slices.ContainsFunc(r.out.Actions, func(a Action) bool { return a.Kind == Unmark && a.UID == p.UID })
}

// reason is why an outdated pod drains.
func (r *plan) reason(p *Pod) string {
	if r.fits(p) {
		return DrainRollout
	}
	return DrainNode
}

// shrink removes the surplus pods. Pods that do not serve are removed first, so that serving pods are kept up to the size.
func (r *plan) shrink() {
	r.fresh = r.cut(r.fresh, r.Pool.Size)
	keep := 0
	if r.Pool.Size > 0 {
		keep = max(r.Pool.Surge, r.Pool.Unavailable)
	}
	r.failing = r.cut(r.failing, keep)
}

func (r *plan) cut(pods []*Pod, keep int) []*Pod {
	for len(pods) > keep {
		slices.SortFunc(pods, r.compare) // again: islands have changed
		p := pods[0]
		pods = pods[1:]
		r.remove(p, DrainScaleDown, CauseSurplus, r.why(p))
	}
	return pods
}

// remove marks a pod, or deletes it where nothing runs.
func (r *plan) remove(p *Pod, reason, cause, why string) {
	r.islands[p.Island]--
	if !p.Running && !p.Ready {
		r.add(Action{Kind: Delete, UID: p.UID, Name: p.Name, Mark: Mark{Reason: reason}, Cause: cause, Why: why})
		return
	}
	if reason == DrainRollout {
		r.leaving = append(r.leaving, p)
	}
	r.add(Action{
		Kind: SetMark, UID: p.UID, Name: p.Name, Cause: cause, Why: why,
		Mark: Mark{Reason: reason, Deadline: r.Now.Add(r.Pool.DrainDeadline)},
	})
	r.wake(r.Now.Add(min(Poll, r.Pool.DrainDeadline)))
}

// create fills slots, the lowest first.
func (r *plan) create() {
	for missing := r.missing(); missing > 0; missing-- {
		if !r.createOne() {
			return
		}
	}
}

// missing is how many pods to create.
func (r *plan) missing() int {
	return min(r.Pool.Size-len(r.fresh), r.Pool.Size+r.Pool.Surge-r.exist()) - r.backoff
}

// exist counts the pods that take a place.
func (r *plan) exist() int {
	return len(r.fresh) + len(r.outdated) + len(r.failing) + len(r.leaving)
}

// createOne creates a pod, and reports whether there was room for it.
func (r *plan) createOne() bool {
	island, ok := "", true
	if r.Place != nil {
		island, ok = r.Place(r.islands)
	}
	if !ok {
		r.out.NoRoom = true
		return false
	}
	slot, revision := 0, r.nextRevision()
	for r.slots[slot] {
		slot++
	}
	r.slots[slot] = true
	r.islands[island]++
	a := Action{
		Kind: Create, Name: PodName(r.Pool.Name, revision, slot), Slot: slot, Revision: revision, Island: island,
		Ends: r.series, Moves: r.moves, Cause: CauseMissing, Why: fmt.Sprintf("%d wanted", r.Pool.Size),
	}
	if r.role != nil {
		a.Role = r.role.Of
	}
	r.add(a)
	return true
}

// nextRevision is the revision of the next pod.
func (r *plan) nextRevision() string {
	if r.holds() && r.Pool.Current != "" {
		return r.Pool.Current
	}
	return r.Pool.Revision
}

// PodName is the name of the pod in a slot.
func PodName(pool, revision string, slot int) string {
	return pool + "-" + revision + "-" + strconv.Itoa(slot)
}

// SlotOf returns the slot of a name of PodName's form.
func SlotOf(pool, name string) (int, bool) {
	rest, ours := strings.CutPrefix(name, pool+"-")
	_, digits, cut := strings.Cut(rest, "-")
	slot, err := strconv.Atoi(digits)
	return slot, ours && cut && err == nil && slot >= 0
}

func (r *plan) add(a Action) { r.out.Actions = append(r.out.Actions, a) }

// wake asks to be called again at t.
func (r *plan) wake(t time.Time) {
	if r.out.Wake.IsZero() || t.Before(r.out.Wake) {
		r.out.Wake = t
	}
}
