package real

import (
	"fmt"
	"testing"
)

// TestBlocksOfAnySizeArePredicted: engines with blocks larger than the index's keys, of different sizes in one pool.
// Prompts shorter than a block are found nowhere, and nothing else is predicted, however often they are repeated.
func TestBlocksOfAnySizeArePredicted(t *testing.T) {
	need(t)
	engines := startEngines(t,
		engineConfig{flags: []string{"--block-size", "64"}, blocks: 200},
		engineConfig{flags: []string{"--block-size", "128"}, blocks: 100})
	p := startPicker(t, engines, pickerConfig{files: true})
	for i := range 5 {
		for _, n := range []int{3, 20, 60, 130, 300, 1000} {
			verdict(t, p.send(chat("large blocks", say("user", text(fmt.Sprint("sizes ", n), n)))).exact())
		}
		for _, n := range []int{30, 63, 64, 65, 127, 128, 129, 256, 257, 900} {
			verdict(t, p.send(completion("large blocks, ids", ids(n, n))).exact())
		}
		if t.Failed() {
			t.Fatalf("round %d", i+1)
		}
	}
	if got := p.metric("kvasir_predictions_trusted"); got != 1 {
		t.Errorf("kvasir_predictions_trusted is %v", got)
	}
}
