package accept

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// sent is what a client of HTTP/2 sends, and how many fields of it are not free.
type sent struct {
	bytes.Buffer
	beyond int

	block  bytes.Buffer
	coder  *hpack.Encoder
	framer *http2.Framer
}

func newSent() *sent {
	s := &sent{}
	s.coder, s.framer = hpack.NewEncoder(&s.block), http2.NewFramer(&s.Buffer, nil)
	return s
}

// request adds a request with so many fields, in frames of at most so many bytes.
func (s *sent) request(t *testing.T, id uint32, fields, most int, field func(i int) hpack.HeaderField, more http2.HeadersFrameParam) {
	t.Helper()
	s.block.Reset()
	for i := range fields {
		if err := s.coder.WriteField(field(i)); err != nil {
			t.Fatal(err)
		}
	}
	rest := s.block.Bytes()
	part := rest[:min(most, len(rest))]
	rest = rest[len(part):]
	more.StreamID, more.BlockFragment, more.EndHeaders = id, part, len(rest) == 0
	err := s.framer.WriteHeaders(more)
	for len(rest) > 0 && err == nil {
		part = rest[:min(most, len(rest))]
		rest = rest[len(part):]
		err = s.framer.WriteContinuation(id, len(rest) == 0, part)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.beyond += max(0, fields-FreeFields)
}

// TestFieldsAreCounted: whatever the compression makes of them, and wherever frames and reads begin and end.
func TestFieldsAreCounted(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		text := func(most int) string { return strings.Repeat(string(rune('a'+rng.IntN(26))), rng.IntN(most)) }
		field := func(int) hpack.HeaderField {
			switch rng.IntN(4) {
			case 0:
				return hpack.HeaderField{Name: "accept-encoding", Value: "gzip, deflate"} // of the static table
			case 1:
				return hpack.HeaderField{Name: "x-" + text(3), Value: text(2)} // often of the dynamic table
			case 2:
				return hpack.HeaderField{Name: "authorization", Value: text(400), Sensitive: true}
			}
			return hpack.HeaderField{Name: "x" + text(200), Value: text(600)}
		}
		s := newSent()
		for id := uint32(1); id < 20; id += 2 {
			if rng.IntN(3) == 0 {
				s.coder.SetMaxDynamicTableSize(uint32(rng.IntN(4096)))
			}
			more := http2.HeadersFrameParam{PadLength: uint8(rng.IntN(3) * 80)}
			if rng.IntN(2) == 0 {
				more.Priority = http2.PriorityParam{Weight: 3}
			}
			s.request(t, id, rng.IntN(3*FreeFields), 1+rng.IntN(3000), field, more)
			if s.framer.WriteDataPadded(id, false, []byte(text(500)), make([]byte, rng.IntN(200))) != nil ||
				s.framer.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0x80808080}) != nil || s.framer.WritePing(false, [8]byte{}) != nil {
				t.Fatal("no frames")
			}
		}
		var c counter
		got, rest := 0, s.Bytes()
		for len(rest) > 0 {
			n := min(len(rest), 1+rng.IntN(1+rng.IntN(5000)))
			got += c.count(rest[:n]).beyond
			rest = rest[n:]
		}
		if got != s.beyond {
			t.Fatalf("seed %d: %d fields beyond the free ones, want %d", seed, got, s.beyond)
		}
	}
}

// FuzzFields: no bytes of a client stop the counter, or make it count more fields than there are bytes.
func FuzzFields(f *testing.F) {
	f.Add([]byte("\x00\x00\x03\x01\x0c\x00\x00\x00\x01\xff\x80\x80"), uint8(2))
	f.Add(append([]byte("\x00\x00\x80\x01\x04\x00\x00\x00\x01"), bytes.Repeat([]byte{0x90}, 128)...), uint8(7))
	f.Fuzz(func(t *testing.T, p []byte, piece uint8) {
		var whole, parts counter
		want, got := whole.count(p), counted{}
		for rest := p; len(rest) > 0; {
			n := min(len(rest), 1+int(piece))
			one := parts.count(rest[:n])
			got.beyond += one.beyond
			got.frames += one.frames
			got.requests += one.requests
			got.light += one.light
			got.short += one.short
			rest = rest[n:]
		}
		whole.begun, parts.begun = counted{}, counted{}
		if got != want || want.beyond > len(p) || whole != parts {
			t.Errorf("%+v as a whole, %+v in parts, of %d bytes", want, got, len(p))
		}
	})
}

// TestOnlyFieldsBeyondTheFreeOnesWait: the credit is spent at once, grows with time, and never above what is saved.
func TestOnlyFieldsBeyondTheFreeOnesWait(t *testing.T) {
	p := pacer{times: 1}
	now := time.Unix(1000, 0)
	step := func(what string, fields int, want time.Duration, room bool) {
		t.Helper()
		if wait, got := p.wait(fields, now); wait != want || got != room {
			t.Errorf("%s: wait %v, room %v; want %v, %v", what, wait, got, want, room)
		}
	}
	step("what is saved", savedFields, 0, true)
	step("nothing", 0, 0, true)
	step("more", fieldsPerSecond, time.Second, true)
	step("too much", 2*fieldsPerSecond, 0, false)
	step("as much as can wait", fieldsPerSecond, longestWait, true)
	if p.even(now) {
		t.Error("there is no debt")
	}
	now = now.Add(time.Hour)
	if !p.even(now) {
		t.Error("there is debt after an hour")
	}
	step("what is saved again", savedFields, 0, true)
	step("no more than that", fieldsPerSecond/2, time.Second/2, true)
}

// script is a connection whose client has sent everything already.
type script struct {
	net.Conn
	reads [][]byte
	from  net.IP
}

func (s *script) Read(p []byte) (int, error) {
	if len(s.reads) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.reads[0])
	s.reads = s.reads[1:]
	return n, nil
}

func (s *script) Close() error { return nil }
func (s *script) RemoteAddr() net.Addr {
	if s.from == nil {
		return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}
	}
	return &net.TCPAddr{IP: s.from, Port: 1}
}

// TestAFloodOfFieldsEndsItsConnection: before net/http decodes it, also if the preface arrives in pieces. Connections of the same
// address share the credit; those without such headers never wait.
func TestAFloodOfFieldsEndsItsConnection(t *testing.T) {
	flood := newSent()
	table := func(int) hpack.HeaderField { return hpack.HeaderField{Name: "accept-encoding", Value: "gzip, deflate"} }
	for id := uint32(1); flood.beyond < savedFields+4*fieldsPerSecond; id += 2 {
		flood.request(t, id, 1500, 16<<10, table, http2.HeadersFrameParam{})
	}
	ordinary := newSent()
	for id := uint32(1); id < 2*4096; id += 2 {
		ordinary.request(t, id, FreeFields, 16<<10, table, http2.HeadersFrameParam{})
	}
	const frames = freeFrames + (savedFields+4*fieldsPerSecond)/lightFields
	resets, data := newSent(), newSent()
	for id := uint32(1); id < 2*(savedFields+4*fieldsPerSecond); id += 2 {
		resets.request(t, id, 20, 16<<10, table, http2.HeadersFrameParam{})
		if resets.framer.WriteData(id, true, nil) != nil || resets.framer.WriteRSTStream(id, http2.ErrCodeCancel) != nil ||
			data.framer.WriteData(1, false, make([]byte, shortData)) != nil {
			t.Fatal("no frames")
		}
	}
	text := "POST / HTTP/1.1\r\nHost: a\r\n\r\n"
	many := strings.Repeat("a:\r\n", savedFields+4*fieldsPerSecond)
	for name, tc := range map[string]struct {
		reads []string
		want  error
	}{
		"many fields":           {[]string{preface + flood.String()}, errManyFields},
		"a preface in pieces":   {[]string{preface[:3], preface[3:20], preface[20:] + flood.String()[:5], flood.String()[5:]}, errManyFields},
		"many requests":         {[]string{preface, ordinary.String()}, io.EOF},
		"many pings":            {[]string{preface, strings.Repeat(string(ping), frames)}, errManyFields},
		"much short data":       {[]string{preface, strings.Repeat("\x00\x00\x01\x00\x00\x00\x00\x00\x01x", frames)}, errManyFields},
		"empty continuations":   {[]string{preface, strings.Repeat("\x00\x00\x00\x09\x00\x00\x00\x00\x01", frames)}, errManyFields},
		"requests with resets":  {[]string{preface, resets.String()}, io.EOF},
		"much data":             {[]string{preface, data.String()}, io.EOF},
		"many lines":            {[]string{text[:len(text)-2], many}, errManyFields},
		"empty lines first":     {[]string{"\r\n\r\n" + text[:len(text)-2], many}, errManyFields},
		"lines in many pieces":  {[]string{text[:len(text)-2], many[:2], many[2:3], many[3:]}, errManyFields},
		"a body of HTTP/2":      {[]string{text[:9], text[9:], flood.String()}, io.EOF},
		"a body of lines":       {[]string{text[:len(text)-1], text[len(text)-1:] + many}, io.EOF},
		"as before, in a piece": {[]string{text + many}, io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			l := LimitHTTP(nil, 10, budget.New(1<<30, time.Now))
			s := &script{}
			for _, one := range tc.reads {
				s.reads = append(s.reads, []byte(one))
			}
			c := l.admit(s)
			var err error
			for buffer := make([]byte, 64<<20); err == nil; {
				_, err = c.Read(buffer)
			}
			if !errors.Is(err, tc.want) {
				t.Errorf("the connection ends with %v, want %v", err, tc.want)
			}
			if _, ok := l.pacerOf("10.0.0.1").wait(1, time.Now()); !ok {
				t.Error("what was not read is charged")
			}
			_ = c.Close()
		})
	}
}

// TestAFloodFromManyAddressesIsBounded: each has little, and all together have no more than a few. Requests without many fields are
// not concerned. The addresses of a network of IPv6 have one credit.
func TestAFloodFromManyAddressesIsBounded(t *testing.T) {
	const most = savedFields + 2*fieldsPerSecond // of one address at once: longestWait
	header := []byte("GET / HTTP/1.1\r\n" + strings.Repeat("a:\r\n", savedFields))
	for name, tc := range map[string]struct {
		address func(i byte) net.IP
		most    int // of all
	}{
		"addresses of IPv4":   {func(i byte) net.IP { return net.IPv4(10, 0, 1, i) }, allAddresses * most},
		"networks of IPv6":    {func(i byte) net.IP { return net.IP{0x20, 1, 0xd, 0xb8, 0, 0, 0, i, 15: 1} }, allAddresses * most},
		"a network of IPv6":   {func(i byte) net.IP { return net.IP{0x20, 1, 0xd, 0xb8, 15: i} }, most},
		"one address of IPv4": {func(byte) net.IP { return net.IPv4(10, 0, 1, 1) }, most},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := LimitHTTP(nil, 1000, budget.New(1<<30, time.Now))
			begun := time.Now()
			var read atomic.Int64
			var all sync.WaitGroup
			for i := range byte(100) {
				c := l.admit(&script{from: tc.address(i), reads: [][]byte{header}})
				all.Go(func() {
					if _, err := c.Read(make([]byte, len(header))); err == nil {
						read.Add(savedFields)
					}
				})
			}
			all.Wait()
			grown := int64(time.Since(begun).Seconds() * allAddresses * fieldsPerSecond)
			if n := read.Load(); n > int64(tc.most)+grown || n == 0 {
				t.Errorf("%d fields are read, want at most %d, and %d for the time", n, tc.most, grown)
			}
			c := l.admit(&script{from: net.IPv4(10, 9, 9, 9), reads: [][]byte{header[:500]}})
			if _, err := c.Read(make([]byte, 100)); err != nil {
				t.Errorf("a client with few fields: %v", err)
			}
		})
	}
}

// TestTheNextHeaderIsCounted: after a request has ended, lines are fields again.
func TestTheNextHeaderIsCounted(t *testing.T) {
	const request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	many := strings.Repeat("a:\r\n", savedFields+4*fieldsPerSecond)
	c := LimitHTTP(nil, 10, budget.New(1<<30, time.Now)).admit(&script{reads: [][]byte{[]byte(request), []byte(request[:len(request)-2] + many)}})
	buffer := make([]byte, 16<<20)
	if _, err := c.Read(buffer); err != nil {
		t.Fatal(err)
	}
	end, room := c.Begin(&http.Request{ProtoMajor: 1})
	if !room {
		t.Fatal("no room")
	}
	end()
	if _, err := c.Read(buffer); !errors.Is(err, errManyFields) {
		t.Errorf("the second header ends with %v", err)
	}
}

// TestReadAheadHeadersAreCounted: of requests that were sent before the first was answered, whose headers net/http has read with
// it or with its body. What was counted already is not charged again.
func TestReadAheadHeadersAreCounted(t *testing.T) {
	const fields, first = 1000, "GET / HTTP/1.1\r\nHost: a\r\n"
	header := first + strings.Repeat("a:\r\n", fields-2) + "\r\n" // with the request line
	for name, reads := range map[string][]string{
		"alone":          {header},
		"at once":        {first + "\r\n" + header},
		"in part":        {first + "\r\n" + header[:len(header)/2], header[len(header)/2:]},
		"to its end":     {first + "\r\n" + header[:len(header)-2], "\r\n"},
		"up to its text": {first + "\r\n", header},
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{}
			for _, one := range reads {
				s.reads = append(s.reads, []byte(one))
			}
			l := LimitHTTP(nil, 10, budget.New(1<<30, time.Now))
			c, before := l.admit(s), time.Now()
			read := func() { _, _ = c.Read(make([]byte, 1<<20)) } // as net/http does before each request; the last has read all
			begin := func(fields int) {
				t.Helper()
				end, room := c.Begin(request(1, fields-2))
				if !room {
					t.Fatal("no room")
				}
				end()
			}
			read()
			if name != "alone" {
				begin(2)
				read()
			}
			begin(fields)
			p := l.pacerOf("10.0.0.1")
			p.mu.Lock()
			defer p.mu.Unlock()
			most := float64(fields - FreeFields)
			if least := most - time.Since(before).Seconds()*fieldsPerSecond; p.debt > most || p.debt < least {
				t.Errorf("%v fields are charged, want %v, less what time has paid", p.debt, most)
			}
			_ = c.Close()
		})
	}
}

// TestReadAheadFloodsEndTheirConnection: there is a limit to waiting.
func TestReadAheadFloodsEndTheirConnection(t *testing.T) {
	b := budget.New(1<<30, time.Now)
	c := LimitHTTP(nil, 10, b).admit(&script{})
	if _, room := c.Begin(request(1, savedFields+4*fieldsPerSecond)); room {
		t.Error("there is room for a flood")
	}
	if held := b.Stats().Held; held != Cost {
		t.Errorf("%d bytes are held of a request that was refused", held-Cost)
	}
}

// TestTrailersAreCounted: they follow the body.
func TestTrailersAreCounted(t *testing.T) {
	l := LimitHTTP(nil, 10, budget.New(1<<30, time.Now))
	c := l.admit(&script{})
	r := request(1, 0)
	end, _ := c.Begin(r)
	r.Trailer = request(1, FreeFields+100).Header
	end()
	if p := l.pacerOf("10.0.0.1"); p.debt != 100 {
		t.Errorf("%v fields are charged, want 100", p.debt)
	}
}

// TestClosingEndsTheWait: a server that shuts down does not wait for connections that are read slowly.
func TestClosingEndsTheWait(t *testing.T) {
	l := LimitHTTP(nil, 10, budget.New(1<<30, time.Now))
	c := l.admit(&script{})
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c.pause(time.Hour)
}

// TestCreditsOfAddressesEnd: those without debt are forgotten when there are many.
func TestCreditsOfAddressesEnd(t *testing.T) {
	l := LimitHTTP(nil, 10, budget.New(1<<30, time.Now))
	for i := range 10 * manyPacers {
		l.pacerOf(fmt.Sprint(i))
	}
	if len(l.pacers) > manyPacers+1 {
		t.Errorf("%d credits are kept", len(l.pacers))
	}
	debtor := l.pacerOf("debtor")
	debtor.wait(savedFields, time.Now().Add(time.Hour))
	for i := range 10 * manyPacers {
		l.pacerOf(fmt.Sprint(i))
	}
	if l.pacerOf("debtor") != debtor {
		t.Error("a debt is forgotten")
	}
}
