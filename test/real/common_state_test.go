package real

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// repeated sends a request twice and returns nil if both were predicted exactly and the second found something.
func (p *picker) repeated(r request) error {
	first := p.send(r)
	if err := first.exact(); err != nil {
		return fmt.Errorf("first: %w", err)
	}
	if err := p.settled(p.engines); err != nil {
		return fmt.Errorf("after the first: %w", err)
	}
	second := p.send(r)
	if err := second.exact(); err != nil {
		return fmt.Errorf("second: %w", err)
	}
	if second.delivered == 0 || strings.HasPrefix(second.tokens, "approximate") {
		return fmt.Errorf("the second found %d of %d tokens in the cache; tokens are %q", second.delivered, second.promptEngine, second.tokens)
	}
	return nil
}

// TestAResetCacheIsForgotten: an engine whose prefix cache is reset announces it with its next step. From then on the index
// holds what the engine holds, and repeated prompts are predicted exactly.
func TestAResetCacheIsForgotten(t *testing.T) {
	engines := sharedEngines(t)
	p := startPicker(t, engines, pickerConfig{files: true})
	r := chat("after a reset", say("user", text("reset", 300)))
	verdict(t, p.repeated(r))
	for _, e := range engines {
		if status, body := e.call(http.MethodPost, "/reset_prefix_cache", nil); status != http.StatusOK {
			stop(t, fmt.Errorf("resetting answers %d: %s", status, body))
		}
	}
	for _, e := range engines {
		if a := post(t.Context(), e.url, chat("-", say("user", "Take a step."))); a.status != http.StatusOK {
			stop(t, fmt.Errorf("the engine answers %d: %s", a.status, a.body))
		}
	}
	verdict(t, p.holdsTheSame(engines))
	verdict(t, p.repeated(r))
}

// TestClientsThatLeaveLeaveNothing: clients close their connections while answers are streamed. Nothing stays in flight
// and the index holds what the engines hold.
func TestClientsThatLeaveLeaveNothing(t *testing.T) {
	engines := sharedEngines(t)
	p := startPicker(t, engines, pickerConfig{files: true})
	var leaving sync.WaitGroup
	for i := range 12 {
		leaving.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(100+50*i)*time.Millisecond)
			defer cancel()
			_ = p.try(ctx, chat("-", say("user", text(fmt.Sprint("leaving", i), 200))).with(object{"stream": true, "max_tokens": 400}))
		})
	}
	leaving.Wait()
	verdict(t, within(patience, func() error {
		for _, e := range engines {
			if n := e.metric("vllm:num_requests_running") + e.metric("vllm:num_requests_waiting"); n != 0 {
				return fmt.Errorf("%v requests are in engine %s", n, e.name)
			}
		}
		if n := p.metric("kvasir_endpoint_inflight_requests"); n != 0 {
			return fmt.Errorf("the picker counts %v requests in flight", n)
		}
		return nil
	}))
	verdict(t, p.holdsTheSame(engines))
	verdict(t, p.repeated(chat("after clients left", say("user", text("leaving 3", 300)))))
}

// TestARestartedPickerKnowsWhatEnginesHold: it reads the engines' history and predicts exactly from its first request on.
func TestARestartedPickerKnowsWhatEnginesHold(t *testing.T) {
	engines := sharedEngines(t)
	p := startPicker(t, engines, pickerConfig{files: true})
	r := chat("after the picker restarted", say("user", text("restarted", 300)))
	verdict(t, p.repeated(r))
	p.stop()
	p.start()
	p.until("the restarted picker has events and tokens", p.ready)
	verdict(t, p.holdsTheSame(engines))
	a := p.send(r)
	verdict(t, a.exact())
	if a.delivered == 0 {
		verdict(t, fmt.Errorf("nothing of the prompt was found on %s", a.pod))
	}
}

// TestTwoPickersPredictAlike: requests go to either picker in turn, and each knows what the other has placed.
func TestTwoPickersPredictAlike(t *testing.T) {
	engines := sharedEngines(t)
	first, second := startPair(t, engines)
	for i := range 4 {
		r := chat("two pickers", say("user", text(fmt.Sprint("pair", i), 300)))
		a := first.send(r)
		verdict(t, a.exact())
		for _, p := range []*picker{first, second} {
			verdict(t, p.holdsTheSame(engines))
		}
		b := second.send(r)
		verdict(t, b.exact())
		if b.pod != a.pod || b.delivered == 0 {
			verdict(t, fmt.Errorf("the second picker chose %s after %s, where %d tokens were found", b.pod, a.pod, b.delivered))
		}
	}
}

// TestIdleEnginesOfAnyKindGetNoRequests: an engine that is paused or put to sleep from outside is not picked, the index
// drops the blocks that the engine has dropped, and after the engine resumes it is picked again.
func TestIdleEnginesOfAnyKindGetNoRequests(t *testing.T) {
	engines := sharedEngines(t)
	for _, c := range []struct{ name, stop, resume string }{
		{"paused", "/pause?mode=keep", "/resume"}, {"asleep", "/sleep?level=1", "/wake_up"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := startPicker(t, engines, pickerConfig{files: true})
			for i, e := range engines { // each holds something, wherever the picker would have sent it
				if a := post(t.Context(), e.url, chat("-", say("user", text(fmt.Sprint(c.name, i), 100)))); a.status != http.StatusOK {
					stop(t, fmt.Errorf("status %d: %s", a.status, a.body))
				}
			}
			verdict(t, p.settled(engines)) // an engine that stops announces nothing more until it goes on
			e := engines[0]
			if status, body := e.call(http.MethodPost, c.stop, nil); status != http.StatusOK {
				refuses(t, c.stop, status, body)
			}
			defer func() {
				if status, body := e.call(http.MethodPost, c.resume, nil); status != http.StatusOK {
					stop(t, fmt.Errorf("%s answers %d: %s", c.resume, status, body))
				}
				verdict(t, within(10*time.Second, func() error {
					if p.isNoCandidate("pod-0") == nil {
						return errors.New("the engine that goes on is no candidate")
					}
					return nil
				}))
				verdict(t, p.repeated(chat("after an engine was "+c.name, say("user", text("resumed"+c.name, 300)))))
				if a := post(t.Context(), e.url, chat("-", say("user", text("step "+c.name, 50)))); a.status != http.StatusOK {
					stop(t, fmt.Errorf("the engine that goes on answers %d: %s", a.status, a.body))
				}
				verdict(t, p.holdsTheSame(engines)) // and leaves nothing to be announced to later pickers
			}()
			verdict(t, within(10*time.Second, func() error { return p.isNoCandidate("pod-0") }))
			verdict(t, p.settled(engines))
		})
	}
}

// reloadsMadeUpWeights reports whether a release can reload weights that its loader made up (--load-format dummy), by its
// sources: newer ones reload only what a loader can read as a whole.
func reloadsMadeUpWeights(venv string) (bool, error) {
	var sources []string
	for _, path := range []string{"v1/worker/gpu_model_runner.py", "model_executor/model_loader/reload/*.py"} {
		found, err := filepath.Glob(filepath.Join(venv, "lib", "python*", "site-packages", "vllm", path))
		if err != nil {
			return false, fmt.Errorf("finding sources of vLLM: %w", err)
		}
		sources = append(sources, found...)
	}
	if len(sources) == 0 {
		return false, errors.New("finding sources of vLLM: there are none")
	}
	for _, path := range sources {
		text, err := os.ReadFile(path)
		if err != nil {
			return false, fmt.Errorf("reading sources of vLLM: %w", err)
		}
		if strings.Contains(string(text), `hasattr(model_loader, "get_all_weights")`) {
			return false, nil
		}
	}
	return true, nil
}

// TestUpdatedWeightsEmptyTheIndex: an engine that drops its caches because its weights change says so with its next step.
func TestUpdatedWeightsEmptyTheIndex(t *testing.T) {
	engines := sharedEngines(t)
	p := startPicker(t, engines, pickerConfig{files: true})
	r := chat("after new weights", say("user", text("weights", 300)))
	verdict(t, p.repeated(r))
	for _, e := range engines {
		if status, body := e.call(http.MethodPost, "/pause?mode=wait&clear_cache=true", nil); status != http.StatusOK {
			refuses(t, "/pause", status, body)
		}
		if status, body := e.call(http.MethodPost, "/collective_rpc", object{"method": "reload_weights"}); status != http.StatusOK {
			message := fmt.Sprintf("vLLM %s answers reload_weights with %d: %.300s", run.release, status, body)
			if can, err := reloadsMadeUpWeights(run.venv); err != nil || can {
				stop(t, errors.Join(errors.New(message), err))
			}
			notRun(t, "weights reloaded; caches were dropped by the pause only: "+message)
		}
		if again, text := e.call(http.MethodPost, "/resume", nil); again != http.StatusOK {
			stop(t, fmt.Errorf("resuming answers %d: %s", again, text))
		}
	}
	for _, e := range engines {
		if a := post(t.Context(), e.url, chat("-", say("user", "Take a step."))); a.status != http.StatusOK {
			stop(t, fmt.Errorf("the engine answers %d: %s", a.status, a.body))
		}
	}
	verdict(t, p.holdsTheSame(engines))
	verdict(t, p.repeated(r))
}
