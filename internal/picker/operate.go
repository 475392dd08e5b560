package picker

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/monotonic"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// tally counts what the operator needs of a pool. It is safe for concurrent use.
type tally struct {
	requests, prompt, hit, prefill atomic.Int64
	evictions                      atomic.Int64
	last                           atomic.Int64 // when a request arrived, of the monotonic clock; 0 for never
	ttft                           [len(operatorfeed.Histogram{})]atomic.Int64

	mu   sync.Mutex
	work float64 // guarded by mu; seconds
}

// recordArrival records that a request has arrived, whatever its outcome.
func (t *tally) recordArrival(now time.Time) { t.last.Store(monotonic.Of(now)) }

// placed counts a request that has been given to an endpoint, with the seconds that its prefill should take.
func (t *tally) placed(prompt, hit, prefill int, seconds float64) {
	t.requests.Add(1)
	t.prompt.Add(int64(prompt))
	t.hit.Add(int64(hit))
	t.prefill.Add(int64(prefill))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.work += seconds
}

// firstToken counts the time to a first token.
func (t *tally) firstToken(d time.Duration) { t.ttft[operatorfeed.Bucket(d.Seconds())].Add(1) }

func (t *tally) read(waiting int) operatorfeed.Totals {
	out := operatorfeed.Totals{
		Requests: t.requests.Load(), PromptTokens: t.prompt.Load(), HitTokens: t.hit.Load(), PrefillTokens: t.prefill.Load(),
		Evictions: t.evictions.Load(), Waiting: int64(waiting),
	}
	for i := range t.ttft {
		out.TTFT[i] = t.ttft[i].Load()
	}
	if last := t.last.Load(); last != 0 {
		out.LastRequest = monotonic.Time(last)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	out.WorkSeconds = t.work
	return out
}

// valueLife is how long hits count: their weight falls to a third in this time. It is about as long as blocks stay in a
// busy cache that are not asked for again.
const valueLife = 10 * time.Minute

// worth is the value of an endpoint's cache: tokens of hits that no other pod would have had, the older the less.
type worth struct {
	mu     sync.Mutex
	tokens float64
	at     time.Time
}

func (w *worth) add(now time.Time, tokens int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tokens, w.at = w.now(now)+float64(tokens), now
}

func (w *worth) read(now time.Time) float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now(now)
}

// now is the value at a time. w.mu is held.
func (w *worth) now(now time.Time) float64 {
	if age := now.Sub(w.at); age > 0 {
		return w.tokens * math.Exp(-age.Seconds()/valueLife.Seconds())
	}
	return w.tokens
}

// recordValue counts what the chosen endpoint holds of a request and no other pod does: the part of its hit that is longer
// than the best one elsewhere. Looking at each block would cost a look-up of all holders; the match of each candidate is
// known already.
func (v *view) recordValue(s *scratch, question *policy.Request, chosen int, now time.Time) {
	hit := question.MatchTokens(&s.candidates[chosen])
	if hit == 0 {
		return
	}
	pod, elsewhere := v.spec.Endpoints[s.index[chosen]].ID.Pod, 0
	for i := range s.candidates {
		if i != chosen && v.spec.Endpoints[s.index[i]].ID.Pod != pod {
			elsewhere = max(elsewhere, question.MatchTokens(&s.candidates[i]))
		}
	}
	if hit > elsewhere {
		v.members[s.index[chosen]].worth.add(now, hit-elsewhere)
	}
}

// Operated is what the picker itself knows of a pool for the operator.
type Operated struct {
	// PoolGeneration, PolicyName and PolicyGeneration are those applied.
	PoolGeneration   int64
	PolicyName       string
	PolicyGeneration int64
	Totals           operatorfeed.Totals
	// Pods by UID, those that have an endpoint: what this picker has sent there, and what their caches are worth.
	Pods map[string]operatorfeed.PodState
	// Pickable are the pods with an endpoint that requests can go to.
	Pickable map[string]bool
}

// Operate returns the state of a pool (namespace/name); false when there is none.
func (p *Picker) Operate(pool string) (Operated, bool) {
	now := p.now()
	for _, v := range p.current.Load().pools {
		if v.name != pool {
			continue
		}
		queue := v.admission.read()
		out := Operated{
			PoolGeneration: v.spec.Generation, PolicyName: v.spec.Policy.Name, PolicyGeneration: v.spec.Policy.Generation,
			Totals: v.tally.read(queue.Waiting),
			Pods:   map[string]operatorfeed.PodState{}, Pickable: map[string]bool{},
		}
		out.Totals.Refused = queue.Shed + queue.Late + queue.Unserved
		for i, m := range v.members {
			ep, load := &v.spec.Endpoints[i], m.load.View(now)
			pod, known := out.Pods[ep.ID.Pod]
			pod.InFlight += load.InFlight - load.Peers.InFlight
			pod.UncachedTokens += int64(math.Max(0, load.PendingTokens-load.Peers.PendingTokens))
			pod.WorkSeconds += time.Duration(m.work.Load()).Seconds()
			pod.Value += m.worth.read(now)
			pod.Waiting += load.Waiting
			pod.KVUsage = max(pod.KVUsage, load.KVUsage)
			pod.Blocks += int64(v.held(m))
			pod.Busy, pod.ReadAge = readRank(m, now, pod, known)
			out.Pods[ep.ID.Pod] = pod
			if ep.Pickable() {
				out.Pickable[ep.ID.Pod] = true
			}
		}
		return out, true
	}
	return Operated{}, false
}

// readRank adds the last reading of a rank's engine to those of the pod's other ranks, if there are any: the age is that of the
// oldest, and 0 if a rank was not read.
func readRank(m *member, now time.Time, pod operatorfeed.PodState, others bool) (busy int, age time.Duration) {
	n, at := m.load.Reported()
	if at.IsZero() || others && pod.ReadAge == 0 {
		return 0, 0
	}
	return pod.Busy + n, max(pod.ReadAge, now.Sub(at), time.Millisecond)
}
