package events

import (
	"context"
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/vllm"
)

// script is a publisher whose replay socket says whatever bytes say.
type script struct {
	bytes    []byte
	payloads [][]byte
	// honest, if set, is what the replay socket has instead, from number 0.
	honest [][]byte
}

func (s *script) next() byte {
	if len(s.bytes) == 0 {
		return 0
	}
	b := s.bytes[0]
	s.bytes = s.bytes[1:]
	return b
}

// seq is a number near another, or anywhere.
func (s *script) seq(near uint64) uint64 {
	switch b := s.next(); {
	case b < 128:
		return near + uint64(b%8)
	case b < 192:
		return near - uint64(b%8)
	case b < 224:
		return uint64(b % 8)
	}
	return binary.BigEndian.Uint64([]byte{s.next(), 0, s.next(), 0, 0, 0, s.next(), s.next()})
}

func (s *script) payload() []byte {
	n := int(s.next())
	if n < 2*len(s.payloads) {
		return s.payloads[n/2]
	}
	n = min(n%16, len(s.bytes))
	raw := s.bytes[:n]
	s.bytes = s.bytes[n:]
	return raw
}

// Subscribe is never called: the stream is driven by hand.
func (s *script) Subscribe(context.Context, string, func(), func([][]byte) error) error {
	panic("subscribed")
}

func (s *script) Replay(ctx context.Context, _ string, from uint64, each func(uint64, []byte) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.honest != nil {
		for seq := from; seq < uint64(len(s.honest)); seq++ {
			if err := each(seq, s.honest[seq]); err != nil {
				return err
			}
		}
		return ctx.Err()
	}
	seq := from
	for range s.next() % 8 {
		if err := each(seq, s.payload()); err != nil {
			return err
		}
		seq = s.seq(seq + 1)
	}
	if s.next()%4 == 0 {
		return errCut
	}
	return ctx.Err()
}

// FuzzStream lets a publisher and its replay socket send anything in any order. Nothing grows beyond its bound, the stream
// always becomes idle, and once the engine is honest the index has exactly what it publishes.
func FuzzStream(f *testing.F) {
	golden := goldenPayloads(f)
	var payloads [][]byte
	for _, name := range slices.Sorted(maps.Keys(golden)) {
		payloads = append(payloads, golden[name])
	}
	for seed := range byte(32) {
		var ops []byte
		for i := range 200 {
			ops = append(ops, byte(i)*(2*seed+1)^seed<<3)
		}
		f.Add(ops)
	}
	f.Fuzz(func(t *testing.T, bytes []byte) {
		src := &script{bytes: bytes, payloads: payloads}
		now := time.Unix(1000, 0)
		cfg := Config{
			Source: src, MaxBlocks: 64, MaxOrphans: 8, MaxOrphanBytes: 16 << 10, QueueBytes: 8 << 10,
			Now:   func() time.Time { return now },
			Sleep: func(ctx context.Context, d time.Duration) bool { now = now.Add(d); return ctx.Err() == nil },
		}
		x := newFakeIndex()
		feed := testFeed(x)
		feed.Keys.BlockTokens = 16
		s := NewStream(feed, cfg)
		link, cut := context.WithCancel(t.Context())
		s.Up(link)
		work := func() {
			for n := 0; s.Work(); n++ {
				if n > 10_000 {
					t.Fatal("the stream does not come to rest")
				}
			}
			m := s.sink.(*sizer).mirror
			if m.before != nil {
				t.Fatal("a shadow outlives its replay")
			}
			if s.queue.bytes > cfg.QueueBytes || len(s.queue.items) > cfg.QueueBytes/itemBytes+16 {
				t.Fatalf("%d bytes in %d items wait", s.queue.bytes, len(s.queue.items))
			}
			check(t, m, x)
		}
		for len(src.bytes) > 0 {
			switch b := src.next(); {
			case b < 16:
				cut()
				link, cut = context.WithCancel(t.Context())
				s.Up(link)
			case b < 24:
				cut()
				s.Down(errCut)
			case b < 64:
				now = now.Add(time.Duration(b) * time.Second)
			case b < 128:
				work()
			case b < 136:
				s.Take([][]byte{src.payload()})
			default:
				s.Take([][]byte{nil, binary.BigEndian.AppendUint64(nil, src.seq(s.expected)), src.payload()})
			}
		}
		cut()
		s.Down(errCut)
		for i, name := range []string{"stored_root_1blk", "stored_child_2blk", "removed_1"} {
			payload := slices.Clone(golden["v0.20.0/"+name])
			binary.BigEndian.PutUint64(payload[2:], math.Float64bits(1e9+float64(i))) // the time: no batch is as an earlier life's
			src.honest = append(src.honest, payload)
		}
		link, cut = context.WithCancel(t.Context())
		defer cut()
		s.Up(link)
		work()
		now = now.Add(time.Hour)
		work()

		want := newFakeIndex()
		clean := testFeed(want)
		clean.Keys.BlockTokens = 16
		m := newMirror(&clean, s.cfg, nil, &Stats{})
		var batch kvevent.Batch
		for _, payload := range src.honest {
			if err := vllm.NewDecoder("VLLM").Decode(payload, &batch); err != nil {
				t.Fatal(err)
			}
			m.apply(&batch)
		}
		if got, want := x.snapshot(), want.snapshot(); !maps.Equal(got, want) || s.State() != Synced {
			t.Fatalf("state %v; the index has %v, want %v", s.State(), got, want)
		}
	})
}
