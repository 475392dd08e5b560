package h2stream

import (
	"encoding/binary"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// frameHeader is the size of what precedes each frame.
const frameHeader = 9

func appendHeader(b []byte, length int, kind http2.FrameType, flags http2.Flags, stream uint32) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags))
	return binary.BigEndian.AppendUint32(b, stream)
}

func appendSettings(b []byte, settings ...http2.Setting) []byte {
	b = appendHeader(b, 6*len(settings), http2.FrameSettings, 0, 0)
	for _, s := range settings {
		b = binary.BigEndian.AppendUint16(b, uint16(s.ID))
		b = binary.BigEndian.AppendUint32(b, s.Val)
	}
	return b
}

var settingsAck = appendHeader(nil, 0, http2.FrameSettings, http2.FlagSettingsAck, 0)

func appendWindowUpdate(b []byte, stream uint32, more int) []byte {
	b = appendHeader(b, 4, http2.FrameWindowUpdate, 0, stream)
	return binary.BigEndian.AppendUint32(b, uint32(more))
}

func appendPing(b []byte, ack bool, data [8]byte) []byte {
	flags := http2.Flags(0)
	if ack {
		flags = http2.FlagPingAck
	}
	return append(appendHeader(b, 8, http2.FramePing, flags, 0), data[:]...)
}

func appendReset(b []byte, stream uint32, code http2.ErrCode) []byte {
	return binary.BigEndian.AppendUint32(appendHeader(b, 4, http2.FrameRSTStream, 0, stream), uint32(code))
}

func appendGoAway(b []byte, last uint32, code http2.ErrCode) []byte {
	b = binary.BigEndian.AppendUint32(appendHeader(b, 8, http2.FrameGoAway, 0, 0), last)
	return binary.BigEndian.AppendUint32(b, uint32(code))
}

// appendHeaders appends a frame of headers, as pairs of names and values. It adds nothing to the tables of header
// compression, so that there is no state between frames. resize announces a table of size 0, which is required in the first
// headers after a client has reduced the size (RFC 7541, 4.2).
func appendHeaders(b []byte, stream uint32, resize, end bool, pairs ...string) []byte {
	flags := http2.FlagHeadersEndHeaders
	if end {
		flags |= http2.FlagHeadersEndStream
	}
	at := len(b)
	b = appendHeader(b, 0, http2.FrameHeaders, flags, stream)
	if resize {
		b = append(b, 0x20) // a dynamic table size update (6.3)
	}
	for i := 0; i < len(pairs); i += 2 {
		// A literal that is not indexed, with its name as it is (RFC 7541, 6.2.2).
		b = append(b, 0)
		b = appendText(appendText(b, pairs[i]), pairs[i+1])
	}
	return finishFrame(b, at)
}

// appendText appends a string without Huffman coding (RFC 7541, 5.2).
func appendText(b []byte, text string) []byte {
	n := len(text)
	if n < 127 {
		return append(append(b, byte(n)), text...)
	}
	b = append(b, 127)
	for n -= 127; n >= 128; n >>= 7 {
		b = append(b, byte(n)|128)
	}
	return append(append(b, byte(n)), text...)
}

// finishFrame writes the length of the frame that begins at a place and ends with b.
func finishFrame(b []byte, at int) []byte {
	n := len(b) - at - frameHeader
	b[at], b[at+1], b[at+2] = byte(n>>16), byte(n>>8), byte(n)
	return b
}

// Call is the content of a stream's header.
type Call struct {
	// Method that is called, as in "/package.Service/Method".
	Method string

	fields  []hpack.HeaderField
	timeout time.Duration
	timed   bool // there is a time-out
}

func callOf(f *http2.MetaHeadersFrame) Call {
	c := Call{fields: f.Fields}
	c.Method = c.Header(":path")
	if text := c.Header("grpc-timeout"); text != "" {
		c.timeout, c.timed = timeoutOf(text)
	}
	return c
}

// Header is the first value of a name in lower case; empty when there is none.
func (c *Call) Header(name string) string {
	for i := range c.fields {
		if c.fields[i].Name == name {
			return c.fields[i].Value
		}
	}
	return ""
}

// wellFormed reports whether a header is one of a request (RFC 9113, 8.2.2 and 8.3.1).
func (c *Call) wellFormed() bool {
	for i := range c.fields {
		switch c.fields[i].Name {
		case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade", ":status":
			return false
		case "te":
			if c.fields[i].Value != "trailers" {
				return false
			}
		}
	}
	return c.Header(":method") != "" && c.Header(":scheme") != "" && c.Header(":path") != ""
}

// length is the value of content-length; -1 without a valid one.
func (c *Call) length() int64 {
	text := c.Header("content-length")
	if text == "" { // as usual: ParseUint would allocate an error
		return -1
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return -1
	}
	return int64(n) // of 63 bits
}

// isRPC reports whether it is a call of gRPC.
func (c *Call) isRPC() bool {
	rest, ok := strings.CutPrefix(strings.ToLower(c.Header("content-type")), "application/grpc")
	return ok && c.Header(":method") == "POST" && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// timeoutOf reads a time-out of at most eight digits and a unit. What cannot be read is none.
func timeoutOf(text string) (time.Duration, bool) {
	unit, ok := map[string]time.Duration{
		"H": time.Hour, "M": time.Minute, "S": time.Second, "m": time.Millisecond, "u": time.Microsecond, "n": time.Nanosecond,
	}[text[max(0, len(text)-1):]]
	if !ok || len(text) > 9 {
		return 0, false
	}
	n, err := strconv.ParseUint(text[:len(text)-1], 10, 32)
	if err != nil {
		return 0, false
	}
	return min(time.Duration(n), 100*365*24*time.Hour/unit) * unit, true
}

// escape writes a message as trailers take it: what is not printable ASCII, and the percent sign, in percents.
func escape(message string) string {
	var b strings.Builder
	for i := range len(message) {
		if c := message[i]; c < ' ' || c > '~' || c == '%' {
			b.WriteString("%" + strings.ToUpper(strconv.FormatInt(int64(c)+0x100, 16)[1:]))
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
