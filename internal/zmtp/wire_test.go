package zmtp

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

// read decodes all messages and commands of a stream.
func read(c Config, stream io.Reader) (messages [][]string, commands []string, err error) {
	r := reader{br: bufio.NewReader(stream), cfg: c.withDefaults(), command: func(body []byte) error {
		name, data, err := parseCommand(body)
		commands = append(commands, string(name)+" "+string(data))
		return err
	}}
	for {
		m, err := r.next()
		if err != nil {
			return messages, commands, err
		}
		messages = append(messages, texts(m))
	}
}

// newTestReader is a reader as a connection has it.
func newTestReader(stream io.Reader) *reader {
	return &reader{br: bufio.NewReaderSize(stream, 64<<10), cfg: Config{}.withDefaults()}
}

func frames(parts ...string) [][]byte {
	out := make([][]byte, 0, len(parts))
	for _, p := range parts {
		out = append(out, []byte(p))
	}
	return out
}

func TestWireBytesAreThoseOfTheGoldenFile(t *testing.T) {
	g := greeting()
	var out strings.Builder
	line := func(what string, b []byte) {
		out.WriteString(what + "\n")
		for chunk := range slices.Chunk(b, 16) {
			out.WriteString("  " + hex.EncodeToString(chunk) + "\n")
		}
	}
	line("greeting", g[:])
	for _, socketType := range []string{typeSub, typePub, typeDealer, typeRouter} {
		line("READY of "+socketType, encodeCommand(cmdReady, readyData(socketType)))
	}
	line("SUBSCRIBE kv@", encodeCommand(cmdSubscribe, []byte("kv@")))
	line("subscription message kv@", appendFrame(nil, 0, []byte("\x01kv@")))
	line("PING", encodeCommand(cmdPing, []byte{0, 0}))
	line("PONG with context abc", encodeCommand(cmdPong, []byte("abc")))
	line("message: topic, sequence 5, payload of 256 bytes",
		appendMessage(nil, [][]byte{[]byte("kv"), seqFrame(5), bytes.Repeat([]byte{0xaa}, 256)}))
	line("message: empty frame, 255 bytes", appendMessage(nil, [][]byte{nil, bytes.Repeat([]byte{0xbb}, 255)}))

	golden := filepath.Join("testdata", "wire.golden")
	if *update {
		if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("wire bytes (-want +got):\n%s", diff)
	}
}

func TestGreeting(t *testing.T) {
	with := func(change func(g []byte)) []byte {
		g := greeting()
		change(g[:])
		return g[:]
	}
	for name, tc := range map[string]struct {
		greeting []byte
		minor    int
		want     error
	}{
		"our own":                        {greeting: with(func([]byte) {}), minor: 1},
		"3.0":                            {greeting: with(func(g []byte) { g[11] = 0 })},
		"a later minor version":          {greeting: with(func(g []byte) { g[11] = 9 }), minor: 1},
		"a later major version":          {greeting: with(func(g []byte) { g[10], g[11] = 4, 0 }), minor: 1},
		"a length in the signature":      {greeting: with(func(g []byte) { g[8] = 1 }), minor: 1},
		"a filler that is not zero":      {greeting: with(func(g []byte) { g[63] = 1 }), minor: 1},
		"ZMTP 2":                         {greeting: with(func(g []byte) { g[10] = 1 }), want: ErrPeer},
		"PLAIN":                          {greeting: with(func(g []byte) { copy(g[12:], "PLAIN") }), want: ErrPeer},
		"a mechanism that begins NULL":   {greeting: with(func(g []byte) { copy(g[12:], "NULLX") }), want: ErrPeer},
		"another first byte":             {greeting: with(func(g []byte) { g[0] = 'H' }), want: ErrMalformed},
		"another last byte of signature": {greeting: with(func(g []byte) { g[9] = 0x7e }), want: ErrMalformed},
		"too short":                      {greeting: make([]byte, 63), want: ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			minor, err := parseGreeting(tc.greeting)
			if !errors.Is(err, tc.want) || minor != tc.minor {
				t.Errorf("minor %d, error %v; want %d, %v", minor, err, tc.minor, tc.want)
			}
		})
	}
}

func TestReadyProperties(t *testing.T) {
	const both = "\x0bsocket-TYPE\x00\x00\x00\x03SUB\x08Identity\x00\x00\x00\x02me"
	for name, tc := range map[string]struct {
		data, socketType, identity string
		want                       error
	}{
		"none":                      {},
		"names in any case":         {data: both, socketType: "SUB", identity: "me"},
		"unknown ones in between":   {data: "\x01X\x00\x00\x00\x00" + both, socketType: "SUB", identity: "me"},
		"no name":                   {data: "\x00\x00\x00\x00\x00", want: ErrMalformed},
		"ends inside a name":        {data: "\x05abc", want: ErrMalformed},
		"ends inside a length":      {data: "\x01a\x00\x00", want: ErrMalformed},
		"ends inside a value":       {data: "\x01a\x00\x00\x00\x02b", want: ErrMalformed},
		"a length beyond all reads": {data: "\x01a\xff\xff\xff\xffb", want: ErrMalformed},
		"an identity too long":      {data: "\x08Identity\x00\x00\x01\x00" + strings.Repeat("i", 256), want: ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			socketType, identity, err := parseReady([]byte(tc.data))
			if !errors.Is(err, tc.want) || socketType != tc.socketType || identity != tc.identity {
				t.Errorf("%q, %q, %v; want %q, %q, %v", socketType, identity, err, tc.socketType, tc.identity, tc.want)
			}
		})
	}
}

func TestReader(t *testing.T) {
	ping := encodeCommand(cmdPing, []byte{0, 0})
	small := Config{MaxFrame: 300, MaxFrames: 3, MaxMessage: 400}
	for name, tc := range map[string]struct {
		stream   []byte
		messages [][]string
		commands []string
		want     error
	}{
		"nothing": {want: io.EOF},
		"two messages": {
			stream:   appendMessage(appendMessage(nil, frames("a", "", "b")), frames("c")),
			messages: [][]string{{"a", "", "b"}, {"c"}}, want: io.EOF,
		},
		"a command before a message and one inside": {
			stream:   slices.Concat(ping, []byte{flagMore, 1, 'a'}, ping, []byte{0, 1, 'b'}),
			messages: [][]string{{"a", "b"}}, commands: []string{"PING \x00\x00", "PING \x00\x00"}, want: io.EOF,
		},
		"a long header on a short frame": {
			stream:   []byte{flagLong, 0, 0, 0, 0, 0, 0, 0, 1, 'a'},
			messages: [][]string{{"a"}}, want: io.EOF,
		},
		"as much as is allowed": {
			stream:   appendMessage(nil, frames(strings.Repeat("a", 300), "", strings.Repeat("b", 100))),
			messages: [][]string{{strings.Repeat("a", 300), "", strings.Repeat("b", 100)}}, want: io.EOF,
		},
		"a frame too long":              {stream: appendMessage(nil, frames(strings.Repeat("a", 301))), want: ErrLimit},
		"frames too long together":      {stream: appendMessage(nil, frames(strings.Repeat("a", 300), strings.Repeat("a", 101))), want: ErrLimit},
		"too many frames":               {stream: appendMessage(nil, frames("a", "b", "c", "d")), want: ErrLimit},
		"the longest length":            {stream: append([]byte{flagLong}, bytes.Repeat([]byte{0xff}, 8)...), want: ErrLimit},
		"a command too long":            {stream: []byte{flagCommand | flagLong, 0, 0, 0, 0, 0, 1, 0, 1}, want: ErrLimit},
		"a reserved flag":               {stream: []byte{8, 0}, want: ErrMalformed},
		"a command with more to follow": {stream: []byte{flagCommand | flagMore, 1, 'a'}, want: ErrMalformed},
		"a command without a name":      {stream: []byte{flagCommand, 0}, want: ErrMalformed},
		"a command cut in its name":     {stream: []byte{flagCommand, 3, 5, 'P', 'I'}, commands: []string{" "}, want: ErrMalformed},
		"ends inside a header":          {stream: []byte{flagMore}, want: io.ErrUnexpectedEOF},
		"ends inside a long header":     {stream: []byte{flagLong, 0, 0}, want: io.ErrUnexpectedEOF},
		"ends inside a frame":           {stream: []byte{0, 4, 'a'}, want: io.ErrUnexpectedEOF},
		"ends before a frame":           {stream: []byte{0, 4}, want: io.ErrUnexpectedEOF},
		"ends between frames":           {stream: []byte{flagMore, 1, 'a'}, want: io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			for how, stream := range map[string]io.Reader{
				"at once":     bytes.NewReader(tc.stream),
				"byte by one": iotest.OneByteReader(bytes.NewReader(tc.stream)),
			} {
				messages, commands, err := read(small, stream)
				if diff := cmp.Diff(tc.messages, messages); diff != "" {
					t.Errorf("%s: messages (-want +got):\n%s", how, diff)
				}
				if !errors.Is(tc.want, ErrMalformed) {
					if diff := cmp.Diff(tc.commands, commands); diff != "" {
						t.Errorf("%s: commands (-want +got):\n%s", how, diff)
					}
				}
				if !errors.Is(err, tc.want) {
					t.Errorf("%s: error %v, want %v", how, err, tc.want)
				}
			}
		})
	}
}

// A header that promises much must not cost memory before the bytes come.
func TestMemoryFollowsBytesNotHeaders(t *testing.T) {
	stream := append([]byte{flagLong, 0, 0, 0, 0, 4, 0, 0, 0}, make([]byte, 100)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const streams = 20
	for range streams {
		if _, _, err := read(Config{}, bytes.NewReader(stream)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if got := (after.TotalAlloc - before.TotalAlloc) / streams; got > 4*growStep {
		t.Errorf("%d bytes allocated for a frame of 100 of 64 Mi bytes", got)
	}
}

func TestReaderKeepsNoLargeBuffers(t *testing.T) {
	large := strings.Repeat("x", 3*growStep)
	stream := appendMessage(appendMessage(nil, frames(large, "a")), frames("b", "c"))
	r := newTestReader(bytes.NewReader(stream))
	for range 2 {
		if _, err := r.next(); err != nil {
			t.Fatal(err)
		}
	}
	for i, b := range r.buffers {
		if cap(b) > growStep {
			t.Errorf("buffer %d keeps %d bytes", i, cap(b))
		}
	}
}

func TestReadingAllocatesNothing(t *testing.T) {
	one := appendMessage(nil, [][]byte{[]byte("topic"), seqFrame(1), make([]byte, 2048)})
	const runs = 100
	r := newTestReader(bytes.NewReader(bytes.Repeat(one, runs+2)))
	if got := testing.AllocsPerRun(runs, func() {
		if _, err := r.next(); err != nil {
			t.Fatal(err)
		}
	}); got != 0 {
		t.Errorf("%v allocations per message", got)
	}
}

// FuzzReader feeds whatever a peer may send after connecting: never a panic, and only known errors.
func FuzzReader(f *testing.F) {
	g := greeting()
	ready := encodeCommand(cmdReady, readyData(typePub))
	f.Add(slices.Concat(g[:], ready, appendMessage(nil, frames("a", "b"))))
	f.Add(slices.Concat(g[:], ready, encodeCommand(cmdPing, []byte("\x00\x00ctx")), appendMessage(nil, frames(strings.Repeat("a", 300)))))
	f.Add(slices.Concat(g[:], encodeCommand(cmdError, []byte("\x02no"))))
	f.Add(slices.Concat(g[:], ready, []byte{flagLong, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}))
	f.Add(slices.Concat(g[:], ready, encodeCommand(cmdSubscribe, []byte("kv@")), appendFrame(nil, 0, []byte("\x00kv@"))))
	c := Config{MaxFrame: 1 << 16, MaxFrames: 4, MaxMessage: 1 << 17}
	f.Fuzz(func(t *testing.T, stream []byte) {
		if len(stream) < greetingSize {
			return
		}
		if _, err := parseGreeting(stream[:greetingSize]); err != nil {
			return
		}
		k := &conn{cfg: c}
		s := &subscriber{conn: k, wake: make(chan struct{}, 1)}
		k.onSubscribe, k.pong = s.subscribe, s.answer
		k.in = reader{br: bufio.NewReader(bytes.NewReader(stream[greetingSize:])), cfg: c, command: k.command}
		err := k.ready(typeSub)
		total := 0
		for err == nil {
			var m Message
			if m, err = k.in.next(); err == nil {
				for _, b := range m {
					total += len(b)
				}
				if topic, on, ok := topicOf(m); ok {
					err = s.subscribe(topic, on)
				}
			}
		}
		if total > len(stream) {
			t.Errorf("%d bytes of messages from %d", total, len(stream))
		}
		known := []error{io.EOF, io.ErrUnexpectedEOF, ErrMalformed, ErrLimit, ErrPeer}
		if !slices.ContainsFunc(known, func(k error) bool { return errors.Is(err, k) }) {
			t.Errorf("unknown error %v", err)
		}
	})
}

// FuzzRoundTrip writes messages and reads the same.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte("topic\x00payload"), uint8(3), uint16(1))
	f.Add([]byte{}, uint8(1), uint16(0))
	f.Add(bytes.Repeat([]byte("x"), 600), uint8(2), uint16(300))
	f.Fuzz(func(t *testing.T, data []byte, n uint8, at uint16) {
		// The data, cut to n frames of about at bytes, twice over as two messages.
		var want []string
		rest := data
		for i := range int(n%15) + 1 {
			cut := min(len(rest), int(at)*(i%3))
			want, rest = append(want, string(rest[:cut])), rest[cut:]
		}
		want = append(want, string(rest))
		stream := appendMessage(appendMessage(nil, frames(want...)), frames(want...))
		messages, _, err := read(Config{}, bytes.NewReader(stream))
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if diff := cmp.Diff([][]string{want, want}, messages); diff != "" {
			t.Errorf("messages (-want +got):\n%s", diff)
		}
	})
}
