package events

import (
	"testing"
	"testing/synctest"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// blockingDecoder waits before every batch.
type blockingDecoder struct {
	jsonDecoder
	gate chan struct{}
}

func (d blockingDecoder) Decode(payload []byte, into *kvevent.Batch) error {
	<-d.gate
	return d.jsonDecoder.Decode(payload, into)
}

func TestFullQueueIsReplayedFromTheStart(t *testing.T) {
	for name, replay := range map[string]bool{"with a replay socket": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			var gate chan struct{}
			inWorld(t, replay, func(c *Config) {
				gate = make(chan struct{})
				c.QueueBytes = 4096
				c.NewDecoder = func(string) Decoder { return blockingDecoder{gate: gate} }
			}, func(w *world) {
				synctest.Wait()
				w.publish(encode(chain(0, 1)), 1)
				synctest.Wait()
				keys := []kvblock.Key{keyOf(1)}
				for h := range kvevent.Hash(100) {
					w.publish(encode(chain(0, 1000+h)), 1)
					keys = append(keys, keyOf(1000+h))
					if got := w.stats().QueuedBytes.Load(); got > 4096 {
						t.Errorf("%d bytes queued", got)
					}
				}
				synctest.Wait()
				if w.stats().Overflows.Load() == 0 {
					t.Error("the queue never overflowed")
				}
				close(gate)
				if replay {
					w.check("all replayed", Synced, gpu(keys...))
				} else {
					synctest.Wait()
					if got := only(t, w.m).State; got != Degraded {
						t.Errorf("state %v, want Degraded", got)
					}
				}
				if got := w.stats().QueuedBytes.Load(); got != 0 {
					t.Errorf("%d bytes queued in the end", got)
				}
			})
		})
	}
}

// One batch larger than the queue does not pass it, but arrives with the replay.
func TestBatchLargerThanTheQueueIsReplayed(t *testing.T) {
	inWorld(t, true, func(c *Config) { c.QueueBytes = 256 }, func(w *world) {
		synctest.Wait()
		w.publish(encode(chain(0, 1, 2, 3, 4, 5, 6, 7, 8)), 1)
		synctest.Wait()
		if w.stats().Overflows.Load() != 1 || w.stats().Blocks.Load() != 8 {
			t.Errorf("%d overflows, %d blocks; want 1, 8", w.stats().Overflows.Load(), w.stats().Blocks.Load())
		}
	})
}
