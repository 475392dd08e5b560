package picker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// approximateSpec is a pool of n endpoints that announce nothing, without a tokenizer, under ApproximatePrefix.
func approximateSpec(t testing.TB, n int) Spec {
	t.Helper()
	spec := testSpec(t, n)
	spec.NoEvents, spec.Adapters = true, []string{"sql"}
	spec.Policy.EngineTokens = "Never"
	spec.Policy.Strategy = policy.Default(policy.ApproximatePrefix)
	return spec
}

// chat is a conversation's request: the text in turns.
func chat(model, salt string, turns ...string) *Request {
	var b strings.Builder
	for i, turn := range turns {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"role":%q,"content":%q}`, []string{"user", "assistant"}[i%2], turn)
	}
	body := fmt.Sprintf(`{"model":%q,"cache_salt":%q,"stream":true,"messages":[%s]}`, model, salt, b.String())
	return &Request{Route: openai.ChatCompletions, Body: []byte(body)}
}

func pickFor(t testing.TB, p *Picker, r *Request) *Decision {
	t.Helper()
	d, err := p.Pick(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// text of so many bytes, another for each n.
func text(n, bytes int) string {
	rng := rand.New(rand.NewPCG(uint64(n), 17))
	b := make([]byte, bytes)
	for i := range b {
		b[i] = byte('a' + rng.IntN(26))
	}
	return string(b)
}

// TestApproximatePrefixFollowsConversations: each turn goes where the one before went, by bytes alone, and new
// conversations spread.
func TestApproximatePrefixFollowsConversations(t *testing.T) {
	p := newPicker(t, newClock(), approximateSpec(t, 8))
	used := map[string]bool{}
	for c := range 40 {
		turns := []string{text(c, 1000)}
		home := ""
		for turn := range 4 {
			d := pickFor(t, p, chat("m", "", turns...))
			pod := d.Targets[0].Endpoint.Pod
			if turn > 0 && pod != home {
				t.Fatalf("turn %d of conversation %d went to %s, the one before to %s: %d of %d chunks", turn, c, pod, home, d.Targets[0].Routed, d.Chunks)
			}
			home, used[pod] = pod, true
			d.End(Completed)
			turns = append(turns, text(1000*c+turn, 200), text(1000*c+turn+500, 200))
		}
	}
	if len(used) < 8 {
		t.Errorf("40 conversations went to %d of 8 endpoints", len(used))
	}
	assertIdle(t, p)
}

// TestWhatIsRoutedIsToldApart by model, adapter and cache salt: none of them shares a cache.
func TestWhatIsRoutedIsToldApart(t *testing.T) {
	p := newPicker(t, newClock(), approximateSpec(t, 2))
	prompt := text(1, 2000)
	pickFor(t, p, chat("m", "", prompt)).End(Completed)
	for name, tc := range map[string]struct {
		model, salt string
		known       bool
	}{
		"the same":         {"m", "", true},
		"an alias":         {"alias", "", true},
		"an adapter":       {"sql", "", false},
		"another salt":     {"m", "s", false},
		"adapter and salt": {"sql", "s", false},
	} {
		d := pickFor(t, p, chat(tc.model, tc.salt, prompt))
		if known := d.Targets[0].Routed > 0; known != tc.known {
			t.Errorf("%s: %d of %d chunks were routed before", name, d.Targets[0].Routed, d.Chunks)
		}
		d.view.histories[d.view.history].memories[d.Targets[0].at].Clear()
		d.End(Completed)
		pickFor(t, p, chat("m", "", prompt)).End(Completed)
	}
}

// TestWhatIsRoutedHasABound: the chunks of a prompt, and those of an endpoint.
func TestWhatIsRoutedHasABound(t *testing.T) {
	spec := approximateSpec(t, 3)
	spec.Policy.Strategy.ApproximatePrefix.MaxChunks = 10
	spec.Policy.Strategy.ApproximatePrefix.ChunksPerEndpoint = 25
	p := newPicker(t, newClock(), spec)
	for n := range 300 {
		d := pickFor(t, p, chat("m", "", text(n, 64*(n%20))))
		if d.Chunks > 10 {
			t.Fatalf("%d chunks of a prompt, want at most 10", d.Chunks)
		}
		d.End(Completed)
	}
	v := p.current.Load().pools[0]
	for i, memory := range v.histories[v.history].memories {
		if n := memory.Len(); n != 25 {
			t.Errorf("endpoint %d is remembered for %d chunks, want 25", i, n)
		}
	}
}

// TestWhatWasRoutedGoesWithTheEndpoint: another life of it, an emptied cache, or other chunks begin with nothing, and
// changes of all else keep what was there.
func TestWhatWasRoutedGoesWithTheEndpoint(t *testing.T) {
	prompt := text(1, 2000)
	for name, tc := range map[string]struct {
		change func(t *testing.T, p *Picker, s *Spec)
		keeps  bool
	}{
		"nothing":             {func(*testing.T, *Picker, *Spec) {}, true},
		"other weights":       {func(_ *testing.T, _ *Picker, s *Spec) { s.Policy.Strategy.ApproximatePrefix.PrefixWeight = 9 }, true},
		"another guard":       {func(_ *testing.T, _ *Picker, s *Spec) { s.Policy.MaxKVUsage = 0.5 }, true},
		"another endpoint":    {func(_ *testing.T, _ *Picker, s *Spec) { s.Endpoints = append(s.Endpoints, testEndpoint(7)) }, true},
		"other chunks":        {func(_ *testing.T, _ *Picker, s *Spec) { s.Policy.Strategy.ApproximatePrefix.ChunkBytes = 32 }, false},
		"another life":        {func(_ *testing.T, _ *Picker, s *Spec) { s.Endpoints[0].Address = "127.0.0.1:9999" }, false},
		"its stream begins":   {func(t *testing.T, p *Picker, _ *Spec) { feed(t, p, "pod-0").Writer.Clear() }, true},
		"an emptied cache":    {func(t *testing.T, p *Picker, _ *Spec) { f := feed(t, p, "pod-0"); f.Writer.Clear(); f.Writer.Clear() }, false},
		"an endpoint in need": {func(_ *testing.T, _ *Picker, s *Spec) { s.Endpoints[0].Serving = false }, true},
	} {
		t.Run(name, func(t *testing.T) {
			spec := approximateSpec(t, 1)
			p := newPicker(t, newClock(), spec)
			pickFor(t, p, chat("m", "", prompt)).End(Completed)
			spec.Endpoints = slices.Clone(spec.Endpoints)
			tc.change(t, p, &spec)
			if err := p.Apply([]Spec{spec}); err != nil {
				t.Fatal(err)
			}
			d := pickFor(t, p, chat("m", "", prompt))
			defer d.End(Completed)
			i := slices.IndexFunc(d.Targets, func(t Target) bool { return t.Endpoint.Pod == "pod-0" })
			if d.Chunks == 0 || (d.Targets[i].Routed == d.Chunks) != tc.keeps {
				t.Errorf("%d of %d chunks were routed to the endpoint before", d.Targets[i].Routed, d.Chunks)
			}
		})
	}
}

// TestARetryIsRemembered where it went.
func TestARetryIsRemembered(t *testing.T) {
	p := newPicker(t, newClock(), approximateSpec(t, 2))
	prompt := text(1, 2000)
	d := pickFor(t, p, chat("m", "", prompt))
	d.Fail()
	d.Begin(1)
	d.End(Completed)
	second := d.Targets[1].Endpoint.Pod
	again := pickFor(t, p, chat("m", "", prompt))
	defer again.End(Completed)
	for _, target := range again.Targets {
		if target.Routed != again.Chunks {
			t.Errorf("%s was sent %d of %d chunks", target.Endpoint.Pod, target.Routed, again.Chunks)
		}
	}
	// The other endpoint goes, and takes nothing along.
	spec := approximateSpec(t, 2)
	spec.Endpoints = slices.DeleteFunc(spec.Endpoints, func(e endpoint.Endpoint) bool { return e.Pod != second })
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	only := pickFor(t, p, chat("m", "", prompt))
	defer only.End(Completed)
	if only.Targets[0].Endpoint.Pod != second || only.Targets[0].Routed != only.Chunks {
		t.Errorf("%s: %d of %d chunks", only.Targets[0].Endpoint.Pod, only.Targets[0].Routed, only.Chunks)
	}
}

// TestWhatAGatewayChoseIsRemembered, be it one that was no fallback.
func TestWhatAGatewayChoseIsRemembered(t *testing.T) {
	spec := approximateSpec(t, 6)
	spec.Policy.Attempts = 1
	p := newPicker(t, newClock(), spec)
	for i := range spec.Endpoints {
		prompt := text(i, 2000)
		d := pickFor(t, p, chat("m", "", prompt))
		d.Served(spec.Endpoints[i].Address, 1, 0)
		d.End(Completed)
		v := p.current.Load().pools[0]
		again := pickFor(t, p, chat("m", "", prompt))
		if n := v.histories[v.history].memories[i].Match(again.chunks[v.history], 0); n != again.Chunks {
			t.Errorf("endpoint %d is remembered for %d of %d chunks", i, n, again.Chunks)
		}
		again.End(Completed)
	}
}

// TestApproximatePrefixInShadow: with turns in force, a shadow sees what was really routed, its twin shares its memory,
// one that cuts otherwise has its own, and neither changes what is in force. It saves what the default strategy's
// estimate says it does.
func TestApproximatePrefixInShadow(t *testing.T) {
	approximate := policy.Default(policy.ApproximatePrefix)
	coarse, heavy := approximate, approximate
	coarse.ApproximatePrefix.ChunkBytes = 256
	heavy.ApproximatePrefix.PrefixWeight = 30
	run := func(strategy policy.Config, shadows ...ShadowSpec) (choices []string, p *Picker) {
		spec := approximateSpec(t, 4)
		spec.Policy.Strategy, spec.Policy.Shadows = strategy, shadows
		clock := newClock()
		p = newPicker(t, clock, spec)
		for n := range 120 {
			clock.advance(time.Second)
			d := pickFor(t, p, chat("m", "", text(n%10, 1500), text(n, 100)))
			choices = append(choices, d.Targets[0].Endpoint.Pod)
			d.End(Completed)
		}
		return choices, p
	}
	turns := policy.Config{Type: policy.RoundRobin}
	shadows := []ShadowSpec{
		{Name: "same", Strategy: approximate, Percent: 100}, {Name: "coarse", Strategy: coarse, Percent: 100},
		{Name: "heavy", Strategy: heavy, Percent: 100}, {Name: "marginal", Strategy: policy.Default(policy.MarginalCost), Percent: 100},
	}
	for _, strategy := range []policy.Config{turns, approximate} {
		without, _ := run(strategy)
		with, p := run(strategy, shadows...)
		if !slices.Equal(without, with) {
			t.Errorf("%s: shadows change what is chosen", strategy.Type)
		}
		v := p.current.Load().pools[0]
		if len(v.histories) != 3 || v.shadowHistories[0] != v.shadowHistories[2] || v.shadowHistories[3] != fallback {
			t.Errorf("%s: %d histories, the shadows' are %v", strategy.Type, len(v.histories), v.shadowHistories)
		}
		for i, s := range p.Stats()[0].Shadows {
			switch {
			case s.Compared != 120:
				t.Errorf("%s: shadow %s compared %d of 120 requests", strategy.Type, s.Name, s.Compared)
			case strategy.Type == policy.ApproximatePrefix && i < 3 && s.Agreed < 110:
				t.Errorf("%s: shadow %s agreed %d times of 120", strategy.Type, s.Name, s.Agreed)
			case strategy.Type == policy.RoundRobin && (s.Agreed > 60 || s.SavedSeconds <= s.LostSeconds):
				t.Errorf("%s: shadow %s: %+v", strategy.Type, s.Name, s)
			}
		}
	}
}

// TestApproximatePrefixMindsTheLoad: KV use that the engine reports, and a queue, outweigh a part of a match.
func TestApproximatePrefixMindsTheLoad(t *testing.T) {
	clock := newClock()
	p := newPicker(t, clock, approximateSpec(t, 2))
	shared := text(1, 1000)
	d := pickFor(t, p, chat("m", "", shared+text(2, 1000)))
	home := d.Targets[0].Endpoint
	d.End(Completed)
	half := pickFor(t, p, chat("m", "", shared+text(3, 1000)))
	if half.Targets[0].Endpoint.ID != home.ID || half.Targets[0].Routed*2 > half.Chunks+2 || half.Targets[0].Routed == 0 {
		t.Fatalf("half a match: %s, %d of %d chunks", half.Targets[0].Endpoint.Pod, half.Targets[0].Routed, half.Chunks)
	}
	// It is still being prefilled: half a match counts 1.5, the only queue there is 2.
	if away := pickFor(t, p, chat("m", "", shared+text(4, 1000))); away.Targets[0].Endpoint.ID == home.ID {
		t.Error("a queue does not outweigh half a match")
	} else {
		away.End(Completed)
	}
	half.End(Completed)
	p.Observe(home.ID, clock.Now(), load.Report{KVUsage: 0.9})
	if away := pickFor(t, p, chat("m", "", shared+text(5, 1000))); away.Targets[0].Endpoint.ID == home.ID {
		t.Error("KV use of 0.9 does not outweigh half a match")
	} else {
		away.End(Completed)
	}
}

// TestApproximatePrefixTellsWhy.
func TestApproximatePrefixTellsWhy(t *testing.T) {
	p := newPicker(t, newClock(), approximateSpec(t, 1))
	for _, want := range []string{" routed=0/16", " routed=16/16"} {
		d := pickFor(t, p, chat("m", "", text(1, 64*16)))
		said := map[string]string{}
		d.Explain(0, func(name, value string) { said[name] = value })
		d.End(Completed)
		if said["x-kvasir-strategy"] != "ApproximatePrefix" || !strings.Contains(said["x-kvasir-reason"], want) {
			t.Errorf("%v, want%s", said, want)
		}
	}
}
