package lifecycle

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// Reading is what an engine said of itself.
type Reading struct {
	// At is when it was asked.
	At time.Time
	// Busy is the number of requests that ran or waited.
	Busy int
}

// Trouble is why a pod does not start, or does not run for long. The zero value is none.
type Trouble struct{ Reason, Message string }

// Reasons of troubles.
const (
	ImagePullFailed = "ImagePullFailed"
	Unschedulable   = "Unschedulable"
	CrashLooping    = "CrashLooping"
	SlowStart       = "SlowStart"
	// Unready: it was ready, and its engine runs. NodeNotReady: so is its node, or there is none.
	Unready      = "Unready"
	NodeNotReady = "NodeNotReady"
)

// Pod is what is known of one pod.
//
// It has many fields because a plan reads nothing else: it is all that was observed.
type Pod struct {
	UID, Name string
	// Slot is its number in the pool, Revision the hash of its template, Island where it is.
	Slot     int
	Revision string
	Island   string
	Created  time.Time
	// Role is what the engine does of a request; Both in a pool without roles.
	Role endpoint.Role
	// Assigned to a node.
	Assigned bool
	// Running is whether its engine's process might be there and hold requests.
	Running bool
	// Loaded is whether all containers are ready, and LoadedAt since when they are or are not.
	Loaded   bool
	LoadedAt time.Time
	// Ready to serve, and since when.
	Ready   bool
	ReadyAt time.Time
	// Serves is whether pickers choose it unless it is marked: it is ready, or would be if its reporter were.
	Serves bool
	// Synced and Degraded report what pickers know of its cache.
	Synced, Degraded bool
	// WarmedUp is whether its warm-up has ended, however.
	WarmedUp bool
	// WarmGate is whether Ready waits for the condition Warm.
	WarmGate bool
	// Shown are the conditions that the pod carries.
	Shown Shown
	// Deleting is whether it is being deleted, Finished whether it has failed or ended for good.
	Deleting, Finished bool
	// EndedAt is when a finished pod ended, Lived how long it had lived then, and Ends how many pods in a row had ended
	// before it was made.
	EndedAt time.Time
	Lived   time.Duration
	Ends    int
	// Moves is how many pods in a row had been replaced because of their nodes before it was made.
	Moves int
	// Node is what becomes of its node.
	Node Node
	// Misplaced is whether it shall be made again on another island.
	Misplaced bool
	// Trouble keeps it from running. Crashed is its engine's last crash, while that might come again, and Failing why it is not ready any
	// more; both are reported only.
	Trouble, Crashed, Failing Trouble
	Mark                      Mark
	// Acknowledged is when the last of all live pickers ceased to choose it; zero when one might still do.
	Acknowledged time.Time
	// Readings of its engine, oldest first.
	Readings []Reading
	// Value of what only this pod caches, in tokens of recent hits; Load is the number of its requests.
	Value float64
	Load  int
}

// Shown are conditions that a pod carries.
type Shown struct{ Synced, Warm, Idle bool }

// serving reports whether pickers send requests there.
func (p *Pod) serving() bool { return p.Ready && p.Mark.Reason == "" && !p.Deleting && !p.Finished }

// held reports whether people have stopped picks, and nothing more.
func (p *Pod) held() bool {
	return p.Mark.Reason != "" && !ours(p.Mark.Reason) && p.Mark.Deadline.IsZero()
}

// draining reports whether the pod is on its way out.
func (p *Pod) draining() bool { return p.Mark.Reason != "" && !p.held() }

func ours(reason string) bool {
	return reason == DrainScaleDown || reason == DrainRollout || reason == DrainNode
}

// lost reports whether the pod is not ready because its node is not, or would not become ready for that: a kubelet that does not answer
// cannot start it.
func (p *Pod) lost() bool { return p.Node == NodeUnready && !p.Ready }

// hopeless reports whether nothing is lost with the pod: it cannot serve and will not soon.
func (p *Pod) hopeless() bool { return !p.Ready && !p.Serves && (!p.Running || p.Trouble.Reason != "") }
