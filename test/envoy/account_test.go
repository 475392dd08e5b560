package envoy

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// sent is a request with what its client has got.
type sent struct {
	request
	got  reply
	gone bool // the client left before the end
}

// TestTheAccountIsThatOfEnvoyAndTheEngines compares what the picker counts of each request with what its client has got,
// with Envoy's access log, and in sum with the engines' own counters.
func TestTheAccountIsThatOfEnvoyAndTheEngines(t *testing.T) {
	for _, name := range []string{"Istio", "Envoy AI Gateway", "Envoy AI Gateway, `buffered`", "kgateway"} {
		t.Run(name, func(t *testing.T) {
			g := gatewayOf(name)
			b := newBench(t, g)
			all := b.ordinary(t, g)
			for _, version := range []string{http11, http2} {
				all = append(all, b.wrong(t, g, version))
				if g.response != buffered {
					all = append(all, b.aborted(t, g, version))
				}
			}
			b.picker.idle(t)
			entries := map[int]entry{}
			for _, e := range b.picker.ledger.waitFor(t, 0, len(all)) {
				entries[e.prompt] = e
			}
			lines := map[string]line{}
			until(t, "Envoy has logged all requests", func() bool {
				for _, l := range b.lines(t, g) {
					lines[l.ID] = l
				}
				return len(lines) >= len(all)
			})
			if len(entries) != len(all) || b.picker.ledger.len() != len(all) {
				t.Fatalf("%d requests are accounted for in %d entries, want %d", len(entries), b.picker.ledger.len(), len(all))
			}
			for _, one := range all {
				if err := one.differs(entries[one.tokens], lines[one.id()], servedBy(b.engines, one.id())); err != nil {
					t.Errorf("request %s, stream %v: %v\nthe picker: %+v\nEnvoy: %+v", one.id(), one.stream, err, entries[one.tokens], lines[one.id()])
				}
			}
			if *vllm == "" {
				b.compareEngines(t, entries)
			}
		})
	}
}

// ordinary sends plain and streamed requests over both versions of HTTP, at the same time. Later ones find much of their
// prompts cached.
func (b *bench) ordinary(t *testing.T, g gateway) []sent {
	t.Helper()
	var mu sync.Mutex
	var all []sent
	var group sync.WaitGroup
	for i := range 4 {
		client := b.client(t, g, []string{http11, http2}[i%2])
		group.Go(func() {
			for range 10 {
				r := newRequest(i/2 == 0)
				a := do(client, r, nil)
				mu.Lock()
				all = append(all, sent{r, a, false})
				mu.Unlock()
			}
		})
	}
	group.Wait()
	for _, one := range all {
		if !one.got.whole(one.stream) {
			t.Errorf("request %s: %v", one.id(), one.got)
		}
	}
	return all
}

// wrong sends a request that the engine refuses.
func (b *bench) wrong(t *testing.T, g gateway, version string) sent {
	t.Helper()
	r := newRequest(false)
	r.output = -1
	a := do(b.client(t, g, version), r, nil)
	if a.status != http.StatusBadRequest {
		t.Errorf("a request that no engine takes: %v", a)
	}
	return sent{r, a, false}
}

// aborted sends a request whose client leaves when the answer has begun.
func (b *bench) aborted(t *testing.T, g gateway, version string) sent {
	t.Helper()
	r := newRequest(true)
	h := newHold(patience)
	for _, e := range b.engines {
		e.hold(r.id(), h)
	}
	ctx, cancel := context.WithCancel(t.Context())
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://envoy/v1/completions", strings.NewReader(r.body()))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set(idHeader, r.id())
	a := send(b.client(t, g, version), q, cancel)
	if a.err == nil {
		t.Errorf("an aborted request: %v", a)
	}
	until(t, "the picker knows that the client has left", func() bool {
		return slices.ContainsFunc(b.picker.ledger.entries(0), func(e entry) bool { return e.prompt == r.tokens })
	})
	close(h.arrived)
	return sent{r, a, true}
}

// differs compares the picker's entry with what the client has got, with Envoy's line, and with the engine that served.
func (s sent) differs(e entry, l line, engine string) error {
	outcome := picker.OutcomeOf(s.got.status)
	if s.gone {
		outcome = picker.ClientGone
	}
	switch {
	case e.outcome != outcome:
		return fmt.Errorf("counts as %v, want %v", e.outcome, outcome)
	case s.gone != (l.Flags == "DC" || l.Flags == "DR"):
		return fmt.Errorf("Envoy says %q", l.Flags)
	case e.served != engine || l.Host != engine:
		return fmt.Errorf("served by %s; by %s says the picker, by %s says Envoy", engine, e.served, l.Host)
	case (e.bytes > 0) != (l.Sent > 0):
		return fmt.Errorf("%d bytes of the answer have come by the picker's account, %d by Envoy's", e.bytes, l.Sent)
	case s.gone:
		return nil
	case e.bytes != l.Sent || int(e.bytes) != len(s.got.body):
		return fmt.Errorf("%d bytes by the picker's account, %d by Envoy's, %d by the client's", e.bytes, l.Sent, len(s.got.body))
	case l.Code != int64(s.got.status):
		return fmt.Errorf("status %d by Envoy's account, %d by the client's", l.Code, s.got.status)
	case s.got.status != http.StatusOK:
		return nil
	case s.got.usage.Prompt != s.tokens || e.told != picker.Reported{Prompt: s.got.usage.Prompt, Cached: s.got.usage.Details.Cached, Generated: s.got.usage.Completion}:
		return fmt.Errorf("tokens %+v by the picker's account, %+v by the client's", e.told, s.got.usage)
	}
	return nil
}

// compareEngines compares sums of the account with the engines' counters.
func (b *bench) compareEngines(t *testing.T, entries map[int]entry) {
	t.Helper()
	for _, engine := range b.engines {
		prompt, cached, finished, gone := 0, 0, 0, 0
		for _, e := range entries {
			switch {
			case e.served != engine.address():
			case e.outcome == picker.Completed:
				prompt, cached, finished = prompt+e.told.Prompt, cached+e.told.Cached, finished+1
			case e.outcome == picker.ClientGone:
				prompt, gone = prompt+e.prompt, gone+1
			}
		}
		until(t, "the engine is idle", func() bool { stats := engine.Stats(); return stats.Running == 0 && stats.Waiting == 0 })
		stats := engine.Stats()
		extra := int(stats.Finished) - finished // the engine can be done before a client leaves
		if int(stats.PromptTokens) != prompt || extra < 0 || extra > gone || gone == 0 && int(stats.PrefixHits) != cached {
			t.Errorf("engine %s counts %+v; the picker %d tokens, %d cached, %d requests, %d that were given up", engine.address(), stats, prompt,
				cached, finished, gone)
		}
		if finished == 0 || cached == 0 {
			t.Errorf("engine %s has served %d requests with %d cached tokens: the test shows little", engine.address(), finished, cached)
		}
	}
}

// An engine that dies in the middle of an answer looks like a client that leaves: Envoy ends the picker's stream
// in both cases, without a reason. The request is not taken for a success, and nothing of it is left.
func TestAnEngineDiesInTheMiddleOfAnAnswer(t *testing.T) {
	for _, g := range gateways {
		if g.response == buffered {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			b := &bench{engines: engines(t, 1, func(c *vllmsim.Config) { c.SpeedUp = 1 })}
			b.picker = startReplica(t, pool(addresses(b.engines)...), settings{})
			b.proxy = start(t, []string{b.picker.address}, addresses(b.engines), g)
			r := newRequest(true)
			b.engines[0].hold(r.id(), newHold(patience))
			a := do(b.client(t, g, http11), r, b.engines[0].kill)
			if a.err == nil || a.status != http.StatusOK {
				t.Errorf("a cut answer: %v", a)
			}
			if e := b.picker.ledger.waitFor(t, 0, 1)[0]; e.outcome != picker.ClientGone && e.outcome != picker.Failed || e.bytes == 0 {
				t.Errorf("a cut answer counts as %v with %d bytes", e.outcome, e.bytes)
			}
			b.picker.idle(t)
		})
	}
}
