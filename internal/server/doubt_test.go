package server

import (
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
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

// garbled sends batches of an unknown layout while on is set.
func garbled(on *atomic.Bool) func(seq uint64, payload []byte, send func(seq uint64, payload []byte)) {
	return func(seq uint64, payload []byte, send func(seq uint64, payload []byte)) {
		if on.Load() {
			payload = []byte{0x81, 0xa1, 'v', 0x02} // {"v": 2}
		}
		send(seq, payload)
	}
}

// An endpoint whose events are another engine's: what is announced is never found. The pool goes without its matches,
// says so, and believes them again when they are true.
func TestAPoolWhoseEnginesDoNotFindWhatIsAnnounced(t *testing.T) {
	asked, announced := engine(t, "m"), engine(t, "m")
	dir := t.TempDir()
	slice := strings.NewReplacer(portOf(t, asked.EventsAddr()), portOf(t, announced.EventsAddr()),
		portOf(t, asked.ReplayAddr()), portOf(t, announced.ReplayAddr())).Replace(sliceText(t, "p", "pod", asked))
	put(t, filepath.Join(dir, "all.yaml"), poolText("p", "m", "")+"---\n"+slice)
	i := runOn(t, dir)
	i.awaitReady()
	const prompts = 60
	for n := range prompts {
		i.do("POST", "http://"+announced.Addr()+"/v1/completions", completionOf(n))
	}
	i.eventually("all is announced", func() bool {
		return i.metric(`kvasir_index_held_blocks{endpoint="pod/0"`) == strconv.Itoa(len(announced.Blocks()))
	})
	// What was cleared when the stream began excuses what is picked in the same quarter of a second.
	filled := time.Now()
	i.eventually("the beginning is over", func() bool { return time.Since(filled) > 600*time.Millisecond })
	n := 0
	ask := func() {
		i.do("POST", url(i.listeners.proxy, "/v1/completions"), completionOf(n%prompts))
		n++
	}
	for range 40 {
		ask() // each finds nothing the first time
	}
	last := time.Now()
	i.eventually("removals that could excuse it would have come", func() bool { return time.Since(last) > 3*time.Second })
	i.eventually("trust is lost", func() bool { ask(); return i.metric(`kvasir_predictions_trusted{namespace="default",pool="p"}`) == "0" })
	if _, body := i.get(i.listeners.metrics, "/status"); !strings.Contains(body, "reason: Mispredicting") {
		t.Error(body)
	}
	if lost := i.metric(`kvasir_predictions_distrusted_total{namespace="default",pool="p"}`); lost != "1" {
		t.Errorf("lost %s times", lost)
	}
	// Of most prompts the engine that is asked holds by now what the other has announced.
	n = 0
	i.eventually("trust is won", func() bool {
		ask()
		n %= 40
		return i.metric(`kvasir_predictions_trusted{namespace="default",pool="p"}`) == "1"
	})
	if picks := i.metric(`kvasir_distrusted_picks_total{namespace="default",pool="p"}`); picks == "0" {
		t.Error("no pick went without matches")
	}
	if !strings.Contains(i.logs.String(), "its matches are ignored") || !strings.Contains(i.logs.String(), "its matches are believed") {
		t.Error("the log does not tell")
	}
}
