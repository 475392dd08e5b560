package server

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/engines/scrape"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// portlessSlice names a pod's HTTP port and no port of its events.
func portlessSlice(t *testing.T, pod, http string) string {
	t.Helper()
	return fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s, labels: {kvasir.dev/pool: p}}
addressType: IPv4
ports: [{name: http, port: %s}]
endpoints:
- {addresses: [127.0.0.1], targetRef: {kind: Pod, name: %[1]s}}
`, pod, portOf(t, http))
}

// engineAt starts a simulated engine on an address. Its event ports are free ones, others each time.
func engineAt(t *testing.T, address string, events vllmsim.EventsConfig) *vllmsim.Engine {
	t.Helper()
	c := vllmsim.Config{ServedModelNames: []string{"m"}, SpeedUp: 1000, Events: events}
	if _, err := fmt.Sscan(portOf(t, address), &c.Port); err != nil {
		t.Fatal(err)
	}
	e, err := vllmsim.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

func TestEventPortsAreLearnedFromTheEngine(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "pool.yaml"), poolText("p", "m", ""))
	i := runOn(t, dir)
	address := freeAddress(t)
	put(t, filepath.Join(dir, "a.yaml"), portlessSlice(t, "pod-a", address))
	n := 0
	synced := func() bool {
		_, body := i.get(i.listeners.metrics, "/status?output=json")
		return strings.Contains(body, `"endpoints":{"total":1,"ready":1,"synced":1,"degraded":0}`)
	}
	held := func() string { return i.metric(`kvasir_index_held_blocks{endpoint="pod-a/0"`) }
	follow := func(e *vllmsim.Engine) {
		t.Helper()
		i.eventually("the engine is followed", func() bool {
			n++ // what is cached is not announced again
			i.do("POST", "http://"+e.Addr()+"/v1/completions", completionOf(n))
			return synced() && held() != "0"
		})
	}
	e := engineAt(t, address, vllmsim.EventsConfig{})
	follow(e)
	before := e.EventsAddr()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = engineAt(t, address, vllmsim.EventsConfig{})
	if e.EventsAddr() == before {
		t.Skip("the engine was given the same port again")
	}
	follow(e)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	engineAt(t, address, vllmsim.EventsConfig{Disabled: true})
	i.eventually("the status says that the engine publishes nothing", func() bool {
		_, body := i.get(i.listeners.metrics, "/status")
		return strings.Contains(body, "reason: EventsDisabled") && strings.Contains(body, "1 of 1 engines say that they publish no events")
	})
}

func TestAnEngineCannotPointThePickerToAnotherHost(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Skip("only one loopback address can be used here")
	}
	defer other.Close()
	strayed := make(chan string, 1)
	go func() {
		if c, err := other.Accept(); err == nil {
			strayed <- c.RemoteAddr().String()
		}
	}()
	port := portOf(t, other.Addr().String())
	own, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Skip("the port is taken on the other address")
	}
	defer own.Close()
	came := make(chan struct{}, 1)
	go func() {
		if _, err := own.Accept(); err == nil {
			came <- struct{}{}
		}
	}()
	lies := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			_, _ = io.WriteString(w, "vllm:num_requests_running 0\n")
		case "/kv_event_sources":
			_, _ = fmt.Fprintf(w, `{"0":{"endpoint":"tcp://127.0.0.2:%s","replay_endpoint":"tcp://127.0.0.2:%[1]s","topic":"kv@127.0.0.2@m"}}`, port)
		default:
			http.NotFound(w, r)
		}
	}))
	defer lies.Close()
	dir := t.TempDir()
	put(t, filepath.Join(dir, "pool.yaml"), poolText("p", "m", ""))
	put(t, filepath.Join(dir, "a.yaml"), portlessSlice(t, "pod-a", lies.Listener.Addr().String()))
	i := runOn(t, dir)
	i.eventually("the port is tried on the pod's own address", func() bool { return len(came) > 0 })
	select {
	case from := <-strayed:
		t.Errorf("%s connected to the host that the engine named", from)
	default:
	}
}

func TestConfiguredEventPortsWinOverToldOnes(t *testing.T) {
	id := endpoint.ID{Pod: "a"}
	feed := func(eventsAssumed, replayAssumed bool) events.Feed {
		return events.Feed{Endpoint: endpoint.Endpoint{
			ID: id, Address: "10.0.0.7:8000", EventsAddress: "10.0.0.7:5557", ReplayAddress: "10.0.0.7:5657",
			EventsAssumed: eventsAssumed, ReplayAssumed: replayAssumed,
		}}
	}
	for name, tc := range map[string]struct {
		events, replay bool // assumed
		told           scrape.EventSource
		want           string
		silent         bool
	}{
		"both are configured":        {false, false, scrape.EventSource{Answered: true, Events: 1, Replay: 2}, "10.0.0.7:5557 10.0.0.7:5657", false},
		"replay is configured":       {true, false, scrape.EventSource{Answered: true, Events: 1, Replay: 2}, "10.0.0.7:1 10.0.0.7:5657", false},
		"events are configured":      {false, true, scrape.EventSource{Answered: true, Events: 1, Replay: 2}, "10.0.0.7:5557 10.0.0.7:2", false},
		"neither is":                 {true, true, scrape.EventSource{Answered: true, Events: 1, Replay: 2}, "10.0.0.7:1 10.0.0.7:2", false},
		"the engine does not tell":   {true, true, scrape.EventSource{}, "10.0.0.7:5557 10.0.0.7:5657", false},
		"it has no replay":           {true, true, scrape.EventSource{Answered: true, Events: 1}, "10.0.0.7:1 ", false},
		"it has no events":           {true, true, scrape.EventSource{Answered: true}, " ", true},
		"nor has it with events set": {false, true, scrape.EventSource{Answered: true}, "10.0.0.7:5557 ", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newEventSources(logr.Discard())
			f := feed(tc.events, tc.replay)
			s.keep([]picker.Feed{{Endpoint: f.Endpoint}})
			s.report(id, tc.told)
			got := s.of(f).Endpoint
			if now := got.EventsAddress + " " + got.ReplayAddress; now != tc.want || s.silent(&f.Endpoint) != tc.silent {
				t.Errorf("got %q, silent %v", now, s.silent(&f.Endpoint))
			}
			if f.Endpoint.Epoch() != got.Epoch() {
				t.Error("reported ports changed the epoch of the endpoint")
			}
			f.Endpoint.Address = "10.0.0.8:8000" // another engine under the same identity has said nothing
			s.keep([]picker.Feed{{Endpoint: f.Endpoint}})
			if got := s.of(f).Endpoint; got.EventsAddress != "10.0.0.7:5557" {
				t.Errorf("another engine's port %q is used", got.EventsAddress)
			}
		})
	}
}
