package zmtp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// Socket types as they appear in READY.
const (
	typeSub    = "SUB"
	typePub    = "PUB"
	typeDealer = "DEALER"
	typeRouter = "ROUTER"
)

// partners are the socket types that each type can talk to.
var partners = map[string][]string{
	typeSub:    {typePub, "XPUB"},
	typePub:    {typeSub, "XSUB"},
	typeDealer: {typeRouter, typeDealer, "REP"},
	typeRouter: {typeDealer, typeRouter, "REQ"},
}

const (
	greetingSize = 64
	ourMinor     = 1
)

// Bits of a frame's first byte; the others are reserved and 0.
const (
	flagMore    = 1 << 0
	flagLong    = 1 << 1
	flagCommand = 1 << 2
	flagsKnown  = flagMore | flagLong | flagCommand
)

// Names of commands, and of properties in READY.
const (
	cmdReady     = "READY"
	cmdError     = "ERROR"
	cmdPing      = "PING"
	cmdPong      = "PONG"
	cmdSubscribe = "SUBSCRIBE"
	cmdCancel    = "CANCEL"

	propSocketType = "Socket-Type"
	propIdentity   = "Identity"
)

// greeting is the first message of each side: signature (10 bytes), version, mechanism (20), as-server, filler.
func greeting() [greetingSize]byte {
	g := [greetingSize]byte{0: 0xff, 9: 0x7f, 10: 3, 11: ourMinor}
	copy(g[12:32], "NULL")
	return g
}

// parseGreeting returns the minor version of both sides.
func parseGreeting(g []byte) (minor int, err error) {
	switch {
	case len(g) != greetingSize:
		return 0, fmt.Errorf("%w: greeting of %d bytes", ErrMalformed, len(g))
	case g[0] != 0xff || g[9]&1 == 0:
		return 0, fmt.Errorf("%w: no ZMTP signature", ErrMalformed)
	case g[10] < 3:
		return 0, fmt.Errorf("%w: ZMTP %d", ErrPeer, g[10])
	}
	if mechanism := bytes.TrimRight(g[12:32], "\x00"); string(mechanism) != "NULL" {
		return 0, fmt.Errorf("%w: mechanism %q", ErrPeer, mechanism)
	}
	if g[10] > 3 {
		return ourMinor, nil
	}
	return min(int(g[11]), ourMinor), nil
}

// appendFrame appends a frame with its header.
func appendFrame(dst []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		dst = append(dst, flags|flagLong)
		dst = binary.BigEndian.AppendUint64(dst, uint64(len(body)))
	} else {
		dst = append(dst, flags, byte(len(body)))
	}
	return append(dst, body...)
}

// frameOverhead is the longest header of a frame, in bytes.
const frameOverhead = 9

// appendMessage appends all frames of a message.
func appendMessage(dst []byte, frames [][]byte) []byte {
	n := 0
	for _, f := range frames {
		n += len(f) + frameOverhead
	}
	dst = slices.Grow(dst, n)
	for i, f := range frames {
		flags := byte(0)
		if i < len(frames)-1 {
			flags = flagMore
		}
		dst = appendFrame(dst, flags, f)
	}
	return dst
}

// encodeCommand returns a command as a frame.
func encodeCommand(name string, data []byte) []byte {
	body := make([]byte, 0, 1+len(name)+len(data))
	body = append(body, byte(len(name)))
	body = append(body, name...)
	body = append(body, data...)
	return appendFrame(nil, flagCommand, body)
}

// readyData is the data of READY: properties, each a name (8-bit length) and a value (32-bit length).
func readyData(socketType string) []byte {
	var data []byte
	property := func(name, value string) {
		data = append(data, byte(len(name)))
		data = append(data, name...)
		data = binary.BigEndian.AppendUint32(data, uint32(len(value)))
		data = append(data, value...)
	}
	property(propSocketType, socketType)
	if socketType == typeDealer || socketType == typeRouter {
		property(propIdentity, "")
	}
	return data
}

// parseReady returns the peer's socket type and identity. Names of properties are compared without regard to case.
func parseReady(data []byte) (socketType, identity string, err error) {
	for len(data) > 0 {
		n := int(data[0])
		data = data[1:]
		if n == 0 || len(data) < n+4 {
			return "", "", fmt.Errorf("%w: READY ends inside a property", ErrMalformed)
		}
		name := data[:n]
		size := binary.BigEndian.Uint32(data[n:])
		data = data[n+4:]
		if uint64(size) > uint64(len(data)) {
			return "", "", fmt.Errorf("%w: READY ends inside a property", ErrMalformed)
		}
		value := data[:size]
		data = data[size:]
		switch {
		case bytes.EqualFold(name, []byte(propSocketType)):
			socketType = string(value)
		case bytes.EqualFold(name, []byte(propIdentity)):
			if len(value) > 255 {
				return "", "", fmt.Errorf("%w: identity of %d bytes", ErrMalformed, len(value))
			}
			identity = string(value)
		}
	}
	return socketType, identity, nil
}

// parseCommand splits a command's body.
func parseCommand(body []byte) (name, data []byte, err error) {
	if len(body) == 0 || body[0] == 0 || len(body) < 1+int(body[0]) {
		return nil, nil, fmt.Errorf("%w: command without a name", ErrMalformed)
	}
	n := 1 + int(body[0])
	return body[1:n], body[n:], nil
}

// peerError is the error that an ERROR command reports. Its text is the peer's and therefore quoted and cut.
func peerError(data []byte) error {
	reason := data
	if len(data) > 0 && len(data) > int(data[0]) {
		reason = data[1 : 1+int(data[0])]
	}
	return fmt.Errorf("%w: ERROR %q", ErrPeer, reason[:min(len(reason), 255)])
}

// reader takes frames from a stream. Its buffers are used again for every message, and draw on a share.
type reader struct {
	br  *bufio.Reader
	cfg Config
	// command receives the body of every command before or inside a message. Publishers with heartbeats put PING between
	// the frames of a message.
	command func(body []byte) error
	share   *budget.Share

	// topic is asked about the first frame of a message, unless that is known; nil for none. within is set while a message arrives.
	topic  func(topic []byte) bool
	known  []byte
	within func(message bool)

	frames  Message
	large   int      // bytes of frames whose buffers are not kept
	buffers [][]byte // of frames, by position; none is larger than growStep
	cmd     []byte
}

// next returns the next message. At the end of the stream between messages the error is io.EOF.
func (r *reader) next() (Message, error) {
	clear(r.frames)
	r.frames = r.frames[:0]
	r.share.Put(r.large)
	r.large = 0
	total := 0
	defer r.inside(false)
	for {
		flags, n, err := r.header()
		if err != nil {
			if errors.Is(err, io.EOF) && len(r.frames) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if flags&flagCommand != 0 {
			if err := r.readCommand(n); err != nil {
				return nil, err
			}
			r.inside(len(r.frames) > 0)
			continue
		}
		if len(r.frames) == r.cfg.MaxFrames {
			return nil, fmt.Errorf("%w: more than %d frames", ErrLimit, r.cfg.MaxFrames)
		}
		asked := r.topic != nil && len(r.frames) == 0
		if asked && n > maxTopic {
			return nil, fmt.Errorf("%w: topic of %d bytes", ErrLimit, n)
		}
		if n > uint64(r.cfg.MaxFrame) || n > uint64(r.cfg.MaxMessage-total) {
			return nil, fmt.Errorf("%w: frame of %d bytes after %d", ErrLimit, n, total)
		}
		total += int(n)
		body, err := r.frame(n)
		if err != nil {
			return nil, err
		}
		if asked && !r.asks(body) {
			return nil, ErrTopic
		}
		r.frames = append(r.frames, body)
		if flags&flagMore == 0 {
			return r.frames, nil
		}
	}
}

// inside records that a message has begun, or is complete.
func (r *reader) inside(message bool) {
	if r.within != nil {
		r.within(message)
	}
}

// asks reports whether a message with this topic can be sent.
func (r *reader) asks(topic []byte) bool {
	if len(topic) > 0 && bytes.Equal(topic, r.known) {
		return true
	}
	if !r.topic(topic) {
		return false
	}
	r.known = append(r.known[:0], topic...)
	return true
}

// frame reads the body of the next frame of a message into the buffer kept for its position.
func (r *reader) frame(n uint64) ([]byte, error) {
	i := len(r.frames)
	if i == len(r.buffers) {
		r.buffers = append(r.buffers, nil)
	}
	body, err := r.body(r.buffers[i], n)
	if r.buffers[i] = body; cap(body) > growStep {
		r.buffers[i] = nil
		r.large += cap(body)
	}
	return body, err
}

// readCommand reads a command of n bytes and hands it on.
func (r *reader) readCommand(n uint64) error {
	if n > maxCommand {
		return fmt.Errorf("%w: command of %d bytes", ErrLimit, n)
	}
	var err error
	if r.cmd, err = r.body(r.cmd, n); err != nil {
		return err
	}
	return r.command(r.cmd)
}

// header reads a frame's flags and length.
func (r *reader) header() (flags byte, n uint64, err error) {
	if flags, err = r.br.ReadByte(); err != nil {
		return 0, 0, err
	}
	r.inside(true)
	if flags&^flagsKnown != 0 || flags&(flagCommand|flagMore) == flagCommand|flagMore {
		return 0, 0, fmt.Errorf("%w: frame with flags %#x", ErrMalformed, flags)
	}
	if flags&flagLong == 0 {
		short, err := r.br.ReadByte()
		return flags, uint64(short), inside(err)
	}
	long, err := r.br.Peek(8)
	if err != nil {
		return 0, 0, inside(err)
	}
	n = binary.BigEndian.Uint64(long)
	_, err = r.br.Discard(8)
	return flags, n, err
}

// body reads n bytes into buf, which grows as they arrive: at most growStep bytes, or as many as have arrived, are
// taken ahead of them. The share has what buf can hold.
func (r *reader) body(buf []byte, n uint64) ([]byte, error) {
	buf = buf[:0]
	for uint64(len(buf)) < n {
		have := uint64(len(buf))
		want := n
		if uint64(cap(buf)) < n {
			want = min(n, have+max(have, growStep))
			room := max(want, min(2*uint64(cap(buf)), growStep))
			if !r.share.Take(int(room) - cap(buf)) {
				return buf, fmt.Errorf("%w: no room for a frame of %d bytes", ErrLimit, n)
			}
			buf = append(make([]byte, 0, room), buf...)
		}
		buf = buf[:want]
		if _, err := io.ReadFull(r.br, buf[have:]); err != nil {
			return buf[:have], inside(err)
		}
	}
	return buf, nil
}

// inside turns the end of the stream into an unexpected one.
func inside(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
