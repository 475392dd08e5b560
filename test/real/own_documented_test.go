package real

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestTheDocumentedFlagsAreEnough: an engine with the flags of docs/install-vllm.md and no other has exact tokens from
// its first request on, no condition asks for anything, and the release can do what the documentation says.
func TestTheDocumentedFlagsAreEnough(t *testing.T) {
	need(t)
	stopShared()
	startAhead(t, shortHistory)
	engines := startEngines(t, engineConfig{flags: []string{noScaleOut}, worker: true})
	t.Run("capabilities", func(t *testing.T) { compareWithTable(t, engines[0]) })
	judgeDocumented(t, engines)
}

// judgeDocumented judges an engine with a picker that has no settings of its own.
func judgeDocumented(t *testing.T, engines []*engine) {
	for _, c := range configurations {
		t.Run(c.name, func(t *testing.T) {
			p := startPicker(t, engines, pickerConfig{files: c.files, partly: true, defaults: true})
			if err := within(patience, p.ready); err != nil {
				verdict(t, err)
				return
			}
			verdict(t, p.exactFromTheFirst("documented "+c.name))
			for i := range enoughAnswers {
				verdict(t, p.send(completion("documented flags", ids(i, 40))).exact())
			}
			verdict(t, p.asksForNothing())
		})
	}
}

// exactFromTheFirst returns nil if a request and its repetition have exact tokens and predictions. A busy machine can exceed the
// default budgets for tokens; then another prompt shows it.
func (p *picker) exactFromTheFirst(name string) error {
	for i := range 20 {
		r := chat("plain messages", say("user", text(fmt.Sprint(name, i), 300)))
		a := p.try(p.t.Context(), r)
		settled := p.settled(p.engines)
		b := p.try(p.t.Context(), r)
		if late := "reason=budget"; strings.Contains(a.tokens, late) || strings.Contains(b.tokens, late) {
			p.t.Logf("The tokens of prompt %d were not made within the default budget: %q, %q", i, a.tokens, b.tokens)
			continue
		}
		p.count(a)
		p.count(b)
		if strings.HasPrefix(a.tokens, "approximate") || b.delivered == 0 {
			return fmt.Errorf("tokens of the first answer are %q, the second found %d in the cache", a.tokens, b.delivered)
		}
		return errors.Join(a.exact(), settled, b.exact())
	}
	return errors.New("no tokens of 20 prompts are made within the default budget")
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
