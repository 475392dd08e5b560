package judge

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/zmtp"
)

// message is one batch as it was received.
type message struct {
	topic   string
	seq     uint64
	payload []byte
}

// follower reads an engine's events twice: as they arrive, and by replay, which is complete.
type follower struct {
	sub    *zmtp.Sub
	replay string
	done   chan struct{}

	mu   sync.Mutex
	live []message // guarded by mu
}

func follow(ctx context.Context, events, replay string) (*follower, error) {
	sub, err := zmtp.DialSub(ctx, events)
	if err != nil {
		return nil, fmt.Errorf("subscribing to events: %w", err)
	}
	f := &follower{sub: sub, replay: replay, done: make(chan struct{})}
	go f.run()
	return f, nil
}

func (f *follower) run() {
	defer close(f.done)
	for {
		m, err := f.sub.Recv()
		if err != nil {
			return
		}
		if len(m) == 3 && len(m[1]) == 8 {
			f.mu.Lock()
			f.live = append(f.live, message{string(m[0]), binary.BigEndian.Uint64(m[1]), bytes.Clone(m[2])})
			f.mu.Unlock()
		}
	}
}

func (f *follower) close() {
	_ = f.sub.Close()
	<-f.done
}

func (f *follower) seen() []message {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.live)
}

// replies asks for a replay from start on and returns all replies, the last with an empty payload.
func (f *follower) replies(ctx context.Context, start uint64) ([][][]byte, error) {
	d, err := zmtp.DialDealer(ctx, f.replay)
	if err != nil {
		return nil, fmt.Errorf("asking for a replay: %w", err)
	}
	defer d.Close()
	if err := d.SetRecvDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return nil, err
	}
	if err := d.Send(nil, binary.BigEndian.AppendUint64(nil, start)); err != nil {
		return nil, err
	}
	var out [][][]byte
	for {
		m, err := d.Recv()
		if err != nil {
			return nil, fmt.Errorf("reading a replay: %w", err)
		}
		var reply [][]byte
		for _, frame := range m {
			reply = append(reply, bytes.Clone(frame))
		}
		out = append(out, reply)
		if len(reply[len(reply)-1]) == 0 {
			return out, nil
		}
	}
}

// since returns the batches from start on, once no more arrive.
func (f *follower) since(ctx context.Context, start uint64) ([]message, error) {
	var out []message
	_, err := settled(ctx, func() (int, error) {
		replies, err := f.replies(ctx, start)
		if err != nil {
			return 0, err
		}
		out = out[:0]
		for _, r := range replies[:len(replies)-1] {
			m := message{seq: binary.BigEndian.Uint64(r[len(r)-2]), payload: r[len(r)-1]}
			if len(r) == 4 {
				m.topic = string(r[1])
			}
			out = append(out, m)
		}
		return len(out), nil
	})
	return out, err
}
