package lab

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// maxCrowd bounds how many requests a generated workload grows to.
const maxCrowd = 4_000_000

// reaching is a workload long enough for a crowd: one that is generated grows, a trace is as long as it is.
func (w *Workload) reaching(times float64, horizon time.Duration) (*Workload, error) {
	if w.more == nil {
		if last := w.Requests[len(w.Requests)-1].At; last < horizon {
			return nil, fmt.Errorf("%w: %s lasts %v, less than the horizon of %v", errConfig, w.Name, last, horizon)
		}
		return w, nil
	}
	need := time.Duration(max(1, times) * float64(horizon))
	for {
		have := time.Duration(0) // when the last session begins
		for i := range w.Requests {
			if r := &w.Requests[i]; r.Turn == 0 {
				have = max(have, r.At)
			}
		}
		if have >= need {
			return w, nil
		}
		n := int(float64(len(w.Requests)) * min(8, max(1.3, 1.1*need.Seconds()/max(1, have.Seconds()))))
		if n > maxCrowd {
			return nil, fmt.Errorf("%w: %s at %g times its rate for %v is more than %d requests", errConfig, w.Name, times, horizon, maxCrowd)
		}
		var err error
		if w, err = w.more(n); err != nil {
			return nil, err
		}
	}
}

// crowd is the workload within a horizon when sessions begin so many times as often, each at its own pace: the times
// between the turns of a session do not change. The workload must reach so far.
//
// A generated workload has more sessions. A trace is laid over itself, shifted by a random time for each copy; the part
// that runs over its end continues at its beginning. Blocks that only one session has differ in each copy; blocks that
// several have, such as system prompts, are the same in all.
func (w *Workload) crowd(seed uint64, times float64, horizon time.Duration) *Workload {
	out := *w
	out.drawn, out.more = nil, nil
	if w.more != nil {
		out.Requests = w.denser(times)
	} else {
		out.Requests = w.copies(seed, times)
	}
	slices.SortStableFunc(out.Requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	end, _ := slices.BinarySearchFunc(out.Requests, horizon, func(r Request, at time.Duration) int { return cmp.Compare(r.At, at) })
	out.Requests = out.Requests[:end]
	sessions := map[int]bool{}
	for i := range out.Requests {
		sessions[out.Requests[i].Session] = true
	}
	out.Sessions = len(sessions)
	return &out
}

// denser has the sessions begin more often.
func (w *Workload) denser(times float64) []Request {
	list := slices.Clone(w.Requests)
	began := map[int]time.Duration{}
	for i := range list {
		r := &list[i]
		if _, ok := began[r.Session]; !ok {
			began[r.Session] = r.At
		}
		at := began[r.Session]
		r.At += time.Duration(float64(at)/times) - at
	}
	return list
}

// copies lays a trace over itself.
func (w *Workload) copies(seed uint64, times float64) []Request {
	owner, shared, most := map[int]int{}, map[int]bool{}, 0 // by block
	for i := range w.Requests {
		r := &w.Requests[i]
		for _, id := range r.blocks {
			if s, ok := owner[id]; ok && s != r.Session {
				shared[id] = true
			}
			owner[id] = r.Session
			most = max(most, id)
		}
	}
	rng := rand.New(rand.NewPCG(seed, 0x636f70696573))
	last := &w.Requests[len(w.Requests)-1]
	length := last.At + last.Tick
	var list []Request
	for copied := range int(math.Ceil(times)) {
		shift := time.Duration(rng.Float64() * float64(length))
		comes := map[int]bool{} // sessions, of the last copy a part
		for i := range w.Requests {
			r := w.Requests[i]
			in, ok := comes[r.Session]
			if !ok {
				in = rng.Float64() < times-float64(copied)
				comes[r.Session] = in
			}
			if !in {
				continue
			}
			r.At += shift
			r.Session = 2 * (r.Session + copied*(w.Sessions+1))
			if r.At >= length {
				r.At -= length
				r.Session++
			}
			if copied > 0 {
				r.known, r.blocks = new(known), slices.Clone(r.blocks)
				for j, id := range r.blocks {
					if !shared[id] {
						r.blocks[j] = id + copied*(most+1)
					}
				}
			}
			list = append(list, r)
		}
	}
	return list
}
