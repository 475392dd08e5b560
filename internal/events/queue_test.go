package events

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
)

// Under any order of calls the queue is a list: items are taken in the order in which they were added, up to an overflow,
// which drops all messages and keeps the last connection.
func TestQueueAgreesWithAList(t *testing.T) {
	for n := range uint64(50) {
		rng := rand.New(rand.NewPCG(n, 5))
		const most = 3000
		var stats Stats
		q := newQueue(most, nil, &stats)
		var list []item
		held := 0
		for step := range 3000 {
			switch n := rng.IntN(100); {
			case n < 3:
				q.up(context.Background(), uint64(step))
				list = append(list, item{kind: kindUp, seq: uint64(step)})
			case n < 50:
				payload := bytes.Repeat([]byte{byte(step)}, rng.IntN(300))
				q.message(uint64(step), payload)
				if held+len(payload)+itemBytes <= most {
					held += len(payload) + itemBytes
					list = append(list, item{kind: kindMessage, seq: uint64(step), payload: payload})
					break
				}
				var kept []item
				for _, it := range list {
					if it.kind == kindUp {
						kept = []item{it}
					}
				}
				kept = append(kept, item{kind: kindOverflow})
				list, held = kept, 0
			default:
				got, ok := q.take()
				if ok != (len(list) > 0) {
					t.Fatalf("seed %d, step %d: took %v of %d", n, step, ok, len(list))
				}
				if !ok {
					break
				}
				want := list[0]
				list = list[1:]
				if got.kind != want.kind || got.seq != want.seq || !bytes.Equal(got.payload, want.payload) {
					t.Fatalf("seed %d, step %d: took %+v, want %+v", n, step, got, want)
				}
				if want.kind == kindMessage {
					held -= len(want.payload) + itemBytes
				}
				q.giveBack(got)
			}
			if got := stats.QueuedBytes.Load(); got != int64(held) {
				t.Fatalf("seed %d, step %d: %d bytes queued, want %d", n, step, got, held)
			}
		}
	}
}

func TestQueueAllocatesNothingInPassing(t *testing.T) {
	q := newQueue(1<<20, nil, &Stats{})
	payload := make([]byte, 2048)
	pass := func() {
		for range 10 {
			q.message(1, payload)
		}
		for range 10 {
			it, _ := q.take()
			q.giveBack(it)
		}
	}
	pass()
	if got := testing.AllocsPerRun(100, pass); got > 0 {
		t.Errorf("%v allocations for ten messages", got)
	}
}

// After a flood a queue keeps little: there is one for each endpoint.
func TestQueueGivesMemoryBack(t *testing.T) {
	q := newQueue(16<<20, nil, &Stats{})
	for range 4000 {
		q.message(1, make([]byte, 2048))
	}
	for it, ok := q.take(); ok; it, ok = q.take() {
		q.giveBack(it)
	}
	kept := 0
	for _, b := range q.spare {
		kept += cap(b)
	}
	if kept == 0 || kept != q.kept || kept > maxSpareBytes || cap(q.items) > maxSpareItems {
		t.Errorf("kept %d bytes, said %d, and room for %d items", kept, q.kept, cap(q.items))
	}
}
