package real

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// fullReport asks the engine to announce again what it finds of the prompt in its cache.
var fullReport = object{"vllm_xargs": object{"kv_cache_report_mode": "full"}}

// TestClientsCannotPlantBlocks: engines announce the blocks of a report as if they were stored a second time. The picker refuses
// requests for one, whatever the policy allows. Clients that reach the engine directly get them, and plant nothing either, as
// soon as the engine has no room left.
func TestClientsCannotPlantBlocks(t *testing.T) {
	need(t)
	if !atLeast("0.26") {
		t.Skipf("vLLM %s announces no cached blocks again", run.release)
	}
	engines := sharedEngines(t)[:1]
	planted := completion("reported", ids(1, 1500)).with(fullReport)
	p := startPicker(t, engines, pickerConfig{files: true, policy: "  admission: {engineFields: [KVTransfer, Priority]}\n"})
	if a := p.try(t.Context(), planted); a.status != 400 || !strings.Contains(a.body, "field_not_allowed") {
		t.Errorf("with a policy that allows KVTransfer the answer is %d: %s", a.status, a.body)
	}
	direct := func(r request) {
		t.Helper()
		if a := post(t.Context(), engines[0].url, r); a.status != 200 {
			t.Errorf("the engine answers %d: %s", a.status, a.body)
		}
	}
	for range 20 {
		direct(planted)
	}
	for i := range 16 { // 47 blocks each
		direct(completion("between reports", ids(100+i, 1500)).with(fullReport))
	}
	verdict(t, p.holdsTheSame(engines))
	verdict(t, p.send(completion("reported", ids(1, 1500))).exact())
	pools, err := engines[0].holds()
	if err != nil {
		t.Fatal(err)
	}
	verdict(t, p.within(t, pools[0].total))
}

// within returns an error if the index holds more blocks of the only endpoint than the engine has.
func (p *picker) within(t *testing.T, blocks int) error {
	t.Helper()
	s, err := p.status()
	if err != nil || len(s.endpoints) != 1 {
		return errors.Join(err, fmt.Errorf("%d endpoints", len(s.endpoints)))
	}
	if keys := s.endpoints[0].blocks; keys > blocks*blockTokens/keyTokens {
		return fmt.Errorf("the index holds %d keys of an engine with %d blocks", keys, blocks)
	}
	return nil
}
