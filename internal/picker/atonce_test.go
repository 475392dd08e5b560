package picker

import (
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// together hands nearly all prompts over, and both legs are sent at the same time.
var together = HandoffSpec{Rule: HandoffAbove, UncachedTokens: 64, Connector: Mooncake}

// TestALostFirstLegIsCountedOnce, whatever becomes of the second until its end is known.
func TestALostFirstLegIsCountedOnce(t *testing.T) {
	for name, then := range map[string]func(*Decision){
		"the second answers nevertheless": func(d *Decision) { d.FirstToken(); d.End(Completed) },
		"it answers, and aborts":          func(d *Decision) { d.FirstToken(); d.End(Failed) },
		"it is not streamed":              func(d *Decision) { d.End(Completed) },
		"the client leaves":               func(d *Decision) { d.End(ClientGone) },
		"it fails":                        func(d *Decision) { d.End(Failed) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			p := newPicker(t, c, rolesSpec(t, together, endpoint.Prefill, endpoint.Decode))
			d := splits(t, p, completion("m", 0, 500, true))
			if d.FirstLeg() == nil {
				t.Fatal("no first leg")
			}
			if !d.PrefillFailed(HandoffPrefillFailed) {
				t.Error("the second leg waits for nothing")
			}
			c.advance(time.Millisecond)
			then(d)
			for outcome, n := range p.Stats()[0].Handoffs {
				if want := outcome == HandoffPrefillFailed; want != (n == 1) || n > 1 {
					t.Errorf("hand-offs: %v %d", outcome, n)
				}
			}
			overdue(c, p)
			atRest(t, p, c)
		})
	}
}
