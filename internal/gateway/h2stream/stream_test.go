package h2stream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// bytesCodec has messages that are bytes.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

func (bytesCodec) Name() string { return "proto" }

var _ encoding.CodecV2 = bytesCodec{}

func (h *house) grpc(options ...grpc.CallOption) *grpc.ClientConn {
	h.t.Helper()
	options = append(options, grpc.ForceCodecV2(bytesCodec{}), grpc.MaxCallRecvMsgSize(64<<20))
	c, err := grpc.NewClient("passthrough:///"+h.address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(options...))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Close() })
	return c
}

var both = &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

// Any messages that a client of gRPC's own library sends, on any number of streams at once, are returned unchanged.
func TestMessagesComeBackAsTheyWere(t *testing.T) {
	h := newHouse(t, Options{MaxMessage: 8 << 20}, func(_ *Call, s *Stream) *handler { return echo(s) })
	c := h.grpc()
	var wait sync.WaitGroup
	for worker := range 8 {
		wait.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), 1))
			for range 10 {
				if err := converse(t.Context(), c, rng); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	_ = c.Close()
	if cut := h.stop(patience); cut != 0 {
		t.Errorf("%d connections cut", cut)
	}
}

// converse sends some messages, all before it reads or one by one, and compares.
func converse(ctx context.Context, c *grpc.ClientConn, rng *rand.Rand) error {
	s, err := c.NewStream(ctx, both, "/s/m")
	if err != nil {
		return err
	}
	var sent [][]byte
	ahead := rng.IntN(2) == 0
	for range rng.IntN(6) {
		size := []int{0, 1, 100, 5000, 16379, 16384, 70_000, 3 << 20}[rng.IntN(8)]
		m := make([]byte, size+rng.IntN(3))
		for i := range m {
			m[i] = byte(rng.Uint32())
		}
		if err := s.SendMsg(&m); err != nil {
			return err
		}
		if sent = append(sent, m); ahead {
			continue
		}
		var back []byte
		if err := s.RecvMsg(&back); err != nil || !bytes.Equal(back, m) {
			return fmt.Errorf("%d bytes come back of %d: %w", len(back), len(m), err)
		}
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	for i := 0; ahead && i < len(sent); i++ {
		var back []byte
		if err := s.RecvMsg(&back); err != nil || !bytes.Equal(back, sent[i]) {
			return fmt.Errorf("%d bytes come back of %d: %w", len(back), len(sent[i]), err)
		}
	}
	var none []byte
	if err := s.RecvMsg(&none); !errors.Is(err, io.EOF) {
		return fmt.Errorf("at the end: %w", err)
	}
	return nil
}

// What a handler lets run elsewhere holds up its own stream, and no other. Messages wait meanwhile, in order.
func TestOffHoldsUpItsOwnStreamOnly(t *testing.T) {
	release := make(chan struct{})
	var order []string // of the first stream; its calls do not overlap, which the race detector checks
	h := newHouse(t, Options{}, func(call *Call, s *Stream) *handler {
		if call.Header("x-slow") == "" {
			return echo(s)
		}
		one := echo(s)
		message := one.message
		one.message = func(m []byte) {
			order = append(order, string(m))
			message(m)
			if len(order) == 1 {
				s.Off(func() { <-release; order = append(order, "released") })
			}
		}
		return one
	})
	c := h.dial()
	c.open(1, false, "x-slow", "yes")
	for _, m := range []string{"a", "b", "c"} {
		c.must(c.WriteData(1, false, framed(m)))
	}
	c.must(c.WriteData(1, true, nil))
	c.open(3, false)
	c.must(c.WriteData(3, true, framed("other")))
	if got := c.status(3); got != "0" {
		t.Errorf("the other stream ended with %s", got)
	}
	close(release)
	if got := c.status(1); got != "0" {
		t.Errorf("the stream ended with %s", got)
	}
	if got := strings.Join(order, " "); got != "a released b c" {
		t.Errorf("order %s", got)
	}
}

// The context ends with the stream, whichever side ends it, and the handler is notified once all functions passed to Off
// have returned.
func TestContextsEndWithTheirStreams(t *testing.T) {
	var running, ended atomic.Int64
	h := newHouse(t, Options{}, func(_ *Call, s *Stream) *handler {
		return &handler{
			message: func([]byte) {
				ctx := s.Context()
				s.Off(func() {
					running.Add(1)
					<-ctx.Done()
					if ended.Load() != 0 {
						t.Error("the handler was notified of the end too early")
					}
					running.Add(-1)
				})
			},
			ended: func() { ended.Add(1) },
		}
	})
	for name, end := range map[string]func(*client){
		"reset":             func(c *client) { c.must(c.WriteRSTStream(1, http2.ErrCodeCancel)) },
		"lost":              func(c *client) { _ = c.socket.Close() },
		"a mistake of HTTP": func(c *client) { c.must(c.WriteWindowUpdate(1, 1<<31-1)) },
	} {
		ended.Store(0)
		c := h.dial()
		c.open(1, false)
		c.must(c.WriteData(1, false, framed("m")))
		eventually(t, "it runs", func() bool { return running.Load() == 1 })
		end(c)
		eventually(t, name+": it has returned and the handler was notified", func() bool { return running.Load() == 0 && ended.Load() == 1 })
	}
	// The client's own deadline.
	ended.Store(0)
	c := h.dial()
	c.open(1, false, "grpc-timeout", "20m")
	c.must(c.WriteData(1, false, framed("m")))
	if f := await[*http2.RSTStreamFrame](c, nil); f.ErrCode != http2.ErrCodeCancel {
		t.Errorf("reset with %v", f.ErrCode)
	}
	eventually(t, "deadline: the handler was notified", func() bool { return ended.Load() == 1 })
}

// Calls that cannot be handled end with a status that says why, and do not affect other calls.
func TestStatusOfWhatCannotBeHandled(t *testing.T) {
	h := newHouse(t, Options{MaxMessage: 100}, func(call *Call, s *Stream) *handler {
		if call.Method != "/s/m" {
			return nil
		}
		one := echo(s)
		message := one.message
		one.message = func(m []byte) {
			switch string(m) {
			case "panic":
				panic("as asked")
			case "panic off":
				s.Off(func() { panic("as asked") })
			case "status":
				s.Finish(codes.NotFound, "no 100% ☃")
			default:
				message(m)
			}
		}
		return one
	})
	c := h.dial()
	id := uint32(1)
	for name, tc := range map[string]struct {
		header []string
		data   []byte
		want   string
	}{
		"fine":               {nil, framed("x"), "0"},
		"nothing":            {nil, nil, "0"},
		"another method":     {[]string{":path", "/s/n"}, nil, "12"},
		"compressed":         {nil, []byte{1, 0, 0, 0, 0}, "12"},
		"too large":          {nil, []byte{0, 0, 0, 0, 101}, "8"},
		"far too large":      {nil, []byte{0, 255, 255, 255, 255}, "8"},
		"not complete":       {nil, framed("message")[:8], "13"},
		"no complete prefix": {nil, []byte{0, 0}, "13"},
		"a panic":            {nil, framed("panic"), "13"},
		"a panic elsewhere":  {nil, framed("panic off"), "13"},
		"a status":           {nil, framed("status"), "5"},
		"no gRPC":            {[]string{"content-type", "text/plain"}, nil, "HTTP 415"},
		"nearly gRPC":        {[]string{"content-type", "application/grpcx"}, nil, "HTTP 415"},
	} {
		c.openAs(id, tc.header)
		c.must(c.WriteData(id, true, tc.data))
		if got := c.status(id); got != tc.want {
			t.Errorf("%s: status %s, want %s", name, got, tc.want)
		}
		id += 2
	}
	s, err := h.grpc().NewStream(t.Context(), both, "/s/m")
	if err != nil {
		t.Fatal(err)
	}
	m := []byte("status")
	_ = s.SendMsg(&m)
	if err := s.RecvMsg(&m); status.Code(err) != codes.NotFound || status.Convert(err).Message() != "no 100% ☃" {
		t.Errorf("%v", err)
	}
}

// openAs opens a stream with headers in place of the usual ones.
func (c *client) openAs(id uint32, header []string) {
	c.t.Helper()
	all := map[string]string{":method": "POST", ":scheme": "http", ":path": "/s/m", "content-type": "application/grpc"}
	for i := 0; i < len(header); i += 2 {
		all[header[i]] = header[i+1]
	}
	c.buf.Reset()
	for _, name := range []string{":method", ":scheme", ":path", "content-type"} {
		c.must(c.head.WriteField(hpackField(name, all[name])))
	}
	c.must(c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.buf.Bytes(), EndHeaders: true}))
}

func TestTimeouts(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"1S": time.Second, "20m": 20 * time.Millisecond, "00000001H": time.Hour, "7u": 7 * time.Microsecond, "9n": 9, "0S": 0,
		"99999999H": 100 * 365 * 24 * time.Hour, "3M": 3 * time.Minute,
	} {
		if got, ok := timeoutOf(text); !ok || got != want {
			t.Errorf("%s: %v, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "S", "1", "1s", "-1S", "123456789S", "1 S"} {
		if got, ok := timeoutOf(text); ok {
			t.Errorf("%q: %v", text, got)
		}
	}
}
