package sim

import (
	"bytes"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/events"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// pod is what the cluster runs: an engine that can be restarted, and perhaps a reporter beside it.
type pod struct {
	uid, addr string
	release   release
	engine    *engine // nil while it starts
	reporter  *reporter
	// direct says that pickers can reach the engine's publisher.
	direct  bool
	started int // steps until an engine that has gone is back
	deleted bool
}

// reporter is the sidecar's process: the production mirror behind the production stream.
type reporter struct {
	w      *world
	pod    *pod
	mirror *cachesync.Mirror
	port   *port
	epoch  uint64
	pushes []*push
	// disk is what was saved last, diskEpoch the epoch it was saved for.
	disk      []byte
	diskEpoch uint64
}

// startReporter begins a process; with what was saved, if there is anything.
func (w *world) startReporter(p *pod, disk []byte, epoch uint64) *reporter {
	r := &reporter{w: w, pod: p, disk: disk, diskEpoch: epoch}
	r.epoch = w.ids + 1
	r.mirror = cachesync.NewMirror(cachesync.Options{
		MaxBlocks: w.maxBlocks, MaxOrphans: w.maxOrphans, MaxGhosts: maxGhosts, LogBytes: w.logBytes,
		NewID: func() uint64 { w.ids++; return w.ids },
	}, nil)
	feed := events.Feed{Endpoint: p.endpoint(), Engine: p.release.engine, Sink: &sink{r.mirror, r}}
	if disk != nil {
		at, err := r.mirror.Load(bytes.NewReader(disk))
		if err != nil {
			w.fail("what a reporter has saved: %v", err)
		}
		feed.Resume, r.epoch = at, epoch
	}
	r.port = w.newPort("reporter of "+p.uid, func() *engine { return p.engine }, &feed)
	r.port.onLife = r.follows
	r.port.during = r.save
	return r
}

const maxGhosts = 16

// sink reports which epochs begin.
type sink struct {
	*cachesync.Mirror
	r *reporter
}

func (s *sink) Begin(sameLife bool) {
	if !sameLife {
		s.r.epoch = s.r.w.ids + 1 // the first that is drawn
	}
	s.Mirror.Begin(sameLife)
}

// follows says that an epoch has reported a life. It never reports another.
func (r *reporter) follows(life int) {
	if before, ok := r.w.epochs[r.epoch]; ok && before != life {
		r.w.fail("the reporter of %s reports life %d in the epoch of life %d", r.pod.uid, life, before)
	}
	r.w.epochs[r.epoch] = life
}

func (r *reporter) save() {
	var file bytes.Buffer
	if err := r.mirror.Save(&file); err != nil {
		r.w.fail("saving a mirror: %v", err)
	}
	r.disk, r.diskEpoch = file.Bytes(), r.epoch
}

// stop ends the process at once.
func (r *reporter) stop() {
	r.port.close()
	for len(r.pushes) > 0 {
		r.pushes[0].cut()
	}
}

// push is a stream from a reporter to a picker: two pipes that keep their order, and break.
type push struct {
	w    *world
	r    *reporter
	end  *end
	from *cachesync.Sender
	wake time.Time
	to   []*pb.ReporterMessage
	back []*pb.PickerMessage
}

// overWire is what arrives of a message: a copy.
func overWire[M proto.Message](w *world, m M) M {
	data, err := proto.Marshal(m)
	if err != nil {
		w.fail("marshalling: %v", err)
	}
	out := m.ProtoReflect().New().Interface()
	if err := proto.Unmarshal(data, out); err != nil {
		w.fail("unmarshalling: %v", err)
	}
	return out.(M)
}

// connectPush opens a stream and shakes hands. An endpoint has at most one.
func (w *world) connectPush(r *reporter, e *end) {
	if e.push != nil {
		e.push.cut()
	}
	p := &push{w: w, r: r, end: e, from: cachesync.NewSender(r.mirror, r.pod.uid, 0), wake: w.now}
	r.pushes = append(r.pushes, p)
	e.push = p
	out, _ := p.from.Next(w.now)
	if len(out) != 1 || out[0].GetHello().GetPod() != r.pod.uid {
		w.fail("a stream begins with %v", out)
	}
	e.releaseAt = time.Time{}
	p.back = append(p.back, overWire(w, e.receiver.Welcome(w.now)))
	w.count("report stream opened")
}

// cut ends a stream; what is on the way is lost.
func (p *push) cut() {
	p.from.Close()
	p.end.receiver.Lost()
	p.end.push = nil
	p.end.dirty = true
	if p.end.owned && p.end.direct {
		p.end.releaseAt = p.w.now.Add(grace)
	}
	for i, o := range p.r.pushes {
		if o == p {
			p.r.pushes = append(p.r.pushes[:i], p.r.pushes[i+1:]...)
			break
		}
	}
}

// grace is how long an endpoint is kept for a reporter that is away, when there is another road.
const grace = 2 * time.Second

// turn lets both ends send; each takes most of the messages that have arrived.
func (p *push) turn() (moved bool) {
	w := p.w
	out, wake := p.from.Next(w.now)
	p.wake = wake
	for _, m := range out {
		p.to = append(p.to, overWire(w, m))
	}
	for len(p.to) > 0 && (w.calm || w.rng.IntN(5) > 0) {
		m := p.to[0]
		p.to = p.to[1:]
		moved, p.end.dirty = true, true
		before, begin := p.end.receiver.Status().Epoch, m.GetBegin()
		err := p.end.receiver.Handle(w.now, m, func(reply *pb.PickerMessage) { p.back = append(p.back, overWire(w, reply)) })
		if err != nil && len(w.roots) > 2 && m.GetBegin() != nil {
			w.count("report stream ended by the picker: its keys have changed twice")
			p.cut()
			return true
		}
		if err != nil {
			w.fail("the receiver of %s: %v", p.r.pod.uid, err)
		}
		if begin != nil && before != 0 && before != begin.GetAt().GetEpoch() && p.end.writer.Len() > 0 {
			w.fail("%s: %s keeps %d blocks of an epoch that has ended", p.end.picker.name, p.r.pod.uid, p.end.writer.Len())
		}
		p.end.check()
	}
	for len(p.back) > 0 && (w.calm || w.rng.IntN(5) > 0) {
		m := p.back[0]
		p.back = p.back[1:]
		moved = true
		if err := p.from.Handle(m); err != nil {
			w.count("report stream ended by the reporter")
			p.cut()
			return true
		}
	}
	return moved || len(out) > 0
}

func (p *pod) endpoint() endpoint.Endpoint {
	e := endpoint.Endpoint{ID: endpoint.ID{Pod: p.uid}, Pod: p.uid, EventsAddress: p.addr + ":5557"}
	if p.release.replay {
		e.ReplayAddress = p.addr + ":5558"
	}
	return e
}
