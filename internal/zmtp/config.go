package zmtp

import (
	"errors"
	"net"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// Defaults of Config.
const (
	DefaultMaxFrame          = 64 << 20
	DefaultMaxFrames         = 16
	DefaultMaxMessage        = 64 << 20
	DefaultMaxPeers          = 1024
	DefaultHWM               = 1000
	DefaultHandshakeTimeout  = 10 * time.Second
	DefaultHeartbeatInterval = 10 * time.Second
	DefaultHeartbeatTimeout  = 10 * time.Second
	DefaultSendTimeout       = 10 * time.Second
	DefaultFlushTimeout      = time.Second
)

const (
	// maxCommand bounds the body of a command, in bytes.
	maxCommand = 64 << 10
	// maxTopic bounds the first frame of a message where Config.Topic is asked, in bytes.
	maxTopic = 4 << 10
	// maxTopics and maxTopicBytes bound what one subscriber can subscribe to.
	maxTopics     = 1024
	maxTopicBytes = 1 << 20
	// growStep is how many bytes are taken at once for a frame that is still arriving, and the largest buffer that
	// is kept for the next message.
	growStep = 1 << 20
	// ownBytes of the buffers of each connection are outside of Config.Room.
	ownBytes = 128 << 10
)

// Errors that callers distinguish.
var (
	// ErrClosed is returned by the calls on a socket after its Close.
	ErrClosed = errors.New("zmtp: socket closed")
	// ErrLimit marks messages that exceed a bound of Config.
	ErrLimit = errors.New("zmtp: limit exceeded")
	// ErrMalformed marks bytes that are not ZMTP.
	ErrMalformed = errors.New("zmtp: malformed")
	// ErrPeer marks a peer that uses ZMTP, but an unsupported part of it, or that sent an ERROR command.
	ErrPeer = errors.New("zmtp: peer refused")
	// ErrSilent marks a peer that answers no PING.
	ErrSilent = errors.New("zmtp: peer is silent")
	// ErrSlow marks a message that has not arrived in time.
	ErrSlow = errors.New("zmtp: message takes too long")
	// ErrTopic marks a message whose topic Config.Topic has refused.
	ErrTopic = errors.New("zmtp: topic refused")
	// ErrNoPeer is returned by Router.Send for an identity that is not connected.
	ErrNoPeer = errors.New("zmtp: no such peer")
)

// Message is a message's frames. Those of Recv are valid until the next Recv on the same socket.
type Message = [][]byte

// Config bounds a socket. Zero values take the defaults; negative heartbeat intervals turn heartbeats off.
type Config struct {
	// MaxFrame and MaxMessage are the largest frame and the largest sum of a message's frames received, in bytes.
	MaxFrame, MaxMessage int
	// Room bounds the buffers for received frames of all connections together, except for 128 KiB of each; nil for no bound. A
	// connection without room for a frame ends with ErrLimit.
	Room *budget.Room
	// MaxFrames is the most frames in a message.
	MaxFrames int
	// MaxPeers is the most connections a listener serves; further ones are closed.
	MaxPeers int
	// MaxPeersOfHost is the most connections that a listener serves of one address, without the port; 0 for no limit besides MaxPeers. Full,
	// if set, is called with the address (host:port) of each peer that is closed for this limit or MaxPeers, from one goroutine.
	MaxPeersOfHost int
	Full           func(peer string)
	// MessageTimeout bounds how long a message can take from its first byte to its last; 0 for no limit. A connection that exceeds it
	// ends with ErrSlow.
	MessageTimeout time.Duration
	// Topic, if set, is asked with the first frame of a message whether the peer (host:port) can send it, before the rest is read,
	// and not again until the frame is another one. The connection of another peer ends with ErrTopic. It must not keep the frame.
	Topic func(peer string, topic []byte) bool
	// Allow, if set, is asked by a listener whether a peer can connect, by its address (host:port). Others are closed
	// before the handshake, and do not count among the peers. It is called from one goroutine.
	Allow func(peer string) bool
	// HandshakeTimeout bounds connecting, greeting and READY together.
	HandshakeTimeout time.Duration
	// HeartbeatInterval is the silence after which a SUB sends PING, HeartbeatTimeout the silence after that which
	// ends the connection. Only for peers of ZMTP 3.1.
	HeartbeatInterval, HeartbeatTimeout time.Duration
	// SendTimeout bounds a write by DEALER and ROUTER.
	SendTimeout time.Duration
	// FlushTimeout bounds what Pub.Close waits for its subscribers to take what is queued.
	FlushTimeout time.Duration
}

func (c Config) withDefaults() Config {
	number := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	span := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	number(&c.MaxFrame, DefaultMaxFrame)
	number(&c.MaxMessage, DefaultMaxMessage)
	number(&c.MaxFrames, DefaultMaxFrames)
	number(&c.MaxPeers, DefaultMaxPeers)
	span(&c.HandshakeTimeout, DefaultHandshakeTimeout)
	span(&c.HeartbeatInterval, DefaultHeartbeatInterval)
	span(&c.HeartbeatTimeout, DefaultHeartbeatTimeout)
	span(&c.SendTimeout, DefaultSendTimeout)
	span(&c.FlushTimeout, DefaultFlushTimeout)
	return c
}

// keepAlive notices a dead peer within 25 s on connections that carry nothing.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}

// tcpAddress accepts host:port with or without ZeroMQ's scheme, and its * for every interface.
func tcpAddress(addr string) string {
	addr = strings.TrimPrefix(addr, "tcp://")
	if rest, ok := strings.CutPrefix(addr, "*:"); ok {
		return ":" + rest
	}
	return addr
}
