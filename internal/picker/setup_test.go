package picker

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// clock is a time that the test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func testSeed(t testing.TB) kvblock.Seed {
	t.Helper()
	seed, err := kvblock.NewSeed(bytes.Repeat([]byte{1}, kvblock.MinSeedBytes))
	if err != nil {
		t.Fatal(err)
	}
	return seed
}

// testSpec is a pool m with n ready endpoints under StickyLeastLoaded.
func testSpec(t testing.TB, n int) Spec {
	t.Helper()
	spec := Spec{
		Namespace: "default", Name: "m", Model: "m", Aliases: []string{"alias"}, BlockTokens: 16, Seed: testSeed(t),
		Policy: PolicySpec{
			Strategy:       policy.Config{Type: policy.StickyLeastLoaded, StickyLeastLoaded: policy.StickyLeastLoadedConfig{PrefixTokens: 64}},
			EngineTokens:   "WhenNoTokenizer",
			TokenBudget:    time.Second,
			SpeculationMax: 300 * time.Second, EngineTokenBudget: time.Second,
			MaxKVUsage: 0.97, CircuitFailures: 2, CircuitOpen: 10 * time.Second, Attempts: 3,
		},
	}
	spec.Policy.Credit[kvblock.GPU] = 1
	for i := range n {
		spec.Endpoints = append(spec.Endpoints, testEndpoint(i))
	}
	return spec
}

func testEndpoint(i int) endpoint.Endpoint {
	name := fmt.Sprint("pod-", i)
	return endpoint.Endpoint{ID: endpoint.ID{Pod: name}, Pod: name, Address: fmt.Sprintf("127.0.0.1:%d", 8000+i),
		Ready: true, Serving: true, RankHeader: -1}
}

func newPicker(t testing.TB, c *clock, specs ...Spec) *Picker {
	t.Helper()
	p := New(Options{Now: c.Now, Log: logr.Discard()})
	if err := p.Apply(specs); err != nil {
		t.Fatal(err)
	}
	return p
}

// completion is a request body whose prompt is n token ids from first on.
func completion(model string, first, n int, stream bool) []byte {
	body := fmt.Appendf(make([]byte, 0, 8*n+100), `{"model":%q,"prompt":[`, model)
	for i := range n {
		if i > 0 {
			body = append(body, ',')
		}
		body = strconv.AppendInt(body, int64(first+i), 10)
	}
	return fmt.Appendf(body, `],"stream":%t}`, stream)
}

func pick(t testing.TB, p *Picker, body []byte) *Decision {
	t.Helper()
	d, err := p.Pick(context.Background(), &Request{Route: openai.Completions, Body: body})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func keysOf(t testing.TB, model string, first, n int) []kvblock.Key {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(first + i)
	}
	return kvblock.AppendKeys(nil, testSeed(t).Root(model, ""), tokens, 16)
}

// hold stores a chain of blocks of an endpoint in the index, with the keys as the engine's names.
func hold(f Feed, keys ...kvblock.Key) {
	hashes := make([]kvevent.Hash, len(keys))
	for i, key := range keys {
		hashes[i] = kvevent.Hash(key)
	}
	f.Writer.Store(kvblock.GPU, 0, kvindex.Parent{}, hashes, keys)
}

// feed finds the feed of an endpoint by its pod.
func feed(t testing.TB, p *Picker, pod string) Feed {
	t.Helper()
	for _, f := range p.Feeds() {
		if f.Endpoint.Pod == pod {
			return f
		}
	}
	t.Fatalf("no endpoint %s", pod)
	return Feed{}
}

// expectEvents ends the time in which the events of complete answers should arrive.
func expectEvents(p *Picker) {
	for _, v := range p.current.Load().pools {
		v.pending.expire(p.now().Add(eventGrace + 1))
	}
}

// assertIdle checks that all requests have ended, and that nothing is assumed for them once their events should have
// arrived.
func assertIdle(t *testing.T, p *Picker) {
	t.Helper()
	expectEvents(p)
	for _, s := range p.Stats() {
		if s.Speculative > s.Proven || s.Speculating != 0 {
			t.Errorf("pool %s: %d speculative blocks of %d requests remain", s.Pool, s.Speculative, s.Speculating)
		}
		for _, e := range s.Endpoints {
			if e.Load.InFlight != 0 || e.Load.PendingTokens != 0 || e.Load.Decoding != 0 {
				t.Errorf("%v: load %+v remains", e.ID, e.Load)
			}
		}
	}
}
