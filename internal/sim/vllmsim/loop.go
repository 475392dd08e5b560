package vllmsim

import (
	"slices"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// maxLag bounds how far a loop that lacks CPU runs after its schedule, in wall time: what it is later than that is not
// caught up.
const maxLag = 250 * time.Millisecond

// loop runs the model's steps in real time. One goroutine owns the model; others send it commands, which it executes
// between steps.
type loop struct {
	model    *enginemodel.Engine
	speedUp  float64
	interval int // tokens between notifications
	pub      *publisher
	metrics  *metrics
	start    time.Time
	// keep takes over the blocks of a request that has ended.
	keep func(id string, r *enginemodel.Request)

	streams []*stream // by slot
	free    []int     // unused slots
	live    int
	// schedule is when the last step ended by the model, since start; 0 after a pause.
	schedule time.Duration

	mu       sync.Mutex
	commands []func() // guarded by mu
	paused   bool     // guarded by mu
	held     bool     // guarded by mu; as paused, but by a client
	stopped  bool     // guarded by mu
	wake     chan struct{}
	quit     chan struct{}
	done     chan struct{}
}

func newLoop(model *enginemodel.Engine, c Config, pub *publisher, m *metrics) *loop {
	return &loop{
		model: model, speedUp: c.SpeedUp, interval: c.StreamInterval, pub: pub, metrics: m, start: time.Now(),
		wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
}

// now is the model's time.
func (l *loop) now() time.Duration { return l.toModel(time.Since(l.start)) }

func (l *loop) toModel(wall time.Duration) time.Duration {
	return time.Duration(float64(wall) * l.speedUp)
}

func (l *loop) toWall(model time.Duration) time.Duration {
	return time.Duration(float64(model) / l.speedUp)
}

// do sends the loop a command. After stop it reports false and the command is not run.
func (l *loop) do(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return false
	}
	l.commands = append(l.commands, f)
	l.signal()
	return true
}

// call runs f on the loop and waits for it. It reports false, without f, once the loop has stopped.
func (l *loop) call(f func()) bool {
	ran := make(chan struct{})
	if !l.do(func() { f(); close(ran) }) {
		return false
	}
	select {
	case <-ran:
		return true
	case <-l.done:
		return false
	}
}

func (l *loop) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// pause returns when no step is under way; none begins until resume.
func (l *loop) pause() {
	l.mu.Lock()
	l.paused = true
	l.mu.Unlock()
	l.call(func() {})
}

func (l *loop) resume() {
	l.mu.Lock()
	l.paused = false
	l.mu.Unlock()
	l.signal()
}

// hold is pause or resume on behalf of a client, and changes nothing of what those have done.
func (l *loop) hold(held bool) {
	l.mu.Lock()
	l.held = held
	l.mu.Unlock()
	l.call(func() {})
}

func (l *loop) isHeld() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

// step takes one step of a paused loop, without its duration, and reports whether there was anything to do.
func (l *loop) step() bool {
	worked := false
	l.call(func() { worked = l.takeStep(false) })
	return worked
}

// stop ends the loop after the step that is under way is cut short.
func (l *loop) stop() {
	l.mu.Lock()
	first := !l.stopped
	l.stopped = true
	l.mu.Unlock()
	if first {
		close(l.quit)
	}
	<-l.done
}

func (l *loop) run() {
	defer close(l.done)
	defer l.drop()
	for {
		commands, paused := l.take()
		for _, f := range commands {
			f()
		}
		select {
		case <-l.quit:
			return
		default:
		}
		if len(commands) > 0 && paused {
			continue // a command might have arrived while these ran
		}
		if !paused && l.takeStep(true) {
			continue
		}
		l.schedule = 0
		select {
		case <-l.wake:
		case <-l.quit:
			return
		}
	}
}

// drop ends what is left as aborted, so that no handler waits for a loop that has ended.
func (l *loop) drop() {
	commands, _ := l.take()
	for _, f := range commands {
		f()
	}
	for _, s := range l.streams {
		if s != nil {
			l.abortNow(s)
		}
	}
}

func (l *loop) take() (commands []func(), paused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	commands, l.commands = l.commands, nil
	return commands, l.paused || l.held
}

// takeStep runs a step of the model, waits until it would have ended, and shows its results. The waits follow an
// absolute schedule, so that late timers do not add up. It reports false when there was nothing to do.
func (l *loop) takeStep(wait bool) bool {
	wall := time.Since(l.start)
	begin := wall
	if l.schedule > 0 {
		begin = min(wall, max(l.schedule, wall-maxLag))
	}
	res, ok := l.model.Step(l.toModel(begin))
	if !ok {
		return false
	}
	var payload []byte
	if len(res.Events) > 0 && l.pub != nil {
		payload = l.pub.encode(res.Events, time.Now())
	}
	if wait {
		end := begin + l.toWall(res.Duration)
		if !sleepUntil(l.start, end, l.quit) {
			return false
		}
		l.schedule = end
		l.metrics.late(time.Since(l.start) - end)
	}
	if payload != nil {
		l.pub.publish(payload)
	}
	l.metrics.step(l.model.Stats())
	for i := range res.Outputs {
		l.output(&res.Outputs[i])
	}
	return true
}

// output shows a token to its handler if it is time to.
func (l *loop) output(o *enginemodel.Output) {
	s := l.streams[o.Request.Slot]
	tokens := o.Request.Output()
	if o.First {
		l.metrics.first(o.Request)
	}
	switch {
	case o.Last:
		l.release(s)
		l.metrics.finished(o.Request, s.reason)
		if s.holds != "" {
			s.blocks = slices.Clone(o.Request.Blocks())
			l.keep(s.holds, o.Request)
		}
		s.show(tokens, o.Request.CachedTokens, s.reason)
	case o.First || len(tokens)-s.notified >= l.interval:
		s.notified = len(tokens)
		s.show(tokens, o.Request.CachedTokens, "")
	}
}

// submit sends the loop a request. The stream ends as aborted at once when the loop has stopped.
func (l *loop) submit(s *stream) {
	arrived := l.now()
	ok := l.do(func() {
		if n := len(l.free); n > 0 {
			s.req.Slot = l.free[n-1]
			l.free = l.free[:n-1]
		} else {
			s.req.Slot = len(l.streams)
			l.streams = append(l.streams, nil)
		}
		l.streams[s.req.Slot] = s
		l.live++
		if l.schedule > 0 {
			// A loop that runs after its schedule has its steps in the past: none can begin before a request arrived.
			arrived = min(arrived, l.toModel(l.schedule))
		}
		l.model.Add(s.req, arrived)
	})
	if !ok {
		s.show(nil, 0, finishAbort)
	}
}

// abort ends a request; nothing happens if it has ended.
func (l *loop) abort(s *stream) {
	l.do(func() { l.abortNow(s) })
}

func (l *loop) abortNow(s *stream) {
	if !l.model.Abort(s.req, l.now()) {
		return
	}
	l.release(s)
	l.metrics.finished(s.req, finishAbort)
	s.show(s.req.Output(), s.req.CachedTokens, finishAbort)
}

// abortAll ends every request.
func (l *loop) abortAll() {
	l.call(func() {
		for _, s := range l.streams {
			if s != nil {
				l.abortNow(s)
			}
		}
	})
}

func (l *loop) release(s *stream) {
	l.streams[s.req.Slot] = nil
	l.free = append(l.free, s.req.Slot)
	l.live--
}
