package lab

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
	"github.com/kvasir-dev/kvasir/internal/sim/trace"
)

// Workload is a list of requests in the order of their arrival.
type Workload struct {
	Name     string
	Requests []Request
	// Sessions is the number of conversations, before anything was left out.
	Sessions int
	// Dropped counts what was left out.
	Dropped Dropped

	// drawn makes the same workload of another seed; nil where there is only one.
	drawn func(seed uint64) (*Workload, error)
	// more makes it of so many requests, the same at the beginning; nil where there are no more.
	more func(n int) (*Workload, error)
}

// Drawn is the workload as a seed draws it: generated ones differ in all, traces only in when requests arrive.
func (w *Workload) Drawn(seed uint64) (*Workload, error) {
	if w.drawn == nil {
		return w, nil
	}
	return w.drawn(seed)
}

// Dropped counts the requests of a workload that a run does not send.
type Dropped struct {
	// Turns beyond the most that a session can have, and requests beyond the most of the run.
	Turns    int `json:"turns"`
	Requests int `json:"requests"`
	// TooLong for the engines' context.
	TooLong int `json:"tooLong"`
	// Refused by an engine when they were logged, or logged without the length of their prompt.
	Refused int `json:"refused"`
}

// Total of all reasons.
func (d Dropped) Total() int { return d.Turns + d.Requests + d.TooLong + d.Refused }

// Request is one request of a workload.
type Request struct {
	// At is the arrival at normal speed, since the beginning.
	At time.Duration
	// Tick is how far behind At the arrival can lie: times are known no better. The seed of a run decides.
	Tick time.Duration
	// Session is the conversation's number, Turn the request's in it, from 0.
	Session, Turn int
	// Input and Output are lengths in tokens.
	Input, Output int
	// Tenant of the request; empty for none.
	Tenant string
	// Adapter is the LoRA adapter that it is for; empty for the base model.
	Adapter string
	// Model that it asks for, if the run has several pools.
	Model string

	// The prompt: tokens, or the ids of a trace's blocks.
	tokens []uint32
	blocks []int

	known *known
}

// known is what pickers and engines work out of a prompt for the base model, which is most of what a run would compute:
// once for all runs with blocks of one size.
type known struct {
	once        sync.Once
	blockTokens int
	keys        []kvblock.Key
	engine      *enginemodel.Known
}

// Prompt is the request's token ids. The caller can append to it but not change it.
func (r *Request) Prompt() []uint32 {
	if r.tokens != nil {
		return r.tokens[:len(r.tokens):len(r.tokens)]
	}
	return trace.AppendTokens(make([]uint32, 0, r.Input+r.Output), r.blocks, r.Input)
}

// MaxChildren is how many different blocks can follow a block of a conversation: what more follow is shared by many,
// like a system prompt.
const maxChildren = 8

// FromTrace makes a workload of a trace. If the trace does not name sessions they are derived: a request continues the
// session that brought its deepest block that was seen before, unless more than 8 different blocks follow that one in the
// trace. Answers of no tokens get one: no engine generates fewer. The requests of one tick arrive at random times in it:
// within 3 s, and before the next tick.
func FromTrace(name string, list []trace.Request) *Workload {
	w := &Workload{Name: name, Requests: make([]Request, len(list))}
	sessions := newSessions(list)
	turns := map[int]int{}
	for i := range list {
		q := &list[i]
		s := sessions.of(q)
		tick := trace.Tick
		next, _ := slices.BinarySearchFunc(list[i:], q.Timestamp, func(x trace.Request, at int64) int {
			if x.Timestamp <= at {
				return -1
			}
			return 1
		})
		if i+next < len(list) {
			tick = min(tick, time.Duration(list[i+next].Timestamp-q.Timestamp)*time.Millisecond)
		}
		w.Requests[i] = Request{
			At: time.Duration(q.Timestamp-list[0].Timestamp) * time.Millisecond, Tick: tick,
			Session: s, Turn: turns[s], Input: q.Input, Output: max(1, q.Output), blocks: q.Blocks, known: new(known),
		}
		turns[s]++
	}
	w.Sessions = len(turns)
	return w
}

// sessions derives conversations from shared blocks.
type sessions struct {
	children map[int]int // number of different blocks that follow a block
	owner    map[int]int // the session that brought a block
	n        int
}

func newSessions(list []trace.Request) *sessions {
	s := &sessions{children: map[int]int{}, owner: map[int]int{}}
	seen := map[int]bool{}
	for i := range list {
		for j, id := range list[i].Blocks {
			if j > 0 && !seen[id] {
				s.children[list[i].Blocks[j-1]]++
			}
			seen[id] = true
		}
	}
	return s
}

// of is the session of the next request.
func (s *sessions) of(q *trace.Request) int {
	if q.Session != nil {
		return *q.Session
	}
	mine := -1
	for i := len(q.Blocks) - 1; i >= 0; i-- {
		if owner, ok := s.owner[q.Blocks[i]]; ok {
			if s.children[q.Blocks[i]] <= maxChildren {
				mine = owner
			}
			break
		}
	}
	if mine < 0 {
		mine = s.n
		s.n++
	}
	for _, id := range q.Blocks {
		if _, ok := s.owner[id]; !ok {
			s.owner[id] = mine
		}
	}
	return mine
}

// Cap is the workload with at most so many turns of each session; 0 leaves all.
func (w *Workload) Cap(turns int) *Workload {
	if turns <= 0 {
		return w
	}
	out := *w
	out.Requests = nil
	for i := range w.Requests {
		if w.Requests[i].Turn < turns {
			out.Requests = append(out.Requests, w.Requests[i])
		} else {
			out.Dropped.Turns++
		}
	}
	return &out
}

// First is the workload's first n requests; 0 leaves all.
func (w *Workload) First(n int) *Workload {
	if n <= 0 || n >= len(w.Requests) {
		return w
	}
	out := *w
	out.Requests = w.Requests[:n]
	out.Dropped.Requests += len(w.Requests) - n
	return &out
}

// Fitting is the workload without the requests that do not fit a context of so many tokens, answers included.
func (w *Workload) Fitting(context int) *Workload {
	out := *w
	out.Requests = nil
	for i := range w.Requests {
		if r := &w.Requests[i]; r.Input+r.Output <= context {
			out.Requests = append(out.Requests, *r)
		} else {
			out.Dropped.TooLong++
		}
	}
	return &out
}

// Arrivals are the times of the requests under a seed and a speed, each within its tick; those of a session keep their
// order.
func (w *Workload) Arrivals(seed uint64, speed float64) []time.Duration {
	rng := rand.New(rand.NewPCG(seed, 0x6172726976616c73))
	out := make([]time.Duration, len(w.Requests))
	last := map[int]time.Duration{}
	for i := range w.Requests {
		r := &w.Requests[i]
		at := r.At + time.Duration(rng.Float64()*float64(r.Tick))
		at = max(at, last[r.Session])
		last[r.Session] = at
		out[i] = time.Duration(float64(at) / speed)
	}
	return out
}
