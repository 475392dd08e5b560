package events

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// street is engines by address.
type street map[string]*fakeEngine

func (s street) Subscribe(ctx context.Context, addr string, up func(), each func([][]byte) error) error {
	return s[addr].Subscribe(ctx, addr, up, each)
}

func (s street) Replay(ctx context.Context, addr string, from uint64, each func(uint64, []byte) error) error {
	return s[addr].Replay(ctx, addr, from, each)
}

// One endpoint floods, another's replay socket is silent, and a third has both: none of it affects the others. In virtual
// time, everything that a quiet neighbour publishes is in the one index before the clock moves, and endpoints are added,
// removed and looked up as quickly.
func TestNoEndpointHoldsUpAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		index := kvindex.NewIndex(kvindex.Options{})
		engines := street{}
		var feeds []Feed
		holders := map[string]kvindex.Holder{}
		for _, pod := range []string{"flood", "stuck", "both", "quiet"} {
			e := newFakeEngine()
			engines[pod] = e
			if pod == "stuck" || pod == "both" {
				e.stuck = time.Hour
			}
			h := index.Join()
			holders[pod] = h
			f := testFeed(nil)
			f.Endpoint = endpoint.Endpoint{ID: endpoint.ID{Pod: pod}, EventsAddress: pod, ReplayAddress: pod}
			f.Writer = index.Writer(h)
			feeds = append(feeds, f)
		}
		cfg := testConfig(engines)
		cfg.QueueBytes = 256 << 10
		m := New(cfg)
		defer m.Close()
		m.Set("p", feeds)
		synctest.Wait()
		start := time.Now()
		for round := range 20 {
			for _, pod := range []string{"flood", "both"} {
				for i := range 400 {
					lost := round%5 == 0 && i == 7
					engines[pod].publish(encode(chain(0, kvevent.Hash(1000*round+i+1))), map[bool]int{true: 0, false: 1}[lost])
				}
			}
			engines["stuck"].publish(encode(chain(0, kvevent.Hash(round+1))), round%2)
			engines["quiet"].publish(encode(chain(0, kvevent.Hash(round+1))), 1)
			synctest.Wait()
			if got := index.Held(holders["quiet"]); got != round+1 {
				t.Fatalf("round %d: the quiet endpoint holds %d blocks", round, got)
			}
			if got := len(m.Status("p")); got != 4 {
				t.Fatalf("%d streams", got)
			}
			if round == 10 { // the stuck ones are removed, and others added
				m.Set("p", []Feed{feeds[0], feeds[3]})
				m.Set("p", feeds)
				synctest.Wait()
			}
			if now := time.Now(); !now.Equal(start) {
				t.Fatalf("round %d: it took %v", round, now.Sub(start))
			}
		}
		for _, s := range m.Status("p") {
			name, stats := s.Endpoint.ID.Pod, s.Stats
			bound := int64(cfg.QueueBytes)
			if stats.QueuedBytes.Load() > bound {
				t.Errorf("%s: %d bytes wait", name, stats.QueuedBytes.Load())
			}
			if over := stats.Overflows.Load() > 0; over != (name == "both") {
				t.Errorf("%s: overflows: %v", name, over)
			}
		}
		if got := fmt.Sprint(index.Held(holders["flood"]) > 7000); got != "true" {
			t.Errorf("the flood holds %d blocks", index.Held(holders["flood"]))
		}
	})
}

// A replay socket that says nothing delays what is live by as long as it is waited for once, whatever is asked.
func TestAReplaySocketThatSaysNothingIsNotAskedTwice(t *testing.T) {
	inWorld(t, true, nil, func(w *world) {
		synctest.Wait()
		w.publish(encode(chain(0, 1)), 1)
		w.check("live", Synced, gpu(keyOf(1)))
		w.mu.Lock()
		w.stuck = 5 * time.Second
		before := w.replays
		w.mu.Unlock()
		w.publish(encode(chain(0, 2)), 0)
		w.publish(encode(chain(0, 3)), 1)
		w.publish(encode(chain(0, 4)), 1)
		time.Sleep(5 * time.Second)
		w.check("live again", Degraded, gpu(keyOf(1), keyOf(3), keyOf(4)))
		if got := w.asked() - before; got != 1 {
			t.Errorf("asked %d times", got)
		}
	})
}
