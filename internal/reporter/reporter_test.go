package reporter

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/internal/zmtp"
)

func TestConfigurationsAreChecked(t *testing.T) {
	good := Config{Pod: "p", Listen: "127.0.0.1:0", Pickers: rpc.List("127.0.0.1:1")}
	if _, err := good.withDefaults(); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no pod":              {func(c *Config) { c.Pod = "" }, "identity"},
		"another engine":      {func(c *Config) { c.Engine = "X" }, "neither"},
		"too many ranks":      {func(c *Config) { c.Ranks = maxRanks + 1 }, "at most"},
		"no publisher":        {func(c *Config) { c.Listen = "" }, "subscribe"},
		"two publishers":      {func(c *Config) { c.Subscribe = "h:1" }, "subscribe"},
		"no pickers":          {func(c *Config) { c.Pickers = nil }, "pickers"},
		"no address":          {func(c *Config) { c.Listen = "x" }, "address"},
		"no port":             {func(c *Config) { c.Replay = "h:http" }, "address"},
		"a port beyond ports": {func(c *Config) { c.Listen, c.FirstRank = "127.0.0.1:65535", 1 }, "no port"},
	} {
		c := good
		tc.change(&c)
		if r, err := New(c); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tc.want)
			if r != nil {
				r.close()
			}
		}
	}
}

func TestRanksHavePortsOfTheirOwn(t *testing.T) {
	base := freePort(t)
	r, err := New(Config{Pod: "p", Subscribe: base, Replay: base, FirstRank: 8, Ranks: 2, Pickers: rpc.List()})
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	for n, k := range r.ranks {
		want, err := shift(base, 8+n)
		if err != nil {
			t.Fatal(err)
		}
		if got := k.feed.Endpoint; got.EventsAddress != want || got.ReplayAddress != want || got.ID.Rank != n {
			t.Errorf("rank %d: %+v", n, got)
		}
	}
}

// An engine that was started again is followed although its former connection has not ended yet.
func TestThePublisherThatCameLastCounts(t *testing.T) {
	b, err := bind("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	var got []string
	ups := 0
	var following sync.WaitGroup
	following.Go(func() {
		for ctx.Err() == nil {
			_ = b.Subscribe(ctx, "", func() { mu.Lock(); ups++; mu.Unlock() }, func(frames [][]byte) error {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, string(frames[1]))
				return nil
			})
		}
	})
	dial := func(what string, up int) *zmtp.Pub {
		t.Helper()
		p, err := zmtp.DialPub(ctx, b.listener.Addr(), 10)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, what+" is followed", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return ups == up && p.Subscribers() == 1
		})
		return p
	}
	old := dial("the first", 1)
	next := dial("the second", 2)
	eventually(t, "the first is left", func() bool { return old.Subscribers() == 0 })
	if err := next.Send([]byte("topic"), []byte("hello")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its message comes", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) == 1 && got[0] == "hello"
	})
	cancel()
	following.Wait()
	_ = old.Close()
	_ = next.Close()
}

func TestPickersComeAndGo(t *testing.T) {
	var mu sync.Mutex
	addrs, failure := []string{"127.0.0.1:1", "127.0.0.1:2"}, error(nil)
	var asked atomic.Int64
	r, err := New(Config{Pod: "p", Listen: "127.0.0.1:0", FindEvery: time.Millisecond, Pickers: func(context.Context) ([]string, error) {
		asked.Add(1)
		mu.Lock()
		defer mu.Unlock()
		return addrs, failure
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	told := func() string {
		var all []string
		for _, p := range r.Status().Pickers {
			all = append(all, p.Address)
		}
		return strings.Join(all, " ")
	}
	eventually(t, "both are dialed", func() bool { return told() == "127.0.0.1:1 127.0.0.1:2" })
	eventually(t, "the failure is reported", func() bool { return strings.Contains(r.Status().Pickers[0].Last, "refused") })
	mu.Lock()
	addrs = []string{"127.0.0.1:2", "127.0.0.1:3"}
	mu.Unlock()
	eventually(t, "the others are dialed", func() bool { return told() == "127.0.0.1:2 127.0.0.1:3" })
	mu.Lock()
	addrs, failure = nil, errors.New("no name service")
	mu.Unlock()
	before := asked.Load()
	eventually(t, "the name service is asked again", func() bool { return asked.Load() > before+2 })
	if told() != "127.0.0.1:2 127.0.0.1:3" {
		t.Errorf("without a name service %q are dialed", told())
	}
	cancel()
	running.Wait()
	if told() != "" {
		t.Errorf("in the end %q are dialed", told())
	}
}

func TestSavedRubbishIsNotTaken(t *testing.T) {
	dir := t.TempDir()
	c := Config{Pod: "p", Listen: "127.0.0.1:0", StateDir: dir, Pickers: rpc.List()}
	if err := os.WriteFile(stateFile(dir, 0), []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if r.ranks[0].feed.Resume.Known {
		t.Error("it goes on from rubbish")
	}
	if !r.ranks[0].save(&r.cfg) {
		t.Error("nothing was saved over it")
	}
	r.close()
	if r, err = New(c); err != nil || len(r.ranks) != 1 {
		t.Fatal(err)
	}
	r.ranks[0].file = filepath.Join(dir, "none", "x")
	if r.ranks[0].save(&r.cfg) {
		t.Error("saved to nowhere")
	}
	r.close()
}

// TestAFullDiskKeepsTheLastMirror: a save that fails leaves the last good one, is logged once and counted; the next one succeeds once
// there is room.
func TestAFullDiskKeepsTheLastMirror(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("there is no /dev/full")
	}
	var logged []string
	c := Config{Pod: "p", Listen: "127.0.0.1:0", StateDir: t.TempDir(), Pickers: rpc.List(),
		Log: funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})}
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	k := r.ranks[0]
	if !k.save(&r.cfg) {
		t.Fatal("nothing was saved")
	}
	before, err := os.ReadFile(k.file)
	if err != nil {
		t.Fatal(err)
	}
	logged = nil
	for range 3 {
		if err := os.Symlink("/dev/full", k.file+".new"); err != nil {
			t.Fatal(err)
		}
		if k.save(&r.cfg) {
			t.Error("it was saved on a full disk")
		}
		if after, err := os.ReadFile(k.file); err != nil || !bytes.Equal(after, before) {
			t.Errorf("the last good one has become %q, %v", after, err)
		}
	}
	if len(logged) != 1 || !strings.Contains(logged[0], "no space left") || r.Status().Ranks[0].SaveErrors != 3 {
		t.Errorf("logged %q, status %+v", logged, r.Status().Ranks[0])
	}
	if !k.save(&r.cfg) {
		t.Error("it was not saved once there was room")
	}
}

func TestStatusIsServed(t *testing.T) {
	r, err := New(Config{Pod: "p", Listen: "127.0.0.1:0", Pickers: rpc.List()})
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	text := r.Status().metrics()
	for _, want := range []string{"kvasir_reporter_blocks{rank=\"0\"} 0\n", "kvasir_reporter_synced{rank=\"0\"} 0\n", "# TYPE kvasir_reporter_batches_total counter\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics lack %q:\n%s", want, text)
		}
	}
}
