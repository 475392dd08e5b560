package h2stream

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/gateway/accept"
)

const (
	// maxFrame is the most bytes in one frame, in both directions: what HTTP/2 allows without being asked.
	maxFrame = 16 << 10
	// maxPlain is about how much is framed at once.
	maxPlain = 64 << 10
	// maxOwed is the most bytes of frames that answer to a client's (settings, pings, resets) while it does not read. A
	// client that exceeds it is disconnected.
	maxOwed = 32 << 10
	// connectionCost is about what a connection takes besides its streams, in bytes: what is read ahead, a frame, header tables, and two
	// goroutines. unreadCost is what it takes more while its client does not read.
	connectionCost = readAhead + maxFrame + 16<<10
	unreadCost     = maxPlain + maxFrame + 2*maxOwed
	// maxHeaders is the most bytes of a stream's header, as HTTP/2 counts.
	maxHeaders = 64 << 10
	// firstWindow is what HTTP/2 allows to send ahead before anything is said.
	firstWindow = 65535
	maxWindow   = 1<<31 - 1
	// firstTable is the size of the table of header compression before anything is said, in bytes.
	firstTable = 4096
	// lingering is how long a client that has all it was to get can take to close the connection.
	lingering = 5 * time.Second
)

// connection is one client's. The goroutine that runs serve reads; frames to be sent are made under mu,
// by the sending goroutine.
//
// It has many fields because it is a protocol's state machine; the comments say which goroutine owns which.
type connection struct {
	server *Server
	wire   *wire
	sink   io.Writer // of frames: TLS, or the wire
	client net.Addr
	// host and network are client's address and its network, by which floods and memory are counted.
	host, network string
	lived         atomic.Bool // something was read since the keeper last looked
	keeper        *time.Timer
	elder         *time.Timer
	// account is what the connection takes besides its streams.
	account *budget.Account

	// Of the reading goroutine.
	unsaid int // received bytes that were not yet returned to the client's window
	credit credit

	mu         sync.Mutex // guards what follows, and the sending half of streams
	streams    map[uint32]*Stream
	unended    int // streams whose handlers were not notified of their end yet
	lives      lives
	sentData   int       // frames of messages, since the reading goroutine last looked
	newest     uint32    // the last stream that was opened; only the reading goroutine changes it
	ready      []*Stream // have something to send, and room in their window
	plain      []byte    // frames not yet given to the sink
	sendWindow int64
	peerWindow int64 // of new streams
	peerFrame  int
	resized    bool      // the client has set a maximum header table size, and our size of 0 was not sent yet
	writing    bool      // a goroutine writes what the socket did not take
	ended      []*Stream // whose handlers have to be notified
	leaving    leaving
	last       uint32 // the last stream that is served, while leaving
	open       bool   // frames can be sent
	done       bool   // no more are: the client has all
	closed     bool
	pinged     bool // for a sign of life
}

// leaving is how far a client has moved to another connection.
//
//	staying --goAway--> goAwaySent --confirmed, or goAwayPatience--> gone: closed once there is no stream
type leaving uint8

const (
	staying leaving = iota
	goAwaySent
	gone
)

var (
	lifePing   = [8]byte{'a', 'l', 'i', 'v', 'e'}
	goAwayPing = [8]byte{'g', 'o', 'a', 'w', 'a', 'y'}
)

func newConnection(s *Server, socket net.Conn) *connection {
	address := socket.RemoteAddr().String()
	network := budget.Client(address)
	return &connection{
		server: s, wire: newWire(socket), client: socket.RemoteAddr(), host: budget.Host(address), network: network,
		account:    s.options.Budget.Open(budget.Connections, network, address, nil),
		streams:    map[uint32]*Stream{},
		credit:     credit{left: firstCredit, at: time.Now(), savings: s.savings, network: network},
		sendWindow: firstWindow, peerWindow: firstWindow, peerFrame: maxFrame,
	}
}

// serve reads until the connection ends, which it then is for all its streams.
func (c *connection) serve() {
	defer c.end()
	if !c.account.Take(connectionCost) {
		return
	}
	_ = c.wire.socket.SetDeadline(time.Now().Add(handshakeTimeout))
	var source io.Reader = c.wire
	c.sink = c.wire
	if config := c.server.options.TLS; config != nil {
		encrypted := tls.Server(tlsWire{c.wire.socket, c.wire}, config)
		if encrypted.HandshakeContext(context.Background()) != nil || !speaksHTTP2(encrypted) {
			return
		}
		source, c.sink = encrypted, encrypted
	}
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(source, preface); err != nil || string(preface) != http2.ClientPreface {
		return
	}
	_ = c.wire.socket.SetDeadline(time.Time{})
	c.begin()
	c.wire.before = c.flush
	c.read(source)
}

// speaksHTTP2 reports whether a client can continue after its handshake. Envoy's gRPC health checker offers no protocol at
// all (ALPN); the HTTP/2 preface that follows shows the protocol.
func speaksHTTP2(c *tls.Conn) bool {
	protocol := c.ConnectionState().NegotiatedProtocol
	return protocol == http2.NextProtoTLS || protocol == ""
}

// read takes frames until there can be no more.
func (c *connection) read(source io.Reader) {
	frames := http2.NewFramer(io.Discard, source)
	frames.SetReuseFrames()
	frames.SetMaxReadFrameSize(maxFrame)
	frames.ReadMetaHeaders = hpack.NewDecoder(firstTable, nil)
	frames.MaxHeaderListSize = maxHeaders
	for first := true; ; first = false {
		f, err := frames.ReadFrame()
		c.lived.Store(true)
		if err == nil {
			if _, ok := f.(*http2.SettingsFrame); first && !ok {
				err = http2.ConnectionError(http2.ErrCodeProtocol)
			} else {
				err = c.take(f)
			}
		}
		if err == nil {
			err = c.owes()
		}
		if c.fatal(err) {
			return
		}
	}
}

// begin announces the server's settings, and starts the clocks.
func (c *connection) begin() {
	c.wire.keep()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.plain = appendSettings(c.plain,
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: uint32(c.server.options.MaxStreams)},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHeaders})
	c.plain = appendWindowUpdate(c.plain, 0, connectionWindow-firstWindow)
	c.open = true
	if c.closed {
		return
	}
	if c.leaving == goAwaySent { // before it could be notified
		c.sendGoAway()
	}
	c.keeper = time.AfterFunc(c.server.options.Keepalive, c.keep)
	if age := c.server.options.ConnectionAge; age > 0 {
		c.elder = time.AfterFunc(age-age/10+rand.N(age/5+1), c.goAway)
	}
}

// fatal acts on what went wrong with a frame, and reports whether it is the end of the connection.
func (c *connection) fatal(err error) bool {
	var ofStream http2.StreamError
	var ofAll http2.ConnectionError
	switch {
	case err == nil:
		return false
	case errors.As(err, &ofStream):
		c.opened(ofStream.StreamID)
		c.mu.Lock()
		if c.streams[ofStream.StreamID] == nil {
			c.endLife()
		}
		c.reset(ofStream.StreamID, ofStream.Code)
		flood := c.resetLife()
		c.unlock()
		if flood {
			c.sayGoodbye(http2.ErrCodeEnhanceYourCalm)
		}
		return flood
	case errors.Is(err, http2.ErrFrameTooLarge):
		c.sayGoodbye(http2.ErrCodeFrameSize)
	case errors.As(err, &ofAll):
		c.sayGoodbye(http2.ErrCode(ofAll))
	}
	return true
}

func (c *connection) sayGoodbye(code http2.ErrCode) {
	c.mu.Lock()
	c.plain = appendGoAway(c.plain, c.newest, code)
	c.unlock()
	c.flush()
}

// work tells the listener whether the connection has streams: those without give way to new connections. mu is held.
func (c *connection) work(under bool) {
	if counted, ok := c.wire.socket.(*accept.Conn); ok {
		counted.Work(under)
	}
}

// end is the end of everything about the connection. The reading goroutine calls it.
func (c *connection) end() {
	c.close()
	c.mu.Lock()
	for _, s := range c.streams {
		s.over(c)
	}
	c.unlock()
	c.account.Close()
}

// close ends the connection, and makes its goroutines notice.
func (c *connection) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.keeper != nil {
		c.keeper.Stop()
	}
	if c.elder != nil {
		c.elder.Stop()
	}
	_ = c.wire.socket.Close()
}

// goAway sends the client elsewhere, without harm to its streams.
func (c *connection) goAway() {
	c.mu.Lock()
	if c.leaving != staying || c.closed {
		c.mu.Unlock()
		return
	}
	c.leaving = goAwaySent
	if c.open {
		c.sendGoAway()
	}
	c.unlock()
	c.flush()
}

// sendGoAway asks the client to open no more streams; streams that are already on their way are still served. mu is held.
func (c *connection) sendGoAway() {
	c.plain = appendGoAway(c.plain, maxWindow, http2.ErrCodeNo)
	c.plain = appendPing(c.plain, false, goAwayPing)
	time.AfterFunc(goAwayPatience, func() {
		c.mu.Lock()
		if c.leaving == goAwaySent && !c.closed {
			c.refuse()
		}
		c.unlock()
		c.flush()
	})
}

// refuse refuses streams from now on. mu is held.
func (c *connection) refuse() {
	c.leaving, c.last = gone, c.newest
	c.plain = appendGoAway(c.plain, c.last, http2.ErrCodeNo)
}

// keep looks for life.
func (c *connection) keep() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.endIdle(time.Now())
	switch lived := c.lived.Swap(false); {
	case lived:
		c.pinged = false
		c.keeper.Reset(c.server.options.Keepalive)
	case c.pinged:
		c.mu.Unlock()
		c.close()
		return
	default:
		c.pinged = true
		c.plain = appendPing(c.plain, false, lifePing)
		c.keeper.Reset(c.server.options.KeepaliveTimeout)
	}
	c.unlock()
	c.flush()
}

// endIdle ends the streams without traffic for too long, and notifies the handlers of those whose requests arrive too slowly. mu is held.
func (c *connection) endIdle(now time.Time) {
	for id, s := range c.streams {
		limit := c.server.options.RequestIdle
		if s.complete {
			limit = c.server.options.Idle
		}
		switch {
		case s.lived || s.quiet.IsZero():
			s.lived, s.quiet = false, now
		case now.Sub(s.quiet) >= limit:
			c.reset(id, http2.ErrCodeCancel)
			continue
		}
		if s.slow(now) {
			c.server.jobs.Go(func() { // the handler can take its time
				s.dispatch(&event{slow: true})
				c.flush()
			})
		}
	}
}

// reset breaks a stream off. mu is held.
func (c *connection) reset(id uint32, code http2.ErrCode) {
	c.plain = appendReset(c.plain, id, code)
	if s := c.streams[id]; s != nil {
		s.over(c)
	}
}

// unlock releases mu and notifies the handlers of streams that have ended meanwhile.
func (c *connection) unlock() {
	ended := c.ended
	c.ended = nil
	c.mu.Unlock()
	for _, s := range ended {
		s.dispatch(nil)
	}
}

// flush sends the pending frames without waiting: a goroutine writes what the socket does not accept at once.
func (c *connection) flush() {
	c.mu.Lock()
	defer c.unlock()
	for !c.writing && !c.closed && !c.done && c.open {
		c.fill()
		if len(c.plain) == 0 {
			c.mayClose()
			return
		}
		if !c.give() {
			return
		}
		all, err := c.wire.flush()
		if err != nil {
			_ = c.wire.socket.Close()
			return
		}
		if !all {
			if !c.account.Take(unreadCost) {
				_ = c.wire.socket.Close() // the reader notices
				return
			}
			c.writing = true
			c.server.serving.Go(c.write)
		}
	}
}

// give passes the frames to the sink, which keeps them in the wire. mu is held.
func (c *connection) give() bool {
	_, err := c.sink.Write(c.plain)
	if c.plain = c.plain[:0]; cap(c.plain) > 2*maxPlain {
		c.plain = nil
	}
	if err != nil {
		_ = c.wire.socket.Close()
	}
	return err == nil
}

// write writes as fast as the client reads, until all is written.
func (c *connection) write() {
	var buffer []byte
	for {
		buffer = c.wire.take(buffer)
		if _, err := c.wire.socket.Write(buffer); err != nil {
			_ = c.wire.socket.Close() // the reader notices
			return
		}
		c.mu.Lock()
		c.fill()
		if len(c.plain) == 0 {
			c.writing = false
			c.account.Put(unreadCost)
			c.mayClose()
			c.unlock()
			return
		}
		fine := c.give()
		c.unlock()
		if !fine {
			return
		}
	}
}

// mayClose ends a connection that nothing keeps open any more. It closes only the server's half, so that the client
// receives what is still on its way: a fully closed socket is reset by the next frame that arrives, and unsent data is
// lost. Frames that arrive meanwhile are read and not answered. mu is held.
func (c *connection) mayClose() {
	if c.leaving != gone || len(c.streams) > 0 || c.done {
		return
	}
	c.done = true
	half, ok := c.wire.socket.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		_ = c.wire.socket.Close()
		return
	}
	_ = c.wire.socket.SetReadDeadline(time.Now().Add(lingering))
}

// say frames headers of a stream. mu is held.
func (c *connection) say(stream uint32, end bool, pairs ...string) {
	c.plain = appendHeaders(c.plain, stream, c.resized, end, pairs...)
	c.resized = false
}

// fill frames what streams have to send, in turns, as far as the windows allow. mu is held.
func (c *connection) fill() {
	for len(c.ready) > 0 && len(c.plain) < maxPlain && c.sendWindow > 0 {
		s := c.ready[0]
		c.ready = c.ready[1:]
		s.queued = false
		s.frame()
		s.stir()
	}
	if len(c.ready) == 0 {
		c.ready = nil
	}
}
