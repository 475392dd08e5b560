package zmtp

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestReplayReadsBothShapesOfReplies(t *testing.T) {
	for name, topic := range map[string][][]byte{
		"without a topic": nil,
		"with a topic":    {[]byte("kv@")},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := ListenRouter("127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			go func() {
				id, m, err := r.Recv()
				if err != nil || len(m) != 2 || len(m[0]) != 0 {
					return
				}
				from := binary.BigEndian.Uint64(m[1])
				for n := from; n < from+3; n++ {
					_ = r.Send(id, append(append([][]byte{nil}, topic...), seqFrame(n), []byte("payload"))...)
				}
				_ = r.Send(id, append(append([][]byte{nil}, topic...), seqFrame(endOfReplay), nil)...)
			}()
			var got []uint64
			err = EventSource{}.Replay(t.Context(), r.Addr(), 7, func(seq uint64, payload []byte) error {
				if string(payload) != "payload" {
					t.Errorf("payload %q", payload)
				}
				got = append(got, seq)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]uint64{7, 8, 9}, got); diff != "" {
				t.Errorf("sequence (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReplayEndsWithAnErrorWhenTheAnswerIsNone(t *testing.T) {
	stop := errors.New("stop")
	for name, tc := range map[string]struct {
		answer [][]byte
		want   error
	}{
		"silence":         {want: os.ErrDeadlineExceeded},
		"one frame":       {answer: frames("x"), want: errNoReplay},
		"a short number":  {answer: frames("", "123", "payload"), want: errNoReplay},
		"not wanted here": {answer: [][]byte{nil, seqFrame(0), []byte("payload")}, want: stop},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := ListenRouter("127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			go func() {
				if id, _, err := r.Recv(); err == nil && tc.answer != nil {
					_ = r.Send(id, tc.answer...)
				}
			}()
			src := EventSource{ReplayTimeout: 50 * time.Millisecond}
			if tc.answer != nil {
				src.ReplayTimeout = deadline
			}
			if err := src.Replay(t.Context(), r.Addr(), 0, func(uint64, []byte) error { return stop }); !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
		})
	}
}

func TestSubscribeTellsWhenItIsUpAndWhenItEnds(t *testing.T) {
	pub := listenPub(t, Config{}, 0)
	stop := errors.New("stop")
	up := make(chan struct{})
	ended := make(chan error)
	go func() {
		ended <- EventSource{Topics: []string{"a"}}.Subscribe(t.Context(), pub.Addr(), func() { close(up) }, func(m [][]byte) error {
			if string(m[0]) != "ab" {
				t.Errorf("message %q", m)
			}
			return stop
		})
	}()
	<-up
	eventually(t, "subscribed", func() bool { return pub.Subscribers() == 1 })
	if err := pub.Send([]byte("ab")); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, stop) {
		t.Errorf("ended with %v", err)
	}
}
