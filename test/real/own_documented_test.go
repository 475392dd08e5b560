package real

import (
	"fmt"
	"maps"
	"slices"
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
			for i := range enoughAnswers {
				verdict(t, p.send(completion("documented flags", ids(i, 40))).exact())
			}
			verdict(t, p.asksForNothing())
		})
	}
}

// enoughAnswers is how many answers the condition PredictionsTrusted needs.
const enoughAnswers = 100

// asksForNothing returns nil if each condition of the pool is True and the picker has logged nothing above the level of information.
func (p *picker) asksForNothing() error {
	s, err := p.status()
	if err != nil {
		return err
	}
	for _, kind := range []string{"Accepted", "Ready", "EventsSynced", "TokensExact", "PredictionsTrusted"} {
		if _, ok := s.conditions[kind]; !ok {
			return fmt.Errorf("the pool has no condition %s", kind)
		}
	}
	if err := p.conditionsAreTrue(slices.Collect(maps.Keys(s.conditions))...); err != nil {
		return err
	}
	for line := range strings.Lines(p.log.tail(1 << 20)) {
		if !strings.Contains(line, " level=INFO ") {
			return fmt.Errorf("the picker has logged %s", line)
		}
	}
	return nil
}

// configurations are the two ways in which a picker knows tokens.
var configurations = []struct {
	name  string
	files bool
}{{"engine's tokens", false}, {"in process", true}}
