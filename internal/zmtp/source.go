package zmtp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// EventSource reads the event publishers of engines and their replay sockets. It is the transport under
// internal/events.
type EventSource struct {
	// Config bounds the sockets.
	Config Config
	// Topics to subscribe to; none means all.
	Topics []string
	// ReplayTimeout bounds the wait for each reply of a replay; 0 takes DefaultReplayTimeout. An idle engine looks at
	// its replay socket every 100 ms.
	ReplayTimeout time.Duration
}

// DefaultReplayTimeout is the longest wait for a reply of a replay.
const DefaultReplayTimeout = 5 * time.Second

// endOfReplay is the sequence number in the reply that ends a replay, -1 in the engines' signed reading.
const endOfReplay = ^uint64(0)

// Subscribe follows the publisher at addr until ctx ends, the connection is lost, or each returns an error. It calls
// up once when it is subscribed, then each for every message, whose frames are valid only during the call. The error
// is never nil.
func (s EventSource) Subscribe(ctx context.Context, addr string, up func(), each func(frames [][]byte) error) error {
	sub, err := s.Config.DialSub(ctx, addr, s.Topics...)
	if err != nil {
		return err
	}
	defer sub.Close()
	up()
	for {
		m, err := sub.Recv()
		if err != nil {
			return err
		}
		if err := each(m); err != nil {
			return err
		}
	}
}

// Replay requests from the replay socket at addr the batches that it keeps from sequence number from on, and calls each for
// every one in order; the payload is valid only during the call. A publisher that no longer has the first ones begins later
// without a notice. nil means that the replay is complete.
func (s EventSource) Replay(ctx context.Context, addr string, from uint64, each func(seq uint64, payload []byte) error) error {
	timeout := s.ReplayTimeout
	if timeout <= 0 {
		timeout = DefaultReplayTimeout
	}
	d, err := s.Config.DialDealer(ctx, addr)
	if err != nil {
		return err
	}
	defer d.Close()
	// The empty frame is the delimiter that a REQ socket would put there.
	if err := d.Send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return err
	}
	for {
		if err := d.SetRecvDeadline(time.Now().Add(timeout)); err != nil {
			return err
		}
		m, err := d.Recv()
		if err != nil {
			return err
		}
		// [empty] [topic] [sequence] [payload], the topic only from some releases on; the last two frames count.
		if len(m) < 2 || len(m[len(m)-2]) != 8 {
			return fmt.Errorf("replay of %s: %w", addr, errNoReplay)
		}
		seq, payload := binary.BigEndian.Uint64(m[len(m)-2]), m[len(m)-1]
		if len(payload) == 0 || seq == endOfReplay {
			return nil
		}
		if err := each(seq, payload); err != nil {
			return err
		}
	}
}

var errNoReplay = errors.New("zmtp: message is not a replay's")
