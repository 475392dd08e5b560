package real

import (
	"fmt"
	"strings"
	"testing"
)

// TestTheDocumentedFlagsAreEnough: an engine with the flags of docs/install-vllm.md and no other has exact tokens from
// its first request on, no condition asks for anything, and the release can do what the documentation says.
func TestTheDocumentedFlagsAreEnough(t *testing.T) {
	engines := startEngines(t, engineConfig{flags: []string{noScaleOut}})
	t.Run("capabilities", func(t *testing.T) { compareWithTable(t, engines[0]) })
	for _, c := range configurations {
		t.Run(c.name, func(t *testing.T) {
			p := startPicker(t, engines, pickerConfig{files: c.files, partly: true})
			if err := within(patience, p.ready); err != nil {
				verdict(t, err)
				return
			}
			r := chat("plain messages", say("user", text("documented "+c.name, 300)))
			a := p.send(r)
			verdict(t, a.exact())
			verdict(t, p.settled(engines))
			b := p.send(r)
			verdict(t, b.exact())
			if strings.HasPrefix(a.tokens, "approximate") || b.delivered == 0 {
				verdict(t, fmt.Errorf("tokens of the first answer are %q, the second found %d in the cache", a.tokens, b.delivered))
			}
			verdict(t, p.conditionsAreTrue("EventsSynced"))
		})
	}
}

// configurations are the two ways in which a picker knows tokens.
var configurations = []struct {
	name  string
	files bool
}{{"engine's tokens", false}, {"in process", true}}
