package judge

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// rankHeader names the data-parallel rank that a request is for.
const rankHeader = "X-data-parallel-rank"

// adapterSteps load, use and unload the adapters at two paths.
func adapterSteps(paths [2]string) []cacheStep {
	const load, unload, tuned = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", `, "model": "tuned"`
	prompt := consecutive(10000, 70)
	of := func(name, path, more string) string {
		return fmt.Sprintf(`{"lora_name": %q, "lora_path": %q%s}`, name, path, more)
	}
	return []cacheStep{
		{name: "a prompt for the model", prompt: prompt, tokens: 1},
		{name: "a prompt for an adapter that is not loaded", prompt: prompt, tokens: 1, fields: tuned},
		{name: "an adapter that is nowhere", path: load, body: of("tuned", "/nowhere/at/all", "")},
		{name: "an adapter with the model's name", path: load, body: of(Model, paths[0], ""),
			undo: [2]string{unload, fmt.Sprintf(`{"lora_name": %q}`, Model)}},
		{name: "an adapter without a path", path: load, body: `{"lora_name": "tuned"}`},
		{name: "an adapter is loaded", path: load, body: of("tuned", paths[0], "")},
		{name: "a prompt for the adapter", prompt: prompt, tokens: 1, fields: tuned},
		{name: "the prompt for the adapter again", prompt: prompt, tokens: 1, fields: tuned},
		{name: "a salted prompt for the adapter", prompt: prompt, tokens: 1, fields: tuned + `, "cache_salt": "salt"`},
		{name: "the adapter is loaded again", path: load, body: of("tuned", paths[0], "")},
		{name: "a second adapter is loaded", path: load, body: of("other", paths[1], "")},
		{name: "a prompt for the second adapter", prompt: prompt, tokens: 1, fields: `, "model": "other"`},
		{name: "the adapter is unloaded", path: unload, body: `{"lora_name": "tuned"}`},
		{name: "a prompt for the unloaded adapter", prompt: prompt, tokens: 1, fields: tuned},
		{name: "the adapter is unloaded again", path: unload, body: `{"lora_name": "tuned"}`},
		{name: "other weights are loaded under its name", path: load, body: of("tuned", paths[1], "")},
		{name: "a prompt for the other weights", prompt: prompt, tokens: 1, fields: tuned},
		{name: "the prompt for the model again", prompt: prompt, tokens: 1},
	}
}

// windowSteps find what a model whose layers have windows keeps, until prompts evict one another.
func windowSteps() []cacheStep {
	long := consecutive(10000, 500)
	steps := []cacheStep{
		{name: "a prompt within the window", prompt: consecutive(30000, 70), tokens: 1},
		{name: "the prompt within the window again", prompt: consecutive(30000, 70), tokens: 1},
		{name: "a prompt beyond the window", prompt: long, tokens: 1},
		{name: "the prompt beyond the window again", prompt: long, tokens: 1},
		{name: "a longer prompt", prompt: consecutive(10000, 640), tokens: 1},
		{name: "a part of the prompt", prompt: consecutive(10000, 300), tokens: 1},
		{name: "another end of the prompt", prompt: append(consecutive(10000, 480), consecutive(40000, 40)...), tokens: 1},
		{name: "an answer that fills blocks", prompt: consecutive(50000, 100), tokens: 80},
	}
	for i := range 6 {
		steps = append(steps, cacheStep{name: fmt.Sprintf("prompt %d that takes room", i+1), prompt: filler(i + 1), tokens: 1})
	}
	return append(steps, cacheStep{name: "the first prompt that took room", prompt: filler(1), tokens: 1},
		cacheStep{name: "the prompt beyond the window at the end", prompt: long, tokens: 1})
}

// ranks notes how a header with a rank is read, and what the engine says of its ranks' events.
func (j *judge) ranks(ctx context.Context) error {
	r := post("/v1/completions", "", with(`"prompt": [5, 6, 7]`))
	for name, rank := range map[string]string{"beyond the last": "2", "below zero": "-1", "that is no number": "first"} {
		r.name, r.headers = "a rank "+name, []string{rankHeader, rank}
		if err := j.ask(ctx, r); err != nil {
			return err
		}
	}
	return j.ask(ctx, request{name: "GET /kv_event_sources", method: http.MethodGet, path: "/kv_event_sources"})
}

// stop is a way in which an engine stops computing, and how it goes on.
type stop struct{ name, path, resume string }

// stops notes what an engine that sleeps or is paused shows and answers, and what of its cache is left afterwards.
func (j *judge) stops(ctx context.Context) error {
	if err := j.ask(ctx, request{name: "GET /v1/models", method: http.MethodGet, path: "/v1/models"}); err != nil {
		return err
	}
	for _, path := range []string{"/sleep?level=9", "/pause?mode=odd"} {
		if err := j.ask(ctx, post(path, "", "")); err != nil {
			return err
		}
	}
	// A release that takes a level that does not exist sleeps now.
	if _, _, err := j.send(ctx, post("/wake_up", "", "")); err != nil {
		return err
	}
	for i, s := range []stop{
		{"sleep of level 0", "/sleep?level=0", "/wake_up"},
		{"sleep of level 1", "/sleep?level=1", "/wake_up"},
		{"a pause that keeps requests", "/pause?mode=keep", "/resume"},
		{"a pause that keeps the cache", "/pause?mode=wait&clear_cache=false", "/resume"},
		{"a pause that aborts", "/pause?mode=abort", "/resume"},
	} {
		if err := j.stopped(ctx, s, consecutive(60000+1000*i, 70)); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return j.abortedByPause(ctx)
}

// stopped observes one stop: a prompt is cached, the engine is stopped, the prompt comes again and is answered when the
// engine goes on.
func (j *judge) stopped(ctx context.Context, s stop, prompt []int) error {
	o := j.observation(s.name)
	body := with(fmt.Sprintf(`"max_tokens": 1, "prompt": %s`, list(prompt)))
	if _, _, err := j.send(ctx, post("/v1/completions", "", body)); err != nil {
		return err
	}
	before, err := j.events.since(ctx, 0)
	if err != nil {
		return err
	}
	if err := j.noteCall(ctx, o, "stopping", http.MethodPost, s.path); err != nil {
		return err
	}
	if err := j.noteState(ctx, o, "stopped"); err != nil {
		return err
	}
	answered := make(chan error, 1)
	after := Observation{}
	go func() {
		resp, data, err := j.send(ctx, post("/v1/completions", "", body))
		if err == nil {
			j.answer(after, resp, data, false)
		}
		answered <- err
	}()
	select {
	case err := <-answered:
		answered <- err
		o.set("a request meanwhile", "is answered")
	case <-time.After(time.Second):
		o.set("a request meanwhile", "waits")
	}
	if err := j.noteState(ctx, o, "with a request"); err != nil {
		return err
	}
	if err := j.noteCall(ctx, o, "going on", http.MethodPost, s.resume); err != nil {
		return err
	}
	if err := <-answered; err != nil {
		return err
	}
	for path, v := range after {
		if path == "status" || strings.HasPrefix(path, "body.usage") || strings.HasSuffix(path, "finish_reason") {
			o.set("its answer: "+path, v)
		}
	}
	if err := j.noteState(ctx, o, "afterwards"); err != nil {
		return err
	}
	messages, err := j.events.since(ctx, uint64(len(before)))
	if err != nil {
		return err
	}
	n := 0
	for _, m := range messages {
		n = o.noteBatch(n, m.payload, j.hashes, prompt)
		j.frames = append(j.frames, Frame{Case: j.Name + s.name, Seq: m.seq, Payload: m.payload})
	}
	o.set("events", fmt.Sprint(n))
	return nil
}

// noteCall notes the answer to a call without a body.
func (j *judge) noteCall(ctx context.Context, o Observation, what, method, path string) error {
	resp, body, err := j.send(ctx, request{method: method, path: path})
	if err != nil {
		return err
	}
	called := Observation{}
	j.answer(called, resp, body, false)
	for path, v := range called {
		o.set(what+": "+path, v)
	}
	return nil
}

// noteState notes what an engine says about whether it computes.
func (j *judge) noteState(ctx context.Context, o Observation, when string) error {
	for _, path := range []string{"/is_sleeping", "/is_paused", "/health"} {
		if err := j.noteCall(ctx, o, when+": "+path, http.MethodGet, path); err != nil {
			return err
		}
		delete(o, when+": "+path+": headers")
	}
	text, err := settled(ctx, func() (string, error) { return j.scrape(ctx) })
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		m := sampleLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		switch m[1] {
		case "vllm:engine_sleep_state", "vllm:num_requests_running", "vllm:num_requests_waiting":
			o.set(when+": "+m[1]+labels(m[2], "sleep_state"), m[3])
		}
	}
	return nil
}

// abortedByPause notes how a request ends that runs when the engine is paused.
func (j *judge) abortedByPause(ctx context.Context) error {
	o := j.observation("a request that a pause aborts")
	type result struct {
		data []byte
		err  error
	}
	for {
		ended, done := make(chan result, 1), make(chan string, 1)
		go func() {
			_, data, err := j.send(ctx, post("/v1/completions", "", with(fmt.Sprintf(`"max_tokens": %d, "prompt": %s`,
				j.long(), list(consecutive(40000, 40))))))
			ended <- result{data, err}
			done <- ""
		}()
		runs, err := j.running(ctx, 1, done)
		if err != nil {
			return err
		}
		if err := j.noteCall(ctx, o, "stopping", http.MethodPost, "/pause?mode=abort"); err != nil {
			return err
		}
		if err := j.noteCall(ctx, o, "going on", http.MethodPost, "/resume"); err != nil {
			return err
		}
		r := <-ended
		if !runs || r.err == nil && strings.Contains(string(r.data), `"finish_reason":"length"`) {
			continue // it ended by itself, on a machine that is as fast as this
		}
		o.set("ends", ending(r.data, r.err))
		return nil
	}
}
