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
)

const (
	// maxFrame is the most bytes in one frame, in both directions: what HTTP/2 allows without being asked.
	maxFrame = 16 << 10
	// maxPlain is about how much is framed at once.
	maxPlain = 64 << 10
	// maxOwed is the most bytes of frames that answer to a client's (settings, pings, resets) while it does not read. A
	// client that goes beyond it is cut off.
	maxOwed = 1 << 20
	// maxHeaders is the most bytes of a stream's header, as HTTP/2 counts.
	maxHeaders = 64 << 10
	// firstWindow is what HTTP/2 allows to send ahead before anything is said.
	firstWindow = 65535
	maxWindow   = 1<<31 - 1
	// firstTable is the size of the table of header compression before anything is said, in bytes.
	firstTable = 4096
	// lingering is how long a client that has all it was to get may take to close the connection.
	lingering = 5 * time.Second
)

// connection is one client's. The goroutine that runs serve reads; frames to be sent are made under mu, by whoever has
// something to send.
type connection struct {
	server *Server
	wire   *wire
	sink   io.Writer // of frames: TLS, or the wire
	client net.Addr
	lived  atomic.Bool // something was read since the keeper last looked
	keeper *time.Timer
	elder  *time.Timer

	// Of the reading goroutine.
	unsaid int // bytes received that the client has not been told it may send again

	mu         sync.Mutex // guards what follows, and the sending half of streams
	streams    map[uint32]*Stream
	newest     uint32    // the last stream that was opened; only the reading goroutine changes it
	ready      []*Stream // have something to send, and room in their window
	plain      []byte    // frames not yet given to the sink
	sendWindow int64
	peerWindow int64 // of new streams
	peerFrame  int
	resized    bool      // the client has set how large a table of headers may be, and has not been told that we use none
	writing    bool      // a goroutine writes what the socket did not take
	ended      []*Stream // whose handlers have to be told
	leaving    leaving
	last       uint32 // the last stream that is served, while leaving
	open       bool   // frames may be sent
	done       bool   // no more are: the client has all
	closed     bool
	asked      bool // for a sign of life
}

// leaving is how far a client is on its way elsewhere.
//
//	staying --goAway--> told --confirmed, or goAwayPatience--> gone: closed once there is no stream
type leaving uint8

const (
	staying leaving = iota
	told
	gone
)

var (
	lifePing   = [8]byte{'a', 'l', 'i', 'v', 'e'}
	goAwayPing = [8]byte{'g', 'o', 'a', 'w', 'a', 'y'}
)

func newConnection(s *Server, socket net.Conn) *connection {
	return &connection{
		server: s, wire: newWire(socket), client: socket.RemoteAddr(), streams: map[uint32]*Stream{},
		sendWindow: firstWindow, peerWindow: firstWindow, peerFrame: maxFrame,
	}
}

// serve reads until the connection ends, which it then is for all its streams.
func (c *connection) serve() {
	defer c.end()
	_ = c.wire.socket.SetDeadline(time.Now().Add(handshakeTimeout))
	var source io.Reader = c.wire
	c.sink = c.wire
	if config := c.server.options.TLS; config != nil {
		encrypted := tls.Server(tlsWire{c.wire.socket, c.wire}, config)
		if encrypted.HandshakeContext(context.Background()) != nil || encrypted.ConnectionState().NegotiatedProtocol != http2.NextProtoTLS {
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

// begin says what the client may do, and starts the clocks.
func (c *connection) begin() {
	c.wire.keep()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.plain = appendSettings(c.plain,
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHeaders})
	c.plain = appendWindowUpdate(c.plain, 0, connectionWindow-firstWindow)
	c.open = true
	if c.closed {
		return
	}
	if c.leaving == told { // before it could be told
		c.tell()
	}
	c.keeper = time.AfterFunc(c.server.options.Keepalive, c.keep)
	if age := c.server.options.ConnectionAge; age > 0 {
		c.elder = time.AfterFunc(age-age/10+rand.N(age/5+1), c.goAway)
	}
}

// fatal acts on what went wrong with a frame, and tells whether it is the end of the connection.
func (c *connection) fatal(err error) bool {
	var ofStream http2.StreamError
	var ofAll http2.ConnectionError
	switch {
	case err == nil:
		return false
	case errors.As(err, &ofStream):
		c.opened(ofStream.StreamID)
		c.mu.Lock()
		c.reset(ofStream.StreamID, ofStream.Code)
		c.unlock()
		return false
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

// end is the end of everything about the connection. The reading goroutine calls it.
func (c *connection) end() {
	c.close()
	c.mu.Lock()
	for _, s := range c.streams {
		s.over(c)
	}
	c.unlock()
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

// take takes a frame.
func (c *connection) take(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.DataFrame:
		return c.takeData(f)
	case *http2.MetaHeadersFrame:
		return c.takeHeaders(f)
	case *http2.RSTStreamFrame:
		return c.takeReset(f)
	case *http2.WindowUpdateFrame:
		return c.takeWindow(f)
	case *http2.SettingsFrame:
		return c.takeSettings(f)
	case *http2.PingFrame:
		return c.takePing(f)
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil // priority, and what nobody knows. A client's GOAWAY only says that it opens no more.
}

func (c *connection) takeData(f *http2.DataFrame) error {
	size := int(f.Length) // with padding
	if c.unsaid += size; c.unsaid > connectionWindow {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	c.mu.Lock()
	if c.unsaid >= connectionWindow/4 {
		c.plain = appendWindowUpdate(c.plain, 0, c.unsaid)
		c.unsaid = 0
	}
	s := c.streams[f.StreamID]
	c.mu.Unlock()
	switch {
	case s == nil && f.StreamID > c.newest:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case s == nil: // it is over, and the client did not know
		return nil
	}
	return s.receive(f.Data(), size, f.StreamEnded())
}

func (c *connection) takeHeaders(f *http2.MetaHeadersFrame) error {
	id := f.StreamID
	c.mu.Lock()
	s := c.streams[id]
	refused := c.leaving == gone && id > c.last
	c.mu.Unlock()
	switch {
	case s != nil: // trailers
		if !f.StreamEnded() || len(f.PseudoFields()) > 0 {
			return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
		}
		return s.receive(nil, 0, true)
	case id%2 == 0:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case id <= c.newest: // trailers of a stream that is over, which the client did not know
		return nil
	}
	c.opened(id)
	if refused {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	}
	if f.Truncated {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeEnhanceYourCalm}
	}
	call := callOf(f)
	if !call.wellFormed() {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	s = newStream(c, id)
	c.mu.Lock()
	s.sendWindow = c.peerWindow
	c.streams[id] = s
	c.mu.Unlock()
	s.start(call)
	if f.StreamEnded() {
		return s.receive(nil, 0, true)
	}
	return nil
}

// opened notes that a client has used the number of a stream.
func (c *connection) opened(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newest = max(c.newest, id)
}

func (c *connection) takeReset(f *http2.RSTStreamFrame) error {
	if f.StreamID > c.newest {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.mu.Lock()
	defer c.unlock()
	if s := c.streams[f.StreamID]; s != nil {
		s.over(c)
	}
	return nil
}

func (c *connection) takeWindow(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	more := int64(f.Increment)
	if f.StreamID == 0 {
		if c.sendWindow += more; c.sendWindow > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		return nil
	}
	s := c.streams[f.StreamID]
	if s == nil {
		if f.StreamID > c.newest {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		return nil
	}
	if s.sendWindow += more; s.sendWindow > maxWindow {
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeFlowControl}
	}
	s.stir()
	return nil
}

func (c *connection) takeSettings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	if f.HasDuplicates() {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	err := f.ForeachSetting(func(o http2.Setting) error {
		if err := o.Valid(); err != nil {
			return err
		}
		switch o.ID {
		case http2.SettingMaxFrameSize:
			c.peerFrame = min(int(o.Val), maxFrame)
		case http2.SettingHeaderTableSize:
			c.resized = true
		case http2.SettingInitialWindowSize:
			more := int64(o.Val) - c.peerWindow
			c.peerWindow = int64(o.Val)
			for _, s := range c.streams {
				if s.sendWindow += more; s.sendWindow > maxWindow {
					return http2.ConnectionError(http2.ErrCodeFlowControl)
				}
				s.stir()
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.plain = append(c.plain, settingsAck...)
	return nil
}

func (c *connection) takePing(f *http2.PingFrame) error {
	c.mu.Lock()
	defer c.unlock()
	switch {
	case !f.IsAck():
		c.plain = appendPing(c.plain, true, f.Data)
	case f.Data == goAwayPing && c.leaving == told:
		c.refuse()
	}
	return nil
}

// owes fails when too much waits for a client that asks and does not read.
func (c *connection) owes() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		c.plain = nil
	}
	if len(c.plain) > maxOwed {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	return nil
}

// goAway sends the client elsewhere, without harm to its streams.
func (c *connection) goAway() {
	c.mu.Lock()
	if c.leaving != staying || c.closed {
		c.mu.Unlock()
		return
	}
	c.leaving = told
	if c.open {
		c.tell()
	}
	c.unlock()
	c.flush()
}

// tell asks the client to open no more streams; those that are on their way will be served. mu is held.
func (c *connection) tell() {
	c.plain = appendGoAway(c.plain, maxWindow, http2.ErrCodeNo)
	c.plain = appendPing(c.plain, false, goAwayPing)
	time.AfterFunc(goAwayPatience, func() {
		c.mu.Lock()
		if c.leaving == told && !c.closed {
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
	switch lived := c.lived.Swap(false); {
	case lived:
		c.asked = false
		c.keeper.Reset(c.server.options.Keepalive)
	case c.asked:
		c.mu.Unlock()
		c.close()
		return
	default:
		c.asked = true
		c.plain = appendPing(c.plain, false, lifePing)
		c.keeper.Reset(c.server.options.KeepaliveTimeout)
	}
	c.mu.Unlock()
	c.flush()
}

// reset breaks a stream off. mu is held.
func (c *connection) reset(id uint32, code http2.ErrCode) {
	c.plain = appendReset(c.plain, id, code)
	if s := c.streams[id]; s != nil {
		s.over(c)
	}
}

// unlock gives mu back and tells the handlers of streams that have ended meanwhile.
func (c *connection) unlock() {
	ended := c.ended
	c.ended = nil
	c.mu.Unlock()
	for _, s := range ended {
		s.turn(nil)
	}
}

// flush sends what there is to send, without waiting: what the socket does not take at once, a goroutine writes.
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
			c.writing = true
			c.server.serving.Go(c.write)
		}
	}
}

// give gives the frames to the sink, which keeps them in the wire. mu is held.
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

// mayClose ends a connection that nothing keeps open any more: our half of it, so that the client gets what is still on
// its way. A socket that is closed is reset by the next frame that comes, and what it has not sent yet is lost. What
// comes meanwhile is read and left unanswered. mu is held.
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
