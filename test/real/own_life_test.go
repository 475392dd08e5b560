package real

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Engines of the tests below that are alone.
var (
	shortHistory = engineConfig{kv: object{"buffer_steps": 4}}
	twoRanks     = engineConfig{ranks: 2}
)

// TestLostHistoryHeals: a picker that starts late finds less history than the engine has published, and reports it. What the
// engine still holds becomes known as answers show it and, where the release makes reports, as the picker asks for them;
// everything is known once the engine has discarded its cache.
func TestLostHistoryHeals(t *testing.T) {
	engines := startEngines(t, shortHistory)
	startAhead(t, twoRanks)
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
	if atLeast("0.26") { // which announces again what the first answer has found
		verdict(t, within(10*time.Second, func() error { return p.confirms("pod-0", r, first.delivered) }))
	}
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
	verdict(t, p.holdsTheSame(engines))
	verdict(t, p.repeated(r))
}

// TestRanksAreEndpoints: an engine with two data-parallel ranks is two endpoints, each with an index of its own.
func TestRanksAreEndpoints(t *testing.T) {
	engines := startEngines(t, twoRanks)
	for _, c := range configurations {
		t.Run(c.name, func(t *testing.T) {
			p := startPicker(t, engines, pickerConfig{files: c.files})
			for i := range 6 {
				verdict(t, p.repeated(chat("two ranks", say("user", text(fmt.Sprint("rank", c.name, i), 200)))))
			}
			// Idle ranks cost the same. Then a hash of prompt and pod UID decides, and the UID differs in each run: in 1 of 32, six
			// prompts go to one rank.
			both := func() (bool, error) {
				pools, err := engines[0].holds()
				return len(pools) == 2 && pools[0].distinct > 0 && pools[1].distinct > 0, err
			}
			for i := range 40 {
				if done, err := both(); done || err != nil {
					break
				}
				verdict(t, p.repeated(chat("two ranks", say("user", text(fmt.Sprint("more", c.name, i), 200)))))
			}
			if done, err := both(); !done || err != nil {
				pools, _ := engines[0].holds()
				t.Errorf("ranks hold %+v, %v", pools, err)
			}
		})
	}
}

// TestAReporterStandsBetween: engines publish to reporters in their pods, and the picker knows what they hold from them. Where the
// release tells windows, the second engine has a model with them, which reporters follow as pickers do.
func TestAReporterStandsBetween(t *testing.T) {
	need(t)
	report := freePort(t, 1)
	config := func(events int) engineConfig { return engineConfig{dial: fmt.Sprintf("tcp://127.0.0.1:%d", events)} }
	first, second := freePort(t, 1), freePort(t, 1)
	windows := config(second)
	if atLeast("0.21") {
		windows.model, windows.flags = hybrid.model, hybrid.flags
	}
	engines := startEngines(t, config(first), windows)
	var waits []string
	for i, events := range []int{first, second} {
		waits = append(waits, startReporter(t, engines[i], events, report))
	}
	reports := []string{"--report-insecure", "--report-address", fmt.Sprintf("127.0.0.1:%d", report)}
	start := func(t *testing.T, engines []*engine) *picker {
		return startPicker(t, engines, pickerConfig{files: true, reporter: true, flags: reports})
	}
	t.Run("both", func(t *testing.T) {
		p := start(t, engines)
		for i := range 4 {
			verdict(t, p.repeated(chat("reporter", say("user", text(fmt.Sprint("reporter", i), 300)))))
		}
		p.stop()
		p.start()
		p.until("the restarted picker has events and tokens", p.ready)
		verdict(t, p.holdsTheSame(engines))
		t.Run("a request in a paused engine", func(t *testing.T) { p.judgeWaiting(t, waits) })
	})
	t.Run("windows", func(t *testing.T) {
		if !atLeast("0.21") {
			t.Skipf("vLLM %s tells no windows", run.release)
		}
		start(t, engines[1:]).judgeWindows(t)
	})
	t.Run("files of the model from the reporter", func(t *testing.T) {
		p := startPicker(t, engines[:1], pickerConfig{files: true, source: "{type: Auto}", reporter: true, flags: reports})
		p.until("the files are used", func() error {
			s, err := p.status()
			if c := s.conditions["TokensExact"]; err != nil || c.Status != "True" || !strings.Contains(c.Message, "files from the reporter") {
				return fmt.Errorf("TokensExact is %+v, %w", c, err)
			}
			return nil
		})
		verdict(t, p.repeated(chat("from the reporter", say("user", text("from the reporter", 300)))))
		if a := p.send(chat("from the reporter", say("user", text("another", 300)))); a.tokens != "exact" {
			verdict(t, fmt.Errorf("tokens are %q", a.tokens))
		}
	})
}

// judgeWindows sends prompts twice to an engine whose cache holds about two of them. Events pass one process more than without a
// reporter: each request is sent once the index holds what the engine holds, and is then predicted exactly.
func (p *picker) judgeWindows(t *testing.T) {
	delivered := 0
	for i := range 60 {
		verdict(t, p.settled(p.engines))
		a := p.send(chat("window", say("user", text(fmt.Sprintf("window %d", i/2), 300+i/2%4*40)), say("assistant", "Yes."), say("user", text(fmt.Sprint("z", i/2), 40))))
		if a.err != nil || a.status != http.StatusOK {
			stop(t, fmt.Errorf("request %d: status %d, error %w: %s", i, a.status, a.err, a.body))
		}
		verdict(t, a.exact())
		delivered += a.delivered
	}
	if delivered == 0 {
		verdict(t, fmt.Errorf("no request found anything in the cache"))
	}
}

// judgeWaiting pauses the engines and lets requests arrive before the picker knows. The engines' metrics do not count them. The
// wait endpoints of their reporters, which the pods' preStop hooks ask, answer only when the requests have ended.
func (p *picker) judgeWaiting(t *testing.T, waits []string) {
	t.Helper()
	for _, e := range p.engines {
		if status, body := e.call(http.MethodPost, "/pause?mode=keep", nil); status != http.StatusOK {
			refuses(t, "/pause", status, body)
		}
	}
	var working sync.WaitGroup
	for i := range 4 {
		working.Go(func() {
			a := p.try(t.Context(), chat("-", say("user", text(fmt.Sprint("paused ", i), 50))))
			if a.err != nil || a.status != http.StatusOK {
				verdict(t, fmt.Errorf("a request in a paused engine: status %d, error %w: %.300s", a.status, a.err, a.body))
			}
		})
	}
	p.until("the requests are in the engines", func() error {
		if n := p.metric("kvasir_endpoint_inflight_requests"); n != 4 {
			return fmt.Errorf("the picker counts %v requests in flight", n)
		}
		return nil
	})
	var resumed atomic.Bool
	asked := 0
	for i, wait := range waits {
		if p.metric("kvasir_endpoint_inflight_requests", fmt.Sprintf("endpoint=\"pod-%d/", i)) == 0 {
			continue
		}
		asked++
		working.Go(func() {
			status, body := callURL(http.MethodGet, wait, nil)
			if !resumed.Load() {
				verdict(t, fmt.Errorf("pod-%d: the wait endpoint answers %d %q while its engine has requests", i, status, body))
			}
		})
	}
	if asked == 0 {
		t.Error("no engine has requests by the picker's metrics")
	}
	time.Sleep(4 * time.Second) // eight readings: two that show an idle engine end the wait
	counted := 0.0
	for _, e := range p.engines {
		counted += e.metric("vllm:num_requests_running") + e.metric("vllm:num_requests_waiting")
	}
	t.Logf("the paused engines count %v of 4 requests", counted)
	resumed.Store(true)
	for _, e := range p.engines {
		if status, body := e.call(http.MethodPost, "/resume", nil); status != http.StatusOK {
			stop(t, fmt.Errorf("/resume answers %d: %s", status, body))
		}
	}
	working.Wait()
}
