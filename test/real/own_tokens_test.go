package real

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// renderOnly are the shapes whose prompts only a render route returns.
var renderOnly = []string{"responses with a text", "responses with messages", "messages", "messages with tools", "responses with tools",
	"tools with choice none"}

var closedRoutes = engineConfig{flags: []string{noScaleOut, "--enable-auto-tool-choice", "--tool-call-parser", "hermes"}}

// TestClosedRenderRoutes: an engine of vLLM 0.30 or newer without --enable-scale-out still returns the tokens of nearly all
// requests by /tokenize, the proof of the picker's own tokenizer passes, and the condition names the flag.
func TestClosedRenderRoutes(t *testing.T) {
	need(t)
	if !atLeast("0.30") {
		t.Skipf("vLLM %s has no such flag", run.release)
	}
	engines := startEngines(t, closedRoutes)
	for _, c := range configurations {
		t.Run(c.name, func(t *testing.T) {
			p := startPicker(t, engines, pickerConfig{files: c.files, partly: true})
			p.until("tokens are exact", p.ready)
			own := "tokenize"
			if c.files {
				own = "exact"
			}
			for _, s := range shapes {
				if s.byMetrics || s.uncached || s.name == "n=2" { // whose second answer finds what the first has left
					continue
				}
				t.Run(s.name, func(t *testing.T) { verdict(t, p.judgeSource(s, c.name, own)) })
			}
			verdict(t, p.namesTheFlag(c.files))
			if unproven := p.metric("kvasir_tokens_unproven"); unproven > 0 {
				verdict(t, fmt.Errorf("%v kinds of requests are not proven", unproven))
			}
		})
	}
}

// judgeSource sends a request of a shape and checks the source of its tokens, and that they equal the engine's.
func (p *picker) judgeSource(s shape, id, own string) error {
	a := p.sendShape(s, s.body("closed "+s.name+" "+id, 0))
	want := own
	switch {
	case slices.Contains(renderOnly[:5], s.name):
		want = "approximate; reason=route"
	case own == "tokenize" && slices.Contains(renderOnly, s.name):
		want = "approximate; reason=unsupported"
	case s.name == "ids":
		want = "given"
	}
	switch {
	case a.tokens != want:
		return fmt.Errorf("tokens are %q, want %q", a.tokens, want)
	case strings.HasPrefix(want, "approximate"):
		return nil
	case a.promptEngine >= 0 && a.promptPicker != a.promptEngine:
		return fmt.Errorf("the picker counts %d tokens, the engine %d", a.promptPicker, a.promptEngine)
	}
	return a.exact()
}

// namesTheFlag returns nil if the condition TokensExact says why engines are asked by /tokenize.
func (p *picker) namesTheFlag(files bool) error {
	s, err := p.status()
	if err != nil {
		return err
	}
	c := s.conditions["TokensExact"]
	switch {
	case files && c.Reason != "Exact", !files && c.Reason != "EngineTokenize":
		return fmt.Errorf("TokensExact is %s/%s: %s", c.Status, c.Reason, c.Message)
	case !files && (!strings.Contains(c.Message, "--enable-scale-out") || !strings.Contains(c.Message, run.release)):
		return fmt.Errorf("the message names neither flag nor release: %s", c.Message)
	}
	return nil
}
