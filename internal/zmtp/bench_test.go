package zmtp

import (
	"context"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/go-zeromq/zmq4"
)

// BenchmarkSubRecv receives events of 2 KiB over loopback from our own publisher in the same process: with our
// subscriber, and with that of the Go library as the baseline. The publisher waits when the subscriber is behind, so
// that no message is dropped and one operation is one message sent and received; one allocation is the sender's.
func BenchmarkSubRecv(b *testing.B) {
	const hwm = 1 << 10
	payload := make([]byte, 2<<10)
	publish := func(b *testing.B, pub *Pub, credit <-chan struct{}) {
		seq := make([]byte, 8)
		for n := range uint64(b.N) {
			binary.BigEndian.PutUint64(seq, n)
			if n%(hwm/2) == 0 {
				if _, ok := <-credit; !ok {
					return
				}
			}
			if err := pub.Send([]byte("kv@pod"), seq, payload); err != nil {
				b.Error(err)
			}
		}
	}
	run := func(b *testing.B, pub *Pub, recv func() ([][]byte, error)) {
		credit := make(chan struct{}, 2)
		credit <- struct{}{}
		b.SetBytes(int64(len(payload)))
		b.ReportAllocs()
		b.ResetTimer()
		done := make(chan struct{})
		go func() { defer close(done); publish(b, pub, credit) }()
		for n := range b.N {
			if n%(hwm/2) == 0 {
				select {
				case credit <- struct{}{}:
				default:
				}
			}
			m, err := recv()
			if err != nil || len(m) != 3 {
				b.Fatal(m, err)
			}
		}
		b.StopTimer()
		close(credit)
		<-done
		if pub.Dropped() > 0 {
			b.Fatalf("%d messages dropped", pub.Dropped())
		}
	}
	listen := func(b *testing.B) *Pub {
		pub, err := ListenPub("127.0.0.1:0", hwm)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = pub.Close() })
		return pub
	}
	wait := func(pub *Pub) {
		for pub.Subscribers() == 0 {

		}
	}

	b.Run("own", func(b *testing.B) {
		pub := listen(b)
		sub, err := DialSub(b.Context(), pub.Addr(), "kv@")
		if err != nil {
			b.Fatal(err)
		}
		defer sub.Close()
		wait(pub)
		run(b, pub, sub.Recv)
	})
	b.Run("go-zeromq", func(b *testing.B) {
		pub := listen(b)
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		sub := zmq4.NewSub(ctx)
		defer sub.Close()
		if err := sub.Dial("tcp://" + pub.Addr()); err != nil {
			b.Fatal(err)
		}
		if err := sub.SetOption(zmq4.OptionSubscribe, "kv@"); err != nil {
			b.Fatal(err)
		}
		wait(pub)
		run(b, pub, func() ([][]byte, error) {
			m, err := sub.Recv()
			return m.Frames, err
		})
	})
}

// BenchmarkReader decodes one event of 2 KiB from memory: the cost of the framing alone.
func BenchmarkReader(b *testing.B) {
	one := appendMessage(nil, [][]byte{[]byte("kv@pod"), seqFrame(1), make([]byte, 2<<10)})
	stream := slices.Repeat(one, 64)
	r := newTestReader(&endless{stream: stream})
	b.SetBytes(int64(len(one)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.next(); err != nil {
			b.Fatal(err)
		}
	}
}

// endless repeats a stream.
type endless struct {
	stream []byte
	at     int
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.stream[e.at:])
	e.at = (e.at + n) % len(e.stream)
	return n, nil
}
