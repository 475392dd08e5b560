package zmtp

import (
	"encoding/binary"
	"errors"
	"net"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// longFrame is the header of a frame of n bytes.
func longFrame(n uint64) []byte { return binary.BigEndian.AppendUint64([]byte{flagLong}, n) }

// Publishers that send as much as they can of frames that never end take all of the room, and no more; one that sends little is
// received meanwhile.
func TestFramesOfAllPublishersDrawOnOneRoom(t *testing.T) {
	const limit, publishers, size = 8 << 20, 12, 3 << 20
	room := budget.NewRoom(limit)
	config := Config{Room: room}
	hostile := func(nc net.Conn) {
		_, _ = nc.Write(opening(1))
		_, _ = nc.Write(longFrame(size))
		_, _ = nc.Write(make([]byte, size-1)) // until the other side has had enough
		discard(nc)
	}
	ended := make(chan error, publishers)
	subs := make([]*Sub, publishers)
	for i := range subs {
		subs[i] = dialSub(t, config, rawListener(t, hostile))
		go func() {
			_, err := subs[i].Recv()
			ended <- err
		}()
	}
	for range publishers - 1 { // no share can be larger than what it leaves free
		if err := <-ended; !errors.Is(err, ErrLimit) {
			t.Errorf("a frame without room ended with %v", err)
		}
	}
	if held := room.Held(); held > limit {
		t.Errorf("%d bytes of %d are held", held, limit)
	}
	pub := listenPub(t, Config{}, 0)
	sub := dialSub(t, config, pub.Addr())
	eventually(t, "subscribed", func() bool { return pub.Subscribers() == 1 })
	if err := pub.Send([]byte("kv"), seqFrame(1), make([]byte, ownBytes/2)); err != nil {
		t.Fatal(err)
	}
	if m := recv(t, sub); len(m) != 3 || len(m[2]) != ownBytes/2 {
		t.Errorf("received %d frames beside them", len(m))
	}
	for _, s := range append(subs, sub) {
		_ = s.Close()
	}
	if held := room.Held(); held != 0 {
		t.Errorf("%d bytes are held by connections that have ended", held)
	}
}

// A frame whose buffer is not kept counts until the next message.
func TestALargeFrameCountsUntilTheNextMessage(t *testing.T) {
	room := budget.NewRoom(64 << 20)
	pub := listenPub(t, Config{}, 0)
	sub := dialSub(t, Config{Room: room}, pub.Addr())
	eventually(t, "subscribed", func() bool { return pub.Subscribers() == 1 })
	for round := range 3 {
		for _, size := range []int{5 << 20, 100} {
			if err := pub.Send(make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			recv(t, sub)
			if held := room.Held(); held < int64(size)-ownBytes || held > int64(size)*2 {
				t.Errorf("round %d: %d bytes are held for a frame of %d", round, held, size)
			}
		}
	}
}
