package real

import (
	"strings"
	"testing"
)

// TestRepeatedRequestsAreFoundWhereTheyWere is the smallest case: what was sent once is found the second time, and the
// index holds what the engine holds.
func TestRepeatedRequestsAreFoundWhereTheyWere(t *testing.T) {
	engines := sharedEngines(t)
	for _, c := range configurations {
		t.Run(c.name, func(t *testing.T) {
			p := startPicker(t, engines, pickerConfig{files: c.files})
			r := chat("plain messages", say("system", "Be brief."), say("user", text("first "+c.name, 300)))
			first := p.send(r)
			verdict(t, first.exact())
			verdict(t, p.settled(engines))
			second := p.send(r)
			verdict(t, second.exact())
			if second.delivered == 0 || second.pod != first.pod || strings.HasPrefix(second.tokens, "approximate") {
				t.Errorf("delivered %d tokens on %s after %s, tokens %q", second.delivered, second.pod, first.pod, second.tokens)
			}
		})
	}
}

// TestTheDocumentedFlagsAreEnoughWithScaleOut: what holds for an engine with the documented flags only, holds with the flag that
// opens the routes which render requests.
func TestTheDocumentedFlagsAreEnoughWithScaleOut(t *testing.T) {
	judgeDocumented(t, sharedEngines(t)[1:])
}
