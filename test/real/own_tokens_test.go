package real

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// Requests whose prompts /tokenize does not return: those of two routes, and chats with fields that it does not read. From 0.32
// on, Kvasir asks it for Messages requests as well, as the chats that they stand for.
var (
	renderOnlyRoutes = []string{"/v1/responses", "/v1/messages"}
	beyondTokenize   = []string{"tools with choice none"}
	since32Tokenize  = []string{"reasoning effort", "documents"} // as arguments of the template
)

// The engines of TestTemplatesGetTheSameAsInTheEngine.
var (
	printsText  = engineConfig{model: "printing", flags: []string{noScaleOut, "--enable-auto-tool-choice", "--tool-call-parser", "hermes"}}
	printsParts = engineConfig{model: "printing parts", flags: []string{"--enable-auto-tool-choice", "--tool-call-parser", "hermes"}}
)

// TestTemplatesGetTheSameAsInTheEngine: the templates of two models print all that they get. What a request says in any of its
// fields then is in its prompt, and a picker that reads it otherwise predicts less than the engine finds. One model gets content as
// text, the other in parts.
//
// The first engine runs without --enable-scale-out. It returns the tokens of nearly all requests by /tokenize, the proof of the
// picker's own tokenizer passes, that of Responses and Messages included, and the condition names the flag.
func TestTemplatesGetTheSameAsInTheEngine(t *testing.T) {
	need(t)
	if !atLeast("0.29") {
		t.Skipf("the picker makes the prompts of vLLM %s without a proof of all kinds", run.release)
	}
	engines := startEngines(t, printsText, printsParts)
	for _, c := range configurations {
		var pickers []*picker
		for _, e := range engines {
			p := startPicker(t, []*engine{e}, pickerConfig{files: c.files, partly: true})
			p.until("tokens are exact", p.ready)
			pickers = append(pickers, p)
		}
		t.Run(c.name, func(t *testing.T) {
			for i, p := range pickers {
				t.Run(engines[i].config.model, func(t *testing.T) {
					t.Parallel()
					for _, s := range shapes {
						t.Run(s.name, func(t *testing.T) { p.judgePrinted(t, s, "printed "+s.name+" "+c.name) })
					}
					if unproven := p.metric("kvasir_tokens_unproven"); unproven > 0 {
						verdict(t, fmt.Errorf("%v kinds of requests are not proven", unproven))
					}
				})
			}
		})
		if atLeast("0.30") {
			verdict(t, pickers[0].namesTheFlag(c.files))
		}
	}
}

// judgePrinted sends a request of a shape twice, and checks the source of its tokens, and that they equal the engine's: the second
// finds what was predicted, nearly all of the prompt.
func (p *picker) judgePrinted(t *testing.T, s shape, id string) {
	r := s.body(id, 0)
	switch {
	case s.byMetrics, s.uncached, s.name == "n=2": // whose second answer finds what the first has left
		t.Skip("its answers do not say what the request has found")
	case s.since != "" && !atLeast(s.since):
		t.Skipf("vLLM %s takes no such request", run.release)
	}
	want := p.sourceOf(s, r)
	if strings.HasPrefix(want, "approximate") {
		if a := p.try(t.Context(), r); a.tokens != want || a.status != http.StatusOK {
			verdict(t, fmt.Errorf("status %d, tokens are %q, want %q", a.status, a.tokens, want))
		}
		return
	}
	for i := range 2 {
		a := p.send(r)
		switch {
		case a.tokens != want:
			verdict(t, fmt.Errorf("tokens are %q, want %q", a.tokens, want))
		case i == 1 && a.delivered < a.promptPicker-2*blockTokens:
			verdict(t, fmt.Errorf("%d of %d tokens were found again", a.delivered, a.promptPicker))
		}
		verdict(t, a.exact())
		verdict(t, p.settled(p.engines))
	}
}

// sourceOf is the source that the tokens of a request should have.
func (p *picker) sourceOf(s shape, r request) string {
	closed := slices.Contains(p.engines[0].config.flags, noScaleOut) && atLeast("0.30")
	switch {
	case s.name == "ids":
		return "given"
	case p.config.files:
		return "exact"
	case r.path == "/v1/messages" && closed && atLeast("0.32"): // as the chats that they stand for
		return "tokenize"
	case slices.Contains(renderOnlyRoutes, r.path) && (closed || !atLeast(s.rendered)):
		return "approximate; reason=route"
	case !closed:
		return "engine"
	case slices.Contains(beyondTokenize, s.name), slices.Contains(since32Tokenize, s.name) && !atLeast("0.32"):
		return "approximate; reason=unsupported"
	}
	return "tokenize"
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
