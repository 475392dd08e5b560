package operate

import "time"

// View is what the live replicas of a pool's picker know together. It is immutable. The zero View is that of a picker
// without a replica: nobody picks.
type View struct {
	// Replicas that are heard, by name.
	Replicas []State
	// Unheard are replicas that are ready and have told nothing lately: they may still pick anything.
	Unheard []string
	// Totals are the counters of all replicas since the operator has begun to listen, also of those that are gone;
	// Waiting and LastRequest are of those that are heard.
	Totals Totals

	pods         map[string]PodState
	acknowledged map[string]time.Time
}

// Live is the number of replicas that may pick.
func (v *View) Live() int { return len(v.Replicas) + len(v.Unheard) }

// Acknowledged tells whether every live replica has said that it no longer picks the pod, and when the last of them
// was first heard saying so. Where no replica is live nobody picks, and the time is zero.
func (v *View) Acknowledged(uid string) (since time.Time, ok bool) {
	if v.Live() == 0 {
		return time.Time{}, true
	}
	since, ok = v.acknowledged[uid]
	return since, ok
}

// Pod is what is known of a pod; false when no replica that is heard has seen it.
func (v *View) Pod(uid string) (PodState, bool) {
	s, ok := v.pods[uid]
	return s, ok
}

// Value of a pod's cache: tokens that requests of late found there and nowhere else; 0 when nothing is known.
func (v *View) Value(uid string) float64 { return v.pods[uid].Value }

// InFlight is the requests that the pickers have sent to the pod and that have not ended, as far as is known.
func (v *View) InFlight(uid string) int { return v.pods[uid].InFlight }

// Synced tells whether every live replica knows in full what the pod holds.
func (v *View) Synced(uid string) bool {
	return len(v.Unheard) == 0 && len(v.Replicas) > 0 && v.pods[uid].Synced
}

// Programmed counts the live replicas whose picks follow this generation of this policy, or a later one.
func (v *View) Programmed(policy string, generation int64) (n, of int) {
	for i := range v.Replicas {
		if s := &v.Replicas[i]; s.PolicyName == policy && s.PolicyGeneration >= generation {
			n++
		}
	}
	return n, v.Live()
}
