package replay

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/hack/demo/summary"
	"github.com/kvasir-dev/kvasir/internal/sim/chat"
	"github.com/kvasir-dev/kvasir/internal/sim/trace"
)

// maxInFlight bounds the requests of the trace that are under way; at the bound the next ones are late, and marked so.
const maxInFlight = 2048

// Plan is what is sent, and when. All its times are the engines' model time.
type Plan struct {
	Model string
	// Trace requests arrive at Arrivals, whatever becomes of those before them.
	Trace    []trace.Request
	Arrivals []time.Duration
	// Chat sends each turn after the answer to the one before.
	Chat *chat.Script
	// SpeedUp is how many seconds of model time pass in one second.
	SpeedUp float64
}

// Requests is the number of requests of a run without errors.
func (p *Plan) Requests() int { return len(p.Trace) + p.Chat.Requests() }

// Counters follow a run; any goroutine can read them.
type Counters struct {
	Sent, Done, Failed atomic.Int64
}

// run is one execution of a plan.
type run struct {
	*Plan
	client   *Client
	counters *Counters
	start    time.Time

	mu      sync.Mutex
	samples []summary.Sample // guarded by mu
	seen    seen             // guarded by mu
	// first are the samples of sessions' first turns, system is the most that one of them has found in a cache: the common system
	// prompt, in whole blocks.
	first  []int // guarded by mu
	system int   // guarded by mu
}

// Run sends everything and returns a sample of each request, in order of their ends. It returns early, with the cause,
// when ctx ends. A chat session ends with its first failed turn.
func (p *Plan) Run(ctx context.Context, client *Client, counters *Counters) ([]summary.Sample, error) {
	r := &run{Plan: p, client: client, counters: counters, start: time.Now(), samples: make([]summary.Sample, 0, p.Requests())}
	var tasks sync.WaitGroup
	tasks.Go(func() { r.replayTrace(ctx) })
	for i := range p.Chat.Sessions {
		tasks.Go(func() { r.converse(ctx, &p.Chat.Sessions[i]) })
	}
	tasks.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	r.holdSystemPrompts()
	return r.samples, nil
}

// holdSystemPrompts completes the first turns of all sessions but the earliest: the system prompt had been sent before.
func (r *run) holdSystemPrompts() {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortFunc(r.first, func(a, b int) int { return cmp.Compare(r.samples[a].Sent, r.samples[b].Sent) })
	for _, i := range r.first[min(1, len(r.first)):] {
		r.samples[i].Held = r.system
	}
}

// replayTrace sends the trace's requests at their times and waits for their ends.
func (r *run) replayTrace(ctx context.Context) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	free := make(chan struct{}, maxInFlight)
	for i := range r.Trace {
		at := r.Arrivals[i]
		if !r.waitUntil(ctx, at) {
			return
		}
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return
		}
		tasks.Go(func() {
			defer func() { <-free }()
			q := &r.Trace[i]
			prompt := trace.AppendTokens(make([]uint32, 0, q.Input), q.Blocks, q.Input)
			r.mu.Lock()
			held := r.seen.add(q.Blocks, q.Input)
			r.mu.Unlock()
			r.send(ctx, &outgoing{
				workload: summary.Trace, planned: at, path: "/v1/completions", held: held, body: completionBody(r.Model, prompt, q.Output),
			})
		})
	}
}

// converse sends the turns of a session, each some time after the answer to the one before.
func (r *run) converse(ctx context.Context, s *chat.Session) {
	at, held := s.Start, 0
	session := "chat-" + strconv.FormatInt(int64(s.Start), 36) // they begin at different times
	messages := []message{{Role: "system", Content: r.Chat.System}}
	for i := range s.Turns {
		turn := &s.Turns[i]
		if i > 0 {
			at = r.now() + turn.Think
		}
		if !r.waitUntil(ctx, at) {
			return
		}
		messages = append(messages, message{Role: "user", Content: turn.User})
		body, err := chatBody(r.Model, messages, turn.MaxTokens)
		if err != nil {
			r.add(&summary.Sample{Workload: summary.Chat, Sent: at, Err: err.Error()}, false)
			return
		}
		a := r.send(ctx, &outgoing{
			workload: summary.Chat, planned: at, path: "/v1/chat/completions", body: body, session: session, first: i == 0, held: held,
		})
		if a == nil {
			return
		}
		held = a.prompt + a.output
		messages = append(messages, message{Role: "assistant", Content: a.text})
	}
}

// outgoing is a request that is to be sent.
type outgoing struct {
	workload      string
	planned       time.Duration
	path, session string
	body          []byte
	// first marks the first turn of a session. held is how many of the prompt's tokens had been sent or generated before.
	first bool
	held  int
}

// send sends a request and records it. It returns nil if it failed.
func (r *run) send(ctx context.Context, q *outgoing) *answer {
	r.counters.Sent.Add(1)
	sent := r.now()
	x := summary.Sample{Workload: q.workload, Sent: sent, Late: r.toWall(sent - q.planned)}
	a, err := r.client.post(ctx, q.path, q.session, q.body)
	if err != nil {
		x.Err = err.Error()
		r.add(&x, false)
		return nil
	}
	x.Held = whole(q.held, a.prompt)
	x.Pod, x.Prefiller, x.Blind, x.Routed, x.Predicted, x.Confirmed = a.pod, a.prefiller, a.blind, a.routed, a.predicted, a.confirmed
	x.Prompt, x.Answer, x.Delivered = a.prompt, a.output, a.cached
	x.TTFT, x.Total = r.toModel(a.ttft), r.toModel(a.total)
	r.add(&x, q.first)
	return a
}

// add records a sample; first marks the first turn of a session.
func (r *run) add(x *summary.Sample, first bool) {
	if x.Err != "" {
		r.counters.Failed.Add(1)
	}
	r.counters.Done.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if first {
		r.first = append(r.first, len(r.samples))
		r.system = max(r.system, x.Delivered)
	}
	r.samples = append(r.samples, *x)
}

// now is the model time since the start.
func (r *run) now() time.Duration { return r.toModel(time.Since(r.start)) }

func (r *run) toModel(wall time.Duration) time.Duration {
	return time.Duration(float64(wall) * r.SpeedUp)
}

func (r *run) toWall(model time.Duration) time.Duration {
	return time.Duration(float64(model) / r.SpeedUp)
}

// waitUntil a model time; false if ctx ended before.
func (r *run) waitUntil(ctx context.Context, at time.Duration) bool {
	wait := r.toWall(at) - time.Since(r.start)
	if wait <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
