package h2stream

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// raw is a frame as it is on the wire, however wrong.
func raw(kind http2.FrameType, flags http2.Flags, stream uint32, payload ...byte) []byte {
	n := len(payload)
	return append([]byte{byte(n >> 16), byte(n >> 8), byte(n), byte(kind), byte(flags), byte(stream >> 24), byte(stream >> 16), byte(stream >> 8),
		byte(stream)}, payload...)
}

// block is a header of a request, with more fields.
func block(more ...string) []byte {
	var out bytes.Buffer
	coder := hpack.NewEncoder(&out)
	fields := append([]string{":method", "POST", ":scheme", "http", ":path", "/s/m", ":authority", "x", "content-type", "application/grpc"}, more...)
	for i := 0; i < len(fields); i += 2 {
		_ = coder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1], Sensitive: true}) // not into the table
	}
	return out.Bytes()
}

// verdict is what a server makes of frames: it goes on, resets stream 1 or 3, or ends the connection.
type verdict struct {
	end  string
	code http2.ErrCode
}

func (v verdict) String() string { return fmt.Sprintf("%s %v", v.end, v.code) }

// judge sends frames behind the beginning of a request on stream 1, and a ping.
func judge(t *testing.T, address string, frames []byte) verdict {
	t.Helper()
	socket, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	_ = socket.SetDeadline(time.Now().Add(patience))
	var out bytes.Buffer
	f := http2.NewFramer(&out, socket)
	out.WriteString(http2.ClientPreface)
	_ = f.WriteSettings()
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(), EndHeaders: true})
	out.Write(frames)
	_ = f.WritePing(false, [8]byte{7})
	if _, err := socket.Write(out.Bytes()); err != nil {
		t.Fatal(err)
	}
	got := verdict{end: "goes on"}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			if got.end != "the connection ends" {
				got = verdict{end: "the connection ends without a reason"}
			}
			return got
		}
		switch frame := frame.(type) {
		case *http2.GoAwayFrame:
			got = verdict{"the connection ends", frame.ErrCode}
			return got
		case *http2.RSTStreamFrame:
			got = verdict{fmt.Sprintf("stream %d is reset", frame.StreamID), frame.ErrCode}
		case *http2.PingFrame:
			if frame.IsAck() {
				return got
			}
		}
	}
}

// reference is net/http's server of HTTP/2. As with the handlers of ours, no answer ends a stream before the connection ends: what a
// frame on stream 1 means would otherwise depend on which of the two came first.
func reference(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Protocols: protocols, ReadHeaderTimeout: patience, ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return l.Addr().String()
}

// differs lists what this server does otherwise than net/http's, and what that is.
var differs = map[string]verdict{
	// Frames of streams that are over cost credit and get no answer: a client might have sent them before it knew.
	// TestFloodsEndTheConnection bounds them.
	"headers of an earlier stream": goesOn, "a reset, and data of the stream": goesOn, "a reset, and headers of the stream": goesOn,
	// RFC 9113 has no priorities of streams any more.
	"headers that depend on themselves": goesOn, "a priority of itself": goesOn,
	// net/http answers 400, or lets the handler find out. A gateway has no use for such an answer.
	"headers that name the connection": malformed, "headers with another te": malformed, "less data than announced": malformed,
	"announced data that is absent": malformed,
}

var goesOn, malformed = verdict{end: "goes on"}, verdict{"stream 3 is reset", http2.ErrCodeProtocol}

// TestFramingAgreesWithNetHTTP: what breaks RFC 9113 has the same end in this server as in net/http's.
func TestFramingAgreesWithNetHTTP(t *testing.T) {
	const (
		endStream, endHeaders, ack, padded = http2.FlagDataEndStream, http2.FlagHeadersEndHeaders, http2.FlagSettingsAck, http2.FlagDataPadded
	)
	headers := func(stream uint32, more ...string) []byte {
		return raw(http2.FrameHeaders, endHeaders, stream, block(more...)...)
	}
	last := func(stream uint32, block []byte) []byte {
		return raw(http2.FrameHeaders, endHeaders|http2.FlagHeadersEndStream, stream, block...)
	}
	trailer := []byte{0x10, 1, 'x', 1, 'y'}
	setting := func(id http2.SettingID, value uint32) []byte {
		return raw(http2.FrameSettings, 0, 0, byte(id>>8), byte(id), byte(value>>24), byte(value>>16), byte(value>>8), byte(value))
	}
	window := func(stream, n uint32) []byte {
		return raw(http2.FrameWindowUpdate, 0, stream, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	ours := newHouse(t, Options{}, func(*Call, *Stream) *handler { return &handler{} }).address
	theirs := reference(t)
	for name, frames := range map[string][]byte{
		"nothing":                            nil,
		"a frame of an unknown type":         raw(0x77, 0, 1, 1, 2, 3),
		"an unknown setting":                 setting(0x77, 1),
		"data on stream 0":                   raw(http2.FrameData, 0, 0, 1),
		"data on an idle stream":             raw(http2.FrameData, 0, 5, 1),
		"data longer than its padding":       raw(http2.FrameData, padded, 1, 2, 1, 0, 0),
		"data shorter than its padding":      raw(http2.FrameData, padded, 1, 9, 1),
		"data after the end":                 append(raw(http2.FrameData, endStream, 1), raw(http2.FrameData, 0, 1, 1)...),
		"headers on stream 0":                headers(0),
		"headers on an even stream":          headers(2),
		"headers of an earlier stream":       append(headers(5), headers(3)...),
		"headers that cannot be decoded":     raw(http2.FrameHeaders, endHeaders, 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		"headers without their end":          append(raw(http2.FrameHeaders, 0, 3, block()...), raw(http2.FramePing, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8)...),
		"headers with an upper-case name":    headers(3, "X-Upper", "y"),
		"headers with a wrong value":         headers(3, "x", "a\nb"),
		"headers with a late pseudo header":  headers(3, ":path", "/other"),
		"headers with an unknown pseudo":     raw(http2.FrameHeaders, endHeaders, 3, append(block()[:0:0], append([]byte{0x10, 2, ':', 'x', 1, 'y'}, block()...)...)...),
		"a continuation of nothing":          raw(http2.FrameContinuation, endHeaders, 1),
		"a continuation of another stream":   append(raw(http2.FrameHeaders, 0, 3, block()...), raw(http2.FrameContinuation, endHeaders, 1)...),
		"settings on a stream":               raw(http2.FrameSettings, 0, 1),
		"settings of a wrong length":         raw(http2.FrameSettings, 0, 0, 1, 2, 3),
		"an acknowledgement with content":    raw(http2.FrameSettings, ack, 0, 0, 1, 0, 0, 0, 1),
		"a window too large in settings":     setting(http2.SettingInitialWindowSize, 1<<31),
		"frames too small in settings":       setting(http2.SettingMaxFrameSize, 1),
		"frames too large in settings":       setting(http2.SettingMaxFrameSize, 1<<24),
		"push neither on nor off":            setting(http2.SettingEnablePush, 2),
		"a ping on a stream":                 raw(http2.FramePing, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8),
		"a ping of a wrong length":           raw(http2.FramePing, 0, 0, 1, 2, 3),
		"a window of 0":                      window(0, 0),
		"a window of 0 on a stream":          window(1, 0),
		"a window that overflows":            window(0, 1<<31-1),
		"a window that overflows, on 1":      window(1, 1<<31-1),
		"a window of a wrong length":         raw(http2.FrameWindowUpdate, 0, 0, 1, 2, 3),
		"a window of an idle stream":         window(5, 1),
		"a reset of stream 0":                raw(http2.FrameRSTStream, 0, 0, 0, 0, 0, 8),
		"a reset of an idle stream":          raw(http2.FrameRSTStream, 0, 5, 0, 0, 0, 8),
		"a reset of a wrong length":          raw(http2.FrameRSTStream, 0, 1, 0, 0, 8),
		"a priority on stream 0":             raw(http2.FramePriority, 0, 0, 0, 0, 0, 1, 0),
		"a priority of a wrong length":       raw(http2.FramePriority, 0, 3, 0, 0, 0, 1),
		"a goaway on a stream":               raw(http2.FrameGoAway, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0),
		"a promise":                          raw(http2.FramePushPromise, endHeaders, 1, append([]byte{0, 0, 0, 2}, block()...)...),
		"a frame larger than is allowed":     raw(http2.FrameData, 0, 1, make([]byte, 1<<20+1)...)[:9], // no more: the server would reset what it does not read
		"a reset, and data of the stream":    append(raw(http2.FrameRSTStream, 0, 1, 0, 0, 0, 8), raw(http2.FrameData, 0, 1, 1)...),
		"a reset, and headers of the stream": append(raw(http2.FrameRSTStream, 0, 1, 0, 0, 0, 8), headers(1)...),
		"headers again after the end":        append(raw(http2.FrameData, endStream, 1), headers(1)...),
		"trailers without the end":           raw(http2.FrameHeaders, endHeaders, 1, trailer...),
		"trailers with a pseudo header":      last(1, block()),
		"trailers with an upper-case name":   last(1, []byte{0x10, 1, 'X', 1, 'y'}),
		"headers that name the connection":   headers(3, "connection", "keep-alive"),
		"headers with another te":            headers(3, "te", "gzip"),
		"less data than announced":           append(headers(3, "content-length", "9"), raw(http2.FrameData, endStream, 3, 1)...),
		"data announced":                     append(headers(3, "content-length", "1"), raw(http2.FrameData, endStream, 3, 1)...),
		"data announced, and trailers":       append(append(headers(3, "content-length", "1"), raw(http2.FrameData, 0, 3, 1)...), last(3, trailer)...),
		"more data than announced":           append(headers(3, "content-length", "1"), raw(http2.FrameData, 0, 3, 1, 2)...),
		"announced data that is absent":      last(3, block("content-length", "9")),
		"announced data of a negative size":  headers(3, "content-length", "-1"),
		"two different announced sizes":      headers(3, "content-length", "1", "content-length", "2"),
		"headers that depend on themselves":  raw(http2.FrameHeaders, endHeaders|http2.FlagHeadersPriority, 3, append([]byte{0, 0, 0, 3, 7}, block()...)...),
		"a priority of itself":               raw(http2.FramePriority, 0, 3, 0, 0, 0, 3, 7),
		"an index beyond the table":          raw(http2.FrameHeaders, endHeaders, 3, append(block(), 0xff, 0x80, 0x01)...),
		"an index of 0":                      raw(http2.FrameHeaders, endHeaders, 3, append(block(), 0x80)...),
		"a table larger than is allowed":     raw(http2.FrameHeaders, endHeaders, 3, append([]byte{0x3f, 0xe2, 0x1f}, block()...)...),
		"a table resized too late":           raw(http2.FrameHeaders, endHeaders, 3, append(block(), 0x20)...),
		"a text with too much padding":       raw(http2.FrameHeaders, endHeaders, 3, append(block(), 0x10, 1, 'x', 0x85, 0xf2, 0xb2, 0x4a, 0x84, 0xff)...),
		"a setting twice":                    raw(http2.FrameSettings, 0, 0, 0, 4, 0, 0, 0, 1, 0, 4, 0, 0, 0, 2),
		"a window that becomes negative":     append(setting(http2.SettingInitialWindowSize, 1), setting(http2.SettingInitialWindowSize, 0)...),
		"a window that overflows by setting": append(window(1, 1<<31-1-65535), setting(http2.SettingInitialWindowSize, 65536)...),
		"headers shorter than their padding": raw(http2.FrameHeaders, endHeaders|http2.FlagHeadersPadded, 3, append([]byte{255}, block()...)...),
	} {
		theirs, got := judge(t, theirs, frames), judge(t, ours, frames)
		want, other := differs[name]
		if !other {
			want = theirs
		}
		if got != want {
			t.Errorf("%s: %v, want %v; in net/http %v", name, got, want, theirs)
		}
		if other && got == theirs {
			t.Errorf("%s: %v, as in net/http", name, got)
		}
	}
}
