package operatorfeed

import (
	"cmp"
	"slices"
	"time"
)

// Fresh is how long a replica counts as reporting after its last State. It sends one every second.
const Fresh = 5 * time.Second

// Expected is one pod of the picker, as the cluster reports it.
type Expected struct {
	// Picker is its name, as in State.
	Picker string
	// Ready is the pod's condition.
	Ready bool
}

// Pool gathers the reports of all replicas of one pool. The zero value is ready for use. It is not safe for concurrent use.
type Pool struct {
	replicas map[string]*replica  // by picker
	counted  Totals               // of all replicas since the Pool began, without gauges
	readings map[string][]Reading // by pod UID
}

type replica struct {
	state    State
	received time.Time
	// draining is when the present incarnation first reported it, for each pod that it reports now.
	draining map[string]time.Time
}

// Receive takes a replica's state.
//
// Events that a replica counted before its first report are left out, as their time is not known. A known replica with
// another incarnation has restarted meanwhile, and counts in full.
func (p *Pool) Receive(now time.Time, s State) {
	if p.replicas == nil {
		p.replicas = map[string]*replica{}
	}
	before, known := p.replicas[s.Picker]
	next := &replica{state: s, received: now, draining: map[string]time.Time{}}
	same := known && before.state.Incarnation == s.Incarnation
	for uid, pod := range s.Pods {
		if !pod.Draining {
			continue
		}
		next.draining[uid] = now
		if same {
			if since, ok := before.draining[uid]; ok {
				next.draining[uid] = since
			}
		}
	}
	if known {
		var from Totals
		if same && !before.state.Unserved && !s.Unserved { // a pool that is served again counts from zero
			from = before.state.Totals
		}
		more := s.Totals.Since(&from).clearGauges()
		p.counted = p.counted.Plus(&more)
	}
	p.replicas[s.Picker] = next
	p.read(now, &s)
}

// View is what is known now, of the expected replicas. Others are forgotten: their pods were removed.
func (p *Pool) View(now time.Time, expected []Expected) View {
	v := View{Totals: p.counted, pods: map[string]PodState{}, acknowledged: map[string]time.Time{},
		readings: map[string][]Reading{}}
	expected = slices.SortedFunc(slices.Values(expected), func(a, b Expected) int { return cmp.Compare(a.Picker, b.Picker) })
	names := map[string]bool{}
	var reporting []*replica
	for _, e := range expected {
		names[e.Picker] = true
		r := p.replicas[e.Picker]
		fresh := r != nil && now.Sub(r.received) <= Fresh
		if fresh && r.state.Unserved {
			v.Refusing = append(v.Refusing, r.state)
			fresh = false // it says nothing of its requests
		}
		switch {
		case fresh:
			reporting = append(reporting, r)
			v.Replicas = append(v.Replicas, r.state)
		case e.Ready:
			v.Silent = append(v.Silent, e.Picker)
		}
	}
	for name := range p.replicas {
		if !names[name] {
			delete(p.replicas, name)
		}
	}
	for _, r := range reporting {
		gauges := r.state.Totals.gauges()
		v.Totals = v.Totals.Plus(&gauges)
		for uid := range r.state.Pods {
			if _, done := v.pods[uid]; !done {
				v.pods[uid] = merge(uid, reporting)
				v.acknowledge(uid, reporting)
			}
		}
	}
	for uid, readings := range p.readings {
		if !v.pods[uid].Draining {
			delete(p.readings, uid)
			continue
		}
		v.readings[uid] = readings
	}
	return v
}

// acknowledge notes since when a pod's mark is, if every live replica has said so.
func (v *View) acknowledge(uid string, reporting []*replica) {
	if len(v.Silent) > 0 {
		return
	}
	var last time.Time
	for _, r := range reporting {
		at, ok := r.draining[uid]
		if !ok {
			return
		}
		if at.After(last) {
			last = at
		}
	}
	v.acknowledged[uid] = last
}

// merge is what the replicas know of a pod together. Requests, and with them hits, are counted by the one replica that
// has placed them, so that these are sums. What a pod holds is known when every replica knows it; of what each has
// measured the most counts.
func merge(uid string, reporting []*replica) PodState {
	all := PodState{Draining: true, Synced: true}
	for _, r := range reporting {
		one, known := r.state.Pods[uid]
		if !known {
			one.Reason = ReasonUnknown
		}
		all.Draining = all.Draining && one.Draining
		all.Synced = all.Synced && one.Synced
		all.Degraded = all.Degraded || one.Degraded
		all.Reason = cmp.Or(all.Reason, one.Reason)
		all.InFlight += one.InFlight
		all.UncachedTokens += one.UncachedTokens
		all.WorkSeconds += one.WorkSeconds
		all.Waiting = max(all.Waiting, one.Waiting)
		all.KVUsage = max(all.KVUsage, one.KVUsage)
		all.Blocks = max(all.Blocks, one.Blocks)
		all.Value += one.Value
	}
	return all
}

// ReasonUnknown is the reason where a replica has not seen the pod yet.
const ReasonUnknown = "Unknown"
