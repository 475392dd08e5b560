package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

func TestChatFindsItsCacheByTheEnginesOwnTokens(t *testing.T) {
	f := newFleet(t, 3, vllmsim.Config{SpeedUp: 20}, "MarginalCost")
	system := map[string]string{"role": "system", "content": strings.Repeat("You are a careful assistant. ", 60)}
	messages := []map[string]string{system}
	home := -1
	for turn := range 4 {
		messages = append(messages, map[string]string{"role": "user", "content": fmt.Sprintf("Question number %d, please.", turn)})
		request := map[string]any{"model": "m", "messages": messages, "max_tokens": 16}
		if turn%2 == 0 {
			request["stream"], request["stream_options"] = true, map[string]any{"include_usage": true}
		}
		a := f.do("/v1/chat/completions", request)
		if a.status != 200 || a.tokens != "engine" {
			t.Fatalf("turn %d: status %d, tokens from %q: %s", turn, a.status, a.tokens, a.body)
		}
		if turn > 0 && (a.pod != home || a.predicted == 0 || a.cached != a.predicted) {
			t.Errorf("turn %d: pod %d, %d predicted, %d delivered; the conversation is at pod %d", turn, a.pod, a.predicted, a.cached, home)
		}
		home = a.pod
		messages = append(messages, map[string]string{"role": "assistant", "content": "An answer."})
		f.untilIndexed(home)
	}
}

func TestAPolicyChangeIsLiveAtOnce(t *testing.T) {
	f := newFleet(t, 2, vllmsim.Config{SpeedUp: 50}, "MarginalCost")
	prompt := tokens(1, 320)
	first := f.do("/v1/completions", completion(prompt, 1))
	f.untilIndexed(first.pod)
	if again := f.do("/v1/completions", completion(prompt, 1)); again.pod != first.pod {
		t.Fatalf("the default policy left the cache")
	}
	f.write("policy.yaml", fmt.Sprintf(policyYAML, "RoundRobin"))
	f.until("round robin takes turns", func() bool {
		a, b := f.do("/v1/completions", completion(prompt, 1)), f.do("/v1/completions", completion(prompt, 1))
		return a.pod != b.pod
	})
	// What the pods hold was not forgotten by the change.
	f.write("policy.yaml", fmt.Sprintf(policyYAML, "LongestPrefix"))
	f.until("longest prefix finds the cache", func() bool { return f.do("/v1/completions", completion(prompt, 1)).confirmed == 304 })
	// A broken policy changes nothing and is reported.
	f.write("policy.yaml", fmt.Sprintf(policyYAML, "NoSuchStrategy"))
	f.until("the error is logged with file, object and field", func() bool {
		logs := f.logs.String()
		return strings.Contains(logs, "policy.yaml") && strings.Contains(logs, "spec.strategy.type")
	})
	if a := f.do("/v1/completions", completion(prompt, 1)); a.confirmed != 304 {
		t.Errorf("after a broken policy: %d confirmed", a.confirmed)
	}
}

func TestATerminatingPodGetsNothingNewAndFinishesItsWork(t *testing.T) {
	f := newFleet(t, 2, vllmsim.Config{SpeedUp: 20}, "StickyLeastLoaded")
	prompt := tokens(1, 320)
	home := f.do("/v1/completions", completion(prompt, 1)).pod
	f.engines[home].Pause()
	_, running := f.background("/v1/completions", completion(prompt, 4))
	f.until("a request runs", func() bool { return f.inFlight(home) == 1 })
	f.writeSlices(map[int]string{home: "{ready: false, serving: true, terminating: true}"})
	f.until("the picker knows", func() bool { return f.metric("kvasir_endpoint_pickable") == 1 })
	for range 3 {
		if a := f.do("/v1/completions", completion(prompt, 1)); a.status != 200 || a.pod != 1-home {
			t.Errorf("status %d from pod %d", a.status, a.pod)
		}
	}
	f.engines[home].Resume()
	if a := <-running; a.status != 200 || a.pod != home || !strings.Contains(a.body, "[DONE]") {
		t.Errorf("the running request: status %d, pod %d", a.status, a.pod)
	}
}

func TestAnEngineThatDiesIsReplacedByAFallback(t *testing.T) {
	f := newFleet(t, 3, vllmsim.Config{SpeedUp: 20}, "StickyLeastLoaded")
	prompt := tokens(1, 320)
	home := f.do("/v1/completions", completion(prompt, 1)).pod
	f.untilIndexed(home)
	f.engines[home].Kill()
	for range 6 { // more than the circuit bears; some arrive before the event stream's end is noticed
		if a := f.do("/v1/completions", completion(prompt, 1)); a.status != http.StatusOK || a.pod == home {
			t.Fatalf("status %d from pod %d: %s", a.status, a.pod, a.body)
		}
	}
}

func TestARestartedEngineStartsEmpty(t *testing.T) {
	f := newFleet(t, 2, vllmsim.Config{SpeedUp: 20}, "StickyLeastLoaded")
	prompt := tokens(1, 320)
	home := f.do("/v1/completions", completion(prompt, 1)).pod
	f.untilIndexed(home)
	old := f.engines[home]
	config := f.config
	config.Host = "127.0.0.1"
	if _, err := fmt.Sscan(port(t, old.Addr()), &config.Port); err != nil {
		t.Fatal(err)
	}
	config.Events = vllmsim.EventsConfig{Endpoint: old.EventsAddr(), ReplayEndpoint: old.ReplayAddr()}
	old.Kill()
	f.engines[home] = f.startEngine(config) // same pod, same ports, another process
	f.until("the picker follows the new engine", func() bool { return f.engines[home].Subscribers() == 1 && f.held(home) == 0 })
	if a := f.do("/v1/completions", completion(prompt, 1)); a.predicted != 0 || a.cached != 0 {
		t.Errorf("%d predicted and %d delivered by an engine that has just started", a.predicted, a.cached)
	}
}

func TestARestartedPickerLearnsWhatThePodsHold(t *testing.T) {
	f := newFleet(t, 2, vllmsim.Config{SpeedUp: 20}, "StickyLeastLoaded")
	prompt := tokens(1, 320)
	home := f.do("/v1/completions", completion(prompt, 1)).pod
	f.untilIndexed(home)
	if err := f.picker.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	f.startPicker()
	f.untilIndexed(home)
	if a := f.do("/v1/completions", completion(prompt, 1)); a.pod != home || a.confirmed != 304 || a.cached != 304 {
		t.Errorf("pod %d, %d confirmed, %d delivered; want pod %d and 304", a.pod, a.confirmed, a.cached, home)
	}
}

func TestAClientThatLeavesFreesTheEngine(t *testing.T) {
	f := newFleet(t, 1, vllmsim.Config{SpeedUp: 1}, "MarginalCost")
	cancel, result := f.background("/v1/completions", completion(tokens(1, 160), 4000)) // half a minute of tokens
	f.until("the engine works", func() bool { return f.engines[0].Stats().Running == 1 })
	cancel()
	<-result
	start := time.Now()
	f.until("the engine is free", func() bool { return f.engines[0].Stats().Running == 0 })
	f.until("the picker counts nothing", func() bool { return f.inFlight(-1) == 0 })
	t.Logf("free %v after the client left", time.Since(start).Round(time.Millisecond))
}
