package server

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
	"github.com/kvasir-dev/kvasir/internal/zmtp"
)

// listening is where the picker says that publishers can connect.
func (i *instance) listening() (address string) {
	i.t.Helper()
	i.eventually("it listens for publishers", func() bool {
		m := regexp.MustCompile(`Listening for event publishers" logger=events address=(\S+) rank=0`).FindStringSubmatch(i.logs.String())
		if m != nil {
			address = m[1]
		}
		return m != nil
	})
	return address
}

// dialingEngine starts an engine whose publisher connects to the picker.
func dialingEngine(t *testing.T, picker, topic, http, replay string) *vllmsim.Engine {
	t.Helper()
	_, port, err := net.SplitHostPort(http)
	if err != nil {
		t.Fatal(err)
	}
	c := vllmsim.Config{ServedModelNames: []string{"m"}, SpeedUp: 1000}
	c.Events = vllmsim.EventsConfig{Endpoint: picker, Connect: true, ReplayEndpoint: replay, Topic: topic}
	if _, err := fmt.Sscan(port, &c.Port); err != nil {
		t.Fatal(err)
	}
	e, err := vllmsim.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

func listeningSlice(t *testing.T, pod, http, replay string) string {
	t.Helper()
	return fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s, labels: {kvasir.dev/pool: p}}
addressType: IPv4
ports: [{name: http, port: %s}, {name: kv-replay, port: %s}]
endpoints:
- {addresses: [127.0.0.1], targetRef: {kind: Pod, name: %[1]s}}
`, pod, portOf(t, http), portOf(t, replay))
}

func TestEnginesThatDialThePicker(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "pool.yaml"), strings.Replace(poolText("p", "m", ""), "spec: {", "spec: {engine: {events: {source: Listen}}, ", 1))
	i := runOn(t, dir, "--events-address", "127.0.0.1:0")

	httpA, replayA, httpB, replayB := freeAddress(t), freeAddress(t), freeAddress(t), freeAddress(t)
	put(t, filepath.Join(dir, "a.yaml"), listeningSlice(t, "pod-a", httpA, replayA))
	put(t, filepath.Join(dir, "b.yaml"), listeningSlice(t, "pod-b", httpB, replayB))
	picker := i.listening()
	i.eventually("the status reports the missing connections", func() bool {
		_, body := i.get(i.listeners.metrics, "/status")
		return strings.Contains(body, "reason: StreamMissing") && strings.Contains(body, "2 of 2 endpoints have not connected to 127.0.0.1:0")
	})
	a := dialingEngine(t, picker, "kv@"+httpA+"@m", httpA, replayA)
	b := dialingEngine(t, picker, "kv@pod-b@m", httpB, replayB)

	// Both engines share an address, so the picker cannot attribute their connections before they have sent an event.
	synced := func() bool {
		_, body := i.get(i.listeners.metrics, "/status?output=json")
		return strings.Contains(body, `"endpoints":{"total":2,"ready":2,"synced":2,"degraded":0}`)
	}
	n := 0
	ask := func(engines ...*vllmsim.Engine) {
		for _, e := range engines {
			n++ // what is cached is not announced again
			i.do("POST", "http://"+e.Addr()+"/v1/completions", completionOf(n))
		}
	}
	i.eventually("both are followed", func() bool { ask(a, b); return synced() })
	held := func(pod string) string { return i.metric(`kvasir_index_held_blocks{endpoint="` + pod + `/0"`) }
	i.eventually("both hold what they were asked", func() bool { return held("pod-a") != "0" && held("pod-b") != "0" })

	// An engine that starts again holds nothing, though another publisher says it was that pod.
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	i.eventually("its loss shows", func() bool {
		return i.metric(`kvasir_events_state{endpoint="pod-a/0",namespace="default",pool="p",state="Disconnected"}`) == "1"
	})
	stranger, err := zmtp.DialPub(context.Background(), picker, 10)
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	i.eventually("a stranger is turned away", func() bool {
		_ = stranger.Send([]byte("kv@10.9.9.9@m"), make([]byte, 8), []byte{0x92, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x90}) // until it is
		return i.metric(`kvasir_events_strangers_total{reason="OtherPod"}`) == "1"
	})
	<-stranger.Done()
	again := dialingEngine(t, picker, "kv@"+httpA+"@m", httpA, replayA)
	i.eventually("the new life is followed", func() bool { ask(again); return synced() })
}

// completionOf asks for two tokens after some hundred that are n's own.
func completionOf(n int) string {
	return fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":2}`, strings.Repeat(fmt.Sprintf("number %d ", n), 100))
}

// TestADrainingPickerLetsItsEnginesGo: from the signal on nothing listens for them, though objects still change and requests run,
// so that they connect to the picker that takes its place.
func TestADrainingPickerLetsItsEnginesGo(t *testing.T) {
	t.Parallel()
	d := newDialIn("127.0.0.1:0", nil, logr.Discard())
	d.set(map[int]bool{0: true, 1: true})
	d.close()
	d.set(map[int]bool{0: true, 1: true})
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.open) > 0 {
		t.Errorf("it listens for %d ranks", len(d.open))
	}
}
