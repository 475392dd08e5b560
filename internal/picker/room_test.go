package picker

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// roomless is a renderer without room for answers, or with answers of so many ids; it counts those that are not given back.
type roomless struct {
	full  bool
	ids   int
	taken *int
}

func (r roomless) Tokens(context.Context, *endpoint.Endpoint, *openai.Request, []byte, string) (Rendered, error) {
	if r.full {
		return Rendered{}, fmt.Errorf("%w: %w", ErrUnrenderable, ErrNoRoom)
	}
	*r.taken++
	return Rendered{IDs: make([]uint32, r.ids), Release: func() { *r.taken-- }}, nil
}

// TestAnAnswerWithoutRoomIsSaidSo: the request is picked for without tokens, and what is counted and shown names the memory.
func TestAnAnswerWithoutRoomIsSaidSo(t *testing.T) {
	for _, body := range []string{`{"model":"m","prompt":"text"}`, `{"model":"m","input":"text"}`} {
		p := New(Options{Now: newClock().Now, Renderer: roomless{full: true}})
		if err := p.Apply([]Spec{testSpec(t, 2)}); err != nil {
			t.Fatal(err)
		}
		route := openai.Completions
		if strings.Contains(body, "input") {
			route = openai.Responses
		}
		d, err := p.Pick(t.Context(), &Request{Route: route, Body: []byte(body)})
		if err != nil {
			t.Fatal(err)
		}
		d.End(Completed)
		stats := p.Stats()[0]
		if d.TokensMissing != "memory" || stats.Inexact["memory"] != 1 || stats.Rendering.Failures == 0 {
			t.Errorf("%v: %q, %v, %+v", route, d.TokensMissing, stats.Inexact, stats.Rendering)
		}
	}
}

// TestIDsOfAnEngineAreGivenBack: before the request waits, and it keeps no more bytes of them than its own and those of a template.
func TestIDsOfAnEngineAreGivenBack(t *testing.T) {
	taken := 0
	for _, c := range []struct{ body, ids int }{{100, 100}, {100, 100_000}, {100_000, 25_000}, {100_000, 100_000}, {1 << 20, 4 << 20}} {
		p := New(Options{Now: newClock().Now, Renderer: roomless{ids: c.ids, taken: &taken}})
		if err := p.Apply([]Spec{testSpec(t, 1)}); err != nil {
			t.Fatal(err)
		}
		body := []byte(`{"model":"m","prompt":"` + strings.Repeat("x", c.body) + `"}`)
		v, s := p.current.Load().pools[0], new(scratch)
		if err := openai.Parse(openai.Completions, body, &s.request); err != nil {
			t.Fatal(err)
		}
		got := p.promptOf(t.Context(), v, s, body)
		if got.tokens != c.ids || len(got.keys) != min(c.ids, maxKeyed)/v.spec.BlockTokens || taken != 0 {
			t.Errorf("%+v: %d tokens, %d keys, %d answers not given back", c, got.tokens, len(got.keys), taken)
		}
		if kept := 4 * cap(got.ids); kept > len(body)+4*templateTokens || (kept == 0) != (4*c.ids > len(body)+4*templateTokens) {
			t.Errorf("%+v: %d bytes of ids are kept", c, kept)
		}
	}
}

// fullOnce has no room for the first answer.
type fullOnce struct{ asked *int }

func (r fullOnce) Tokens(context.Context, *endpoint.Endpoint, *openai.Request, []byte, string) (Rendered, error) {
	if *r.asked++; *r.asked == 1 {
		return Rendered{}, fmt.Errorf("%w: %w", ErrUnrenderable, ErrNoRoom)
	}
	return Rendered{IDs: make([]uint32, 64)}, nil
}

// TestAnEngineIsNotLeftAloneForLackOfRoom: another one was asked, and the first one is asked again.
func TestAnEngineIsNotLeftAloneForLackOfRoom(t *testing.T) {
	p := New(Options{Now: newClock().Now, Renderer: fullOnce{new(int)}})
	if err := p.Apply([]Spec{testSpec(t, 2)}); err != nil {
		t.Fatal(err)
	}
	d, err := p.Pick(t.Context(), &Request{Route: openai.Completions, Body: []byte(textBody)})
	if err != nil {
		t.Fatal(err)
	}
	d.End(Completed)
	if d.TokensMissing != "" {
		t.Errorf("the request has no tokens: %s", d.TokensMissing)
	}
	for i, m := range p.current.Load().pools[0].members {
		if m.renderFrom.Load() != 0 {
			t.Errorf("engine %d is left alone", i)
		}
	}
}
