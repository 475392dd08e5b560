package httpproxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/relay"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// connected are simulated engines whose legs are sent at once, each with an address of its own, and one that serves alone.
type connected struct {
	*house
	engines []*vllmsim.Engine
	alone   *vllmsim.Engine
}

// connect starts engines with a connector: two that prefill and two that decode.
func connect(t *testing.T, kind vllmsim.Connector, speed float64, transfer vllmsim.Transfer) *connected {
	t.Helper()
	return connectAs(t, kind, speed, transfer, func(*picker.Spec) {})
}

// connectAs is connect with a change of the pool.
func connectAs(t *testing.T, kind vllmsim.Connector, speed float64, transfer vllmsim.Transfer, change func(*picker.Spec)) *connected {
	t.Helper()
	start := func(c vllmsim.Config) *vllmsim.Engine {
		c.ServedModelNames, c.SpeedUp, c.Events = []string{"m"}, speed, vllmsim.EventsConfig{Disabled: true}
		e, err := vllmsim.Start(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		return e
	}
	free, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	_ = free.Close()
	c := &connected{alone: start(vllmsim.Config{})}
	var addresses []string
	transfer.Enabled, transfer.Connector = true, kind
	if transfer.Lease == 0 {
		transfer.Lease = time.Hour // the speed divides it, and a busy machine must not be slower than what is left
	}
	for i := range 4 {
		host := fmt.Sprintf("127.0.0.%d", 2+i)
		transfer.Side = net.JoinHostPort(host, fmt.Sprint(port))
		e := start(vllmsim.Config{Host: host, Transfer: transfer})
		c.engines, addresses = append(c.engines, e), append(addresses, e.Addr())
	}
	s := spec(addresses...)
	for i := range s.Endpoints {
		s.Endpoints[i].Role = []endpoint.Role{endpoint.Prefill, endpoint.Decode}[i/2]
	}
	s.Policy.Handoffs = picker.HandoffSpec{Rule: picker.HandoffAbove, UncachedTokens: 64, Port: port, Connector: picker.Mooncake}
	if kind == vllmsim.Offloading {
		s.Policy.Handoffs.Connector = picker.Offloading
	}
	change(&s)
	s.Policy.CircuitFailures, s.Policy.CircuitOpen = 3, 100*time.Millisecond
	c.house = newHouse(t, Options{}, s)
	return c
}

// ask sends requests at the same time, and compares each answer with that of an engine alone.
func (c *connected) ask(first, n int) {
	c.t.Helper()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			want, err := c.completionOf(c.alone.URL(), first+i)
			if err != nil {
				c.t.Error(err)
			}
			if got, err := c.completionOf(c.url, first+i); err != nil || got != want {
				c.t.Errorf("%q, %v; want %q", got, err, want)
			}
		})
	}
	all.Wait()
}

// free waits until no engine holds blocks.
func (c *connected) free() {
	c.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		used := 0
		for _, e := range c.engines {
			used += e.Stats().UsedBlocks
		}
		if used == 0 {
			return
		}
		if time.Now().After(end) {
			c.t.Fatalf("%d blocks are in use", used)
		}
	}
}

// eachConnector runs a test with both connectors.
func eachConnector(t *testing.T, test func(t *testing.T, kind vllmsim.Connector)) {
	for name, kind := range map[string]vllmsim.Connector{"Mooncake": vllmsim.Mooncake, "Offloading": vllmsim.Offloading} {
		t.Run(name, func(t *testing.T) { test(t, kind) })
	}
}

func TestBothLegsAtOnce(t *testing.T) {
	eachConnector(t, func(t *testing.T, kind vllmsim.Connector) {
		c := connect(t, kind, 20, vllmsim.Transfer{})
		c.ask(1000, 20)
		if got := c.handoffs(); got["completed"] != 20 || len(got) != 1 {
			t.Errorf("hand-offs of 20 requests: %v", got)
		}
		c.free()
	})
}

// While requests are handed over, one engine of each role dies: no request is lost, and the hand-offs go on by those that are left.
func TestEnginesThatDieLoseNoRequestSentAtOnce(t *testing.T) {
	eachConnector(t, func(t *testing.T, kind vllmsim.Connector) {
		c := connect(t, kind, 20, vllmsim.Transfer{})
		for i, dies := range []int{0, 2} {
			var killed sync.WaitGroup
			killed.Go(func() { c.engines[dies].Kill() })
			c.ask(2000*(i+1), 16)
			killed.Wait()
		}
		before, end := c.handoffs()["completed"], time.Now().Add(patience)
		for i := 0; c.handoffs()["completed"] < before+8; i++ { // once it is known which engines have died
			c.ask(9000+i, 1)
			if time.Now().After(end) {
				t.Fatalf("hand-offs %v, %d of them before two engines have died", c.handoffs(), before)
			}
		}
	})
}

// The engines that prefill refuse: those that decode wait for blocks that do not come, and are not waited for.
func TestAFirstLegThatFailsEndsTheSecond(t *testing.T) {
	eachConnector(t, func(t *testing.T, kind vllmsim.Connector) {
		c := connect(t, kind, 20, vllmsim.Transfer{})
		for _, e := range c.engines[:2] {
			e.FailPrefills()
		}
		c.ask(1000, 1)
		if got := c.handoffs(); got["prefill_failed"] != 1 || len(got) != 1 {
			t.Errorf("hand-offs %v", got)
		}
		c.free()
	})
}

// An engine that was restarted has another id: Mooncake's hand-off to the old one fails, and later ones go to the new one.
func TestAnotherLifeOfAnEngineIsFound(t *testing.T) {
	c := connect(t, vllmsim.Mooncake, 20, vllmsim.Transfer{})
	c.ask(1000, 8) // both are known
	before := c.handoffs()["completed"]
	for _, e := range c.engines[:2] {
		e.RenameTransfers()
	}
	for i := range 12 {
		c.ask(2000+i, 1)
	}
	if got := c.handoffs(); got["completed"] < before+10 || got["decode_failed"] == 0 {
		t.Errorf("hand-offs %v", got)
	}
}

func TestAClientThatLeavesEndsBothLegsAtOnce(t *testing.T) {
	eachConnector(t, func(t *testing.T, kind vllmsim.Connector) {
		c := connect(t, kind, 1, vllmsim.Transfer{Base: time.Hour, Lease: time.Minute})
		ctx, cancel := context.WithCancel(context.Background())
		body := `{"model":"m","max_tokens":20,"stream":true,"prompt":[` + strings.TrimSuffix(strings.Repeat("7,", 2000), ",") + `]}`
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if answer, err := http.DefaultClient.Do(r); err == nil {
				_, _ = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
			}
		}()
		// Blocks that no engine has asked for are held for the lease.
		eventually(t, "one engine has prefilled, and the other one loads", func() bool {
			finished, loading := uint64(0), 0
			for _, e := range c.engines {
				finished, loading = finished+e.Stats().Finished, loading+e.Loading()
			}
			return finished == 1 && loading == 1
		})
		cancel()
		<-done
		if got := c.handoffs(); got["client_gone"] != 1 || len(got) != 1 {
			t.Errorf("hand-offs %v", got)
		}
		c.free()
	})
}

// Requests with one long beginning are more than the engine that holds it serves well: others load it from there, and answer as one that
// computes it. A peer that has died costs no request.
func TestPeersLendTheirBlocks(t *testing.T) {
	c := connectAs(t, vllmsim.Offloading, 5, vllmsim.Transfer{Base: time.Millisecond, Token: time.Microsecond}, func(s *picker.Spec) {
		for i := range s.Endpoints {
			s.Endpoints[i].Role = endpoint.Both
		}
		s.Policy.Strategy = policy.Config{Type: policy.MarginalCost, MarginalCost: policy.MarginalCostConfig{DecodeHarm: 1}}
		s.Policy.Handoffs.Rule, s.Policy.Handoffs.UncachedTokens = picker.HandoffByCost, 0
	})
	beginning := strings.TrimSuffix(strings.Repeat("7,8,9,", 1500), ",")
	// Each prompt has an end of its own, whose prefill harms the streams that run at the holder of the beginning.
	ask := func(url string, last int) (string, error) {
		answer := (&house{t: t, url: url}).post("/v1/completions", fmt.Sprintf(`{"model":"m","max_tokens":100,"prompt":[%s%s]}`, beginning,
			strings.Repeat(fmt.Sprintf(",%d", last), 600)))
		defer func() { _ = answer.Body.Close() }()
		raw, err := io.ReadAll(answer.Body)
		var body struct{ Choices []struct{ Text string } }
		if err == nil {
			err = json.Unmarshal(raw, &body)
		}
		if err != nil || answer.StatusCode != 200 || len(body.Choices) != 1 {
			return "", fmt.Errorf("status %d, %w: %.200s", answer.StatusCode, err, raw)
		}
		return body.Choices[0].Text, nil
	}
	all := func(first int, meanwhile func()) {
		var clients sync.WaitGroup
		for i := range 60 {
			clients.Go(func() {
				want, err := ask(c.alone.URL(), first+i)
				if err != nil {
					t.Error(err)
				}
				if got, err := ask(c.url, first+i); err != nil || got != want {
					t.Errorf("%.60q, %v; want %.60q", got, err, want)
				}
			})
		}
		meanwhile()
		clients.Wait()
	}
	if _, err := ask(c.url, 1); err != nil {
		t.Fatal(err)
	}
	all(1000, func() {})
	asked, holder := 0, 0
	for i, e := range c.engines {
		if asked += e.AskedByPeers(); e.AskedByPeers() > c.engines[holder].AskedByPeers() {
			holder = i
		}
	}
	if asked == 0 {
		t.Error("no engine was asked for blocks")
	}
	all(2000, func() { c.engines[holder].Kill() })
}

// TestEnginesWithoutABootstrapServerAreCountedOnce: the requests are served alone.
func TestEnginesWithoutABootstrapServerAreCountedOnce(t *testing.T) {
	c := connectAs(t, vllmsim.Mooncake, 20, vllmsim.Transfer{}, func(s *picker.Spec) { s.Policy.Handoffs.Port = 1 })
	c.ask(1000, 1)
	if got := c.handoffs(); got["no_parameters"] != 1 || len(got) != 1 {
		t.Errorf("hand-offs %v", got)
	}
}

// TestAClientThatLeavesDuringTheQuestionBlamesNoEngine: the bootstrap server has not answered yet.
func TestAClientThatLeavesDuringTheQuestionBlamesNoEngine(t *testing.T) {
	silent, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	c := connectAs(t, vllmsim.Mooncake, 20, vllmsim.Transfer{}, func(s *picker.Spec) {
		s.Policy.Handoffs.Port = silent.Addr().(*net.TCPAddr).Port
	})
	ctx, cancel := context.WithCancel(t.Context())
	body := `{"model":"m","max_tokens":20,"prompt":[` + strings.TrimSuffix(strings.Repeat("7,", 2000), ",") + `]}`
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := http.DefaultClient.Do(r)
		done <- err
	}()
	asked, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer asked.Close()
	cancel()
	if err := <-done; err == nil {
		t.Error("an answer to a client that has left")
	}
	if got := c.handoffs(); got["client_gone"] != 1 || len(got) != 1 {
		t.Errorf("hand-offs %v", got)
	}
}

// TestNothingIsKeptOfTheAnswerToAFirstLeg: an engine that answers with much takes no memory that is not accounted for.
func TestNothingIsKeptOfTheAnswerToAFirstLeg(t *testing.T) {
	h := newHouse(t, Options{}, spec("127.0.0.1:9"))
	d, err := h.picker.Pick(t.Context(), &picker.Request{Route: openai.Completions, Body: []byte(`{"model":"m","prompt":"x"}`)})
	if err != nil {
		t.Fatal(err)
	}
	defer d.End(picker.ClientGone)
	for name, answer := range map[string]string{
		"a long text":     `{"choices":[{"index":0,"text":"` + strings.Repeat("x", relay.MaxPrefillAnswer) + `","finish_reason":"length"}]}`,
		"long parameters": `{"choices":[{"index":0,"text":"x","finish_reason":"length"}],"kv_transfer_params":{"x":[` + strings.Repeat("1,", relay.MaxPrefillAnswer/2) + `1]}}`,
	} {
		var before, after runtime.MemStats
		var a picker.Answer
		a.Start(d, 200, "application/json", "")
		runtime.ReadMemStats(&before)
		err := scan(&a, strings.NewReader(answer))
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; err != nil || n > relay.MaxPrefillAnswer/4 {
			t.Errorf("%s: %v, %d bytes are allocated for %d", name, err, n, len(answer))
		}
		if v := a.Verdict(true); v != picker.Answered {
			t.Errorf("%s: verdict %v", name, v)
		}
	}
}
