package picker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// TestIDsThatCancelThePastHaveNoKeys: eight ids that are the multipliers' constants of kvblock.Next make the same key behind
// any parent, so that a client could claim blocks of prompts that it does not know. No vocabulary has such ids.
func TestIDsThatCancelThePastHaveNoKeys(t *testing.T) {
	ids := make([]uint32, 16)
	for i, c := range []uint64{0xa4093822299f31d1, 0x082efa98ec4e6c89} { // c2 and c3
		ids[4*i+2], ids[4*i+3] = uint32(c), uint32(c>>32) // halves
	}
	same := kvblock.Next(1, ids, 0) == kvblock.Next(2, ids, 0)
	for i := range 2 { // whichever half comes first
		ids[4*i+2], ids[4*i+3] = ids[4*i+3], ids[4*i+2]
	}
	if !same && kvblock.Next(1, ids, 0) != kvblock.Next(2, ids, 0) {
		t.Error("the ids do not cancel anything: the test is out of date")
	}
	p := newPicker(t, newClock(), testSpec(t, 2))
	body := func(id uint32) []byte {
		return []byte(`{"model":"m","prompt":[` + strings.Repeat("1,", 40) + fmt.Sprint(id) + `]}`)
	}
	for name, text := range map[string][]byte{
		"an id of no vocabulary":        body(maxID),
		"one of the second of a list":   []byte(fmt.Sprintf(`{"model":"m","prompt":[[1,2,3],[1,2,%d]]}`, maxID)),
		"the constants, in the second":  []byte(fmt.Sprintf(`{"model":"m","prompt":[[1,2,3],%s]}`, strings.Join(strings.Fields(fmt.Sprint(ids)), ","))),
		"one of both prompts of a list": []byte(fmt.Sprintf(`{"model":"m","prompt":[[%d],[%d]]}`, maxID, maxID)),
	} {
		d := pick(t, p, text)
		if d.Tokens == TokensGiven || d.TokensMissing != "content" {
			t.Errorf("%s: tokens %s, missing %q", name, d.Tokens, d.TokensMissing)
		}
		d.End(ClientGone)
	}
	if d := pick(t, p, body(maxID-1)); d.Tokens != TokensGiven {
		t.Errorf("an id: tokens %s", d.Tokens)
	} else {
		d.End(ClientGone)
	}
	assertIdle(t, p)
}
