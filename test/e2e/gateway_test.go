package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	plaintext "google.golang.org/grpc/credentials/insecure"

	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// behindGateway starts two picker processes in front of the same engines, and a stand-in for Envoy in front of both.
func behindGateway(t *testing.T, n int, config vllmsim.Config, more ...string) (pickers [2]*fleet, addresses [2]string, gateway gate) {
	t.Helper()
	for i := range addresses {
		addresses[i] = freeAddress(t)
	}
	args := func(i int) []string {
		return append([]string{"--ext-proc-address", addresses[i], "--ext-proc-plaintext"}, more...)
	}
	pickers[0] = newFleetWith(t, n, config, "MarginalCost", func(f *fleet) { f.args = args(0) })
	pickers[1] = &fleet{t: t, dir: pickers[0].dir, config: pickers[0].config, engines: pickers[0].engines, client: pickers[0].client, args: args(1)}
	pickers[1].startPicker()
	return pickers, addresses, behind(t, addresses[:]...)
}

// gate is a stand-in for Envoy.
type gate struct {
	*envoytest.Gateway
	url string
}

// behind starts a stand-in for Envoy in front of the pickers at addresses.
func behind(t *testing.T, addresses ...string) gate {
	t.Helper()
	return behindAllowing(t, nil, addresses...)
}

// behindAllowing is behind for pickers that set further headers.
func behindAllowing(t *testing.T, allowed []string, addresses ...string) gate {
	t.Helper()
	g, err := envoytest.New(envoytest.Options{Pickers: addresses, Dial: []grpc.DialOption{grpc.WithTransportCredentials(plaintext.NewCredentials())}, Seed: 1,
		Allowed: allowed})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(g)
	t.Cleanup(func() {
		server.Close()
		g.Close()
		for _, v := range g.Violations() {
			if !strings.Contains(v, "ends the stream") { // the one that is killed does
				t.Errorf("a rule of Envoy's is broken: %s", v)
			}
		}
	})
	return gate{g, server.URL}
}

// sent is a request that a client has sent, and what became of it.
type sent struct {
	begun, ended time.Time
	failure      string // empty when it was answered in full
}

// traffic sends streamed completions to a URL, several at a time, until it is stopped.
type traffic struct {
	stop context.CancelFunc
	wait sync.WaitGroup
	mu   sync.Mutex
	all  []sent // guarded by mu
}

func startTraffic(t *testing.T, url string, workers int) *traffic {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &traffic{stop: cancel}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}, Timeout: patience}
	for worker := range workers {
		c.wait.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				s := sent{begun: time.Now()}
				s.failure = complete(client, url, completion(tokens(1000+worker*100+n%50, 320), 16))
				s.ended = time.Now()
				c.mu.Lock()
				c.all = append(c.all, s)
				c.mu.Unlock()
			}
		})
	}
	t.Cleanup(func() { c.end(); client.CloseIdleConnections() })
	return c
}

// complete sends one request and says what was wrong with its answer.
func complete(client *http.Client, url string, body any) string {
	payload, err := json.Marshal(body)
	if err != nil {
		return err.Error()
	}
	r, err := client.Post(url+"/v1/completions", "application/json", bytes.NewReader(payload))
	if err != nil {
		return err.Error()
	}
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	switch {
	case err != nil:
		return "aborted: " + err.Error()
	case r.StatusCode != http.StatusOK:
		return fmt.Sprintf("status %d: %.200s", r.StatusCode, text)
	case !bytes.Contains(text, []byte("[DONE]")):
		return "no end"
	}
	return ""
}

// end stops the traffic and gives all that was sent.
func (c *traffic) end() []sent {
	c.stop()
	c.wait.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all
}

// since counts the requests that were begun after a time and have ended.
func (c *traffic) since(at time.Time) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, s := range c.all {
		if s.begun.After(at) {
			n++
		}
	}
	return n
}

// picks is how many requests a picker has chosen for.
func (f *fleet) picks() float64 { f.t.Helper(); return f.metric("kvasir_picks_total") }

// refuses reports that no process listens at an address any more.
func refuses(address string) bool {
	conn, err := net.Dial("tcp", address)
	if err == nil {
		_ = conn.Close()
	}
	return err != nil
}

// TestAGatewaysPickerIsKilledUnderLoad kills one of two pickers behind a gateway. Only requests whose streams were open at
// the killed picker are lost, which no failover can save; no request that begins afterwards is lost.
func TestAGatewaysPickerIsKilledUnderLoad(t *testing.T) {
	const workers = 12
	pickers, addresses, gateway := behindGateway(t, 3, vllmsim.Config{SpeedUp: 4})
	load := startTraffic(t, gateway.url, workers)
	for _, f := range pickers {
		f.until("it picks", func() bool { return f.picks() > 20 })
	}
	if err := pickers[0].picker.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	pickers[1].until("the dead picker's port is closed, and the gateway has noticed", func() bool {
		return refuses(addresses[0]) && !gateway.Connected(0)
	})
	noticed := time.Now()
	pickers[1].until("the other goes on", func() bool { return load.since(noticed) > 200 })
	lost := 0
	for _, s := range load.end() {
		if s.failure == "" {
			continue
		}
		lost++
		if s.begun.After(noticed) {
			t.Errorf("begun %v after the gateway had noticed the picker's end: %s", s.begun.Sub(noticed), s.failure)
		}
	}
	if lost > 2*workers {
		t.Errorf("%d requests are lost, with %d at a time", lost, workers)
	}
	t.Logf("%d requests were on the dead picker's streams", lost)
	pickers[1].until("nothing is left", func() bool {
		return pickers[1].inFlight(-1) == 0 && pickers[1].metric("kvasir_endpoint_pending_tokens") == 0
	})
}

// TestAGatewaysPickerEndsUnderLoad: with SIGTERM not one request is lost, and the other picker gets them all.
func TestAGatewaysPickerEndsUnderLoad(t *testing.T) {
	pickers, addresses, gateway := behindGateway(t, 3, vllmsim.Config{SpeedUp: 4}, "--lame-duck", "200ms", "--drain-timeout", "20s")
	load := startTraffic(t, gateway.url, 12)
	for _, f := range pickers {
		f.until("it picks", func() bool { return f.picks() > 20 })
	}
	for range 2 { // and again, when the first has returned
		if err := pickers[0].picker.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		pickers[1].until("it has ended", func() bool { return refuses(addresses[0]) && pickers[0].ended() })
		at := time.Now()
		pickers[1].until("the other goes on", func() bool { return load.since(at) > 100 })
		pickers[0].startPicker()
		pickers[0].until("it picks again", func() bool { return pickers[0].picks() > 20 })
	}
	all := load.end()
	for _, s := range all {
		if s.failure != "" {
			t.Errorf("lost: %s", s.failure)
		}
	}
	t.Logf("%d requests", len(all))
}

// ended reports that the picker's process has answered its last request.
func (f *fleet) ended() bool { status, _ := f.get(f.health + "/healthz"); return status == 0 }
