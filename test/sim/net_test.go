package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/vllm"
)

var (
	errCut     = errors.New("connection cut")
	errRefused = errors.New("connection refused")
)

// conn is a connection of a subscriber to a publisher. Messages on the way stay in order.
type conn struct {
	e      *engine
	p      *port
	link   context.Context
	cancel context.CancelFunc
	way    []message
	// sure connections lose nothing.
	sure bool
	// closed records that the publisher's end is closed: messages on the way still arrive, and then the subscriber notices.
	closed bool
}

type message struct {
	seq     uint64
	payload []byte
	frames  int // of the message; 3 unless it is malformed
}

// maxWay is how many messages a publisher queues for a subscriber before it drops them.
const maxWay = 48

// send puts a message on the way, or not, or twice, or something else.
func (c *conn) send(seq uint64, payload []byte) {
	w := c.e.w
	switch {
	case c.closed:
	case len(c.way) >= maxWay:
		w.count("dropped at the publisher")
	case c.sure:
		c.way = append(c.way, message{seq, payload, 3})
	case w.chance(w.faults.lose):
		w.count("lost")
	case w.chance(w.faults.repeat):
		w.count("repeated")
		c.way = append(c.way, message{seq, payload, 3}, message{seq, payload, 3})
	case w.chance(w.faults.spoil):
		c.way = append(c.way, message{seq, w.spoil(payload), 3})
	case w.chance(w.faults.malform):
		w.count("malformed")
		c.way = append(c.way, message{seq, payload, 1 + w.rng.IntN(2)}, message{seq, payload, 3})
	case w.chance(w.faults.far):
		w.count("number far ahead")
		c.way = append(c.way, message{seq + 1<<40, payload, 3}, message{seq, payload, 3})
	default:
		c.way = append(c.way, message{seq, payload, 3})
	}
}

// port is a subscriber: a production stream, and the connection that it has.
type port struct {
	w         *world
	name      string
	dial      func() *engine // the engine at the address now; nil for none
	stream    *events.Stream
	conn      *conn
	life      int // of the batch decoded last, -1 for none
	onLife    func(life int)
	overflows int // counted so far
	// stalled counts the steps for which nothing is applied.
	stalled int
	late    []message // what was on the way when a connection was lost
	joined  bool      // a reporter's mirror joins the parts of our blocks
	dirty   bool
	during  func() // is called in the middle of replays
}

// newPort makes a stream and the transport of its replays.
func (w *world) newPort(name string, dial func() *engine, feed *events.Feed) *port {
	p := &port{w: w, name: name, dial: dial, life: -1}
	p.stream = events.NewStream(*feed, events.Config{
		Source: p, Log: w.logger(name), Join: p.join,
		NewDecoder: func(engine string) events.Decoder { return &decoder{p, vllm.NewDecoder(engine)} },
		Now:        func() time.Time { return w.now },
		Sleep: func(ctx context.Context, _ time.Duration) bool {
			p.interleave(ctx)
			return ctx.Err() == nil
		},
		QueueBytes: w.queueBytes, MaxBlocks: w.maxBlocks, MaxOrphans: w.maxOrphans, MaxOrphanBytes: w.maxOrphans * 400,
		ReplayAttempts: 2, MinQuiet: 300 * time.Millisecond, MaxQuiet: time.Second,
		MinResync: 200 * time.Millisecond, MaxResync: time.Second,
	})
	return p
}

// join is what a picker does for engines whose blocks are parts of key blocks.
func (p *port) join(f *events.Feed, stats *events.Stats, share *budget.Share) events.Sink {
	p.joined = true
	p.w.count("mirror in the picker's process")
	return cachesync.Join(f, stats, share)
}

// logger writes what a stream logs into the trace, if there is one.
func (w *world) logger(name string) logr.Logger {
	if w.trace == nil {
		return logr.Discard()
	}
	return funcr.New(func(_, args string) { fmt.Fprintf(w.trace, "step %d: %s: %s\n", w.step, name, args) }, funcr.Options{Verbosity: 1})
}

// decoder records whose batches are decoded.
type decoder struct {
	p *port
	*vllm.Decoder
}

func (d *decoder) Decode(payload []byte, into *kvevent.Batch) error {
	err := d.Decoder.Decode(payload, into)
	if err == nil {
		d.p.life = d.p.w.lifeOf(into.Time)
		if d.p.onLife != nil {
			d.p.onLife(d.p.life)
		}
	}
	return err
}

// connect dials the engine that is at the address now.
func (p *port) connect() {
	e := p.dial()
	if e == nil {
		p.stream.Down(errRefused)
		return
	}
	link, cancel := context.WithCancel(context.Background())
	p.conn = &conn{e: e, p: p, link: link, cancel: cancel}
	e.conns = append(e.conns, p.conn)
	p.stream.Up(link)
	p.dirty = true
	if len(p.late) > 0 && e.replay && p.late[0].seq < e.next && e.life == p.life && p.w.chance(p.w.faults.late) {
		// A message of the connection before arrives after the replay over this one.
		p.conn.way = append(p.conn.way, p.late[p.w.rng.IntN(len(p.late))])
		p.w.count("reordered across a reconnect")
	}
	p.late = nil
}

// cut ends the connection at the subscriber's end.
func (p *port) cut() {
	c := p.conn
	if c == nil {
		return
	}
	p.late = c.way
	p.conn, c.closed = nil, true
	c.e.conns = slices.DeleteFunc(c.e.conns, func(o *conn) bool { return o == c })
	c.cancel()
	p.stream.Down(errCut)
	p.dirty = true
}

// close ends the port for good. Its stream can still be driven, like a goroutine that has not noticed yet.
func (p *port) close() {
	if p != nil {
		p.cut()
	}
}

// scribble overwrites a buffer that is valid only during a call.
func scribble(b []byte) {
	for i := range b {
		b[i] = 0xc1
	}
}

// deliver hands over up to n messages that are on the way.
func (p *port) deliver(n int) {
	for ; n > 0 && p.conn != nil && len(p.conn.way) > 0; n-- {
		c := p.conn
		m := c.way[0]
		c.way = c.way[1:]
		payload := slices.Clone(m.payload)
		frames := [][]byte{[]byte("kv@pod@model"), number(m.seq), payload}
		p.stream.Take(frames[:m.frames])
		scribble(payload)
		p.dirty = true
	}
	if p.conn != nil && p.conn.closed && len(p.conn.way) == 0 {
		p.cut()
	}
}

// work applies up to n things.
func (p *port) work(n int) (worked bool) {
	if p.stalled > 0 {
		p.stalled--
		return false
	}
	for ; n > 0 && p.stream.Work(); n-- {
		worked, p.dirty = true, true
	}
	return worked
}

// interleave lets the world go on a little in the middle of something that a stream waits for.
func (p *port) interleave(ctx context.Context) {
	w := p.w
	if w.calm || w.rng.IntN(4) > 0 {
		return
	}
	if p.conn != nil && ctx.Err() == nil {
		p.conn.e.step()
		p.deliver(w.rng.IntN(4))
	}
	if p.during != nil && w.rng.IntN(4) == 0 {
		p.during()
	}
	if w.chance(w.faults.cut) {
		w.count("connection lost during a replay")
		p.cut()
	}
}

// Subscribe implements events.Source. It is never called: connections are made by connect.
func (p *port) Subscribe(context.Context, string, func(), func([][]byte) error) error {
	panic("sim: a stream has no goroutine that subscribes")
}

// Replay implements events.Source.
func (p *port) Replay(ctx context.Context, _ string, from uint64, each func(seq uint64, payload []byte) error) error {
	w := p.w
	e := p.dial()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if e == nil {
		return errRefused
	}
	fails, after := false, 0
	if w.chance(w.faults.replay) {
		fails, after = true, w.rng.IntN(6)
		w.count("replay failed")
	}
	if from < e.base {
		w.count("replay too short")
	}
	first := max(from, e.base)
	if first > e.next {
		first = e.next
	}
	kept := slices.Clone(e.history[first-e.base:])
	hole := -1
	if len(kept) > 2 && w.chance(w.faults.replay) {
		hole = 1 + w.rng.IntN(len(kept)-1)
		w.count("replay with a hole")
	}
	for i, payload := range kept {
		if i == hole { // a router drops what does not fit its queue
			continue
		}
		if fails && after == i {
			return errCut
		}
		buffer := slices.Clone(payload)
		err := each(first+uint64(i), buffer)
		scribble(buffer)
		if err != nil {
			return err
		}
		p.interleave(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if fails {
		return errCut
	}
	return nil
}
