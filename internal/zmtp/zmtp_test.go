package zmtp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// deadline bounds waiting in tests for what happens in microseconds.
const deadline = 20 * time.Second

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

// texts copies a message for comparison.
func texts(m Message) []string {
	out := make([]string, 0, len(m))
	for _, f := range m {
		out = append(out, string(f))
	}
	return out
}

func seqFrame(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func listenPub(t *testing.T, c Config, hwm int) *Pub {
	t.Helper()
	p, err := c.ListenPub("127.0.0.1:0", hwm)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func dialSub(t *testing.T, c Config, addr string, topics ...string) *Sub {
	t.Helper()
	s, err := c.DialSub(t.Context(), addr, topics...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func recv(t *testing.T, s *Sub) []string {
	t.Helper()
	watch := time.AfterFunc(deadline, func() { _ = s.Close() })
	defer watch.Stop()
	m, err := s.Recv()
	if err != nil {
		t.Fatalf("receiving: %v", err)
	}
	return texts(m)
}

func TestPublishedMessagesArriveInOrder(t *testing.T) {
	for _, host := range []string{"127.0.0.1:0", "[::1]:0"} {
		pub, err := ListenPub(host, 0)
		if err != nil {
			if strings.HasPrefix(host, "[") {
				t.Logf("no IPv6 here: %v", err)
				continue
			}
			t.Fatal(err)
		}
		sub := dialSub(t, Config{}, pub.Addr())
		eventually(t, "subscribed", func() bool { return pub.Subscribers() == 1 })
		long := strings.Repeat("x", 3<<20)
		want := [][]string{{"a", "1", ""}, {""}, {"b", long, "2"}, {"c", strings.Repeat("y", 256)}}
		go func() {
			for _, w := range want {
				var frames [][]byte
				for _, f := range w {
					frames = append(frames, []byte(f))
				}
				_ = pub.Send(frames...)
			}
		}()
		for i, w := range want {
			if diff := cmp.Diff(w, recv(t, sub)); diff != "" {
				t.Fatalf("%s: message %d (-want +got):\n%.300s", host, i, diff)
			}
		}
		_ = pub.Close()
		if _, err := sub.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("after the publisher closed: %v, want EOF", err)
		}
	}
}

func TestDealerAndRouterAnswerEachOther(t *testing.T) {
	r, err := ListenRouter("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		for {
			id, m, err := r.Recv()
			if err != nil {
				answered <- err
				return
			}
			for i := range 3 {
				if err := r.Send(id, nil, fmt.Appendf(nil, "%s-%d", m[1], i)); err != nil {
					answered <- err
					return
				}
			}
		}
	}()
	for _, name := range []string{"one", "two"} {
		d, err := DialDealer(t.Context(), r.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Send(nil, []byte(name)); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if err := d.SetRecvDeadline(time.Now().Add(deadline)); err != nil {
				t.Fatal(err)
			}
			m, err := d.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"", fmt.Sprintf("%s-%d", name, i)}, texts(m)); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		}
		_ = d.Close()
	}
	eventually(t, "dealers left", func() bool { return r.Peers() == 0 })
	if err := r.Send("nobody", []byte("x")); !errors.Is(err, ErrNoPeer) {
		t.Errorf("sending to an unknown peer: %v", err)
	}
	_ = r.Close()
	_ = r.Close()
	if err := <-answered; !errors.Is(err, ErrClosed) {
		t.Errorf("receiving while closing: %v", err)
	}
	if _, _, err := r.Recv(); !errors.Is(err, ErrClosed) {
		t.Errorf("receiving after Close: %v", err)
	}
}

func TestCancellingEndsEveryWait(t *testing.T) {
	pub := listenPub(t, Config{}, 0)
	r, err := ListenRouter("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	sub, err := DialSub(ctx, pub.Addr())
	if err != nil {
		t.Fatal(err)
	}
	dealer, err := DialDealer(ctx, r.Addr())
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, 2)
	go func() { _, err := sub.Recv(); errs <- err }()
	go func() { _, err := dealer.Recv(); errs <- err }()
	cancel()
	for range 2 {
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("receiving when cancelled: %v", err)
		}
	}
	if _, err := DialSub(ctx, pub.Addr()); !errors.Is(err, context.Canceled) {
		t.Errorf("dialing when cancelled: %v", err)
	}
}
