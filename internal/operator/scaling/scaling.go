// Package scaling decides how many pods a pool needs. It is pure: samples of what the pickers measure go in, a size and
// its reason come out, and time is an argument.
//
// The triggers are those of the cache-aware proxy of Equixly (queue depth, hit-ratio floor, latency ceiling; queue and
// utilization floors for down). A trigger only shows that a limit is breached. Causes that more pods can fix are separated
// from others: a low hit ratio counts while engines evict blocks that they need again, a queue at some pods beside idle
// ones is caused by routing, and slow answers of idle pods are caused by the prompts. The size is then derived from the
// load, in pods' worth of work, so that one decision closes the entire gap.
package scaling

import (
	"math"
	"time"
)

// Limits and rates of the decision.
const (
	// fullLoad is the load that a pod is taken to bear until a pool shows that its pods bear less.
	fullLoad = 0.8
	// leastLoad bounds what a pool can show.
	leastLoad = 0.1
	// clearTime is the time in which a backlog should be worked off. A backlog that is gone before a pod has started needs none.
	clearTime = time.Minute
	// patience is how long limits can be breached by a pool that its load should fit, before its pods are taken to bear
	// less than was thought.
	patience = time.Minute
	// forget is how long it takes until the half of what a pool has shown about its pods is forgotten, and how long a size
	// that was too small is not tried again.
	forget = 24 * time.Hour
	// regret is the time after removing pods in which a breached limit shows that removing them was wrong.
	regret = 4 * time.Hour
	// lighter is the part of the load at which a size was too small, below which it can be tried again.
	lighter = 0.6
	// smoothing of the load, and of the queue: the weight of a sample falls to a third in this time.
	smoothing      = 30 * time.Second
	queueSmoothing = 10 * time.Second
	// slowly is the smoothing of the load that is compared over hours.
	slowly = 30 * time.Minute
	// pressure is the time in which engines have replaced all that they cache, below which they evict what is needed.
	pressure = 10 * time.Minute
	// fill is how long a changed pool's caches take to show in its hit ratio.
	fill = 10 * time.Minute
	// calm is the mean number of requests that can wait at a pod above the floor without the pool being busy.
	calm = 0.1
	// slack is left when pods go, so that what is left is not at once too few.
	slack = 0.9
	// idlePart: if this part of the pool is idle, a queue is caused by uneven routing, and needs no pod.
	idlePart = 0.5
)

// Spec is the configuration of a pool's size. Zero values of thresholds turn them off.
type Spec struct {
	Min, Max  int
	Up        Up
	Down      Down
	Schedules []Schedule
}

// Up is when a pool grows. Any one signal is enough.
type Up struct {
	WaitingPerReplica float64
	TTFTP99           time.Duration
	HitRatioFloor     float64 // 0 to 1
	Stabilization     time.Duration
	MaxStep           int // 0: the entire deficit
}

// Down is when a pool shrinks. All signals must agree, all through the stabilization time.
type Down struct {
	WaitingPerReplica float64
	UtilizationFloor  float64 // 0 to 1
	Stabilization     time.Duration
	MaxStep           int
	ZeroAfter         time.Duration
}

// Sample is what was measured of a pool since the sample before.
type Sample struct {
	// Serving is the number of pods that serve.
	Serving int
	// Waiting requests: at the pickers, and in the engines' queues.
	Waiting float64
	// Idle is the number of serving pods where nothing waits and that are busy for less than half of the time.
	Idle int
	// Load is the work that arrived, refused or not, in pods: 3.2 keeps 3.2 pods busy all the time.
	Load float64
	// Backlog is the work that waits, in pod-seconds.
	Backlog float64
	// TTFTP99 of what got its first token; 0 when nothing did.
	TTFTP99 time.Duration
	// HitRatio, 0 to 1, of the prompt tokens; negative when none arrived.
	HitRatio float64
	// Turnover is the time in which evictions at this rate replace all that is cached; 0 without evictions.
	Turnover time.Duration
	// LastRequest is when the last request arrived.
	LastRequest time.Time
}

// Reason of a size, in one word.
type Reason string

// The reasons.
const (
	Steady           Reason = "Steady"
	QueueDepth       Reason = "QueueDepth"
	TimeToFirstToken Reason = "TimeToFirstToken"
	HitRatio         Reason = "HitRatio"
	LowUtilization   Reason = "LowUtilization"
	Demand           Reason = "Demand"       // from zero
	NoDemand         Reason = "NoDemand"     // to zero
	AtMinimum        Reason = "Minimum"      // raised to the least size, or a schedule's
	AtMaximum        Reason = "Maximum"      // more would be needed
	Skew             Reason = "Skew"         // a queue beside idle pods: not cured by pods
	SlowPrompts      Reason = "SlowPrompts"  // slow answers of pods that are hardly busy: not cured by pods
	ColdPrompts      Reason = "ColdPrompts"  // a low hit ratio without evictions: not cured by pods
	PodsStarting     Reason = "PodsStarting" // limits are breached, and pods on their way
	NoSamples        Reason = "NoSamples"
)

// Decision is the size that a pool should have.
type Decision struct {
	Size   int
	Reason Reason
	// Wanted is the size without the maximum.
	Wanted int
}

// Scaler follows one pool. The zero value is ready. It is not safe for concurrent use.
type Scaler struct {
	last          time.Time
	load, waiting mean
	slow          mean // of the load
	peaks         peaks
	perPod        float64 // the load that a pod has shown to bear; 0: nothing shown
	tooSmall      failedShrink
	breached      time.Time // since when limits are breached
	calm          time.Time // since when pods are idle
	size          int
	changed       time.Time // when the size was
	shrunk        time.Time // when pods were taken
}

// failedShrink is a size to which a pool was shrunk, and which then was too small for its load.
type failedShrink struct {
	size int
	load float64
	at   time.Time
}

// forbids reports whether a size need not be tried at a load.
func (t *failedShrink) forbids(now time.Time, size int, load float64) bool {
	return size <= t.size && load > lighter*t.load && now.Sub(t.at) < forget
}

// Decide returns the size for a pool whose present target is size pods. A nil sample means that no picker reported.
func (s *Scaler) Decide(now time.Time, spec Spec, sample *Sample, size int) Decision {
	if size != s.size {
		if size < s.size {
			s.shrunk = now
		}
		s.size, s.changed = size, now
		s.breached, s.calm = time.Time{}, time.Time{}
	}
	least := min(max(spec.Min, scheduled(spec.Schedules, now)), spec.Max)
	d := s.decide(now, spec, sample, size, least)
	d.Wanted = d.Size
	switch {
	case d.Size > spec.Max:
		d.Size, d.Reason = spec.Max, AtMaximum
	case d.Size < least:
		d.Size, d.Wanted, d.Reason = least, least, AtMinimum
	}
	return d
}

func (s *Scaler) decide(now time.Time, spec Spec, sample *Sample, size, least int) Decision {
	if sample == nil {
		s.breached, s.calm = time.Time{}, time.Time{}
		return Decision{Size: size, Reason: NoSamples}
	}
	s.observe(now, spec, sample)
	if size == 0 {
		if sample.Waiting > 0 || now.Sub(sample.LastRequest) < spec.Down.ZeroAfter {
			return Decision{Size: 1, Reason: Demand}
		}
		return Decision{Reason: Steady}
	}
	if least == 0 && sample.Waiting == 0 && s.load.value < leastLoad && now.Sub(sample.LastRequest) >= spec.Down.ZeroAfter &&
		now.Sub(s.changed) >= spec.Down.ZeroAfter {
		return Decision{Reason: NoDemand}
	}
	if trigger := s.trigger(spec, sample); trigger != "" {
		s.calm = time.Time{}
		return s.up(now, spec, sample, size, trigger)
	}
	s.breached = time.Time{}
	return s.down(now, spec, sample, size)
}

// observe brings the means up to date.
func (s *Scaler) observe(now time.Time, spec Spec, sample *Sample) {
	age := now.Sub(s.last)
	if s.last.IsZero() {
		age = time.Hour // earlier demand is not known: the first sample counts alone
	}
	s.last = now
	s.load.add(sample.Load, age, smoothing)
	s.slow.add(sample.Load, age, slowly)
	s.waiting.add(sample.Waiting/float64(max(sample.Serving, 1)), age, queueSmoothing)
	s.peaks.add(now, s.load.value, max(spec.Down.Stabilization, clearTime))
	if s.perPod > 0 { // back to the presumption
		keep := math.Exp2(-age.Hours() / forget.Hours())
		if s.perPod = fullLoad - (fullLoad-s.perPod)*keep; fullLoad-s.perPod < 0.01 {
			s.perPod = 0
		}
	}
}

// bears is the load that one pod is taken to bear.
func (s *Scaler) bears() float64 {
	if s.perPod > 0 {
		return s.perPod
	}
	return fullLoad
}

// trigger names the limit that is breached, if any. A queue counts at once, and for as long as its mean is too long,
// because its length fluctuates.
func (s *Scaler) trigger(spec Spec, sample *Sample) Reason {
	waiting := max(s.waiting.value, sample.Waiting/float64(max(sample.Serving, 1)))
	switch {
	case spec.Up.WaitingPerReplica > 0 && waiting > spec.Up.WaitingPerReplica:
		return QueueDepth
	case spec.Up.TTFTP99 > 0 && sample.TTFTP99 > spec.Up.TTFTP99:
		return TimeToFirstToken
	case spec.Up.HitRatioFloor > 0 && sample.HitRatio >= 0 && sample.HitRatio < spec.Up.HitRatioFloor:
		return HitRatio
	}
	return ""
}

// up answers a breached limit: with the size that the load needs, where pods are a cure.
func (s *Scaler) up(now time.Time, spec Spec, sample *Sample, size int, trigger Reason) Decision {
	if trigger == HitRatio {
		return s.upForCache(now, spec, sample, size)
	}
	utilization := s.load.value / float64(max(sample.Serving, 1))
	need := int(math.Ceil((s.load.value + sample.Backlog/clearTime.Seconds()) / s.bears()))
	switch {
	case trigger == TimeToFirstToken && utilization < spec.Down.UtilizationFloor:
		s.breached = time.Time{}
		return Decision{Size: size, Reason: SlowPrompts}
	case need <= size && float64(sample.Idle) >= idlePart*float64(sample.Serving) && sample.Serving > 1:
		s.breached = time.Time{}
		return Decision{Size: size, Reason: Skew}
	}
	if s.breached.IsZero() {
		s.breached = now
	}
	lasted := now.Sub(s.breached)
	if lasted < spec.Up.Stabilization {
		return Decision{Size: size, Reason: Steady}
	}
	if need <= size {
		if sample.Serving < size {
			s.breached = now // the pods that will cure it are on their way
			return Decision{Size: size, Reason: PodsStarting}
		}
		if lasted < patience {
			return Decision{Size: size, Reason: Steady}
		}
		// The load should fit, and does not: these pods bear less.
		s.perPod = max(leastLoad, min(s.bears(), utilization)*slack)
		need = max(size+1, int(math.Ceil(s.load.value/s.perPod)))
	}
	if now.Sub(s.shrunk) < regret {
		s.tooSmall = failedShrink{size: size, load: s.slow.value, at: now}
	}
	return Decision{Size: stepUp(size, need, spec.Up.MaxStep), Reason: trigger}
}

// upForCache adds one pod's cache at a time, because what it brings shows only when it is full.
func (s *Scaler) upForCache(now time.Time, spec Spec, sample *Sample, size int) Decision {
	if sample.Turnover == 0 || sample.Turnover > pressure {
		s.breached = time.Time{}
		return Decision{Size: size, Reason: ColdPrompts}
	}
	if s.breached.IsZero() {
		s.breached = now
	}
	switch {
	case sample.Serving < size:
		return Decision{Size: size, Reason: PodsStarting}
	case now.Sub(s.breached) < spec.Up.Stabilization || now.Sub(s.changed) < fill:
		return Decision{Size: size, Reason: Steady}
	}
	return Decision{Size: size + 1, Reason: HitRatio}
}

// down removes pods that were not needed during all of the stabilization time, and whose load the others can take.
func (s *Scaler) down(now time.Time, spec Spec, sample *Sample, size int) Decision {
	if sample.Serving == 0 || s.waiting.value > spec.Down.WaitingPerReplica+calm ||
		s.load.value/float64(sample.Serving) >= spec.Down.UtilizationFloor {
		s.calm = time.Time{}
		return Decision{Size: size, Reason: Steady}
	}
	if s.calm.IsZero() {
		s.calm = now
	}
	if now.Sub(s.calm) < spec.Down.Stabilization {
		return Decision{Size: size, Reason: Steady}
	}
	need := max(1, int(math.Ceil(s.peaks.max()/(s.bears()*slack))), size-max(spec.Down.MaxStep, 1))
	for need < size && s.tooSmall.forbids(now, need, s.slow.value) {
		need++
	}
	if need >= size {
		return Decision{Size: size, Reason: Steady}
	}
	return Decision{Size: need, Reason: LowUtilization}
}

func stepUp(size, need, step int) int {
	if step > 0 {
		return min(need, size+step)
	}
	return need
}
