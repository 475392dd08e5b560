package reporter

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/freeport"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

const patience = 30 * time.Second

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// freePort is an address that no process listens on.
func freePort(t *testing.T) string {
	t.Helper()
	all, err := freeport.Addresses("127.0.0.1", 1)
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// place is a pod with an engine and its reporter, and pickers that follow it.
type place struct {
	t                    *testing.T
	events, replay       string
	dir                  string
	blockSize, numBlocks int
	connect              bool         // the engine's publisher connects to the reporter
	lose                 atomic.Int64 // one event message in so many
	engine               *vllmsim.Engine
	url                  atomic.Value // of the engine
	seed                 uint64
	stopReporter         func()
	reporter             *Reporter
	pickers              []*fakePicker
	root                 cachesync.Root
	prompts              [][]uint32
	client               *http.Client
}

// fakePicker is a picker's report server with an index.
type fakePicker struct {
	addr   string
	server *rpc.Server
	index  *kvindex.Index
	holder kvindex.Holder
	ep     endpoint.Endpoint
	stop   func()
}

func newPlace(t *testing.T, blockSize, blockTokens int, connect bool) *place {
	t.Helper()
	secret, err := kvblock.NewSeed([]byte(strings.Repeat("k", kvblock.MinSeedBytes)))
	if err != nil {
		t.Fatal(err)
	}
	p := &place{
		t: t, events: freePort(t), replay: freePort(t), dir: t.TempDir(), blockSize: blockSize, numBlocks: 400, connect: connect,
		root: cachesync.NewRoot(secret, "m", blockTokens, nil), client: &http.Client{Transport: &http.Transport{}},
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 40 {
		var tokens []uint32
		if i > 0 && i%4 != 0 {
			parent := p.prompts[rng.IntN(len(p.prompts))]
			tokens = append(tokens, parent[:rng.IntN(len(parent))]...)
		}
		for range 20 + rng.IntN(300) {
			tokens = append(tokens, rng.Uint32N(30_000))
		}
		p.prompts = append(p.prompts, tokens[:min(len(tokens), 1200)])
	}
	for range 2 {
		k := &fakePicker{addr: "127.0.0.1:0"}
		p.startPicker(k)
		p.pickers = append(p.pickers, k)
	}
	p.startReporter()
	p.startEngine()
	t.Cleanup(func() {
		_ = p.engine.Close()
		p.stopReporter()
		for _, k := range p.pickers {
			k.stop()
		}
		p.client.CloseIdleConnections()
	})
	return p
}

func (p *place) startPicker(k *fakePicker) {
	p.t.Helper()
	l, err := net.Listen("tcp", k.addr)
	if err != nil {
		p.t.Fatal(err)
	}
	k.addr = l.Addr().String()
	k.index = kvindex.NewIndex(kvindex.Options{})
	k.holder = k.index.Join()
	k.ep = endpoint.Endpoint{ID: endpoint.ID{Pod: "pod-uid"}}
	k.server = rpc.NewServer(rpc.ServerOptions{Auth: rpc.Anybody{}, Digest: time.Second})
	k.server.Set("pool", []rpc.Target{{Endpoint: k.ep, Roots: []cachesync.Root{p.root}, Writer: k.index.Writer(k.holder)}})
	var served sync.WaitGroup
	served.Go(func() {
		if err := k.server.Serve(l); err != nil {
			p.t.Error(err)
		}
	})
	k.stop = func() { k.server.Close(); served.Wait() }
}

func (p *place) startReporter() {
	p.t.Helper()
	var addrs []string
	for _, k := range p.pickers {
		addrs = append(addrs, k.addr)
	}
	c := Config{
		Pod: "pod-uid", Replay: p.replay, StateDir: p.dir, SaveEvery: 100 * time.Millisecond,
		Pickers: rpc.List(addrs...), Log: testr.NewWithOptions(p.t, testr.Options{Verbosity: -1}),
	}
	if p.connect {
		c.Listen = p.events
	} else {
		c.Subscribe = p.events
	}
	r, err := New(c)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	p.reporter = r
	p.stopReporter = func() { cancel(); running.Wait() }
}

func (p *place) startEngine() {
	p.t.Helper()
	p.seed++
	losses := rand.New(rand.NewPCG(p.seed, 5))
	c := vllmsim.Config{
		ServedModelNames: []string{"m"}, BlockSize: p.blockSize, NumBlocks: p.numBlocks, SpeedUp: 1000, Seed: p.seed,
		Events: vllmsim.EventsConfig{
			Endpoint: p.events, Connect: p.connect, ReplayEndpoint: p.replay,
			Tamper: func(seq uint64, payload []byte, send func(uint64, []byte)) {
				if n := p.lose.Load(); n == 0 || losses.Int64N(n) > 0 {
					send(seq, payload)
				}
			},
		},
	}
	// The ports of a killed engine can still be in use for a moment.
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		e, err := vllmsim.Start(c)
		if err == nil {
			p.engine = e
			p.url.Store(e.URL())
			return
		}
		if time.Now().After(end) {
			p.t.Fatal(err)
		}
	}
}

// ask sends a prompt. Failures are those of an engine that is being killed.
func (p *place) ask(url string, tokens []uint32) {
	body, err := json.Marshal(map[string]any{"model": "m", "prompt": tokens, "max_tokens": 3})
	if err != nil {
		p.t.Error(err)
		return
	}
	answer, err := p.client.Post(url+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
}

// load sends prompts from several clients while do runs.
func (p *place) load(do func()) {
	done := make(chan struct{})
	var clients sync.WaitGroup
	for n := range 4 {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(n), 9))
			for {
				select {
				case <-done:
					return
				default:
					p.ask(p.url.Load().(string), p.prompts[rng.IntN(len(p.prompts))])
				}
			}
		})
	}
	do()
	close(done)
	clients.Wait()
}

// equal reports whether a picker's index is the engine's cache: as many blocks, and the same match for every prompt.
func (p *place) equal(k *fakePicker) error {
	s := k.server.Status("pool")[0]
	if !s.Proven || s.Divergent != 0 {
		return fmt.Errorf("not proven: %+v", s.Status)
	}
	if p.blockSize == p.root.BlockTokens {
		if n := len(p.engine.Blocks()); k.index.Held(k.holder) != n {
			return fmt.Errorf("%d blocks held, the engine has %d", k.index.Held(k.holder), n)
		}
	}
	for i, tokens := range p.prompts {
		keys := kvblock.AppendKeys(nil, p.root.Seed.Root("m", ""), tokens, p.root.BlockTokens)
		var out [1]kvindex.Match
		k.index.Match(keys, []kvindex.Holder{k.holder}, out[:])
		want := p.engine.Match("", "", tokens) * p.blockSize / p.root.BlockTokens
		// A part of a block of the engine can match where the engine, which compares full blocks, has none.
		part := max(p.blockSize/p.root.BlockTokens, 1) - 1
		if got := out[0].Confirmed(); got < min(want, len(keys)) || got > want+part {
			return fmt.Errorf("prompt %d: %d of %d blocks match, in the engine %d", i, got, len(keys), want)
		}
	}
	return nil
}

// settled waits until all pickers are equal, and reports how long that took.
func (p *place) settled(what string) {
	p.t.Helper()
	began := time.Now()
	var err error
	for time.Since(began) < patience {
		for _, k := range p.pickers {
			if err = p.equal(k); err != nil {
				break
			}
		}
		if err == nil {
			p.t.Logf("%s: equal after %s", what, time.Since(began).Round(time.Millisecond))
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	p.t.Fatalf("%s: %v", what, err)
}

func TestPickersAreEqualToTheEngineWhateverIsKilled(t *testing.T) {
	goroutines := runtime.NumGoroutine()
	t.Run("play", func(t *testing.T) {
		for name, tc := range map[string]struct {
			blockSize, blockTokens int
			connect                bool
		}{
			"the engine connects":          {16, 16, true},
			"the reporter subscribes":      {16, 16, false},
			"our blocks are two of theirs": {16, 32, true},
			"their blocks are two of ours": {32, 16, true},
		} {
			t.Run(name, func(t *testing.T) {
				if testing.Short() && name != "the engine connects" {
					t.Skip("takes ten seconds")
				}
				t.Parallel()
				play(t, newPlace(t, tc.blockSize, tc.blockTokens, tc.connect))
			})
		}
	})
	eventually(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines })
}

func play(t *testing.T, p *place) {
	work := func() { time.Sleep(150 * time.Millisecond) }
	p.load(work)
	p.settled("work")

	p.lose.Store(3)
	p.load(work)
	p.settled("lost events")

	p.load(func() { work(); p.engine.KickSubscribers(); work() })
	p.settled("a connection broken")

	p.load(func() { work(); p.engine.Kill(); p.startEngine(); work() })
	p.load(work)
	p.settled("the engine killed")

	p.load(func() { work(); p.stopReporter(); work(); p.startReporter(); work() })
	p.settled("the reporter killed")
	if got := p.reporter.Mirror(0).Stats().Epochs; got != 0 {
		t.Errorf("the reporter began %d epochs although its engine lived on", got)
	}

	// Killed at once, it goes on with what it saved last, and asks the engine for the rest.
	old, err := os.ReadFile(p.reporter.ranks[0].file)
	if err != nil {
		t.Fatal(err)
	}
	p.load(func() {
		work()
		p.stopReporter()
		if err := os.WriteFile(p.reporter.ranks[0].file, old, 0o600); err != nil {
			t.Fatal(err)
		}
		work()
		p.startReporter()
	})
	p.settled("the reporter killed before it could save")
	if got := p.reporter.Mirror(0).Stats().Epochs; got != 0 {
		t.Errorf("the reporter began %d epochs although its engine lived on", got)
	}

	p.load(func() {
		work()
		k := p.pickers[0]
		k.stop()
		work()
		p.startPicker(k)
		work()
	})
	p.settled("a picker killed")

	p.load(func() {
		work()
		p.stopReporter()
		p.engine.Kill()
		p.startEngine()
		work()
		p.startReporter()
		p.pickers[1].stop()
		work()
		p.startPicker(p.pickers[1])
	})
	p.load(work)
	p.settled("everything killed")

	// A reporter whose memory was lost begins another epoch, and reads the history from its beginning.
	p.stopReporter()
	files, err := filepath.Glob(filepath.Join(p.dir, "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("saved: %v %v", files, err)
	}
	if err := os.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
	p.startReporter()
	p.settled("the reporter's memory lost")
	p.engine.Flush()
	p.settled("nothing held")
}
