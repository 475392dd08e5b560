package zmtp

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/go-zeromq/zmq4"
	"github.com/google/go-cmp/cmp"
)

// The Go library as the outside peer. It announces ZMTP 3.0, so that this also covers subscriptions as messages.

func TestOwnSubReadsTheLibrarysPub(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pub := zmq4.NewPub(ctx)
	if err := pub.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	sub := dialSub(t, Config{}, pub.Addr().String(), "kv@")
	eventually(t, "subscribed", func() bool { return slices.Contains(pub.(zmq4.Topics).Topics(), "kv@") })
	long := strings.Repeat("p", 100_000)
	for _, topic := range []string{"other", "kv@1"} {
		if err := pub.SendMulti(zmq4.NewMsgFrom([]byte(topic), seqFrame(3), []byte(long), nil)); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"kv@1", string(seqFrame(3)), long, ""}, recv(t, sub)); diff != "" {
		t.Errorf("message (-want +got):\n%.300s", diff)
	}
	_ = pub.Close()
	if _, err := sub.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the publisher went: %v, want EOF", err)
	}
}

func TestLibrarysSubReadsOwnPub(t *testing.T) {
	own := listenPub(t, Config{}, 0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sub := zmq4.NewSub(ctx)
	defer sub.Close()
	if err := sub.Dial("tcp://" + own.Addr()); err != nil {
		t.Fatal(err)
	}
	if err := sub.SetOption(zmq4.OptionSubscribe, "kv@"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "subscribed", func() bool { return own.Subscribers() == 1 })
	long := strings.Repeat("p", 100_000)
	for _, topic := range []string{"other", "kv@1"} {
		if err := own.Send([]byte(topic), seqFrame(3), []byte(long), nil); err != nil {
			t.Fatal(err)
		}
	}
	m, err := sub.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"kv@1", string(seqFrame(3)), long, ""}, texts(m.Frames)); diff != "" {
		t.Errorf("message (-want +got):\n%.300s", diff)
	}
	if err := sub.SetOption(zmq4.OptionUnsubscribe, "kv@"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "unsubscribed", func() bool { return own.Subscribers() == 0 })
}

func TestOwnPubDialsTheLibrarysSub(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sub := zmq4.NewSub(ctx)
	defer sub.Close()
	if err := sub.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	if err := sub.SetOption(zmq4.OptionSubscribe, ""); err != nil {
		t.Fatal(err)
	}
	pub, err := DialPub(ctx, sub.Addr().String(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	eventually(t, "subscribed", func() bool { return pub.Subscribers() == 1 })
	if err := pub.Send([]byte("a"), []byte("b")); err != nil {
		t.Fatal(err)
	}
	m, err := sub.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "b"}, texts(m.Frames)); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
}

func TestOwnDealerAsksTheLibrarysRouter(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	router := zmq4.NewRouter(ctx)
	defer router.Close()
	if err := router.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	go func() {
		m, err := router.Recv()
		if err != nil {
			return
		}
		for _, answer := range []string{"one", "two"} {
			_ = router.SendMulti(zmq4.NewMsgFrom(m.Frames[0], nil, m.Frames[2], []byte(answer)))
		}
	}()
	d, err := DialDealer(ctx, router.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Send(nil, seqFrame(9)); err != nil {
		t.Fatal(err)
	}
	for _, answer := range []string{"one", "two"} {
		m, err := d.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"", string(seqFrame(9)), answer}, texts(m)); diff != "" {
			t.Errorf("answer (-want +got):\n%s", diff)
		}
	}
}

func TestLibrarysDealerAsksOwnRouter(t *testing.T) {
	own, err := ListenRouter("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dealer := zmq4.NewDealer(ctx, zmq4.WithID(zmq4.SocketIdentity("me")))
	defer dealer.Close()
	if err := dealer.Dial("tcp://" + own.Addr()); err != nil {
		t.Fatal(err)
	}
	if err := dealer.SendMulti(zmq4.NewMsgFrom(nil, []byte("question"))); err != nil {
		t.Fatal(err)
	}
	id, m, err := own.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"me", "", "question"}, append([]string{id}, texts(m)...)); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if err := own.Send(id, nil, []byte("answer")); err != nil {
		t.Fatal(err)
	}
	got, err := dealer.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"", "answer"}, texts(got.Frames)); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}
