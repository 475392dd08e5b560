package scaling

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
)

// Windows over which a Meter counts what is rare.
const (
	ttftWindow = 2 * time.Minute
	hitWindow  = 10 * time.Minute
	// fewest first tokens for a 99th percentile.
	fewest = 20
	// halfBusy is the use of its KV cache below which a pod without a queue is idle.
	halfBusy = 0.5
)

// Part is the role whose pods a Meter measures.
type Part uint8

// The parts.
const (
	// Whole is all pods of a pool without roles.
	Whole Part = iota
	// Prefills is the pods that only prefill: their load is the prefills that were sent to them, and requests wait there for each other.
	Prefills
	// Decodes is the pods of a role that decodes: requests that wait in pickers wait for them. Their load is the streams that they hold,
	// and what they prefill themselves.
	Decodes
)

// Meter makes samples of the reports of a pool's pickers. The zero value is ready. It is not safe for concurrent use.
type Meter struct {
	// Part is what is measured. Times to first tokens and hits are always those of the entire pool.
	Part Part

	pods    map[string]float64 // seconds of work of each pod, as seen last
	last    time.Time
	totals  operatorfeed.Totals
	history []reading // oldest first, at most hitWindow long
	perWork float64   // tokens prefilled in a second of work, as seen last
	work    float64   // seconds of work of a request, as seen last
}

type reading struct {
	at     time.Time
	totals operatorfeed.Totals
}

// Sample is what has happened since the call before; nil at the first call, and if no picker reports. Serving are
// the UIDs of the pods that serve.
func (m *Meter) Sample(now time.Time, view *operatorfeed.View, serving []string) *Sample {
	if len(view.Replicas) == 0 {
		m.last = time.Time{}
		return nil
	}
	before, since := m.totals, now.Sub(m.last).Seconds()
	first := m.last.IsZero() || since <= 0
	m.last, m.totals = now, view.Totals
	m.remember(now)
	worked := m.worked(view, serving)
	if first {
		return nil
	}
	counted := view.Totals.Since(&before)
	if counted.WorkSeconds > 0 && counted.Requests > 0 {
		m.perWork = float64(counted.PrefillTokens) / counted.WorkSeconds
		m.work = counted.WorkSeconds / float64(counted.Requests)
	}
	s := &Sample{Serving: len(serving), HitRatio: -1, LastRequest: view.Totals.LastRequest}
	work := counted.WorkSeconds
	if m.Part != Whole {
		work = worked
	}
	if m.Part != Prefills {
		s.Waiting = float64(view.Totals.Waiting)
		s.Backlog = s.Waiting * m.work
		work += float64(counted.Refused) * m.work
	}
	held, blocks := 0.0, int64(0)
	for _, uid := range serving {
		pod, ok := view.Pod(uid)
		if !ok {
			continue
		}
		s.Waiting += m.waiting(&pod)
		if m.perWork > 0 {
			s.Backlog += float64(pod.UncachedTokens) / m.perWork
		}
		if pod.Waiting == 0 && pod.UncachedTokens == 0 && pod.KVUsage < halfBusy {
			s.Idle++
		}
		held += occupied(&pod)
		blocks += pod.Blocks
	}
	// A pod is busy with prefills for a part of the time, and its KV cache and places with decodes: it bears no more than
	// either.
	s.Load = max(work/since, held)
	if lately := m.over(ttftWindow); lately.TTFT.Count() >= fewest {
		s.TTFTP99 = time.Duration(lately.TTFT.Quantile(0.99) * float64(time.Second))
	}
	if lately := m.over(hitWindow); lately.PromptTokens > 0 {
		s.HitRatio = float64(lately.HitTokens) / float64(lately.PromptTokens)
		if span := m.history[len(m.history)-1].at.Sub(m.history[0].at); lately.Evictions > 0 && span > 0 {
			evictions := float64(lately.Evictions) / float64(len(view.Replicas)) // each replica counts them all
			s.Turnover = time.Duration(float64(span) * float64(blocks) / evictions)
		}
	}
	return s
}

// worked is the work that was sent to the pods since the call before. Of a pod that was not known then, nothing counts yet.
func (m *Meter) worked(view *operatorfeed.View, serving []string) float64 {
	sum, now := 0.0, make(map[string]float64, len(serving))
	for uid, before := range m.pods {
		if _, ok := view.Pod(uid); ok {
			now[uid] = before
		}
	}
	for _, uid := range serving {
		pod, ok := view.Pod(uid)
		if !ok {
			continue
		}
		before, known := m.pods[uid]
		switch {
		case !known:
		case before > pod.WorkSeconds: // a replica of the picker has begun again, or is gone
			sum += pod.WorkSeconds
		default:
			sum += pod.WorkSeconds - before
		}
		now[uid] = pod.WorkSeconds
	}
	m.pods = now
	return sum
}

// waiting is how many requests wait at a pod. One that prefills for others works on one prompt after another, so that all but one of its
// requests wait, in whatever order its engine reports them.
func (m *Meter) waiting(pod *operatorfeed.PodState) float64 {
	if m.Part == Prefills {
		return float64(max(pod.Waiting, pod.InFlight-1))
	}
	return float64(pod.Waiting)
}

// occupied is the load of a pod by what runs there: the part of its KV cache in use, and where requests wait for a place,
// all of it and what waits beside what runs, at most as much again. More shows when that much has been added.
func occupied(pod *operatorfeed.PodState) float64 {
	if pod.Waiting == 0 {
		return pod.KVUsage
	}
	return 1 + min(1, float64(pod.Waiting)/float64(max(pod.InFlight-pod.Waiting, 1)))
}

// remember keeps the readings of the longest window.
func (m *Meter) remember(now time.Time) {
	m.history = append(m.history, reading{now, m.totals})
	old := 0
	for old < len(m.history)-1 && now.Sub(m.history[old+1].at) >= hitWindow {
		old++
	}
	m.history = append(m.history[:0], m.history[old:]...)
}

// over is what was counted within the last window, or since the first reading.
func (m *Meter) over(window time.Duration) operatorfeed.Totals {
	newest := &m.history[len(m.history)-1]
	from := len(m.history) - 1
	for from > 0 && newest.at.Sub(m.history[from].at) < window {
		from--
	}
	return newest.totals.Since(&m.history[from].totals)
}
