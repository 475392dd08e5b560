package main

import (
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/vllmsim"
)

// An engine that begins to speak otherwise is noticed, its blocks count half, and when it speaks as before the pool
// says no more than that something was missed.
func TestEventsOfNoKnownLayoutShow(t *testing.T) {
	var garble atomic.Bool
	e, err := vllmsim.Start(vllmsim.Config{ServedModelNames: []string{"m"}, SpeedUp: 1000, Events: vllmsim.EventsConfig{
		Tamper: garbled(&garble),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	dir := t.TempDir()
	put(t, filepath.Join(dir, "all.yaml"), poolText("p", "m", "")+"---\n"+sliceText(t, "p", "pod", e))
	i := runOn(t, dir)
	i.awaitReady()
	n := 0
	says := func(condition, doubted string) func() bool {
		return func() bool {
			n++
			i.do("POST", url(i.listeners.proxy, "/v1/completions"), completionOf(n))
			_, body := i.get(i.listeners.metrics, "/status")
			return strings.Contains(body, "reason: "+condition) && i.metric(`kvasir_endpoint_doubted{endpoint="pod/0"`) == doubted
		}
	}
	i.eventually("all is well", says("Synced", "0"))
	garble.Store(true)
	i.eventually("the layout is not known", says("UnknownLayout", "1"))
	garble.Store(false)
	i.eventually("the layout is known again", func() bool {
		_, body := i.get(i.listeners.metrics, "/status")
		says("", "")()
		return !strings.Contains(body, "UnknownLayout")
	})
	if got := i.metric(`kvasir_events_unknown_layouts_total{endpoint="pod/0"`); got == "0" || got == "" {
		t.Errorf("%q unknown layouts", got)
	}
}

// Engine blocks of 8 tokens make keys of 32, without a reporter.
func TestSmallBlocksOfAnEngineAreJoined(t *testing.T) {
	e, err := vllmsim.Start(vllmsim.Config{ServedModelNames: []string{"m"}, SpeedUp: 1000, BlockSize: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	dir := t.TempDir()
	pool := strings.Replace(poolText("p", "m", ""), "spec: {", "spec: {keySpace: {blockTokens: 32}, ", 1)
	put(t, filepath.Join(dir, "all.yaml"), pool+"---\n"+sliceText(t, "p", "pod", e))
	i := runOn(t, dir)
	i.awaitReady()
	i.eventually("what was announced is found again", func() bool {
		i.do("POST", url(i.listeners.proxy, "/v1/completions"), completionOf(1))
		confirmed := i.metric(`kvasir_confirmed_hit_tokens_total{endpoint="pod/0"`)
		return confirmed != "0" && confirmed != "" && i.metric(`kvasir_delivered_hit_tokens_total{endpoint="pod/0"`) != "0"
	})
	if _, body := i.get(i.listeners.metrics, "/status"); !strings.Contains(body, "reason: Synced") {
		t.Error(body)
	}
}

// garbled sends batches of a layout that nobody knows, as long as on.
func garbled(on *atomic.Bool) func(seq uint64, payload []byte, send func(seq uint64, payload []byte)) {
	return func(seq uint64, payload []byte, send func(seq uint64, payload []byte)) {
		if on.Load() {
			payload = []byte{0x81, 0xa1, 'v', 0x02} // {"v": 2}
		}
		send(seq, payload)
	}
}
