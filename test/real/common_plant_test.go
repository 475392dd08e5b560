package real

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// fullReport asks the engine to announce again what it finds of the prompt in its cache.
var fullReport = object{"vllm_xargs": object{"kv_cache_report_mode": "full"}}

// TestClientsCannotPlantBlocks: a client asks for reports of cached blocks. The engine announces them as if they were stored
// a second time, until it has evicted them.
func TestClientsCannotPlantBlocks(t *testing.T) {
	need(t)
	if !atLeast("0.26") {
		t.Skipf("vLLM %s announces no cached blocks again", run.release)
	}
	engines := sharedEngines(t)[:1]
	planted := completion("reported", ids(1, 1500)).with(fullReport)
	closed := startPicker(t, engines, pickerConfig{files: true})
	if a := closed.try(t.Context(), planted); a.status != 400 || !strings.Contains(a.body, "field_not_allowed") {
		t.Errorf("by default the answer is %d: %s", a.status, a.body)
	}
	closed.stop()
	p := startPicker(t, engines, pickerConfig{files: true, policy: "  admission: {engineFields: [KVTransfer]}\n"})
	for range 20 {
		verdict(t, p.send(planted).exact())
	}
	for i := range 16 { // 47 blocks each
		verdict(t, p.send(completion("between reports", ids(100+i, 1500)).with(fullReport)).exact())
	}
	verdict(t, p.holdsTheSame(engines))
	verdict(t, p.send(planted).exact())
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
