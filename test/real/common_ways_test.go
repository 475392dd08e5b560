package real

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// ways in which one client can try to make the index differ from the engine, or predictions of others wrong. Each sends its requests
// through the picker to one engine, and returns an error if the picker or the engine did not do what the way is about.
var ways = []struct {
	name string
	try  func(t *testing.T, p *picker) error
}{
	{"equal requests at the same time", func(t *testing.T, p *picker) error {
		return p.together(t, 12, func(int) request {
			return completion("-", ids(501, 300)).with(object{"n": 3, "max_tokens": 40, "temperature": 1, "ignore_eos": true})
		})
	}},
	{"equal requests that diverge in their last block", func(t *testing.T, p *picker) error {
		return p.together(t, 12, func(i int) request {
			return completion("-", append(ids(502, 310), 2000+i)).with(object{"max_tokens": 40, "ignore_eos": true})
		})
	}},
	{"answers that need more room than there is", func(t *testing.T, p *picker) error {
		const preemptions = "vllm:num_preemptions_total"
		before := p.engines[0].metric(preemptions)
		err := p.together(t, 8, func(i int) request {
			return completion("-", ids(510+i, 1000)).with(object{"max_tokens": 100, "ignore_eos": true})
		})
		if err == nil && p.engines[0].metric(preemptions) == before {
			err = errors.New("the engine has preempted nothing")
		}
		return err
	}},
	{"clients that leave before the first token", func(t *testing.T, p *picker) error {
		var leaving sync.WaitGroup
		for i := range 24 {
			leaving.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(2+5*i)*time.Millisecond)
				defer cancel()
				_ = p.try(ctx, completion("-", ids(530+i/3, 700)).with(object{"stream": i%2 == 0}))
			})
		}
		leaving.Wait()
		return nil
	}},
	{"a salt for each request", func(t *testing.T, p *picker) error {
		return p.together(t, 20, func(i int) request {
			return completion("-", ids(540, 200)).with(object{"cache_salt": fmt.Sprint("salt ", i)})
		})
	}},
	{"requests that read no cache and fill it", func(t *testing.T, p *picker) error {
		return p.together(t, 8, func(int) request {
			return completion("-", ids(550, 200)).with(object{"prompt_logprobs": 0})
		})
	}},
	{"ids of the engine's route, which no cache answers", func(t *testing.T, p *picker) error {
		if !atLeast("0.30") {
			return nil
		}
		return p.together(t, 8, func(i int) request {
			return request{path: "/inference/v1/generate", body: object{"model": "m", "token_ids": ids(551+i%2, 200),
				"sampling_params": object{"max_tokens": 2, "skip_reading_prefix_cache": true}}}
		})
	}},
}

// TestWhatOneClientTriesCostsOthersNothing: after each way the index soon holds what the engine holds, tokens and predictions are
// trusted, and a request of somebody else finds what was predicted.
func TestWhatOneClientTriesCostsOthersNothing(t *testing.T) {
	needWholeRun(t)
	engines := sharedEngines(t)[:1]
	p := startPicker(t, engines, pickerConfig{files: true})
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			verdict(t, way.try(t, p))
			verdict(t, p.unharmed(way.name))
		})
	}
	t.Run("answers that come back as prompts", func(t *testing.T) { verdict(t, p.continues()) })
	t.Run("reports in other words", func(t *testing.T) {
		for _, r := range disguisedReports() {
			if a := p.try(t.Context(), r); a.status != http.StatusBadRequest || !strings.Contains(a.body, "must not ask engines for reports") {
				t.Errorf("%s %.200s is answered with %d: %.300s", r.path, r.raw, a.status, a.body)
			}
		}
	})
	verdict(t, p.unharmed("all of them"))
}

// together sends requests at the same time and returns an error if one was not answered.
func (p *picker) together(t *testing.T, n int, r func(i int) request) error {
	t.Helper()
	var sending sync.WaitGroup
	failures := make([]error, n)
	for i := range n {
		sending.Go(func() {
			if a := p.try(t.Context(), r(i)); a.err != nil || a.status != http.StatusOK {
				failures[i] = fmt.Errorf("request %d: status %d, error %w: %.300s", i, a.status, a.err, a.body)
			}
		})
	}
	sending.Wait()
	return errors.Join(failures...)
}

// unharmed returns nil if the index holds what the only engine holds, all is trusted, and a conversation is predicted.
func (p *picker) unharmed(name string) error {
	if err := p.holdsTheSame(p.engines); err != nil {
		return err
	}
	if err := p.conditionsAreTrue("EventsSynced", "TokensExact"); err != nil {
		return err
	}
	if trusted := p.metric("kvasir_predictions_trusted"); trusted != 1 {
		return fmt.Errorf("kvasir_predictions_trusted is %v", trusted)
	}
	return p.repeated(chat("beside what one client tries", say("user", text("beside "+name, 300))))
}

// continues sends prompts that are an answer with its own prompt, and a little more: blocks that the engine has filled while it
// generated are found, and were predicted.
func (p *picker) continues() error {
	prompt := ids(560, 200)
	for turn := range 3 {
		a := p.send(completion("answers that come back", prompt).with(object{"return_token_ids": true, "max_tokens": 70, "ignore_eos": true}))
		if err := a.exact(); err != nil {
			return fmt.Errorf("turn %d: %w", turn, err)
		}
		if turn > 0 && a.delivered < len(prompt)-5-2*blockTokens {
			return fmt.Errorf("turn %d: %d of %d tokens are found, which are fewer than were generated", turn, a.delivered, len(prompt))
		}
		var body struct {
			Choices []struct {
				IDs []int `json:"token_ids"`
			}
		}
		if err := json.Unmarshal([]byte(a.body), &body); err != nil || len(body.Choices) != 1 || len(body.Choices[0].IDs) != 70 {
			return fmt.Errorf("the answer has no ids: %.300s", a.body)
		}
		prompt = append(append(prompt, body.Choices[0].IDs...), ids(570+turn, 5)...)
		if err := p.settled(p.engines); err != nil {
			return fmt.Errorf("after turn %d: %w", turn, err)
		}
	}
	return nil
}

// disguisedReports ask for reports of cached blocks on all routes that take arguments of the engine, in ways of writing that Python's
// parser of JSON reads alike, or make each event of a request a megabyte long.
func disguisedReports() (all []request) {
	for path, rest := range map[string]string{
		"/v1/completions":        `"prompt": [1, 2, 3], "max_tokens": 1`,
		"/v1/chat/completions":   `"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1`,
		"/v1/responses":          `"input": "Hi", "max_output_tokens": 16`,
		"/v1/messages":           `"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1`,
		"/invocations":           `"prompt": [1, 2, 3], "max_tokens": 1`,
		"/inference/v1/generate": `"token_ids": [1, 2, 3]`,
	} {
		for _, arguments := range []string{
			`"vllm_xargs": {"kv_cache_report_mode": "full"}`,
			`"vllm_xargs": {}, "vllm_xargs": {"a": 1, "kv_cache_report_mode": "full"}`,
			`"vllm_xargs": {"kv_cache_report_mode": "full", "kv_cache_report_mode": "full"}`,
			`"vllm\u005fxargs": {"\u006bv_cache_report_mode": "full"}`,
			`"sampling_params": {"extra_args": {"kv_cache_report_mode": "full"}}`,
			`"session_id": "` + strings.Repeat("s", 1<<20) + `"`,
		} {
			all = append(all, request{path: path, raw: `{"model": "m", ` + arguments + `, ` + rest + `}`})
		}
	}
	return all
}
