package reporter

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/rpc"
)

// counting is a picker that has requests at the engine.
type counting struct {
	addr     string
	inFlight atomic.Int64
	close    func()
}

func startCounting(t *testing.T, old bool) *counting {
	t.Helper()
	c := &counting{}
	o := rpc.ServerOptions{Auth: rpc.Anybody{}}
	if !old {
		o.InFlight = func(id endpoint.ID) int {
			if id.Pod != "p" {
				t.Errorf("asked for %v", id)
			}
			return int(c.inFlight.Load())
		}
	}
	server := rpc.NewServer(o)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.addr = l.Addr().String()
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	c.close = sync.OnceFunc(func() { server.Close(); serving.Wait() })
	t.Cleanup(c.close)
	return c
}

func TestAnEngineIsBusyWhileAPickerHasARequestThere(t *testing.T) {
	a, b, old := startCounting(t, false), startCounting(t, false), startCounting(t, true)
	r, err := New(Config{Pod: "p", Listen: "127.0.0.1:0", FindEvery: time.Millisecond, Pickers: func(context.Context) ([]string, error) {
		return []string{a.addr, b.addr, old.addr}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	defer running.Wait()
	defer cancel()
	eventually(t, "all pickers are known", func() bool { return len(r.Status().Pickers) == 3 })
	b.inFlight.Store(1)
	eventually(t, "one has a request there", func() bool { return r.InFlight(ctx) })
	b.inFlight.Store(0)
	eventually(t, "none has", func() bool { return !r.InFlight(ctx) })
	a.inFlight.Store(1)
	a.close()
	if !r.InFlight(ctx) {
		t.Error("a picker that gives no answer any more has no requests there")
	}
	r.mu.Lock()
	p := r.pickers[a.addr]
	r.mu.Unlock()
	p.mu.Lock()
	p.silentFrom = time.Now().Add(-silentPicker)
	p.mu.Unlock()
	if r.InFlight(ctx) {
		t.Error("a picker that gave no answer for long still has requests there")
	}
}

// TestAnAddressWhereNoPickerWasIsIgnored, but not one that does not answer: a picker can be there.
func TestAnAddressWhereNoPickerWasIsIgnored(t *testing.T) {
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	nobody, silent := listen(), listen()
	_ = nobody.Close()
	for _, c := range []struct {
		addr string
		busy bool
	}{{nobody.Addr().String(), false}, {silent.Addr().String(), true}} {
		r, err := New(Config{Pod: "p", Listen: "127.0.0.1:0", FindEvery: time.Millisecond, Pickers: func(context.Context) ([]string, error) {
			return []string{c.addr}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx) })
		eventually(t, "the picker is known", func() bool { return len(r.Status().Pickers) == 1 })
		if c.busy {
			if !r.InFlight(ctx) {
				t.Error("a picker that does not answer has no requests there")
			}
		} else {
			eventually(t, "the address is ignored", func() bool { return !r.InFlight(ctx) })
		}
		cancel()
		running.Wait()
	}
}

func TestAReporterWithoutPickersKnowsOfNoRequests(t *testing.T) {
	r, err := New(Config{Pod: "p", Listen: "127.0.0.1:0", Pickers: func(context.Context) ([]string, error) { return nil, nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	if r.InFlight(context.Background()) {
		t.Error("somebody has requests there")
	}
}
