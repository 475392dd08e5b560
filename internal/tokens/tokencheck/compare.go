package tokencheck

import (
	"context"
	"fmt"
	"maps"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// comparison is what ids made here are worth, by the answers of engines.
type comparison struct {
	found        finding
	texts, chats picker.Prompter // nil where ids are not trusted
	unproven     openai.Kinds
	apis         openai.Kinds
	// probes are the numbers of those whose answers count. With the same, and the same files of the model, a comparison would come to the
	// same again, for milliseconds of work in each pool.
	probes map[Identity]uint64
}

// comparison compares ids made here with the answers of the engines that are present, unless that was the last comparison.
func (k *keeper) comparison(ctx context.Context, present []Identity, cases func() []Case) comparison {
	probes := map[Identity]uint64{}
	for _, id := range present {
		probes[id] = k.answers[id].number
	}
	if last := &k.model.compared; maps.Equal(last.probes, probes) {
		return *last
	}
	c, err := k.compare(ctx, cases(), present)
	if err != nil {
		return comparison{found: finding{State: Unproven, message: err.Error()}}
	}
	c.probes = probes
	k.model.compared = c
	return c
}

// compare compares ids made here with the answers of all engines. Where some differ, the settings of the engine that
// cannot be asked for are tried: for texts and for chats, the first with which the fewest kinds differ is kept.
func (k *keeper) compare(ctx context.Context, cases []Case, present []Identity) (made comparison, err error) {
	var texts, chats Verdict
	var textsBy, chatsBy picker.Prompter
	for i, s := range settings {
		if s.ofClass && k.model.tokenizer.OfClass() == nil {
			continue // the same again
		}
		prompter := k.model.prompter(common(present), s)
		var t, c Verdict
		for j, id := range present {
			t2, c2, err := compare(ctx, cases, k.answers[id].replies, prompter)
			switch {
			case err != nil:
				return comparison{}, err
			case j == 0:
				t, c = t2, c2
			default:
				t.add(&t2)
				c.add(&c2)
			}
		}
		c.Missing = prompter.Chats()
		if i == 0 || t.better(&texts) {
			texts, textsBy = t, prompter
		}
		if i == 0 || c.better(&chats) {
			chats, chatsBy = c, prompter
		}
		if texts.settled() && chats.settled() {
			break
		}
	}
	found := finding{texts: texts.Proven(), chats: chats.Proven(), message: fmt.Sprintf("texts: %s; chats: %s", &texts, &chats)}
	if found.texts {
		made.texts = textsBy
		made.unproven |= texts.Unproven()
	}
	if found.chats {
		made.chats = chatsBy
		made.unproven |= chats.Unproven()
		made.apis = chats.APIs()
	}
	switch {
	case found.texts && found.chats:
		found.State = Exact
	case found.texts && chats.Missing != nil:
		found.State = TextsOnly
	default:
		found.State = Failed
	}
	made.found = found
	return made, nil
}
