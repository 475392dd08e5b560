package sim

import (
	"slices"
	"time"
)

// act lets a moment pass in which every process does something, and something can fail.
func (w *world) act() {
	w.step++
	for _, p := range w.pods {
		switch {
		case p.engine == nil:
			if p.started--; p.started <= 0 && w.lives < maxLives {
				p.engine = w.newEngine(&p.release)
			}
		case w.rng.IntN(3) > 0:
			if w.rng.IntN(2) == 0 {
				p.engine.request()
			}
			p.engine.step()
		}
	}
	w.break_()
	for _, p := range w.ports() {
		if p.conn == nil && w.rng.IntN(3) == 0 {
			p.connect()
		}
		p.deliver(w.rng.IntN(6))
		p.work(w.rng.IntN(6))
	}
	w.meet(false)
	for _, p := range slices.Clone(w.pushes()) {
		if w.rng.IntN(4) > 0 {
			p.turn()
		}
		if w.chance(w.faults.cutPush) && p.end.push == p {
			w.count("report stream lost")
			p.cut()
		}
	}
	for _, p := range w.pickers {
		if w.rng.IntN(6) == 0 {
			p.sync()
		}
		p.turn()
		if w.rng.IntN(3) == 0 {
			p.speculate()
		}
	}
	w.check()
	w.now = w.now.Add(time.Duration(w.rng.IntN(60)) * time.Millisecond)
	if w.rng.IntN(12) == 0 {
		w.now = w.now.Add(time.Second)
	}
}

// break_ lets something fail.
func (w *world) break_() {
	f := &w.faults
	for _, p := range w.ports() {
		if w.chance(f.stall) {
			w.count("consumer stalled")
			p.stalled = 4 + w.rng.IntN(20)
		}
		if p.conn != nil && w.chance(f.cut) {
			w.count("connection lost")
			p.cut()
		}
	}
	for _, p := range slices.Clone(w.pods) {
		switch {
		case w.chance(f.restart) && p.engine != nil:
			w.count("engine restarted")
			p.end(w)
			p.started = w.rng.IntN(6)
		case w.chance(f.silent) && p.engine != nil:
			w.restartSilently(p)
		case w.chance(f.remove):
			w.removePod(p)
			continue
		}
		if p.reporter == nil {
			continue
		}
		r := p.reporter
		switch {
		case w.chance(f.reporter):
			w.count("reporter restarted with its state")
			if w.rng.IntN(2) == 0 {
				r.save() // else it is what was saved earlier, if anything was
			}
			r.stop()
			p.reporter = w.startReporter(p, r.disk, r.diskEpoch)
		case w.chance(f.amnesia):
			w.count("reporter restarted without its state")
			r.stop()
			p.reporter = w.startReporter(p, nil, 0)
		case w.rng.IntN(20) == 0:
			r.save()
		}
	}
	for i, p := range w.pickers {
		if w.chance(f.picker) {
			w.count("picker restarted")
			p.stop()
			w.pickers[i] = w.startPicker(p.name, p.root)
		}
		if w.chance(f.rotate) && len(w.roots) > 1 {
			root := w.rng.IntN(len(w.roots))
			for _, p := range w.pickers {
				p.rotate(root)
			}
		}
	}
}

// end ends the engine of a pod. What it has sent still arrives, and then the connection's end.
func (p *pod) end(w *world) {
	e := p.engine
	p.engine = nil
	for _, c := range slices.Clone(e.conns) {
		if c.closed = true; len(c.way) == 0 || w.rng.IntN(2) == 0 {
			c.p.cut()
		} else {
			w.count("end of a connection noticed late")
		}
	}
}

// restartSilently begins another life behind the same connections, as behind a proxy. Only the numbers show it, and only if
// they are seen to fall; so the first batch of the new life arrives at once, after all earlier ones.
func (w *world) restartSilently(p *pod) {
	old := p.engine
	if w.lives >= maxLives || old.next < 3 || w.queueBytes < 1<<20 {
		return
	}
	for _, c := range old.conns {
		c.sure = true
	}
	old.events, old.raw = nil, nil
	old.publish(old.encode())
	for _, c := range slices.Clone(old.conns) {
		c.p.stalled = 0
		c.p.deliver(maxWay)
		if c.p.conn != c || c.p.stream.Stats().Malformed.Load() > 0 || !c.p.idle() {
			return
		}
	}
	e := w.newEngine(&p.release)
	p.engine, e.conns, old.conns = e, old.conns, nil
	for _, c := range e.conns {
		c.e = e
	}
	w.count("engine restarted behind the same connection")
	for e.next == 0 {
		e.request()
		e.step()
	}
	for _, c := range slices.Clone(e.conns) {
		c.p.deliver(maxWay)
		c.p.idle()
		c.sure = false
	}
}

// idle applies all that there is, and reports whether that ended.
func (p *port) idle() bool {
	for range 1 << 10 {
		if !p.work(1) {
			return true
		}
	}
	return false
}

// removePod deletes a pod. Pickers notice it later; another one can have its address before.
func (w *world) removePod(p *pod) {
	w.count("pod deleted")
	if p.engine != nil {
		p.end(w)
	}
	if p.reporter != nil {
		p.reporter.stop()
		p.reporter = nil
	}
	p.deleted = true
	w.pods = slices.DeleteFunc(w.pods, func(o *pod) bool { return o == p })
	addr := ""
	if w.rng.IntN(2) == 0 {
		addr = p.addr
		w.count("address used again")
	}
	if len(w.pods) == 0 || w.rng.IntN(4) > 0 {
		w.addPod(addr)
	}
}

// settle ends all failures, gives every process the time that it needs, and judges the result: first the pods whose last
// missed events can be recovered, then all, after further events.
func (w *world) settle() {
	w.calm = true
	defer func() { w.calm = false }()
	for _, p := range w.pods {
		if p.engine == nil {
			if w.lives >= maxLives {
				w.lives-- // it shares the last life's bit, which no engine has any more
			}
			p.engine = w.newEngine(&p.release)
		}
		for range 1000 {
			if !p.engine.model.Busy() {
				break
			}
			p.engine.step()
		}
	}
	root := w.pickers[0].root
	for _, p := range w.pickers {
		p.sync()
		p.rotate(root)
	}
	for _, p := range w.ports() {
		p.stalled = 0
	}
	w.rest(5 * time.Second)
	w.judge(func(p *pod) bool { return p.release.replay && p.engine.told() })
	for _, p := range w.pods {
		for next := p.engine.next; p.engine.next == next; {
			p.engine.request()
			p.engine.step()
		}
	}
	w.rest(5 * time.Second)
	w.judge(func(*pod) bool { return true })
}

// rest lets time pass in which every process does all its pending work.
func (w *world) rest(d time.Duration) {
	for end := w.now.Add(d); ; {
		w.exhaust()
		next := end
		soon := func(at time.Time) {
			if !at.IsZero() && at.After(w.now) && at.Before(next) {
				next = at
			}
		}
		for _, p := range w.ports() {
			soon(p.stream.Wake())
		}
		for _, p := range w.pushes() {
			soon(p.wake)
		}
		for _, p := range w.pickers {
			for _, e := range p.ends {
				soon(e.releaseAt)
			}
		}
		w.now = next
		if next.Equal(end) {
			w.exhaust()
			return
		}
	}
}

// exhaust lets every process do all its pending work.
func (w *world) exhaust() {
	for rounds := 0; ; rounds++ {
		if rounds > 1000 {
			w.fail("the processes do not come to rest")
		}
		moved := false
		w.meet(true)
		for _, p := range w.ports() {
			if p.conn == nil {
				p.connect()
				moved = true
			}
			p.deliver(1 << 20)
			moved = p.work(1<<20) || moved
		}
		for _, p := range slices.Clone(w.pushes()) {
			moved = p.turn() || moved
		}
		for _, p := range w.pickers {
			p.turn()
		}
		if !moved {
			w.check()
			return
		}
	}
}
