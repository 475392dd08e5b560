package real

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
)

// engineKey is the --api-key of engines that refuse clients.
const engineKey = "right"

// TestWhatEnginesRefuse: engines with an API key, one with a limit of the requests in its queue and one with a limit of their
// prompt tokens. Clients without the key are refused as the engines refuse them. An engine beyond its limit is full, not
// broken: requests go to the other engine or wait in the picker, and each is answered.
func TestWhatEnginesRefuse(t *testing.T) {
	need(t)
	requests, tokens := refusing()
	engines := startEngines(t, requests, tokens)
	t.Run("keys", func(t *testing.T) { judgeKeys(t, engines) })
	for _, c := range []struct {
		name    string
		engines []*engine
		reason  string // of the engine's refusals
	}{{"queued requests", engines[:1], "max_num_queued_reqs"}, {"queued tokens", engines[1:], "max_num_queued_tokens"}, {"another engine", engines, ""}} {
		t.Run(c.name, func(t *testing.T) {
			if !atLeast("0.29") {
				t.Skipf("vLLM %s has no limits of its queue", run.release)
			}
			p := startPicker(t, c.engines, pickerConfig{files: true, secret: engineKey, spec: keyOfPool})
			before := refusals(c.engines, c.reason)
			for kind, fields := range map[string]object{"JSON": {"max_tokens": 30}, "stream": {"max_tokens": 30, "stream": true}} {
				verdict(t, p.answersAll(t, c.name+kind, fields))
			}
			if c.reason != "" && atLeast("0.32") && refusals(c.engines, c.reason) == before {
				t.Errorf("the engine has refused nothing: vllm:admission_rejections_total with %s stands at %v", c.reason, before)
			}
		})
	}
}

// refusing are the engines of TestWhatEnginesRefuse: both have a key, and from 0.29 on the first has a limit of the requests in its
// queue, and the second of their prompt tokens.
func refusing() (requests, tokens engineConfig) {
	key := []string{"--api-key", engineKey}
	if !atLeast("0.29") {
		return engineConfig{flags: key}, engineConfig{flags: key}
	}
	return engineConfig{flags: append(slices.Clone(key), "--max-num-seqs", "2", "--max-num-queued-reqs", "1")},
		engineConfig{flags: append(key, "--max-num-seqs", "2", "--max-num-queued-tokens", "300")}
}

const keyOfPool = "  engine: {apiKey: {name: keys, key: token}}\n"

// refusals counts what engines have refused for a reason, or for any.
func refusals(engines []*engine, reason string) (n float64) {
	for _, e := range engines {
		n += e.metric("vllm:admission_rejections_total", reason)
	}
	return n
}

// answersAll sends 16 requests at once and returns nil if each is answered.
func (p *picker) answersAll(t *testing.T, name string, fields object) error {
	t.Helper()
	var sending sync.WaitGroup
	faults := make(chan error, 100)
	for i := range 16 {
		sending.Go(func() {
			r := chat("-", say("user", text(fmt.Sprint("queue", name, i), 100))).with(fields)
			r.key = engineKey
			a := p.try(t.Context(), r)
			if a.err != nil || a.status != http.StatusOK || a.failedInStream() || !strings.Contains(a.body, `"finish_reason":"`) {
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
		return fmt.Errorf("%d of 16 requests failed, the last: %w", refused, last)
	}
	return nil
}

// judgeKeys: by default the key of a client reaches the engine, which checks it; with PoolKey every client is served, and the
// pool's own questions are answered in both cases. Answers to clients with a wrong key are those of the engine.
func judgeKeys(t *testing.T, engines []*engine) {
	for _, c := range []struct {
		name, spec string
		want       map[string]int // status by the client's key
	}{
		{"PassThrough", keyOfPool, map[string]int{"": 401, "wrong": 401, engineKey: 200}},
		{"PoolKey", "  engine: {apiKey: {name: keys, key: token}, clientAuth: PoolKey}\n", map[string]int{"": 200, "wrong": 200, engineKey: 200}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := startPicker(t, engines, pickerConfig{files: true, secret: engineKey, spec: c.spec})
			for key, want := range c.want {
				for _, r := range []request{
					completion("-", ids(3, 40)), completion("-", "A text.").with(object{"stream": true}), chat("-", say("user", "hello"))} {
					r.key = key
					a := p.try(t.Context(), r)
					if a.status != want {
						verdict(t, fmt.Errorf("%s with the key %q: status %d, want %d: %.300s", r.path, key, a.status, want, a.body))
					}
					if direct := post(t.Context(), engines[0].url, r); want == http.StatusUnauthorized && (direct.status != want || direct.body != a.body) {
						verdict(t, fmt.Errorf("%s with the key %q: the engine answers %d %s, the picker %s", r.path, key, direct.status, direct.body, a.body))
					}
				}
			}
			verdict(t, p.conditionsAreTrue("EventsSynced", "TokensExact"))
			r := chat("with a key", say("user", text("key "+c.name, 300)))
			r.key = engineKey
			verdict(t, p.repeated(r))
		})
	}
}
