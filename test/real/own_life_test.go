package real

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
)

// TestEnginesThatDieAndComeBackFailNoRequest kills one of two engines under load, twice, and starts it again in the same
// pod. No request fails, and the index is the engines' again.
func TestEnginesThatDieAndComeBackFailNoRequest(t *testing.T) {
	engines := startEngines(t, engineConfig{}, engineConfig{})
	p := startPicker(t, engines, pickerConfig{files: true})
	verdict(t, p.repeated(chat("before an engine died", say("user", text("before", 300)))))
	ended := make(chan struct{})
	var sending sync.WaitGroup
	faults := make(chan error, 10_000)
	for client := range 4 {
		sending.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-ended:
					return
				default:
				}
				a := p.try(t.Context(), chat("-", say("user", text(fmt.Sprint("dying", client, i%5), 200))))
				if a.err != nil || a.status != http.StatusOK {
					faults <- fmt.Errorf("client %d, request %d: status %d, error %w: %.300s", client, i, a.status, a.err, a.body)
				}
			}
		})
	}
	e := engines[0]
	e.kill()
	if err := e.run(); err != nil {
		t.Fatal(err)
	}
	p.describe(0, "{ready: false, serving: false, terminating: false}") // as the kubelet's probe says
	err := e.untilServing()
	p.describe(0, "{ready: true, serving: true, terminating: false}")
	close(ended)
	sending.Wait()
	close(faults)
	if err != nil {
		t.Fatal(err)
	}
	for err := range faults {
		verdict(t, err)
	}
	verdict(t, p.settled(engines))
	p.until("the engine's events are followed again", p.ready)
	verdict(t, p.repeated(chat("after an engine died", say("user", text("after", 300)))))
}

// TestLostHistoryHeals: a picker that starts late finds less history than the engine has published, and reports it. What the
// engine still holds becomes known as answers show it, and everything is known once the engine has discarded its cache.
func TestLostHistoryHeals(t *testing.T) {
	engines := startEngines(t, engineConfig{kv: object{"buffer_steps": 4}})
	e := engines[0]
	r := chat("after lost history", say("user", text("lost history", 300)))
	for range 2 {
		if a := post(t.Context(), e.url, r); a.status != http.StatusOK {
			stop(t, fmt.Errorf("the engine answers %d: %s", a.status, a.body))
		}
	}
	for i := range 8 {
		if a := post(t.Context(), e.url, chat("-", say("user", text(fmt.Sprint("later", i), 100)))); a.status != http.StatusOK {
			stop(t, fmt.Errorf("the engine answers %d: %s", a.status, a.body))
		}
	}
	p := startPicker(t, engines, pickerConfig{files: true, partly: true})
	p.until("tokens are exact", func() error { return p.conditionsAreTrue("TokensExact") })
	first := p.try(t.Context(), r) // its result cannot be predicted
	if first.delivered == 0 {
		t.Fatalf("the engine holds nothing of the prompt: %+v", first)
	}
	verdict(t, p.send(r).exact())
	if s, err := p.status(); err != nil || s.conditions["EventsSynced"].Reason != "HistoryLost" {
		t.Errorf("EventsSynced is %+v (%v), want HistoryLost", s.conditions["EventsSynced"], err)
	}
	if status, body := e.call(http.MethodPost, "/reset_prefix_cache", nil); status != http.StatusOK {
		stop(t, fmt.Errorf("resetting answers %d: %s", status, body))
	}
	if a := post(t.Context(), e.url, chat("-", say("user", text("after the reset", 50)))); a.status != http.StatusOK {
		stop(t, fmt.Errorf("the engine answers %d: %s", a.status, a.body))
	}
	p.until("the condition EventsSynced is True", func() error { return p.conditionsAreTrue("EventsSynced") })
	verdict(t, p.settled(engines))
	verdict(t, p.repeated(r))
}

// TestRanksAreEndpoints: an engine with two data-parallel ranks is two endpoints, each with an index of its own.
func TestRanksAreEndpoints(t *testing.T) {
	engines := startEngines(t, engineConfig{ranks: 2})
	for _, c := range configurations {
		t.Run(c.name, func(t *testing.T) {
			p := startPicker(t, engines, pickerConfig{files: c.files})
			for i := range 6 {
				verdict(t, p.repeated(chat("two ranks", say("user", text(fmt.Sprint("rank", c.name, i), 200)))))
			}
			pools, err := engines[0].holds()
			if err != nil || len(pools) != 2 || pools[0].distinct == 0 || pools[1].distinct == 0 {
				t.Errorf("ranks hold %+v, %v", pools, err)
			}
		})
	}
}

// TestQueueLimitsAreNoFailures: an engine that refuses what exceeds its queue is full, not broken. Requests wait in the
// picker, and each is answered.
func TestQueueLimitsAreNoFailures(t *testing.T) {
	need(t)
	if !atLeast("0.29") {
		t.Skipf("vLLM %s has no limits of its queue", run.release)
	}
	flags := []string{"--max-num-seqs", "2", "--max-num-queued-reqs", "1"}
	engines := startEngines(t, engineConfig{flags: flags}, engineConfig{flags: flags})
	p := startPicker(t, engines, pickerConfig{files: true})
	for name, fields := range map[string]object{"JSON": {"max_tokens": 30}, "stream": {"max_tokens": 30, "stream": true}} {
		t.Run(name, func(t *testing.T) {
			var sending sync.WaitGroup
			faults := make(chan error, 100)
			for i := range 16 {
				sending.Go(func() {
					a := p.try(t.Context(), chat("-", say("user", text(fmt.Sprint("queue", name, i), 100))).with(fields))
					if a.err != nil || a.status != http.StatusOK || a.failedInStream() {
						faults <- fmt.Errorf("request %d: status %d, error %w: %.300s", i, a.status, a.err, a.body)
					}
				})
			}
			sending.Wait()
			close(faults)
			refused := 0
			var last error
			for err := range faults {
				refused, last = refused+1, err
			}
			if last != nil {
				verdict(t, fmt.Errorf("%d of 16 requests failed, the last: %w", refused, last))
			}
			verdict(t, nil)
		})
	}
}

// TestAReporterStandsBetween: engines publish to reporters in their pods, and the picker knows what they hold from them.
func TestAReporterStandsBetween(t *testing.T) {
	need(t)
	report := freePort(t, 1)
	config := func(events int) engineConfig { return engineConfig{dial: fmt.Sprintf("tcp://127.0.0.1:%d", events)} }
	first, second := freePort(t, 1), freePort(t, 1)
	engines := startEngines(t, config(first), config(second))
	for i, events := range []int{first, second} {
		startReporter(t, engines[i], events, report)
	}
	p := startPicker(t, engines, pickerConfig{files: true, reporter: true, flags: []string{"--report-insecure", "--report-address", fmt.Sprintf("127.0.0.1:%d", report)}})
	for i := range 4 {
		verdict(t, p.repeated(chat("reporter", say("user", text(fmt.Sprint("reporter", i), 300)))))
	}
	p.stop()
	p.start()
	p.until("the restarted picker has events and tokens", p.ready)
	verdict(t, p.settled(engines))
}
