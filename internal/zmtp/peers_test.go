package zmtp

import (
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// rawListener accepts one connection and lets the test play its peer byte by byte.
func rawListener(t *testing.T, play func(nc net.Conn)) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		nc, err := ln.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		play(nc)
	}()
	t.Cleanup(func() { _ = ln.Close(); <-over })
	return ln.Addr().String()
}

// opening is all that a publisher sends before its first message; minor is its version.
func opening(minor byte) []byte {
	g := greeting()
	g[11] = minor
	return append(g[:], encodeCommand(cmdReady, readyData(typePub))...)
}

func discard(nc net.Conn) { _, _ = io.Copy(io.Discard, nc) }

// quick is a configuration for peers that never answer.
var quick = Config{HandshakeTimeout: 50 * time.Millisecond, HeartbeatInterval: 20 * time.Millisecond, HeartbeatTimeout: 20 * time.Millisecond}

func TestHandshakeEndsWithAnErrorForEveryOtherPeer(t *testing.T) {
	sub := greeting()
	for name, tc := range map[string]struct {
		say  []byte
		want error
	}{
		"says nothing":                 {want: os.ErrDeadlineExceeded},
		"stops in the greeting":        {say: sub[:40], want: os.ErrDeadlineExceeded},
		"stops after the greeting":     {say: sub[:], want: os.ErrDeadlineExceeded},
		"speaks HTTP":                  {say: []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), want: ErrMalformed},
		"speaks ZMTP 2":                {say: append(slices.Clone(sub[:10]), 1, 1, 0, 0), want: ErrPeer},
		"is another subscriber":        {say: append(sub[:], encodeCommand(cmdReady, readyData(typeSub))...), want: ErrPeer},
		"names no socket type":         {say: append(sub[:], encodeCommand(cmdReady, nil)...), want: ErrPeer},
		"refuses":                      {say: append(sub[:], encodeCommand(cmdError, []byte("\x04oops"))...), want: ErrPeer},
		"sends a message before READY": {say: append(sub[:], 0, 1, 'x'), want: ErrMalformed},
		"sends PING before READY":      {say: append(sub[:], encodeCommand(cmdPing, []byte{0, 0})...), want: ErrMalformed},
		"sends a READY of 1 GiB":       {say: append(sub[:], flagCommand|flagLong, 0, 0, 0, 0, 0x40, 0, 0, 0), want: ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			addr := rawListener(t, func(nc net.Conn) {
				_, _ = nc.Write(tc.say)
				discard(nc)
			})
			c := quick
			if !errors.Is(tc.want, os.ErrDeadlineExceeded) {
				c.HandshakeTimeout = deadline
			}
			s, err := c.DialSub(t.Context(), addr)
			if err == nil {
				_ = s.Close()
			}
			if !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
		})
	}
	t.Run("is not there", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := ln.Addr().String()
		_ = ln.Close()
		if _, err := DialSub(t.Context(), addr); err == nil {
			t.Error("dialed a closed port")
		}
	})
	t.Run("hangs up", func(t *testing.T) {
		addr := rawListener(t, func(net.Conn) {})
		if _, err := DialSub(t.Context(), addr); err == nil {
			t.Error("a handshake without a peer")
		}
	})
}

func TestWrongSocketTypeIsToldToThePeer(t *testing.T) {
	said := make(chan []byte, 1)
	addr := rawListener(t, func(nc net.Conn) {
		g := greeting()
		_, _ = nc.Write(append(g[:], encodeCommand(cmdReady, readyData(typeRouter))...))
		b, _ := io.ReadAll(nc)
		said <- b
	})
	if _, err := DialSub(t.Context(), addr); !errors.Is(err, ErrPeer) {
		t.Fatalf("error %v, want ErrPeer", err)
	}
	const reason = "Invalid socket type"
	want := encodeCommand(cmdError, append([]byte{byte(len(reason))}, reason...))
	if b := <-said; !strings.HasSuffix(string(b), string(want)) {
		t.Errorf("the peer received %q", b)
	}
}

func TestSubscriptionsHaveTheFormOfThePeersVersion(t *testing.T) {
	for name, tc := range map[string]struct {
		minor byte
		want  []byte
	}{
		"a message to 3.0": {minor: 0, want: slices.Concat(appendFrame(nil, 0, []byte("\x01a")), appendFrame(nil, 0, []byte("\x01")))},
		"a command to 3.1": {minor: 1, want: slices.Concat(encodeCommand(cmdSubscribe, []byte("a")), encodeCommand(cmdSubscribe, nil))},
	} {
		t.Run(name, func(t *testing.T) {
			said := make(chan []byte, 1)
			lead := greetingSize + len(encodeCommand(cmdReady, readyData(typeSub)))
			addr := rawListener(t, func(nc net.Conn) {
				_, _ = nc.Write(opening(tc.minor))
				b := make([]byte, lead+len(tc.want))
				_, _ = io.ReadFull(nc, b)
				said <- b[lead:]
			})
			dialSub(t, Config{}, addr, "a", "")
			if diff := cmp.Diff(tc.want, <-said); diff != "" {
				t.Errorf("subscriptions (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLossOfThePublisherIsReported(t *testing.T) {
	half := appendMessage(nil, frames("a", "bcd"))
	for name, tc := range map[string]struct {
		minor byte
		say   []byte
		stay  bool // the connection stays open, silent
		want  error
	}{
		"it goes between messages":         {say: appendMessage(nil, frames("x")), want: io.EOF},
		"it goes inside a message":         {say: half[:len(half)-1], want: io.ErrUnexpectedEOF},
		"it sends what is not ZMTP":        {say: []byte{0xff}, want: ErrMalformed},
		"it sends ERROR":                   {say: encodeCommand(cmdError, []byte("\x03bad")), want: ErrPeer},
		"it sends READY again":             {say: encodeCommand(cmdReady, readyData(typePub)), want: ErrMalformed},
		"it subscribes to us":              {say: encodeCommand(cmdSubscribe, nil), want: ErrMalformed},
		"its PING has no time to live":     {say: encodeCommand(cmdPing, []byte{0}), want: ErrMalformed},
		"it promises too much":             {say: []byte{flagLong, 0x7f, 0, 0, 0, 0, 0, 0, 0}, want: ErrLimit},
		"it falls silent":                  {minor: 1, say: appendMessage(nil, frames("x")), stay: true, want: ErrSilent},
		"it falls silent inside a message": {minor: 1, say: half[:3], stay: true, want: ErrSilent},
	} {
		t.Run(name, func(t *testing.T) {
			addr := rawListener(t, func(nc net.Conn) {
				_, _ = nc.Write(append(opening(tc.minor), tc.say...))
				if !tc.stay {
					_ = nc.(*net.TCPConn).CloseWrite()
				}
				discard(nc)
			})
			c := quick
			c.HandshakeTimeout = deadline
			s := dialSub(t, c, addr)
			var err error
			for err == nil {
				_, err = s.Recv()
			}
			if !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
			if _, err := s.Recv(); !errors.Is(err, ErrClosed) {
				t.Errorf("receiving after an error: %v, want ErrClosed", err)
			}
		})
	}
}

// A peer of 3.1 that answers PING is kept however long it says nothing else; its own PING is answered.
func TestHeartbeatsKeepAnIdleConnection(t *testing.T) {
	const beats = 5
	addr := rawListener(t, func(nc net.Conn) {
		_, _ = nc.Write(append(opening(1), encodeCommand(cmdPing, []byte("\x00\x0ahello"))...))
		seen, ponged, b := 0, false, make([]byte, 0, 4096)
		for seen < beats || !ponged {
			n, err := nc.Read(b[len(b):cap(b)])
			if err != nil {
				return
			}
			b = b[:len(b)+n]
			ponged = strings.Contains(string(b), "\x04PONGhello")
			if now := strings.Count(string(b), "\x04PING"); now > seen {
				seen = now
				_, _ = nc.Write(encodeCommand(cmdPong, nil))
			}
		}
		_, _ = nc.Write(appendMessage(nil, frames("alive")))
		discard(nc)
	})
	s := dialSub(t, Config{HeartbeatInterval: 5 * time.Millisecond, HeartbeatTimeout: deadline}, addr)
	if diff := cmp.Diff([]string{"alive"}, recv(t, s)); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
}

func TestDribbledBytesAreAMessageInTheEnd(t *testing.T) {
	stream := append(opening(0), appendMessage(nil, frames("topic", string(seqFrame(7)), strings.Repeat("p", 300)))...)
	addr := rawListener(t, func(nc net.Conn) {
		for i := range stream {
			if _, err := nc.Write(stream[i : i+1]); err != nil {
				return
			}
		}
		discard(nc)
	})
	s := dialSub(t, Config{}, addr)
	if diff := cmp.Diff([]string{"topic", string(seqFrame(7)), strings.Repeat("p", 300)}, recv(t, s)); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
}

func TestReceivingFromASocketAllocatesNothing(t *testing.T) {
	const runs = 2000
	one := appendMessage(nil, [][]byte{[]byte("kv@pod"), seqFrame(1), make([]byte, 2<<10)})
	stream := append(opening(1), slices.Repeat(one, runs+2)...)
	addr := rawListener(t, func(nc net.Conn) {
		_, _ = nc.Write(stream)
		discard(nc)
	})
	s := dialSub(t, Config{}, addr)
	if got := testing.AllocsPerRun(runs, func() {
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
	}); got != 0 {
		t.Errorf("%v allocations per message", got)
	}
}

// Strangers at a listening socket cost nothing and do not harm other peers.
func TestListenersOutliveStrangers(t *testing.T) {
	c := Config{HandshakeTimeout: deadline, MaxPeers: 8}
	pub := listenPub(t, c, 0)
	router, err := c.ListenRouter("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	noise := make([]byte, 4096)
	_, _ = rand.Read(noise)
	g := greeting()
	ready := encodeCommand(cmdReady, readyData(typeSub))
	for _, say := range [][]byte{
		nil, noise, []byte("GET / HTTP/1.1\r\n\r\n"), append(g[:], noise...),
		slices.Concat(g[:], ready, noise), slices.Concat(g[:], ready, []byte{flagLong, 0, 0, 0, 1, 0, 0, 0, 0}),
		slices.Concat(g[:], ready, encodeCommand(cmdError, nil)),
	} {
		for _, addr := range []string{pub.Addr(), router.Addr()} {
			nc, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = nc.Write(say)
			_ = nc.Close()
		}
	}
	sub := dialSub(t, Config{}, pub.Addr(), "k")
	eventually(t, "subscribed", func() bool { return pub.Subscribers() == 1 && len(pub.Peers()) == 1 })
	if err := pub.Send([]byte("key")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"key"}, recv(t, sub)); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
}

func TestListenersRefusePeersBeyondTheirLimit(t *testing.T) {
	pub := listenPub(t, Config{MaxPeers: 1}, 0)
	dialSub(t, Config{}, pub.Addr())
	if s, err := DialSub(t.Context(), pub.Addr()); err == nil {
		_ = s.Close()
		t.Error("a second subscriber was let in")
	}
}

// TestListenersRefuseMorePeersOfAHost: those of other addresses are served, and when one leaves the next is.
func TestListenersRefuseMorePeersOfAHost(t *testing.T) {
	full := make(chan string, 10)
	l, err := Config{MaxPeersOfHost: 2, Full: func(peer string) { full <- peer }}.ListenSub("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dial := func(from string) net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.DialContext(t.Context(), "tcp", l.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		return c
	}
	greets := func(c net.Conn) bool { _, err := io.ReadFull(c, make([]byte, greetingSize)); return err == nil }
	first, second := dial("127.0.0.2"), dial("127.0.0.2")
	if !greets(first) || !greets(second) {
		t.Fatal("one of two is not served")
	}
	third := dial("127.0.0.2")
	if greets(third) {
		t.Error("a third one of the address is served")
	}
	if peer := <-full; peer != third.LocalAddr().String() {
		t.Errorf("%s was turned away", peer)
	}
	if !greets(dial("127.0.0.3")) {
		t.Error("another address is not served")
	}
	_ = first.Close()
	eventually(t, "there is room again", func() bool { return greets(dial("127.0.0.2")) })
}

// TestAMessageHasATimeLimit: from its first byte to its last, however many arrive between, with heartbeats and without. A publisher
// that says nothing, or only answers heartbeats, has none.
func TestAMessageHasATimeLimit(t *testing.T) {
	for minor, play := range map[byte]func(nc net.Conn){
		0: func(nc net.Conn) { dribble(nc, []byte{flagMore, 200}) },
		1: func(nc net.Conn) { dribble(nc, []byte{0, 200}) },
	} {
		addr := rawListener(t, func(nc net.Conn) {
			_, _ = nc.Write(opening(minor))
			go discard(nc)
			time.Sleep(100 * time.Millisecond) // longer than the limit: nothing has begun
			play(nc)
		})
		sub, err := Config{MessageTimeout: 50 * time.Millisecond}.DialSub(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sub.Recv(); !errors.Is(err, ErrSlow) {
			t.Errorf("version 3.%d: %v", minor, err)
		}
	}
}

// dribble sends bytes, and then one after the other until the connection ends.
func dribble(nc net.Conn, first []byte) {
	_, err := nc.Write(first)
	for err == nil {
		time.Sleep(5 * time.Millisecond)
		_, err = nc.Write([]byte{1})
	}
}

// TestUnknownTopicsEndTheirConnection: the rest of their messages is not read. Known ones are asked about once.
func TestUnknownTopicsEndTheirConnection(t *testing.T) {
	asked := 0
	c := Config{Topic: func(_ string, topic []byte) bool { asked++; return string(topic) == "kv" }}
	addr := rawListener(t, func(nc net.Conn) {
		_, _ = nc.Write(opening(1))
		for range 3 {
			_, _ = nc.Write(appendMessage(nil, [][]byte{[]byte("kv"), []byte("payload")}))
		}
		_, _ = nc.Write(append([]byte{flagMore, 5}, "other"...)) // and no more of it
		discard(nc)                                              // until the subscriber ends the connection
	})
	sub, err := c.DialSub(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		recv(t, sub)
	}
	if _, err := sub.Recv(); !errors.Is(err, ErrTopic) || asked != 2 {
		t.Errorf("%v, asked %d times", err, asked)
	}
}
