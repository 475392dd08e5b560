package accept

import (
	"bytes"
	"sync"
	"time"
)

// A field takes a few bytes of the connection, in HTTP/2 one byte if it is of the compression's static table, and some hundred
// nanoseconds and bytes of the server, which decodes it before anything can refuse the request. So the fields are counted before
// net/http reads them. What a header has beyond FreeFields draws on the credit of its client's address, of savedFields, which grows
// by fieldsPerSecond. Without credit, the connections that have such headers are read more slowly, and one that would wait for longer
// than longestWait ends.
//
// A client with many addresses has a credit for each, so that of all addresses together is allAddresses times that of one.
//
// Requests of ordinary clients draw nothing, however many there are: SDKs send about 20 fields, and gateways add about 15.
const (
	savedFields     = 16 << 10
	fieldsPerSecond = 32 << 10
	longestWait     = 2 * time.Second
	allAddresses    = 4
)

// FreeFields are the fields of a header that cost a client nothing.
const FreeFields = 64

// pacer is the credit of an address, or of all. It is safe for concurrent use.
type pacer struct {
	times float64 // the credit of one address

	mu   sync.Mutex
	debt float64 // guarded by mu; fields that were not free, less what time has paid
	at   time.Time
}

// wait takes fields off the credit at now, and returns how long their connection must wait. Without room in longestWait it takes
// nothing.
func (p *pacer) wait(fields int, now time.Time) (wait time.Duration, room bool) {
	if fields == 0 {
		return 0, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pay(now)
	wait = time.Duration(max(0, p.debt+float64(fields)-p.times*savedFields) / (p.times * fieldsPerSecond) * float64(time.Second))
	if wait > longestWait {
		return 0, false
	}
	p.debt += float64(fields)
	return wait, true
}

// even reports whether there is no debt.
func (p *pacer) even(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pay(now)
	return p.debt == 0
}

// pay pays for what has passed. p.mu is held.
func (p *pacer) pay(now time.Time) {
	p.debt = max(0, p.debt-p.times*fieldsPerSecond*now.Sub(p.at).Seconds())
	p.at = now
}

// lines counts the fields of a header of HTTP/1, a line each. The zero value is at the header's beginning.
type lines struct {
	fields int
	text   bool // the present line has some
	over   bool // the header is
}

// count reads what was sent next, and returns the number of fields that are not free.
func (l *lines) count(p []byte) int {
	before := max(l.fields, FreeFields)
	for !l.over {
		end := bytes.IndexByte(p, '\n')
		line := p
		if end >= 0 {
			line, p = p[:end], p[end+1:]
		}
		l.text = l.text || len(bytes.TrimSuffix(line, []byte{'\r'})) > 0
		if end < 0 {
			break
		}
		l.over = !l.text && l.fields > 0 // empty lines before a request are skipped
		if l.text {
			l.fields++
		}
		l.text = false
	}
	return max(0, l.fields-before)
}

// Frames of HTTP/2, RFC 9113.
const (
	frameHeader       = 9 // bytes before the payload
	frameData         = 0
	frameHeaders      = 1
	frameContinuation = 9
	flagPadded        = 0x8
	flagPriority      = 0x20
)

// counter counts the fields of headers, and frames, in what a client of HTTP/2 sends, from the first byte after the preface. It decodes
// no field. The zero value is ready to use.
type counter struct {
	header [frameHeader]byte // of the frame
	got    int               // bytes of it

	// payload and pos are the length of the payload and what was read of it. lead and padding are the bytes before and after
	// the fragment of a header's block.
	payload, pos, lead, padding int

	block  block
	fields int // of the header so far
	begun  counted
}

// counted is what a part of a connection has.
type counted struct {
	beyond int // fields of headers that are not free
	// frames that begin: all of them, those that begin a header, those that bring neither that nor data, and those with little data.
	frames, requests, light, short int
}

// count reads what was sent next.
func (c *counter) count(p []byte) counted {
	c.begun = counted{}
	for len(p) > 0 {
		if c.got < frameHeader {
			n := copy(c.header[c.got:], p)
			c.got += n
			p = p[n:]
			if c.got == frameHeader {
				c.begin()
			}
		} else {
			n := min(len(p), c.payload-c.pos)
			c.begun.beyond += c.read(p[:n])
			c.pos += n
			p = p[n:]
		}
		if c.got == frameHeader && c.pos == c.payload {
			c.got = 0
		}
	}
	return c.begun
}

// begin begins a frame.
func (c *counter) begin() {
	h := &c.header
	c.payload, c.pos, c.lead, c.padding = int(h[0])<<16|int(h[1])<<8|int(h[2]), 0, 0, 0
	c.begun.frames++
	switch {
	case h[3] == frameHeaders:
		c.begun.requests++
	case h[3] != frameData && h[3] != frameContinuation, c.payload == 0:
		c.begun.light++
	case h[3] == frameData && c.payload < shortData:
		c.begun.short++
	}
	if h[3] != frameHeaders {
		return
	}
	c.block, c.fields = block{}, 0
	if h[4]&flagPadded != 0 {
		c.lead++
	}
	if h[4]&flagPriority != 0 {
		c.lead += 5
	}
}

// read reads a part of a payload.
func (c *counter) read(p []byte) (beyond int) {
	if kind := c.header[3]; kind != frameHeaders && kind != frameContinuation {
		return 0
	}
	if c.header[3] == frameHeaders && c.header[4]&flagPadded != 0 && c.pos == 0 {
		c.padding = int(p[0])
	}
	first, end := max(0, c.lead-c.pos), min(len(p), c.payload-c.padding-c.pos)
	if first >= end {
		return 0
	}
	before := max(c.fields, FreeFields)
	c.fields += c.block.count(p[first:end])
	return max(0, c.fields-before)
}

// What comes next in a block, RFC 7541.
const (
	nextField   = iota
	nextInteger // the rest of a number of several bytes
	nextLength  // of a string
	nextString  // the rest of a string
	nextNoSense // the server will end the connection
	// maxShift ends numbers of too many bytes, as in golang.org/x/net/http2/hpack.
	maxShift = 63
)

// block counts the fields of a compressed header, part by part.
type block struct {
	next    int
	integer uint64 // read so far
	shift   int    // of its next byte
	length  bool   // of a string
	left    uint64 // of a string
	strings int    // that the field still has
}

// count returns how many fields begin in p.
func (b *block) count(p []byte) (fields int) {
	for i := 0; i < len(p); {
		one := p[i]
		switch b.next {
		case nextField:
			i++
			fields += b.field(one)
		case nextInteger:
			i++
			b.integer += uint64(one&0x7f) << b.shift
			if b.shift += 7; one&0x80 == 0 {
				b.value()
			} else if b.shift >= maxShift {
				b.next = nextNoSense
			}
		case nextLength:
			i++
			b.number(one, 0x7f, true)
		case nextString:
			n := min(b.left, uint64(len(p)-i))
			i += int(n) // at most the length of p
			if b.left -= n; b.left == 0 {
				b.following()
			}
		default:
			return fields
		}
	}
	return fields
}

// field begins a field, or a new size of the table, with its first byte.
func (b *block) field(one byte) int {
	switch {
	case one&0x80 != 0: // of the table
		b.strings = 0
		b.number(one, 0x7f, false)
	case one&0xe0 == 0x20: // the table's size
		b.strings = 0
		b.number(one, 0x1f, false)
		return 0
	case one&0x40 != 0: // to be added to the table
		b.strings = 1
		b.literal(one, 0x3f)
	default:
		b.strings = 1
		b.literal(one, 0x0f)
	}
	return 1
}

// literal begins a field with a value, and with a name if the table's index is 0.
func (b *block) literal(one, mask byte) {
	if one&mask == 0 {
		b.strings = 2
	}
	b.number(one, mask, false)
}

// number begins a number: the bits of the mask, unless all of them are set. length: it is that of a string.
func (b *block) number(one, mask byte, length bool) {
	b.integer, b.shift, b.length = uint64(one&mask), 0, length
	if b.integer == uint64(mask) {
		b.next = nextInteger
		return
	}
	b.value()
}

// value takes a number that was read.
func (b *block) value() {
	if b.length && b.integer > 0 {
		b.left, b.next = b.integer, nextString
		return
	}
	b.following()
}

// following goes on to the field's next string, or to the next field.
func (b *block) following() {
	b.next = nextField
	if b.strings > 0 {
		b.strings--
		b.next = nextLength
	}
}
