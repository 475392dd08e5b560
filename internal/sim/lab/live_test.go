package lab

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/replicas"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// ofTheAPI is what a pool without a RoutingPolicy goes by, as a picker reads it from its objects.
func ofTheAPI(t *testing.T) picker.PolicySpec {
	t.Helper()
	dir := t.TempDir()
	pool := "apiVersion: kvasir.dev/v1alpha1\nkind: InferencePool\nmetadata: {name: m}\nspec: {model: {name: m}, selector: {matchLabels: {app: m}}}\n"
	if err := os.WriteFile(filepath.Join(dir, "pool.yaml"), []byte(pool), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := config.NewDirectory(dir, config.Settings{Root: make([]byte, 32)}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	state, _ := d.Load(t.Context())
	if len(state.Specs) != 1 {
		t.Fatalf("%+v", state.Problems)
	}
	return state.Specs[0].Policy
}

// TestTheLabsPolicyIsTheAPIs: what a strategy meets in the lab is what it meets in a pool that says nothing, but for what
// a lab, which has no gateways and browsers, has no use for. Admission is a flag of its own.
func TestTheLabsPolicyIsTheAPIs(t *testing.T) {
	c := small(t, "MarginalCost")
	if err := c.fill(); err != nil {
		t.Fatal(err)
	}
	s := &sim{Config: c}
	if err := s.setUp(); err != nil {
		t.Fatal(err)
	}
	got, want := s.feeds[0][0].Spec.Policy, ofTheAPI(t)
	if key := want.SessionKeys[0]; key != got.SessionKeys[0] {
		t.Errorf("sessions go by %+v, want %+v", got.SessionKeys[0], key)
	}
	ignored := cmpopts.IgnoreFields(picker.PolicySpec{}, "SessionKeys", "Admission", "LogPercent", "AnswerHeaders", "AsksUsage", "TokenBudget",
		"EngineTokenBudget", "EngineTokens", "RetryConnect", "RetryReset", "RetryServerError", "RetryStall", "FirstByte")
	if diff := cmp.Diff(want, got, ignored); diff != "" {
		t.Errorf("(-api +lab):\n%s", diff)
	}
	if diff := cmp.Diff(want.Admission, DefaultAdmission(), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(picker.AdmissionSpec{}, "AllowedOrigins", "GatewayLag")); diff != "" {
		t.Errorf("admission (-api +lab):\n%s", diff)
	}
}

// beside is a lab with a picker beside its own that gets all as live traffic brings it.
type beside struct {
	*sim
	t    *testing.T
	live *picker.Picker
	open map[int]*picker.Decision
	// compared requests, those of them that were chosen for what was matched, and those that went to another island.
	compared, matched, far int
}

// newBeside sets up both. The live picker uses the API's own defaults, with the lab's strategy and without waiting requests.
func newBeside(t *testing.T, c Config) *beside {
	t.Helper()
	if err := c.fill(); err != nil {
		t.Fatal(err)
	}
	s := &sim{Config: c}
	if err := s.setUp(); err != nil {
		t.Fatal(err)
	}
	live, err := s.newPicker(replicas.NewOutbox(9))
	if err != nil {
		t.Fatal(err)
	}
	ours := s.feeds[0][0].Spec
	spec := *ours
	spec.Policy = ofTheAPI(t)
	spec.Policy.Strategy, spec.Policy.Crossing, spec.Policy.Admission = ours.Policy.Strategy, ours.Policy.Crossing, ours.Policy.Admission
	if err := live.Apply([]picker.Spec{spec}); err != nil {
		t.Fatal(err)
	}
	s.pickers, s.feeds = append(s.pickers, live), append(s.feeds, live.Feeds())
	return &beside{sim: s, t: t, live: live, open: map[int]*picker.Decision{}}
}

// word is an event of a request that a picker receives: it begins or ends.
type word struct {
	what    kind
	slot    int
	request *enginemodel.Request
}

// play the workload.
func (b *beside) play() {
	for b.sim.open > 0 {
		next := b.agenda.heap[0]
		var words []word
		switch next.kind {
		case arrival:
			b.now = next.at
			b.open[int(next.n)] = b.pick(&b.Workload.Requests[next.n])
		case stepEnd:
			if b.way(int(next.n)) == 0 {
				words = wordsOf(b.pods[next.n].result.Outputs)
			}
		case begins, ends:
			words = []word{{next.kind, int(next.n), b.sim.live[next.n].request}}
		}
		b.advance()
		if next.kind == arrival {
			b.compare(int(next.n))
		}
		for _, w := range words {
			d := b.open[w.slot]
			if w.what == begins {
				d.FirstToken()
				continue
			}
			d.Usage(w.request.PromptTokens(), w.request.CachedTokens)
			d.Generated(len(w.request.Output()))
			d.End(picker.Completed)
			delete(b.open, w.slot)
		}
	}
}

// wordsOf a step.
func wordsOf(outputs []enginemodel.Output) (words []word) {
	for i := range outputs {
		r := outputs[i].Request
		if outputs[i].First {
			words = append(words, word{begins, r.Slot, r})
		}
		if outputs[i].Last {
			words = append(words, word{ends, r.Slot, r})
		}
	}
	return words
}

// pick sends a body.
func (b *beside) pick(r *Request) *picker.Decision {
	body, err := json.Marshal(map[string]any{"model": r.model(), "prompt": r.Prompt(), "max_tokens": r.Output, "stream": true})
	if err != nil {
		b.t.Fatal(err)
	}
	d, err := b.live.Pick(context.Background(), &picker.Request{Route: openai.Completions, Body: body, Header: r.header})
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}

func (b *beside) compare(slot int) {
	b.compared++
	lab := b.sim.live[slot].decision
	if diff := cmp.Diff(choices(b.open[slot]), choices(lab)); diff != "" {
		b.t.Fatalf("request %d: live and lab differ:\n%s", b.compared, diff)
	}
	if lab.Targets[0].Predicted > 0 || lab.Targets[0].Routed > 0 {
		b.matched++
	}
	if b.way(b.sim.live[slot].pod) > 0 {
		b.far++
	}
}

// TestEveryStrategyChoosesLiveAsInTheLab: all of them and their variants, on chats under LoRA adapters, on pods of two
// islands, by the policy that the API makes of nothing.
func TestEveryStrategyChoosesLiveAsInTheLab(t *testing.T) {
	strategies, err := Strategies("all,LMetric/literal,LongestPrefix/literal,Rendezvous/prefix,ApproximatePrefix/long")
	if err != nil {
		t.Fatal(err)
	}
	for _, strategy := range strategies {
		t.Run(strategy.Name, func(t *testing.T) {
			w, err := Generate("chat", 300, 3)
			if err != nil {
				t.Fatal(err)
			}
			c := small(t, "MarginalCost")
			c.Workload, c.Strategy, c.Speed, c.EventLag = w.WithAdapters(6), strategy, 8, 20*time.Millisecond
			c.Adapters = Adapters{PerPod: 2, Load: 50 * time.Millisecond}
			c.Islands = Islands{Away: 2, Way: 10 * time.Millisecond}
			b := newBeside(t, c)
			b.play()
			if b.compared != 300 || len(b.open) != 0 {
				t.Errorf("%d requests were compared, %d have not ended", b.compared, len(b.open))
			}
			if b.matched < 30 || b.far < 12 {
				t.Errorf("%d choices were for a match, %d for another island: too few to tell", b.matched, b.far)
			}
		})
	}
}

// TestBurstsAreChosenLiveAsInTheLab: of long prompts on prefixes that are being computed, which rests on speculation.
func TestBurstsAreChosenLiveAsInTheLab(t *testing.T) {
	for _, name := range []string{"MarginalCost", "StickyLeastLoaded", "LongestPrefix"} {
		w, err := Generate("fanout", 150, 3)
		if err != nil {
			t.Fatal(err)
		}
		c := small(t, name)
		c.Workload, c.Speed, c.EventLag = w, 1.5, 50*time.Millisecond
		b := newBeside(t, c)
		b.play()
		if b.compared != 150 || b.matched < 75 {
			t.Errorf("%s: %d requests were compared, %d of them for a match", name, b.compared, b.matched)
		}
	}
}
