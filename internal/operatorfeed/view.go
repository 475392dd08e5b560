package operatorfeed

import "time"

// View is what the live replicas of a pool's picker know together. It is immutable. The zero View is that of a
// picker without a replica: there are no picks.
type View struct {
	// Replicas that report, by name.
	Replicas []State
	// Silent are ready replicas without a recent report: they might still pick anything.
	Silent []string
	// Refusing are replicas that do not serve the pool, and report why. Those that are ready are Silent, too: requests can still
	// run that they had sent before.
	Refusing []State
	// Totals are the counters of all replicas since the operator has begun to listen, including those that are
	// gone; Waiting and LastRequest are of those that report.
	Totals Totals

	pods         map[string]PodState
	acknowledged map[string]time.Time
	readings     map[string][]Reading
}

// Live is the number of replicas that might pick.
func (v *View) Live() int { return len(v.Replicas) + len(v.Silent) }

// Acknowledged reports whether every live replica has reported that it no longer picks the pod, and when the last of them
// first reported so. If no replica is live there are no picks, and the time is zero.
func (v *View) Acknowledged(uid string) (since time.Time, ok bool) {
	if v.Live() == 0 {
		return time.Time{}, true
	}
	since, ok = v.acknowledged[uid]
	return since, ok
}

// Pod is what is known of a pod; false when no reporting replica has seen it.
func (v *View) Pod(uid string) (PodState, bool) {
	s, ok := v.pods[uid]
	return s, ok
}

// Value of a pod's cache: tokens that requests recently found there and nowhere else; 0 when nothing is known.
func (v *View) Value(uid string) float64 { return v.pods[uid].Value }

// InFlight is the requests that the pickers have sent to the pod and that have not ended, as far as is known.
func (v *View) InFlight(uid string) int { return v.pods[uid].InFlight }

// Synced reports whether every live replica knows in full what the pod holds.
func (v *View) Synced(uid string) bool {
	return len(v.Silent) == 0 && len(v.Replicas) > 0 && v.pods[uid].Synced
}

// KeyID is the fingerprint of the key root that all live replicas use; empty while they differ, or one does not report.
func (v *View) KeyID() string {
	if len(v.Replicas) == 0 || len(v.Silent) > 0 {
		return ""
	}
	for i := range v.Replicas {
		if v.Replicas[i].KeyID != v.Replicas[0].KeyID {
			return ""
		}
	}
	return v.Replicas[0].KeyID
}

// Tokens is the worst that a replica has found of the pool's tokens; false when none has looked.
func (v *View) Tokens() (Finding, bool) {
	return v.worst(func(s *State) Finding { return s.Tokens })
}

// Predictions is the worst that a replica has found of what it expects to be cached; false when none has looked. A
// replica that gets few answers is no cause for doubt where another trusts its predictions.
func (v *View) Predictions() (Finding, bool) {
	worst, ok := v.worst(func(s *State) Finding { return s.Predictions })
	if worst.Verdict != Unclear {
		return worst, ok
	}
	for i := range v.Replicas {
		if f := v.Replicas[i].Predictions; f.Verdict == Good {
			return f, true
		}
	}
	return worst, ok
}

// Gateways is the worst finding of any replica about the gateways that send it requests; false when no replica has seen
// one.
func (v *View) Gateways() (Finding, bool) {
	return v.worst(func(s *State) Finding { return s.Gateways })
}

// Model is the worst finding of any replica about the models that the engines list; false when none has seen a list.
func (v *View) Model() (Finding, bool) {
	return v.worst(func(s *State) Finding { return s.Model })
}

// Refused is why a replica cannot apply this generation of the pool with what it names; false when none has said so.
func (v *View) Refused(generation int64) (Finding, bool) {
	for _, list := range [][]State{v.Refusing, v.Replicas} {
		for i := range list {
			if s := &list[i]; s.Accepted.Verdict == Bad && s.AcceptedGeneration == generation {
				return s.Accepted, true
			}
		}
	}
	return Finding{}, false
}

// Resources is the worst finding of any replica about its resources; false when no replica reports it.
func (v *View) Resources() (Finding, bool) {
	return v.worst(func(s *State) Finding { return s.Resources })
}

func (v *View) worst(of func(*State) Finding) (worst Finding, ok bool) {
	for i := range v.Replicas {
		f := of(&v.Replicas[i])
		if f.Verdict != NoVerdict && (!ok || f.Verdict < worst.Verdict) {
			worst, ok = f, true
		}
	}
	return worst, ok
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
