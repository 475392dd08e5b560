package vllmsim

import (
	"context"
	"encoding/binary"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/zmtp"
)

// stored is a BlockStored as a subscriber sees it.
type stored struct {
	Hashes []any
	Parent any
	Tokens []uint32
	Name   any
	Extra  any
}

func TestAnEngineAtAnAddressOfIPv6BindsFreePortsOfIt(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
	_ = l.Close()
	e, err := Start(Config{Host: "::1"})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for name, address := range map[string]string{"requests": e.Addr(), "events": e.EventsAddr(), "replay": e.ReplayAddr()} {
		if at, err := netip.ParseAddrPort(address); err != nil || at.Addr() != netip.IPv6Loopback() {
			t.Errorf("%s at %s: %v", name, address, err)
		}
	}
}

// follow subscribes and returns a function that reads the next batch's events by name.
func follow(t *testing.T, e *Engine, topics ...string) func() (seq uint64, events []map[string]any) {
	t.Helper()
	sub, err := zmtp.DialSub(context.Background(), e.EventsAddr(), topics...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sub.Close(); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "subscribed", func() bool { return e.Subscribers() == 1 })
	return func() (uint64, []map[string]any) {
		t.Helper()
		frames, err := sub.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(frames) != 3 || string(frames[0]) != e.cfg.Events.Topic || len(frames[1]) != 8 {
			t.Fatalf("frames %q", frames)
		}
		return binary.BigEndian.Uint64(frames[1]), batchEvents(t, frames[2])
	}
}

func batchEvents(t *testing.T, payload []byte) []map[string]any {
	t.Helper()
	v, rest := unpack(payload)
	batch := v.([]any)
	if len(rest) != 0 || len(batch) != 3 || batch[2] != uint64(0) {
		t.Fatalf("batch %v and %d bytes", batch, len(rest))
	}
	if age := time.Since(time.UnixMicro(int64(batch[0].(float64) * 1e6))); age < 0 || age > time.Minute {
		t.Errorf("the batch is %v old", age)
	}
	var events []map[string]any
	for _, ev := range batch[1].([]any) {
		events = append(events, ev.(map[string]any))
	}
	return events
}

func asStored(t *testing.T, ev map[string]any) stored {
	t.Helper()
	if ev["type"] != "BlockStored" || ev["medium"] != "GPU" || ev["block_size"] != uint64(16) {
		t.Fatalf("event %v", ev)
	}
	s := stored{Hashes: ev["block_hashes"].([]any), Parent: ev["parent_block_hash"], Name: ev["lora_name"], Extra: ev["extra_keys"]}
	for _, id := range ev["token_ids"].([]any) {
		s.Tokens = append(s.Tokens, uint32(id.(uint64)))
	}
	return s
}

func TestEventsTellWhatIsCached(t *testing.T) {
	e := start(t, Config{Events: EventsConfig{Topic: "kv@pod@m"}, LoRAs: []string{"sql"}})
	next := follow(t, e, "kv@")
	r := complete(t, e, "/v1/completions", object{"prompt": ids(1, 40), "max_tokens": 30, "return_token_ids": true})
	all := append(ids(1, 40), r.Choices[0].TokenIDs...)
	seq, events := next()
	first := asStored(t, events[0])
	if seq != 0 || len(events) != 1 || first.Parent != nil || !slices.Equal(first.Tokens, all[:32]) || len(first.Hashes) != 2 {
		t.Fatalf("first batch %d: %v", seq, events)
	}
	// Block 2 is full when its 48th token is scheduled, block 3 at the 64th; the 70th is never computed.
	parent := first.Hashes[1]
	for i := range 2 {
		seq, events = next()
		s := asStored(t, events[0])
		if seq != uint64(i+1) || s.Parent != parent || !slices.Equal(s.Tokens, all[32+16*i:48+16*i]) {
			t.Fatalf("batch %d: %+v, want parent %v", seq, s, parent)
		}
		parent = s.Hashes[0]
	}
	if n := e.Match("", "", all); n != 4 || len(e.Blocks()) != 4 {
		t.Errorf("%d blocks match, %d are cached, want 4", n, len(e.Blocks()))
	}
	// The same prompt whole hits, and tells nothing but what is new: the twin of nothing here.
	complete(t, e, "/v1/completions", object{"model": "sql", "prompt": ids(1, 16), "max_tokens": 1, "cache_salt": "tenant"})
	_, events = next()
	s := asStored(t, events[0])
	if diff := cmp.Diff([]any{[]any{"sql", "tenant"}}, s.Extra); diff != "" || s.Name != "sql" || events[0]["lora_id"] != uint64(1) {
		t.Errorf("extra keys of an adapter and a salt (-want +got):\n%s%v", diff, events[0])
	}
	if status, b := get(t, e, "/sim/blocks"); status != http.StatusOK || b != `{"blocks":5,"copies":5}` {
		t.Errorf("the truth: %d %s", status, b)
	}
	e.Flush()
	_, events = next()
	if len(events) != 5 || events[0]["type"] != "BlockRemoved" || events[0]["block_hashes"].([]any)[0] != parent {
		t.Errorf("flush: %v, want five removals from the oldest leaf %v on", events, parent)
	}
	if len(e.Blocks()) != 0 {
		t.Error("blocks are left after a flush")
	}
}

func TestResetTellsWithTheNextRequest(t *testing.T) {
	e := start(t, Config{})
	next := follow(t, e)
	body := object{"prompt": ids(1, 16), "max_tokens": 1}
	complete(t, e, "/v1/completions", body)
	next()
	if status, b := post(t, e, "/reset_prefix_cache", ""); status != http.StatusOK || string(b) != `{"success":true}` {
		t.Fatalf("reset: %d %s", status, b)
	}
	complete(t, e, "/v1/completions", body)
	seq, events := next()
	if seq != 1 || len(events) != 2 || events[0]["type"] != "AllBlocksCleared" || events[1]["type"] != "BlockStored" {
		t.Errorf("batch %d: %v", seq, events)
	}
}

func TestReplay(t *testing.T) {
	for name, tc := range map[string]struct {
		release Release
		buffer  int
		from    uint64
		want    []uint64
	}{
		"from the beginning":               {from: 0, want: []uint64{0, 1, 2, 3, 4}},
		"from the middle":                  {from: 3, want: []uint64{3, 4}},
		"from what is to come":             {from: 5},
		"from the oldest that is kept":     {buffer: 2, from: 0, want: []uint64{3, 4}},
		"without the topic of later times": {release: 25 << 8, from: 4, want: []uint64{4}},
	} {
		t.Run(name, func(t *testing.T) {
			topicFrame := tc.release == 0
			e := start(t, Config{Release: tc.release, Events: EventsConfig{Topic: "t", BufferSteps: tc.buffer}})
			next := follow(t, e)
			var payloads [][]map[string]any
			for i := range 5 {
				complete(t, e, "/v1/completions", object{"prompt": ids(100*i, 16), "max_tokens": 1})
				_, events := next()
				payloads = append(payloads, events)
			}
			d, err := zmtp.DialDealer(context.Background(), e.ReplayAddr())
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}()
			for _, request := range [][][]byte{{{1}}, {nil, {1, 2}}, {nil, sequence(tc.from)}} { // the first two are ignored
				if err := d.Send(request...); err != nil {
					t.Fatal(err)
				}
			}
			var got []uint64
			for {
				frames, err := d.Recv()
				if err != nil {
					t.Fatal(err)
				}
				if len(frames) != 3+one(topicFrame) || len(frames[0]) != 0 {
					t.Fatalf("reply %q", frames)
				}
				seq, payload := binary.BigEndian.Uint64(frames[len(frames)-2]), frames[len(frames)-1]
				if len(payload) == 0 {
					if seq != 1<<64-1 || topicFrame && len(frames[1]) != 0 {
						t.Errorf("end %q", frames)
					}
					break
				}
				if topicFrame && string(frames[1]) != "t" {
					t.Errorf("topic %q", frames[1])
				}
				if diff := cmp.Diff(payloads[seq], batchEvents(t, payload)); diff != "" {
					t.Errorf("batch %d replayed differently:\n%s", seq, diff)
				}
				got = append(got, seq)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("replayed (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConnectingPublisherRedials(t *testing.T) {
	l, err := zmtp.ListenSub("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	e := start(t, Config{Events: EventsConfig{Endpoint: "tcp://" + l.Addr(), Connect: true, NoReplay: true}})
	if e.EventsAddr() != "" || e.ReplayAddr() != "" {
		t.Errorf("addresses %q %q", e.EventsAddr(), e.ReplayAddr())
	}
	for i := range 2 {
		sub, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "subscribed", func() bool { return e.Subscribers() == 1 })
		complete(t, e, "/v1/completions", object{"prompt": ids(100*i, 16), "max_tokens": 1})
		frames, err := sub.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if seq := binary.BigEndian.Uint64(frames[1]); seq != uint64(i) {
			t.Errorf("sequence %d, want %d", seq, i)
		}
		if err := sub.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the loss is noticed", func() bool { return e.Subscribers() == 0 })
	}
}

func TestTamperedEvents(t *testing.T) {
	e := start(t, Config{Events: EventsConfig{Tamper: func(seq uint64, payload []byte, send func(uint64, []byte)) {
		if seq == 1 {
			return // lost
		}
		send(seq, payload)
		if seq == 2 {
			send(seq, payload) // twice
		}
	}}})
	next := follow(t, e)
	for i := range 4 {
		complete(t, e, "/v1/completions", object{"prompt": ids(100*i, 16), "max_tokens": 1})
	}
	var got []uint64
	for range 4 {
		seq, _ := next()
		got = append(got, seq)
	}
	if diff := cmp.Diff([]uint64{0, 2, 2, 3}, got); diff != "" {
		t.Errorf("sequence (-want +got):\n%s", diff)
	}
}
