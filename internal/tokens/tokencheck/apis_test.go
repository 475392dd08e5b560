package tokencheck

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

// TestRequestsOfOtherAPIsAreProven: by their ids, or by the numbers of their ids where an engine returns nothing else; and a few
// equal numbers are no proof.
func TestRequestsOfOtherAPIsAreProven(t *testing.T) {
	full := smallModel(t, chatml)
	messages, responses := openai.KindsOf(openai.KindMessages), openai.KindsOf(openai.KindResponses)
	longer := func(of openai.Route) func(openai.Route, []uint32) []uint32 {
		return func(r openai.Route, ids []uint32) []uint32 {
			if r == of {
				return append(ids, 1)
			}
			return ids
		}
	}
	another := func(of openai.Route) func(openai.Route, []uint32) []uint32 {
		return func(r openai.Route, ids []uint32) []uint32 {
			if r == of {
				ids[0]++
			}
			return ids
		}
	}
	refuseSome := func(most int) func([]byte) error {
		return func(body []byte) error {
			if most--; most < 0 && strings.Contains(string(body), `"max_tokens":1,"messages"`) && !strings.Contains(string(body), "return_token_ids") {
				return ErrRefused
			}
			return nil
		}
	}
	for name, tc := range map[string]struct {
		version        string
		numbersOnly    bool
		change         func(openai.Route, []uint32) []uint32
		refuse         func([]byte) error
		apis, unproven openai.Kinds
		message        string
	}{
		"by ids":                         {"0.32.0", false, nil, nil, messages | responses, 0, "none differs"},
		"by numbers":                     {"0.32.0", true, nil, nil, messages | responses, 0, "of the kind messages the numbers of tokens are equal"},
		"an id that differs":             {"0.32.0", false, another(openai.Responses), nil, messages, responses, "the kind responses is not proven"},
		"a number that differs":          {"0.32.0", true, longer(openai.Messages), nil, responses, messages, "tokens here"},
		"few numbers":                    {"0.32.0", true, nil, refuseSome(0), responses, 0, "none differs"},
		"the first release for messages": {"0.24.0", true, nil, nil, messages, 0, "none differs"},
		"before it":                      {"0.23.0", true, nil, nil, 0, 0, "none differs"},
		"the first for responses":        {"0.27.0", true, nil, nil, messages | responses, 0, "none differs"},
		"before that":                    {"0.26.0", true, nil, nil, messages, 0, "none differs"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHouse(Files{Set: full}, "a")
				defer h.Set(nil)
				h.change, h.refuse, h.numbersOnly = tc.change, tc.refuse, tc.numbersOnly
				h.engine("a", Identity{Version: tc.version, Root: "/m"}, full, settings[0])
				h.apply()
				h.expect(t, name, Exact, true, true)
				h.mu.Lock()
				defer h.mu.Unlock()
				if got := h.published; got.APIs != tc.apis || got.Unproven != tc.unproven {
					t.Errorf("APIs %b, unproven %b, want %b and %b", got.APIs, got.Unproven, tc.apis, tc.unproven)
				}
				if s, _ := h.Status("n", "p"); !strings.Contains(s.Message, tc.message) {
					t.Errorf("message %q lacks %q", s.Message, tc.message)
				}
			})
		})
	}
}
