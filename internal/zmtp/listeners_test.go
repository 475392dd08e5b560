package zmtp

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestListeningSubscriberSeesEachPublisher(t *testing.T) {
	l, err := ListenSub("127.0.0.1:0", "kv@")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, name := range []string{"kv@a", "kv@b"} {
		pub, err := DialPub(t.Context(), l.Addr(), 0)
		if err != nil {
			t.Fatal(err)
		}
		sub, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "subscribed", func() bool { return pub.Subscribers() == 1 })
		if err := pub.Send([]byte("other")); err != nil {
			t.Fatal(err)
		}
		if err := pub.Send([]byte(name)); err != nil {
			t.Fatal(err)
		}
		got[recv(t, sub)[0]] = true
		if _, port, err := net.SplitHostPort(sub.Peer()); err != nil || port == "" {
			t.Errorf("peer %q", sub.Peer())
		}
		_ = pub.Close()
		if _, err := sub.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("after the publisher went: %v", err)
		}
	}
	if diff := cmp.Diff(map[string]bool{"kv@a": true, "kv@b": true}, got); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	pub, err := DialPub(t.Context(), l.Addr(), 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	<-pub.Done()
	_ = pub.Close()
	if _, err := l.Accept(); !errors.Is(err, ErrClosed) {
		t.Errorf("accepting after Close: %v", err)
	}
}

// A subscriber that does not read misses messages, which shows as gaps in their order; another one misses none.
func TestSlowSubscriberLosesMessagesAndStallsNobody(t *testing.T) {
	const messages, hwm = 5000, 50
	pub := listenPub(t, Config{}, hwm)
	slow := dialSub(t, Config{}, pub.Addr())
	fast := dialSub(t, Config{}, pub.Addr())
	eventually(t, "both subscribed", func() bool { return pub.Subscribers() == 2 })
	payload := make([]byte, 16<<10)
	for n := range uint64(messages) {
		if err := pub.Send(seqFrame(n), payload); err != nil {
			t.Fatal(err)
		}
		if got := binary.BigEndian.Uint64([]byte(recv(t, fast)[0])); got != n {
			t.Fatalf("the fast subscriber received %d, want %d", got, n)
		}
	}
	if pub.Dropped() == 0 {
		t.Fatal("nothing was dropped")
	}
	// The slow one now reads what is left: in order, with a gap before what is sent from here on.
	var last, received uint64
	gaps := 0
	for last < messages {
		m := recv(t, slow)
		n := binary.BigEndian.Uint64([]byte(m[0]))
		if received > 0 && n <= last {
			t.Fatalf("%d after %d", n, last)
		}
		if received > 0 && n != last+1 || received == 0 && n != 0 {
			gaps++
		}
		last = n
		received++
		if err := pub.Send(seqFrame(messages+received), nil); err != nil {
			t.Fatal(err)
		}
		_ = recv(t, fast)
	}
	if gaps == 0 {
		t.Error("no gap shows the loss")
	}
}

func TestUnsubscribingInBothForms(t *testing.T) {
	for name, tc := range map[string]struct{ on, off []byte }{
		"message": {on: appendFrame(nil, 0, []byte("\x01kv@")), off: appendFrame(nil, 0, []byte("\x00kv@"))},
		"command": {on: encodeCommand(cmdSubscribe, []byte("kv@")), off: encodeCommand(cmdCancel, []byte("kv@"))},
	} {
		t.Run(name, func(t *testing.T) {
			pub := listenPub(t, Config{}, 0)
			nc, err := net.Dial("tcp", pub.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			g := greeting()
			write := func(parts ...[]byte) {
				if _, err := nc.Write(slices.Concat(parts...)); err != nil {
					t.Fatal(err)
				}
			}
			write(g[:], encodeCommand(cmdReady, readyData(typeSub)), tc.on)
			eventually(t, "subscribed", func() bool { return pub.Subscribers() == 1 })
			write(tc.off)
			eventually(t, "unsubscribed", func() bool { return pub.Subscribers() == 0 })
			if err := pub.Send([]byte("kv@1")); err != nil {
				t.Fatal(err)
			}
			_ = pub.Close()
			said, err := io.ReadAll(nc)
			if err != nil || strings.Contains(string(said), "kv@1") {
				t.Errorf("received %q, %v", said, err)
			}
		})
	}
}

func TestTopicsOfASubscriberAreBounded(t *testing.T) {
	s := &subscriber{wake: make(chan struct{}, 1)}
	var err error
	n := 0
	for ; err == nil && n <= maxTopics; n++ {
		err = s.subscribe(seqFrame(uint64(n)), true)
	}
	if !errors.Is(err, ErrLimit) || n != maxTopics+1 {
		t.Errorf("%d topics, error %v", n, err)
	}
	if err := s.subscribe(seqFrame(0), true); err != nil {
		t.Errorf("subscribing again to a known topic: %v", err)
	}
}

func TestKickedSubscriberSeesTheEnd(t *testing.T) {
	pub := listenPub(t, Config{}, 0)
	a, b := dialSub(t, Config{}, pub.Addr()), dialSub(t, Config{}, pub.Addr())
	eventually(t, "both subscribed", func() bool { return pub.Subscribers() == 2 })
	if n := pub.Kick("nobody:1"); n != 0 {
		t.Errorf("%d kicked for an unknown address", n)
	}
	if n := pub.Kick(a.conn.nc.LocalAddr().String()); n != 1 {
		t.Errorf("%d kicked", n)
	}
	if _, err := a.Recv(); err == nil {
		t.Error("the kicked one received a message")
	}
	eventually(t, "one left", func() bool { return len(pub.Peers()) == 1 })
	if err := pub.Send([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"x"}, recv(t, b)); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
}

// Close delivers what is queued, but does not wait for a subscriber that takes nothing.
func TestCloseFlushesForABoundedTime(t *testing.T) {
	const messages = 100
	pub := listenPub(t, Config{FlushTimeout: deadline}, messages)
	sub := dialSub(t, Config{}, pub.Addr())
	eventually(t, "subscribed", func() bool { return pub.Subscribers() == 1 })
	for n := range uint64(messages) {
		if err := pub.Send(seqFrame(n), make([]byte, 8<<10)); err != nil {
			t.Fatal(err)
		}
	}
	closed := make(chan struct{})
	go func() { defer close(closed); _ = pub.Close() }()
	for n := range uint64(messages) {
		if got := binary.BigEndian.Uint64([]byte(recv(t, sub)[0])); got != n {
			t.Fatalf("received %d, want %d", got, n)
		}
	}
	<-closed
	if err := pub.Send([]byte("x")); !errors.Is(err, ErrClosed) {
		t.Errorf("sending after Close: %v", err)
	}

	stuck := listenPub(t, Config{FlushTimeout: 20 * time.Millisecond}, 1000)
	dialSub(t, Config{}, stuck.Addr())
	eventually(t, "subscribed", func() bool { return stuck.Subscribers() == 1 })
	for range 1000 {
		if err := stuck.Send(make([]byte, 64<<10)); err != nil {
			t.Fatal(err)
		}
	}
	_ = stuck.Close() // returns, or the test runs into its limit
}

func TestNoGoroutineIsLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 20 {
		ctx, cancel := context.WithCancel(context.Background())
		pub, err := ListenPub("127.0.0.1:0", 0)
		if err != nil {
			t.Fatal(err)
		}
		router, err := ListenRouter("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listener, err := ListenSub("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DialSub(ctx, pub.Addr()); err != nil {
			t.Fatal(err)
		}
		if _, err := DialDealer(ctx, router.Addr()); err != nil {
			t.Fatal(err)
		}
		dialed, err := DialPub(ctx, listener.Addr(), 0)
		if err != nil {
			t.Fatal(err)
		}
		stranger, err := net.Dial("tcp", pub.Addr())
		if err != nil {
			t.Fatal(err)
		}
		_ = pub.Close()
		_ = pub.Close()
		_ = router.Close()
		_ = listener.Close()
		_ = dialed.Close()
		_ = dialed.Close()
		_ = stranger.Close()
		cancel()
	}
	eventually(t, "no more goroutines than before", func() bool { return runtime.NumGoroutine() <= before })
}

func TestAPeerThatIsNotAllowedTakesNoPlace(t *testing.T) {
	allowed := make(chan bool, 1)
	asked := make(chan string, 1)
	sub, err := Config{MaxPeers: 1, Allow: func(peer string) bool { asked <- peer; return <-allowed }}.ListenSub("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	allowed <- false
	if pub, err := DialPub(t.Context(), sub.Addr(), 1); err == nil {
		t.Errorf("connected to %s", pub.Addr())
	}
	if peer := <-asked; !strings.HasPrefix(peer, "127.0.0.1:") {
		t.Errorf("asked about %q", peer)
	}
	allowed <- true
	pub, err := DialPub(t.Context(), sub.Addr(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	if _, err := sub.Accept(); err != nil {
		t.Error(err)
	}
}
