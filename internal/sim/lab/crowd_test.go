package lab

import (
	"math"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// TestACrowdIsMoreSessionsAtTheirOwnPace: three times as many begin, and the turns of a session are as far apart as they
// were in the workload.
func TestACrowdIsMoreSessionsAtTheirOwnPace(t *testing.T) {
	const horizon = 2 * time.Minute
	chat, err := Generate("chat", 100, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []*Workload{chat, slice(t)} {
		if w, err = w.reaching(6, horizon); err != nil {
			t.Fatal(err)
		}
		pauses := map[time.Duration]bool{}
		for _, pause := range turns(w) {
			pauses[pause] = true
		}
		one, more := w.crowd(1, 2, horizon), w.crowd(1, 6, horizon)
		if ratio := float64(more.Sessions) / float64(one.Sessions); math.Abs(ratio-3) > 0.3 {
			t.Errorf("%s: %d sessions of twice the rate, %d of six times", w.Name, one.Sessions, more.Sessions)
		}
		for _, pause := range turns(more) {
			if !pauses[pause] {
				t.Fatalf("%s: a pause of %v between turns that the workload does not have", w.Name, pause)
			}
		}
		if last := more.Requests[len(more.Requests)-1].At; last >= horizon || last < horizon*9/10 {
			t.Errorf("%s: the last request comes at %v", w.Name, last)
		}
	}
	if _, err := slice(t).reaching(1, time.Hour); err == nil {
		t.Error("ten minutes of a trace reach an hour")
	}
}

// turns are the times between the turns of each session.
func turns(w *Workload) (list []time.Duration) {
	last := map[int]time.Duration{}
	for i := range w.Requests {
		r := &w.Requests[i]
		if before, ok := last[r.Session]; ok {
			list = append(list, r.At-before)
		}
		last[r.Session] = r.At
	}
	return list
}

// TestCopiesOfATraceShareWhatItsSessionsShare, and nothing else.
func TestCopiesOfATraceShareWhatItsSessionsShare(t *testing.T) {
	w := slice(t)
	of := func(w *Workload) map[int]map[int]bool { // sessions by block
		out := map[int]map[int]bool{}
		for i := range w.Requests {
			for _, id := range w.Requests[i].blocks {
				if out[id] == nil {
					out[id] = map[int]bool{}
				}
				out[id][w.Requests[i].Session/2] = true
			}
		}
		return out
	}
	for i := range w.Requests {
		w.Requests[i].Session *= 2 // as copies number them
	}
	before := of(w)
	for i := range w.Requests {
		w.Requests[i].Session /= 2
	}
	for id, sessions := range of(w.crowd(1, 3, time.Hour)) {
		if n := len(before[id]); n <= 1 && len(sessions) > 1 || n > 1 && len(sessions) != 3*n {
			t.Fatalf("block %d of %d sessions is one of %d in three copies", id, n, len(sessions))
		}
	}
}

// TestWhoIsRefusedTooOftenGivesUp: a turn that is refused is sent again, and a session that gives up sends no more turns.
func TestWhoIsRefusedTooOftenGivesUp(t *testing.T) {
	chat, err := Generate("chat", 1000, 1)
	if err != nil {
		t.Fatal(err)
	}
	c := Config{
		Workload: chat, Strategy: only(t, "MarginalCost"), Pods: 1, Profile: profile(t, "8b-h100"), BlockTokens: 128, Seed: 1, Speed: 1000, Think: true,
		Admission: picker.AdmissionSpec{Queue: true, Slowdown: 2, Limits: admission.Limits{Requests: 8, Bytes: 1 << 40, TTL: time.Minute, Hold: time.Minute}},
	}
	answered := map[int]int{}
	for _, retries := range []int{1, 5} {
		c.Retries = retries
		r, err := Run(c)
		if err != nil {
			t.Fatal(err)
		}
		if r.Shed == 0 || r.Shed > chat.Sessions || r.Requests+r.Shed >= len(chat.Requests) {
			t.Errorf("%d retries: %d of %d sessions gave up, %d of %d requests were answered", retries, r.Shed, chat.Sessions, r.Requests, len(chat.Requests))
		}
		answered[retries] = r.Requests
	}
	if answered[5] <= answered[1] {
		t.Errorf("answered by retries: %v", answered)
	}
}

// TestARunEndsAtItsHorizon: what has no first token then is noted as that.
func TestARunEndsAtItsHorizon(t *testing.T) {
	rag, err := Generate("rag", 500, 1)
	if err != nil {
		t.Fatal(err)
	}
	const horizon = 5 * time.Second
	r, err := Run(Config{
		Workload: rag, Strategy: only(t, "MarginalCost"), Pods: 1, Profile: profile(t, "8b-h100"), BlockTokens: 128, Seed: 1, Speed: 100, Horizon: horizon,
	})
	if err != nil {
		t.Fatal(err)
	}
	had, cut := 0, 0
	for _, s := range r.served {
		if s.first == never {
			cut++
		} else if had++; s.first >= horizon {
			t.Errorf("a first token at %v", s.first)
		}
	}
	if had == 0 || cut == 0 || had+cut != 500 {
		t.Errorf("%d had a first token, %d had none", had, cut)
	}
}
