package picker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tenant"
	"github.com/kvasir-dev/kvasir/test/wallclock"
)

// setClock is a clock with both readings, whose wall clock can be set.
type setClock struct {
	elapsed, set time.Duration
	start        time.Time
}

func (c *setClock) Now() time.Time { return wallclock.Set(c.start.Add(c.elapsed), c.set) }

// playHours plays what depends on time: the rates of tenants, circuits, sleep, engines that do not render, sessions, and what the
// operator sees. It returns what has happened. Halfway the wall clock is set.
func playHours(t *testing.T, start time.Time, set time.Duration) (story []string) {
	c := &setClock{start: start}
	rng := rand.New(rand.NewPCG(1, 2))
	lost := false // engine pod-0 does not answer
	spec := testSpec(t, 3)
	limited := tenants(t, false)
	limited.Classes["gold"].MaxConcurrent = 0
	limited.Default = &tenant.Class{Weight: 1, RequestsPerMinute: 10}
	spec.Policy.Admission.Tenants = limited
	var asked []string
	fail := func(pod string) func(context.Context) error {
		return func(context.Context) error {
			asked = append(asked, pod)
			if lost && pod == "pod-0" {
				return errors.New("not there")
			}
			return nil
		}
	}
	p := New(Options{Now: c.Now, Log: logr.Discard(), Renderer: engines{"pod-0": fail("pod-0"), "pod-1": fail("pod-1"), "pod-2": fail("pod-2")}})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	say := func(format string, args ...any) {
		story = append(story, fmt.Sprintf("%8s ", c.elapsed)+fmt.Sprintf(format, args...))
	}
	const steps = 600
	for step := range steps {
		c.elapsed += time.Duration(rng.IntN(4000)) * time.Millisecond
		switch step {
		case steps/2 - 5:
			lost = true
			p.ObserveSleep(testEndpoint(1).ID, c.Now(), Sleep{Asleep: true}) // and then says nothing more
		case steps / 2:
			c.set = set
		case steps/2 + 1:
			lost = false
		}
		if told, _ := p.Operate("default/m"); !told.Totals.LastRequest.IsZero() {
			say("the last request came %s ago", c.Now().Sub(told.Totals.LastRequest))
		}
		key, body := "", []byte(`{"model":"m","prompt":"some words"}`)
		if rng.IntN(2) == 0 {
			key = "key-of-acme"
		}
		if rng.IntN(3) > 0 {
			body = completion("m", rng.IntN(4)*100, 40+rng.IntN(200), true)
		}
		asked = nil
		d, err := p.Pick(t.Context(), &Request{Route: openai.Completions, Body: body, Header: withKey(key)})
		if err != nil {
			var refused *Error
			if !errors.As(err, &refused) {
				t.Fatal(err)
			}
			say("%v, try again after %s", err, refused.RetryAfter)
			continue
		}
		say("to %s, %d tokens are predicted; asked %q", d.Targets[0].Endpoint.Pod, d.Targets[0].Predicted, asked)
		if lost && d.Targets[0].Endpoint.Pod == "pod-0" {
			d.End(Failed)
		} else {
			c.elapsed += 100 * time.Millisecond
			d.FirstToken()
			d.End(Completed)
		}
	}
	return story
}

// TestSettingTheWallClockChangesNothing: whether it jumps forward or back by an hour, each decision is as without.
func TestSettingTheWallClockChangesNothing(t *testing.T) {
	start := time.Now()
	want := playHours(t, start, 0)
	text := strings.Join(want, "\n")
	for _, part := range []string{"try again after", "to pod-0", "to pod-1", "to pod-2", `asked ["pod-0"`, `asked ["pod-1"`} {
		if !strings.Contains(text, part) {
			t.Errorf("%q never happens", part)
		}
	}
	for _, set := range []time.Duration{time.Hour, -time.Hour, 24 * time.Hour} {
		got := playHours(t, start, set)
		for i := range min(len(got), len(want)) {
			if got[i] != want[i] {
				t.Errorf("set by %s: event %d is\n%s\nwant\n%s", set, i, got[i], want[i])
				break
			}
		}
		if len(got) != len(want) {
			t.Errorf("set by %s: %d events, want %d", set, len(got), len(want))
		}
	}
}
