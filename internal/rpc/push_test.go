package rpc

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

const blockTokens = 4

func testRoot(t testing.TB, text string) cachesync.Root {
	t.Helper()
	return testRootOf(t, text, blockTokens)
}

func testRootOf(t testing.TB, text string, blockTokens int) cachesync.Root {
	t.Helper()
	seed, err := kvblock.NewSeed([]byte(strings.Repeat(text, kvblock.MinSeedBytes)))
	if err != nil {
		t.Fatal(err)
	}
	return cachesync.NewRoot(seed, "model", blockTokens, nil)
}

// eventually polls until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// picker is a server on a real socket with one target.
type picker struct {
	t      *testing.T
	server *Server
	addr   string
	index  *kvindex.Table
	holder kvindex.Holder
	target Target

	mu    sync.Mutex
	roads []string // what was asked of the other road
}

func (p *picker) asked() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.roads, " ")
}

func startPicker(t *testing.T, addr string, o ServerOptions) *picker {
	t.Helper()
	p := &picker{t: t, index: kvindex.New()}
	p.holder = p.index.Join()
	p.target = Target{
		Endpoint: endpoint.Endpoint{ID: endpoint.ID{Pod: "uid-1"}, Address: "10.0.0.1:8000"},
		Roots:    []cachesync.Root{testRoot(t, "a")}, Writer: p.index.Writer(p.holder), OtherRoad: true,
	}
	if o.Auth == nil {
		o.Auth = Anybody{}
	}
	note := func(what string) func(string, endpoint.Endpoint) {
		return func(pool string, ep endpoint.Endpoint) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.roads = append(p.roads, fmt.Sprint(what, pool, ep.ID.Pod))
		}
	}
	o.OnOwn, o.OnRelease = note("own:"), note("release:")
	o.Digest = 100 * time.Millisecond
	p.server = NewServer(o)
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	p.addr = l.Addr().String()
	p.server.Set("pool", []Target{p.target})
	var served sync.WaitGroup
	served.Go(func() {
		if err := p.server.Serve(l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { p.server.Close(); served.Wait() })
	return p
}

func (p *picker) status() Status { return p.server.Status("pool")[0] }

func (p *picker) match(root cachesync.Root, tokens []uint32) int {
	var out [1]kvindex.Match
	keys := kvblock.AppendKeys(nil, root.Seed.Root(root.Model, ""), tokens, blockTokens)
	p.index.Match(keys, []kvindex.Holder{p.holder}, out[:])
	return out[0].Confirmed()
}

// reporter pushes a mirror to one address for as long as the test lasts, or until stop.
type reporter struct {
	mirror *cachesync.Mirror
	stop   func()
	mu     sync.Mutex
	last   error
}

func (r *reporter) err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

func startReporter(t *testing.T, addr string, o DialOptions) *reporter {
	t.Helper()
	r := &reporter{}
	changed := make(chan struct{}, 1)
	r.mirror = cachesync.NewMirror(cachesync.Options{}, func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	r.mirror.Begin(false)
	r.mirror.Mark(events.Position{}, events.Synced)
	c, err := Dial(addr, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var pushing sync.WaitGroup
	pushing.Go(func() {
		for ctx.Err() == nil {
			err := c.Push(ctx, cachesync.NewSender(r.mirror, "uid-1", 0), changed)
			r.mu.Lock()
			r.last = err
			r.mu.Unlock()
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	r.stop = func() { cancel(); pushing.Wait(); _ = c.Close() }
	t.Cleanup(r.stop)
	return r
}

// chain is an event that stores blocks of tokens from 0 on.
func chain(from, blocks int) (kvevent.Event, []uint32) {
	e := kvevent.Event{Kind: kvevent.Stored, BlockSize: blockTokens}
	if from > 0 {
		e.HasParent, e.Parent = true, kvevent.Hash(from)
	}
	var all []uint32
	for i := range from + blocks {
		for k := range blockTokens {
			all = append(all, uint32(i*10+k))
		}
		if i >= from {
			e.Hashes = append(e.Hashes, kvevent.Hash(i+1))
		}
	}
	e.Tokens = all[from*blockTokens:]
	return e, all
}

func batch(e ...kvevent.Event) *kvevent.Batch { return &kvevent.Batch{Events: e, Rank: -1} }

func TestReportsReachTheIndexOverSockets(t *testing.T) {
	p := startPicker(t, "127.0.0.1:0", ServerOptions{})
	r := startReporter(t, p.addr, DialOptions{})
	root := p.target.Roots[0]
	e, tokens := chain(0, 5)
	r.mirror.Apply(batch(e), events.Position{})
	eventually(t, "blocks", func() bool { return p.match(root, tokens) == 5 })
	eventually(t, "proof", func() bool { s := p.status(); return s.Proven && s.Connected && s.Owned && s.Reported == 5 })
	if got := p.asked(); got != "own:pooluid-1" {
		t.Errorf("asked of the other road: %q", got)
	}
	r.mirror.Apply(batch(kvevent.Event{Kind: kvevent.Removed, Hashes: []kvevent.Hash{3}}), events.Position{})
	eventually(t, "a removal", func() bool { return p.match(root, tokens) == 2 })

	// Another root.
	next := testRoot(t, "b")
	target := p.target
	target.Roots = []cachesync.Root{next, root}
	p.server.Set("pool", []Target{target})
	eventually(t, "other keys", func() bool { return p.match(next, tokens) == 2 && p.match(root, tokens) == 0 })
	eventually(t, "proof again", func() bool { s := p.status(); return s.Proven && s.KeyID == next.ID })

	// The endpoint goes.
	p.server.Set("pool", nil)
	eventually(t, "the stream ends", func() bool { return r.err() != nil && strings.Contains(r.err().Error(), "no endpoint here") })
	if n := p.server.Refused().UnknownPod; n == 0 {
		t.Error("no stream was refused")
	}
}

func TestStreamsGoOnWhereTheyWere(t *testing.T) {
	p := startPicker(t, "127.0.0.1:0", ServerOptions{})
	r := startReporter(t, p.addr, DialOptions{})
	e, tokens := chain(0, 3)
	r.mirror.Apply(batch(e), events.Position{})
	eventually(t, "blocks", func() bool { return p.match(p.target.Roots[0], tokens) == 3 && p.status().Proven })
	before := p.status()

	p.server.byID[p.target.Endpoint.ID].cancel(errReplaced)
	e, tokens = chain(3, 2)
	r.mirror.Apply(batch(e), events.Position{})
	eventually(t, "blocks after a break", func() bool { return p.match(p.target.Roots[0], tokens) == 5 && p.status().Proven })
	if after := p.status(); after.Resyncs != before.Resyncs || after.Seq != before.Seq+1 {
		t.Errorf("resyncs %v, before %v; %d changes, before %d", after.Resyncs, before.Resyncs, after.Seq, before.Seq)
	}
}

func TestEndpointsAreGivenBackWhenTheirReporterStaysAway(t *testing.T) {
	p := startPicker(t, "127.0.0.1:0", ServerOptions{Grace: 20 * time.Millisecond})
	r := startReporter(t, p.addr, DialOptions{})
	e, tokens := chain(0, 3)
	r.mirror.Apply(batch(e), events.Position{})
	eventually(t, "blocks", func() bool { return p.match(p.target.Roots[0], tokens) == 3 })
	if !p.server.Owned("pool", &p.target.Endpoint) {
		t.Error("the server does not know that it owns the endpoint")
	}
	r.stop()
	eventually(t, "given back", func() bool { return p.asked() == "own:pooluid-1 release:pooluid-1" })
	if s := p.status(); s.Owned || s.Connected || p.match(p.target.Roots[0], tokens) != 3 {
		t.Errorf("after the release: %+v, match %d", s, p.match(p.target.Roots[0], tokens))
	}
	r = startReporter(t, p.addr, DialOptions{})
	r.mirror.Apply(batch(e), events.Position{})
	eventually(t, "owned again", func() bool {
		return p.match(p.target.Roots[0], tokens) == 3 && p.status().Proven && slices.Equal(strings.Fields(p.asked()), []string{"own:pooluid-1", "release:pooluid-1", "own:pooluid-1"})
	})
}

// When another root of keys is announced, the reporter moves what is held to it, in one step for readers.
func TestKeysMoveToAnotherRoot(t *testing.T) {
	var moved atomic.Int64
	p := startPicker(t, "127.0.0.1:0", ServerOptions{OnMoved: func(string) { moved.Add(1) }})
	r := startReporter(t, p.addr, DialOptions{})
	e, tokens := chain(0, 3)
	r.mirror.Apply(batch(e), events.Position{})
	eventually(t, "held", func() bool { return p.match(p.target.Roots[0], tokens) == 3 && moved.Load() == 1 })
	before, next := p.target.Roots[0], testRoot(t, "b")
	p.target.Roots = []cachesync.Root{next}
	p.server.Set("pool", []Target{p.target})
	eventually(t, "moved", func() bool {
		old, now := p.match(before, tokens), p.match(next, tokens)
		if old+now < 3 && moved.Load() == 1 {
			// It can have moved between the two queries.
			old, now = p.match(before, tokens), p.match(next, tokens)
			if old+now < 3 {
				t.Fatalf("%d blocks by the former root, %d by the new one", old, now)
			}
		}
		return now == 3 && old == 0 && moved.Load() == 2 && p.status().Proven
	})
	if n := p.status().Resyncs[cachesync.NewKeys]; n != 1 || r.err() != nil {
		t.Errorf("moved %d times, stream ended with %v", n, r.err())
	}
}

// Another root can be announced at the moment at which a reporter takes over, and the stream that stops for it queries the
// server.
func TestRootsMayChangeWhileAReporterTakesOver(t *testing.T) {
	p := startPicker(t, "127.0.0.1:0", ServerOptions{})
	next := p.target
	next.Roots = []cachesync.Root{testRoot(t, "b")}
	begun, done := make(chan struct{}), make(chan struct{})
	own := p.server.options.OnOwn
	p.server.options.OnOwn = func(pool string, ep endpoint.Endpoint) {
		own(pool, ep)
		go func() {
			close(begun)
			p.server.Set(pool, []Target{next})
			close(done)
		}()
		<-begun
		for range 10_000 {
			p.server.Owned(pool, &ep)
		}
	}
	r := startReporter(t, p.addr, DialOptions{})
	e, tokens := chain(0, 3)
	r.mirror.Apply(batch(e), events.Position{})
	eventually(t, "the roots are set, and keys made with them", func() bool {
		select {
		case <-done:
			return p.match(next.Roots[0], tokens) == 3
		default:
			return false
		}
	})
}

// briefly proves a reporter's identity for a moment only.
type briefly struct {
	d      time.Duration
	outage *atomic.Bool // nil for never
}

func (b briefly) Authenticate(context.Context) (Identity, error) {
	who := Identity{UID: "uid-1", Expires: time.Now().Add(b.d)}
	if b.outage != nil {
		who.Outage = func(context.Context) bool { return b.outage.Load() }
	}
	return who, nil
}

// While no proof can be renewed, a stream outlives its proof.
func TestStreamsOutliveTheirProofInAnOutage(t *testing.T) {
	var outage atomic.Bool
	outage.Store(true)
	p := startPicker(t, "127.0.0.1:0", ServerOptions{Auth: briefly{10 * time.Millisecond, &outage}, OutagePause: 10 * time.Millisecond})
	r := startReporter(t, p.addr, DialOptions{})
	eventually(t, "some digests", func() bool { return p.status().Digests > 3 })
	if err := r.err(); err != nil {
		t.Fatalf("the stream has ended: %v", err)
	}
	outage.Store(false)
	eventually(t, "the stream ends", func() bool { return r.err() != nil && strings.Contains(r.err().Error(), "expired") })
}

func TestStreamsEndWithTheirProof(t *testing.T) {
	p := startPicker(t, "127.0.0.1:0", ServerOptions{Auth: briefly{d: 30 * time.Millisecond}})
	r := startReporter(t, p.addr, DialOptions{})
	e, tokens := chain(0, 3)
	r.mirror.Apply(batch(e), events.Position{})
	eventually(t, "the stream ends", func() bool { return r.err() != nil && strings.Contains(r.err().Error(), "expired") })
	eventually(t, "another goes on", func() bool { return p.match(p.target.Roots[0], tokens) == 3 && p.status().Connected })
}

// The result of a digest does not count for ever when no other arrives, although the stream has not ended.
func TestSilenceIsNoProof(t *testing.T) {
	var later atomic.Int64
	p := startPicker(t, "127.0.0.1:0", ServerOptions{Now: func() time.Time { return time.Now().Add(time.Duration(later.Load())) }})
	r := startReporter(t, p.addr, DialOptions{})
	e, _ := chain(0, 3)
	r.mirror.Apply(batch(e), events.Position{})
	eventually(t, "equal", func() bool { return p.status().Proven })
	r.mirror.Begin(true) // it says nothing until the history has been read
	eventually(t, "nothing is taken for equal", func() bool {
		later.Add(int64(time.Minute))
		got := p.status()
		return got.Connected && !got.Proven && got.Divergent == 0
	})
	r.mirror.Apply(batch(e), events.Position{})
	r.mirror.Mark(events.Position{}, events.Synced)
	eventually(t, "equal again", func() bool { return p.status().Proven })
}

// Whatever bytes a client sends, the server lives, and says no.
func TestStreamsThatAreNone(t *testing.T) {
	p := startPicker(t, "127.0.0.1:0", ServerOptions{})
	for name, tc := range map[string]struct {
		messages []*pb.ReporterMessage
		want     codes.Code
	}{
		"no hello":          {[]*pb.ReporterMessage{{Kind: &pb.ReporterMessage_State{State: &pb.StateChange{}}}}, codes.InvalidArgument},
		"nothing at all":    {[]*pb.ReporterMessage{{}}, codes.InvalidArgument},
		"another version":   {[]*pb.ReporterMessage{hello(9, "uid-1", 0)}, codes.InvalidArgument},
		"an absurd rank":    {[]*pb.ReporterMessage{hello(1, "uid-1", 1<<20)}, codes.InvalidArgument},
		"a rank not there":  {[]*pb.ReporterMessage{hello(1, "uid-1", 1)}, codes.NotFound},
		"a pod not there":   {[]*pb.ReporterMessage{hello(1, "uid-2", 0)}, codes.NotFound},
		"no pod":            {[]*pb.ReporterMessage{hello(1, "", 0)}, codes.PermissionDenied},
		"two hellos":        {[]*pb.ReporterMessage{hello(1, "uid-1", 0), hello(1, "uid-1", 0)}, codes.InvalidArgument},
		"an unknown kind":   {[]*pb.ReporterMessage{hello(1, "uid-1", 0), {}}, codes.InvalidArgument},
		"begin without why": {[]*pb.ReporterMessage{hello(1, "uid-1", 0), {Kind: &pb.ReporterMessage_Begin{Begin: &pb.Begin{}}}}, codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Dial(p.addr, DialOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			stream, err := NewReportClient(c.conn).Push(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range tc.messages {
				if err := stream.Send(m); err != nil {
					break // the reason is in what is received
				}
			}
			for {
				if _, err = stream.Recv(); err != nil {
					break
				}
			}
			if status.Code(err) != tc.want {
				t.Errorf("%v, want %v", err, tc.want)
			}
		})
	}
}

func hello(protocol uint32, pod string, rank uint32) *pb.ReporterMessage {
	return &pb.ReporterMessage{Kind: &pb.ReporterMessage_Hello{Hello: &pb.Hello{Protocol: protocol, Pod: pod, Rank: rank}}}
}
