package events_test

import (
	"encoding/binary"
	"encoding/hex"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/zmtp"
)

func golden(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile("../vllm/testdata/kv-events/" + name + ".hex")
	if err != nil {
		t.Fatal(err)
	}
	payload, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

// engine is a publisher with a replay socket, as engines have them.
type engine struct {
	t      *testing.T
	pub    *zmtp.Pub
	router *zmtp.Router
	// newReplies adds the topic frame that replies have in later releases.
	newReplies bool
	served     sync.WaitGroup

	mu      sync.Mutex
	history [][]byte
}

const topic = "kv@10.1.2.3:8000@model"

func start(t *testing.T, live, replay string, newReplies bool) *engine {
	t.Helper()
	e := &engine{t: t, newReplies: newReplies}
	var err error
	if e.pub, err = zmtp.ListenPub(live, 1000); err != nil {
		t.Fatal(err)
	}
	if e.router, err = zmtp.ListenRouter(replay); err != nil {
		t.Fatal(err)
	}
	e.served.Go(e.serve)
	t.Cleanup(e.stop)
	return e
}

func (e *engine) stop() {
	_ = e.pub.Close()
	_ = e.router.Close()
	e.served.Wait()
}

func (e *engine) serve() {
	for {
		id, m, err := e.router.Recv()
		if err != nil {
			return
		}
		reply := func(topic string, seq uint64, payload []byte) {
			frames := [][]byte{nil}
			if e.newReplies {
				frames = append(frames, []byte(topic))
			}
			_ = e.router.Send(id, append(frames, binary.BigEndian.AppendUint64(nil, seq), payload)...)
		}
		e.mu.Lock()
		for seq := binary.BigEndian.Uint64(m[1]); seq < uint64(len(e.history)); seq++ {
			reply(topic, seq, e.history[seq])
		}
		e.mu.Unlock()
		reply("", ^uint64(0), nil)
	}
}

func (e *engine) publish(payload []byte, lost bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	seq := uint64(len(e.history))
	e.history = append(e.history, payload)
	if lost {
		return
	}
	if err := e.pub.Send([]byte(topic), binary.BigEndian.AppendUint64(nil, seq), payload); err != nil {
		e.t.Error(err)
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

// Frames of real publishers over real sockets into the real index: live, lost and replayed, cut, and restarted.
func TestFramesOfRealPublishersReachTheIndexOverSockets(t *testing.T) {
	for name, tc := range map[string]struct {
		release    string
		newReplies bool
	}{
		"v0.9.0":                         {release: "v0.9.0"},
		"v0.20.0":                        {release: "v0.20.0"},
		"v0.24, replies without a topic": {release: "v0.24"},
		"v0.24, replies with a topic":    {release: "v0.24", newReplies: true},
	} {
		t.Run(name, func(t *testing.T) {
			goroutines := runtime.NumGoroutine()
			testSockets(t, tc.release, tc.newReplies)
			eventually(t, "all goroutines ended", func() bool { return runtime.NumGoroutine() <= goroutines })
		})
	}
}

func testSockets(t *testing.T, release string, newReplies bool) {
	e := start(t, "127.0.0.1:0", "127.0.0.1:0", newReplies)
	seed, err := kvblock.NewSeed([]byte(strings.Repeat("k", 32)))
	if err != nil {
		t.Fatal(err)
	}
	table := kvindex.New()
	holder := table.Join()
	feed := events.Feed{
		Endpoint: endpoint.Endpoint{ID: endpoint.ID{Pod: "pod"}, EventsAddress: e.pub.Addr(), ReplayAddress: e.router.Addr()},
		Engine:   "VLLM",
		Keys:     events.Keys{Model: "model", Seed: seed, BlockTokens: 16},
		Writer:   table.Writer(holder),
	}
	m := events.New(events.Config{Source: zmtp.EventSource{}, MaxBackoff: 200 * time.Millisecond})
	defer m.Close()

	// The frames: one root block of tokens 1000 to 1015, and two blocks below it of tokens 1000 to 1031.
	var tokens []uint32
	for i := range uint32(16) {
		tokens = append(tokens, 1000+i)
	}
	for i := range uint32(32) {
		tokens = append(tokens, 1000+i)
	}
	keys := kvblock.AppendKeys(nil, seed.Root("model", ""), tokens, 16)
	match := func() int {
		var out [1]kvindex.Match
		table.Match(keys, []kvindex.Holder{holder}, out[:])
		return out[0].Confirmed()
	}
	status := func() events.Status { return m.Status("p")[0] }
	synced := func() bool { return status().State == events.Synced }

	e.publish(golden(t, release+"/stored_root_1blk"), false) // there is no subscriber yet
	m.Set("p", []events.Feed{feed})
	eventually(t, "the past is replayed", func() bool { return match() == 1 && synced() && e.pub.Subscribers() == 1 })
	e.publish(golden(t, release+"/stored_child_2blk"), false)
	eventually(t, "a live event", func() bool { return match() == 3 })
	e.publish(golden(t, release+"/cleared"), true)
	e.publish(golden(t, release+"/stored_root_1blk"), false)
	eventually(t, "a lost event is replayed", func() bool { return match() == 1 && synced() })
	if got := status().Stats.Gaps.Load(); got != 1 {
		t.Errorf("%d gaps, want 1", got)
	}
	if err := e.pub.Send([]byte(topic), []byte("rubbish"), []byte("\xc1\xff")); err != nil {
		t.Fatal(err)
	}
	e.publish(golden(t, release+"/removed_1"), false)
	eventually(t, "a removal after rubbish", func() bool { return match() == 0 && status().Stats.Malformed.Load() == 1 })

	e.publish(golden(t, release+"/stored_root_1blk"), false)
	e.pub.Kick("")
	eventually(t, "connected again", func() bool {
		return status().Stats.Connections.Load() == 2 && match() == 1 && synced() && e.pub.Subscribers() == 1
	})

	live, replay := e.pub.Addr(), e.router.Addr()
	e.stop()
	eventually(t, "the loss shows", func() bool { return status().State == events.Disconnected })
	if match() != 1 {
		t.Error("blocks went with the connection")
	}
	restarted := start(t, live, replay, newReplies)
	eventually(t, "a restarted engine holds nothing", func() bool { return match() == 0 && synced() })
	eventually(t, "subscribed", func() bool { return restarted.pub.Subscribers() == 1 })
	restarted.publish(golden(t, release+"/stored_root_1blk"), false)
	eventually(t, "a live event of the new life", func() bool { return match() == 1 })
	m.Close()
	restarted.stop()
}
