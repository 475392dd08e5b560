package vllmsim

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
	"github.com/kvasir-dev/kvasir/internal/zmtp"
)

// publisher numbers the batches of a process, sends them and keeps the last ones for replay.
type publisher struct {
	cfg       EventsConfig
	log       logr.Logger
	enc       Encoder
	topic     []byte
	blockSize int
	// topicInReplay: replies to replay requests carry the topic.
	topicInReplay bool
	wire          []WireEvent // scratch

	router *zmtp.Router
	cancel context.CancelFunc
	tasks  sync.WaitGroup // replay and redial

	mu   sync.Mutex
	pub  *zmtp.Pub // guarded by mu; nil while a connecting publisher has no peer
	seq  uint64    // guarded by mu; of the next batch
	kept []batch   // guarded by mu; ring of BufferSteps, batch seq at seq % len
}

type batch struct {
	seq     uint64
	payload []byte
}

func newPublisher(c Config) (*publisher, error) {
	ctx, cancel := context.WithCancel(context.Background())
	p := &publisher{
		cfg: c.Events, log: c.Log, cancel: cancel, topic: []byte(c.Events.Topic), blockSize: c.BlockSize,
		topicInReplay: c.Release.topicInReplay(),
		enc:           Encoder{Layout: c.Release.layout(), Rank: c.DataParallelRank, Signed: c.Release.signedHashes()},
	}
	if c.Events.DigestHashes {
		p.enc.Digest = LongDigest
	}
	if err := p.open(ctx, c); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *publisher) open(ctx context.Context, c Config) error {
	free := net.JoinHostPort(c.Host, "0")
	endpoint, replay := c.Events.Endpoint, c.Events.ReplayEndpoint
	setDefault(&endpoint, free)
	setDefault(&replay, free)
	addr, err := hostPort(endpoint, c.DataParallelRank)
	if err != nil {
		return err
	}
	if c.Events.Connect {
		subscriber := addr // addr changes below
		p.tasks.Go(func() { p.redial(ctx, subscriber) })
	} else if p.pub, err = zmtp.ListenPub(addr, c.Events.HWM); err != nil {
		return fmt.Errorf("binding the KV event publisher to %s: %w", addr, err)
	}
	if c.Events.NoReplay {
		return nil
	}
	if addr, err = hostPort(replay, c.DataParallelRank); err != nil {
		return err
	}
	if p.router, err = zmtp.ListenRouter(addr); err != nil {
		return fmt.Errorf("binding the KV event replay to %s: %w", addr, err)
	}
	p.tasks.Go(p.serveReplay)
	return nil
}

// redialEvery is the pause between attempts of a connecting publisher, ZeroMQ's own default.
const redialEvery = 100 * time.Millisecond

// redial keeps a connecting publisher connected. Batches sent meanwhile are lost to the subscriber.
func (p *publisher) redial(ctx context.Context, addr string) {
	for ctx.Err() == nil {
		pub, err := zmtp.DialPub(ctx, addr, p.cfg.HWM)
		if err == nil {
			p.setPub(pub)
			select {
			case <-pub.Done():
			case <-ctx.Done():
			}
			p.setPub(nil)
			if err := pub.Close(); err != nil {
				p.log.V(1).Info("Closing the event publisher failed", "error", err.Error())
			}
		}
		select {
		case <-time.After(redialEvery):
		case <-ctx.Done():
		}
	}
}

func (p *publisher) setPub(pub *zmtp.Pub) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pub = pub
}

// encode returns the payload of a step's events; only the engine's loop calls it.
func (p *publisher) encode(events []enginemodel.Event, now time.Time) []byte {
	p.wire = wireEvents(p.wire, events, p.blockSize)
	ts := float64(now.UnixMicro()) / 1e6
	return p.enc.AppendBatch(make([]byte, 0, payloadSize(events)), ts, p.wire)
}

// payloadSize is about what the events take, in bytes.
func payloadSize(events []enginemodel.Event) int {
	n := 32
	for i := range events {
		n += 224 + 10*len(events[i].Hashes) + 4*len(events[i].Tokens)
	}
	return n
}

// publish numbers a payload, keeps it and sends it.
func (p *publisher) publish(payload []byte) {
	p.mu.Lock()
	seq := p.seq
	p.seq++
	if n := p.cfg.BufferSteps; n > 0 {
		b := batch{seq: seq, payload: payload}
		if len(p.kept) < n {
			p.kept = append(p.kept, b)
		} else {
			p.kept[seq%uint64(n)] = b
		}
	}
	p.mu.Unlock()
	if p.cfg.Tamper != nil {
		p.cfg.Tamper(seq, payload, p.send)
		return
	}
	p.send(seq, payload)
}

// send writes one message to the subscribers there are.
func (p *publisher) send(seq uint64, payload []byte) {
	p.mu.Lock()
	pub := p.pub
	p.mu.Unlock()
	if pub == nil {
		return
	}
	if err := pub.Send(p.topic, sequence(seq), payload); err != nil {
		p.log.V(1).Info("Sending KV events failed", "error", err.Error())
	}
}

func sequence(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// since returns the kept batches from start on, in order.
func (p *publisher) since(start uint64) []batch {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := uint64(len(p.kept))
	if start >= p.seq || n == 0 {
		return nil
	}
	start = max(start, p.seq-n)
	out := make([]batch, 0, p.seq-start)
	for seq := start; seq < p.seq; seq++ {
		out = append(out, p.kept[seq%n])
	}
	return out
}

// serveReplay answers requests [empty][start] until the router is closed; anything else is ignored, as the engine does.
func (p *publisher) serveReplay() {
	for {
		peer, frames, err := p.router.Recv()
		if err != nil {
			return
		}
		if len(frames) != 2 || len(frames[0]) != 0 || len(frames[1]) != 8 {
			p.log.V(1).Info("Invalid replay request ignored", "frames", len(frames))
			continue
		}
		if err := p.replay(peer, binary.BigEndian.Uint64(frames[1])); err != nil {
			p.log.V(1).Info("Replay ended early", "error", err.Error())
		}
	}
}

func (p *publisher) replay(peer string, start uint64) error {
	for _, b := range p.since(start) {
		if err := p.reply(peer, p.topic, sequence(b.seq), b.payload); err != nil {
			return err
		}
	}
	return p.reply(peer, nil, sequence(^uint64(0)), nil)
}

func (p *publisher) reply(peer string, topic, seq, payload []byte) error {
	if p.topicInReplay {
		return p.router.Send(peer, nil, topic, seq, payload)
	}
	return p.router.Send(peer, nil, seq, payload)
}

// addresses are host:port of the publisher, empty if it connects, and of the replay socket, empty if there is none.
func (p *publisher) addresses() (events, replay string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.cfg.Connect {
		events = p.pub.Addr()
	}
	if p.router != nil {
		replay = p.router.Addr()
	}
	return events, replay
}

// subscribers counts connections with a subscription.
func (p *publisher) subscribers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pub == nil {
		return 0
	}
	return p.pub.Subscribers()
}

// kick cuts the connections of all subscribers.
func (p *publisher) kick() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pub == nil {
		return 0
	}
	return p.pub.Kick("")
}

// close ends the sockets and waits for what serves them.
func (p *publisher) close() {
	p.cancel()
	p.mu.Lock()
	pub, router := p.pub, p.router
	p.mu.Unlock()
	if router != nil {
		if err := router.Close(); err != nil {
			p.log.V(1).Info("Closing the replay socket failed", "error", err.Error())
		}
	}
	if pub != nil && !p.cfg.Connect {
		if err := pub.Close(); err != nil {
			p.log.V(1).Info("Closing the event publisher failed", "error", err.Error())
		}
	}
	p.tasks.Wait()
}
