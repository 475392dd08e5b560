package real

import (
	"fmt"
	"strings"
	"testing"
)

// anyPorts is an engine that binds free ports for its events.
var anyPorts = engineConfig{kv: object{"endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0"}, env: []string{"VLLM_HOST_IP=127.0.0.1"}}

// TestEventPortsNeedNoConfiguration: engines bind free ports for their events, different ones after each restart, and no
// port is configured (vLLM 0.31 and newer report them).
func TestEventPortsNeedNoConfiguration(t *testing.T) {
	need(t)
	if !atLeast("0.31") {
		t.Skipf("vLLM %s does not tell its event ports", run.release)
	}
	engines := startEngines(t, anyPorts)
	first, _ := refusing()
	startAhead(t, first)
	p := startPicker(t, engines, pickerConfig{files: true, portless: true})
	answers := func(seed int) {
		t.Helper()
		for range 2 {
			verdict(t, p.send(completion(fmt.Sprint("prompt ", seed), ids(seed, 500))).exact())
		}
		verdict(t, p.settled(engines))
	}
	answers(1)
	before := announcedPorts(t, engines[0])
	engines[0].stop()
	if err := engines[0].run(); err != nil {
		t.Fatal(err)
	}
	if err := engines[0].untilServing(); err != nil {
		t.Fatal(err)
	}
	if now := announcedPorts(t, engines[0]); now == before {
		t.Skip("the engine was given the same ports again")
	}
	p.until("the engine is followed again", p.ready)
	answers(2)
}

// announcedPorts is what an engine says about its event sources.
func announcedPorts(t *testing.T, e *engine) string {
	t.Helper()
	status, body := e.call("GET", "/kv_event_sources", nil)
	if status != 200 || !strings.Contains(body, "tcp://127.0.0.1:") {
		t.Fatalf("/kv_event_sources answers %d: %s", status, body)
	}
	return body
}
