package vllmsim

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

const cachedPrompt = `{"model": "sim-model", "max_tokens": 1, "prompt": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]}`

// TestAStoppedEngineAnswersLater: requests that come while it sleeps or is paused wait, and find what it has kept.
func TestAStoppedEngineAnswersLater(t *testing.T) {
	for stop, c := range map[string]struct{ resume, cached string }{
		"/sleep":                             {"/wake_up", `"cached_tokens":0`},
		"/sleep?level=0":                     {"/wake_up", `"cached_tokens":16`},
		"/pause?mode=keep":                   {"/resume", `"cached_tokens":0`},
		"/pause?mode=wait":                   {"/resume", `"cached_tokens":0`},
		"/pause?mode=keep&clear_cache=false": {"/resume", `"cached_tokens":16`},
	} {
		t.Run(stop, func(t *testing.T) {
			e := start(t, Config{MaxModelLen: 64, SpeedUp: 1e6})
			answerTo(t, e, "/v1/completions", cachedPrompt)
			answerTo(t, e, stop, "")
			answered := make(chan string, 1)
			go func() { answered <- answerTo(t, e, "/v1/completions", cachedPrompt) }()
			select {
			case body := <-answered:
				t.Fatalf("answered while stopped: %s", body)
			case <-time.After(50 * time.Millisecond):
			}
			answerTo(t, e, c.resume, "")
			if body := <-answered; !strings.Contains(body, c.cached) {
				t.Errorf("want %s: %s", c.cached, body)
			}
		})
	}
}

// TestStopsThatAreNoneChangeNothing: a wrong mode or level is refused, and the engine goes on.
func TestStopsThatAreNoneChangeNothing(t *testing.T) {
	e := start(t, Config{MaxModelLen: 64, SpeedUp: 1e6})
	for _, path := range []string{"/sleep?level=3", "/sleep?level=x", "/sleep?mode=odd", "/pause?mode=odd", "/pause?clear_cache=perhaps"} {
		resp, err := http.Post(e.URL()+path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s answers %d", path, resp.StatusCode)
		}
	}
	answerTo(t, e, "/v1/completions", cachedPrompt)
}

// TestWeightsUnderOneNameHaveBlocksOfTheirOwn from 0.31 on, where hashes depend on the path; before, the blocks of the former weights
// are found.
func TestWeightsUnderOneNameHaveBlocksOfTheirOwn(t *testing.T) {
	const load = "/v1/load_lora_adapter"
	for release, cached := range map[Release]string{30 << 8: `"cached_tokens":16`, 31 << 8: `"cached_tokens":0`} {
		e := start(t, Config{MaxModelLen: 64, SpeedUp: 1e6, Release: release, RuntimeLoRA: true})
		tuned := strings.Replace(cachedPrompt, "sim-model", "tuned", 1)
		answerTo(t, e, load, `{"lora_name": "tuned", "lora_path": "an/adapter"}`)
		answerTo(t, e, "/v1/completions", tuned)
		answerTo(t, e, "/v1/unload_lora_adapter", `{"lora_name": "tuned"}`)
		answerTo(t, e, load, `{"lora_name": "tuned", "lora_path": "another/adapter"}`)
		if body := answerTo(t, e, "/v1/completions", tuned); !strings.Contains(body, cached) {
			t.Errorf("%v: want %s: %s", release, cached, body)
		}
	}
}

// answerTo returns the body of an answer that must be 200.
func answerTo(t *testing.T, e *Engine, path, body string) string {
	t.Helper()
	resp, err := http.Post(e.URL()+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	var text strings.Builder
	if _, err := io.Copy(&text, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%s answers %d: %s (%v)", path, resp.StatusCode, text.String(), err)
	}
	return text.String()
}
