package zmtp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// conn is a connection past its handshake. One goroutine can receive while others send.
type conn struct {
	nc    net.Conn
	cfg   Config
	in    reader
	pulse *pulse
	minor int
	// peer is the remote address, identity what the peer calls itself.
	peer, identity string
	// onSubscribe receives subscriptions; nil where none are expected.
	onSubscribe func(topic []byte, on bool) error
	// pong sends the answer to a PING.
	pong func(context []byte) error

	ctx  context.Context
	done chan struct{} // closed with the connection

	state   sync.Mutex
	release func() bool // guarded by state; lets go of ctx
	closed  bool        // guarded by state

	writing sync.Mutex // orders writers
	out     []byte     // what send encodes into
}

// dial connects to addr and shakes hands. ctx bounds the life of the connection, not only the dialing.
func (c Config) dial(ctx context.Context, addr, socketType string) (*conn, error) {
	c = c.withDefaults()
	addr = tcpAddress(addr)
	d := net.Dialer{Timeout: c.HandshakeTimeout, KeepAliveConfig: keepAlive}
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("dialing %s: %w", addr, err)
	}
	k, err := c.handshake(ctx, nc, socketType)
	if err != nil {
		return nil, err
	}
	k.attach(ctx)
	return k, nil
}

// handshake passes the states up to READY on nc, which it closes when it fails or when ctx ends before.
func (c Config) handshake(ctx context.Context, nc net.Conn, socketType string) (*conn, error) {
	release := context.AfterFunc(ctx, func() { _ = nc.Close() })
	defer release()
	p := &pulse{Conn: nc, timeout: c.HeartbeatTimeout}
	k := &conn{nc: nc, cfg: c, pulse: p, peer: nc.RemoteAddr().String(), ctx: ctx, done: make(chan struct{})}
	k.in = reader{br: bufio.NewReaderSize(p, 64<<10), cfg: c, command: k.command, share: c.Room.Share(ownBytes), within: p.within}
	if c.Topic != nil {
		k.in.topic = func(topic []byte) bool { return c.Topic(k.peer, topic) }
	}
	k.pong = func(data []byte) error { return k.write(encodeCommand(cmdPong, data)) }
	if err := k.shake(socketType); err != nil {
		k.close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("handshake with %s: %w", k.peer, err)
	}
	p.inside, p.most = false, c.MessageTimeout // READY is no message
	return k, nil
}

// shake exchanges greetings and READY.
func (k *conn) shake(socketType string) error {
	if err := k.nc.SetDeadline(time.Now().Add(k.cfg.HandshakeTimeout)); err != nil {
		return err
	}
	ours := greeting()
	if _, err := k.nc.Write(ours[:]); err != nil {
		return fmt.Errorf("sending the greeting: %w", err)
	}
	var theirs [greetingSize]byte
	// The signature first: a peer of another protocol might never send the rest.
	if _, err := io.ReadFull(k.in.br, theirs[:11]); err != nil {
		return fmt.Errorf("reading the greeting: %w", err)
	}
	if theirs[0] != 0xff || theirs[9]&1 == 0 || theirs[10] < 3 {
		_, err := parseGreeting(theirs[:])
		return err
	}
	if _, err := io.ReadFull(k.in.br, theirs[11:]); err != nil {
		return fmt.Errorf("reading the greeting: %w", err)
	}
	var err error
	if k.minor, err = parseGreeting(theirs[:]); err != nil {
		return err
	}
	if _, err := k.nc.Write(encodeCommand(cmdReady, readyData(socketType))); err != nil {
		return fmt.Errorf("sending READY: %w", err)
	}
	if err := k.ready(socketType); err != nil {
		if errors.Is(err, errSocketType) {
			const reason = "Invalid socket type"
			_, _ = k.nc.Write(encodeCommand(cmdError, append([]byte{byte(len(reason))}, reason...)))
		}
		return err
	}
	return k.nc.SetDeadline(time.Time{})
}

// errSocketType marks a peer with an incompatible socket type; the error is sent to it.
var errSocketType = fmt.Errorf("%w: socket types do not fit", ErrPeer)

// ready reads the peer's READY and checks that the socket types fit.
func (k *conn) ready(socketType string) error {
	flags, n, err := k.in.header()
	if err != nil {
		return fmt.Errorf("reading READY: %w", err)
	}
	if flags&flagCommand == 0 || n > maxCommand {
		return fmt.Errorf("%w: a frame of %d bytes with flags %#x instead of READY", ErrMalformed, n, flags)
	}
	body, err := k.in.body(k.in.cmd, n)
	if err != nil {
		return fmt.Errorf("reading READY: %w", err)
	}
	k.in.cmd = body
	name, data, err := parseCommand(body)
	if err != nil {
		return err
	}
	switch string(name) {
	case cmdReady:
	case cmdError:
		return peerError(data)
	default:
		return fmt.Errorf("%w: command %q instead of READY", ErrMalformed, name)
	}
	theirs, identity, err := parseReady(data)
	if err != nil {
		return err
	}
	if !slices.Contains(partners[socketType], theirs) {
		return fmt.Errorf("%w: %q to our %s", errSocketType, theirs[:min(len(theirs), 16)], socketType)
	}
	k.identity = identity
	return nil
}

// attach closes the connection when ctx ends.
func (k *conn) attach(ctx context.Context) {
	k.ctx = ctx
	k.state.Lock()
	defer k.state.Unlock()
	k.release = context.AfterFunc(ctx, k.close)
}

// beat turns heartbeats on, for peers that know them.
func (k *conn) beat() {
	if k.minor >= 1 && k.cfg.HeartbeatInterval > 0 && k.cfg.HeartbeatTimeout > 0 {
		// No time to live (two bytes) and no context: only the answer matters.
		ping := encodeCommand(cmdPing, []byte{0, 0})
		k.pulse.ping = func() error { return k.write(ping) }
		k.pulse.interval = k.cfg.HeartbeatInterval
	}
}

// recv returns the next message, or why there is none any more; then the connection is closed.
func (k *conn) recv() (Message, error) {
	m, err := k.in.next()
	if err == nil {
		return m, nil
	}
	select {
	case <-k.done:
		if k.ctx.Err() != nil {
			err = context.Cause(k.ctx)
		} else {
			err = ErrClosed
		}
	default:
	}
	k.close()
	return nil, fmt.Errorf("receiving from %s: %w", k.peer, err)
}

// command acts on a command received in traffic. Unknown ones are ignored.
func (k *conn) command(body []byte) error {
	name, data, err := parseCommand(body)
	if err != nil {
		return err
	}
	switch string(name) {
	case cmdPing:
		// Time to live (two bytes), then at most 16 bytes of context that the answer repeats.
		if len(data) < 2 || len(data) > 18 {
			return fmt.Errorf("%w: PING with %d bytes", ErrMalformed, len(data))
		}
		return k.pong(data[2:])
	case cmdError:
		return peerError(data)
	case cmdSubscribe, cmdCancel:
		if k.onSubscribe == nil {
			return fmt.Errorf("%w: unexpected %s", ErrMalformed, name)
		}
		return k.onSubscribe(data, string(name) == cmdSubscribe)
	case cmdReady:
		return fmt.Errorf("%w: second READY", ErrMalformed)
	}
	return nil
}

// send writes a message. An error closes the connection, since part of a frame might have been written.
func (k *conn) send(frames [][]byte) error {
	if len(frames) == 0 {
		return errors.New("zmtp: message without frames")
	}
	k.writing.Lock()
	defer k.writing.Unlock()
	k.out = appendMessage(k.out[:0], frames)
	err := k.writeLocked(k.out)
	if cap(k.out) > growStep {
		k.out = nil
	}
	return err
}

func (k *conn) write(b []byte) error {
	k.writing.Lock()
	defer k.writing.Unlock()
	return k.writeLocked(b)
}

func (k *conn) writeLocked(b []byte) error {
	err := k.nc.SetWriteDeadline(time.Now().Add(k.cfg.SendTimeout))
	if err == nil {
		_, err = k.nc.Write(b)
	}
	if err == nil {
		return nil
	}
	select {
	case <-k.done:
		err = ErrClosed
	default:
		k.close()
	}
	return fmt.Errorf("sending to %s: %w", k.peer, err)
}

// subscribe asks for a topic in the form that the peer's version knows.
func (k *conn) subscribe(topic string) error {
	if k.minor >= 1 {
		return k.write(encodeCommand(cmdSubscribe, []byte(topic)))
	}
	return k.write(appendFrame(nil, 0, append([]byte{1}, topic...)))
}

// close ends the connection; calls after the first do nothing.
func (k *conn) close() {
	k.state.Lock()
	defer k.state.Unlock()
	if k.closed {
		return
	}
	k.closed = true
	close(k.done)
	_ = k.nc.Close()
	k.in.share.Close()
	if k.release != nil {
		k.release()
	}
}

// pulse is the read side of a TCP connection that asks a silent peer whether it lives. It works below the frames, so
// that a peer which dribbles one frame for minutes counts as alive. It watches only while someone reads.
type pulse struct {
	net.Conn
	interval, timeout time.Duration
	ping              func() error // nil: no heartbeats

	// most is how long a message can take; 0 for no limit. inside: one has begun. end is when it must be complete; zero until a read has
	// to wait for the rest of it.
	most   time.Duration
	inside bool
	end    time.Time
}

// within records that a message has begun, or is complete.
func (p *pulse) within(message bool) {
	if p.inside = message; !message {
		p.end = time.Time{}
	}
}

// until is the deadline of a read that can wait for so long, 0 for ever.
func (p *pulse) until(wait time.Duration) (deadline time.Time) {
	now := time.Now()
	if wait > 0 {
		deadline = now.Add(wait)
	}
	if p.most <= 0 || !p.inside {
		return deadline
	}
	if p.end.IsZero() {
		p.end = now.Add(p.most)
	}
	if deadline.IsZero() || p.end.Before(deadline) {
		return p.end
	}
	return deadline
}

func (p *pulse) Read(b []byte) (int, error) {
	if p.ping == nil && p.most <= 0 {
		return p.Conn.Read(b)
	}
	asked := false
	for {
		wait := time.Duration(0)
		switch {
		case p.ping == nil:
		case asked:
			wait = p.timeout
		default:
			wait = p.interval
		}
		if err := p.SetReadDeadline(p.until(wait)); err != nil {
			return 0, err
		}
		n, err := p.Conn.Read(b)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if !p.end.IsZero() && !time.Now().Before(p.end) {
			return 0, fmt.Errorf("%w: more than %v", ErrSlow, p.most)
		}
		if asked {
			return 0, fmt.Errorf("%w for %v", ErrSilent, p.interval+p.timeout)
		}
		if err := p.ping(); err != nil {
			return 0, err
		}
		asked = true
	}
}

// topicOf returns the topic of a subscription in message form, and whether it is one.
func topicOf(m Message) (topic []byte, on, ok bool) {
	if len(m) != 1 || len(m[0]) == 0 || m[0][0] > 1 {
		return nil, false, false
	}
	return m[0][1:], m[0][0] == 1, true
}

// matches reports whether one of the topics is a prefix of the frame.
func matches(topics [][]byte, frame []byte) bool {
	for _, t := range topics {
		if bytes.HasPrefix(frame, t) {
			return true
		}
	}
	return false
}
