package judge

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"
)

// cacheStep is a request whose blocks are observed.
type cacheStep struct {
	name   string
	prompt []int
	tokens int
	fields string
	path   string // in place of a completion
	body   string // of path
	// undo is a path and a body that are sent afterwards, so that releases which accept the step go on as the others do. The answer is
	// not noted.
	undo [2]string
}

// numbers are n ids from first on; small ones keep the recorded frames small.
func consecutive(first, n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = first + i
	}
	return out
}

// filler is a prompt of 1,000 ids below 100 that begins as no other does.
func filler(first int) []int {
	out := make([]int, 1000)
	for i := range out {
		out[i] = 20 + i%50
	}
	out[0] = first
	return out
}

// cacheSteps build on one another: each finds the cache as those before have left it.
func cacheSteps() []cacheStep {
	return []cacheStep{
		{name: "a prompt of two blocks and a rest", prompt: consecutive(10000, 70), tokens: 1},
		{name: "the same prompt", prompt: consecutive(10000, 70), tokens: 1},
		{name: "a longer prompt", prompt: consecutive(10000, 140), tokens: 1},
		{name: "a prompt of whole blocks", prompt: consecutive(20000, 64), tokens: 1},
		{name: "the prompt of whole blocks again", prompt: consecutive(20000, 64), tokens: 1},
		{name: "an answer that fills blocks", prompt: consecutive(30000, 60), tokens: 40},
		{name: "a salted prompt", prompt: consecutive(10000, 70), tokens: 1, fields: `, "cache_salt": "salt"`},
		{name: "prompt log probabilities", prompt: consecutive(10000, 70), tokens: 1, fields: `, "prompt_logprobs": 1`},
		{name: "a first prompt of half the cache", prompt: filler(1), tokens: 1},
		{name: "a second prompt of half the cache", prompt: filler(2), tokens: 1},
		{name: "a third prompt of half the cache", prompt: filler(3), tokens: 1},
		{name: "the first prompt of half the cache again", prompt: filler(1), tokens: 1},
		{name: "a reset", path: "/reset_prefix_cache"},
		{name: "a prompt after the reset", prompt: consecutive(10000, 40), tokens: 1},
	}
}

// cached are the cache steps of the variant.
func (j *judge) cached() []cacheStep {
	all := cacheSteps()
	switch {
	case j.Options:
		return all[:3]
	case j.Rank > 0:
		return append(all[:6:6], all[len(all)-2:]...)
	case j.Variant.Adapters:
		return adapterSteps(j.Target.Adapters)
	case j.Windows:
		return windowSteps()
	}
	return all
}

// cache sends the cache steps and notes what each stores, removes and counts.
func (j *judge) cache(ctx context.Context) error {
	steps := j.cached()
	before, err := j.events.since(ctx, 0)
	if err != nil {
		return err
	}
	next := uint64(len(before))
	counted, err := j.counters(ctx)
	if err != nil {
		return err
	}
	for _, s := range steps {
		name := "cache: " + s.name
		o := j.observation(name)
		r := request{method: "POST", path: s.path, body: s.body}
		if s.path == "" {
			r = post("/v1/completions", "", with(fmt.Sprintf(`"max_tokens": %d, "prompt": %s%s`, s.tokens, list(s.prompt), s.fields)))
		}
		resp, body, err := j.send(ctx, r)
		if err != nil {
			return err
		}
		o.set("status", fmt.Sprint(resp.StatusCode))
		if s.path == "" {
			full := Observation{}
			full.noteJSON("body", body, false)
			for path, v := range full {
				if strings.HasPrefix(path, "body.usage") {
					o[path] = v
				}
			}
		} else {
			o.noteJSON("body", body, false)
		}
		messages, err := j.events.since(ctx, next)
		if err != nil {
			return err
		}
		n := 0
		for _, m := range messages {
			o.set("numbered without gaps", fmt.Sprint(m.seq == next))
			next = m.seq + 1
			n = o.noteBatch(n, m.payload, j.hashes, s.prompt)
			j.frames = append(j.frames, Frame{Case: j.Name + s.name, Seq: m.seq, Payload: m.payload})
		}
		o.set("events", fmt.Sprint(n))
		if s.undo[0] != "" {
			if _, _, err := j.send(ctx, post(s.undo[0], "", s.undo[1])); err != nil {
				return err
			}
		}
		now, err := j.counters(ctx)
		if err != nil {
			return err
		}
		for name, v := range now {
			if d := v - counted[name]; d != 0 {
				o.set("counted "+name, fmt.Sprint(d))
			}
		}
		counted = now
	}
	return nil
}

func list(ids []int) string {
	return strings.ReplaceAll(fmt.Sprint(ids), " ", ", ")
}

// replays notes the form of replays, and whether the live socket has sent the same.
func (j *judge) replays(ctx context.Context) error {
	o := j.observation("replay")
	live := j.events.seen()
	all, err := j.events.replies(ctx, 0)
	if err != nil {
		return err
	}
	for i, r := range all {
		kind := "batch"
		if i == len(all)-1 {
			kind = "end"
			o.set("end", fmt.Sprintf("%x", r[len(r)-2]))
		}
		o.set(kind+" frames", fmt.Sprint(len(r)))
		if len(r) == 4 && kind == "batch" {
			o.set("topic as in live messages", fmt.Sprint(len(live) > 0 && string(r[1]) == live[0].topic))
		} else if len(r) == 4 {
			o.set("topic of the end", fmt.Sprintf("%q", r[1]))
		}
	}
	future, err := j.events.replies(ctx, 1<<40)
	if err != nil {
		return err
	}
	o.set("replies from the future", fmt.Sprint(len(future)))
	same := len(live) > 0
	for _, m := range live {
		r := all[min(int(m.seq), len(all)-1)]
		same = same && bytes.Equal(r[len(r)-1], m.payload)
	}
	o.set("live as replayed", fmt.Sprint(same))
	return nil
}

var sampleLine = regexp.MustCompile(`^([a-zA-Z_:]+)(?:\{(.*)\})? (\S+)$`)

func (j *judge) scrape(ctx context.Context) (string, error) {
	_, body, err := j.send(ctx, request{method: "GET", path: "/metrics"})
	return string(body), err
}

// counters are the counters about prompts and requests, once they no longer move.
func (j *judge) counters(ctx context.Context) (map[string]float64, error) {
	text, err := settled(ctx, func() (string, error) {
		text, err := j.scrape(ctx)
		var kept []string
		for line := range strings.Lines(text) {
			if counter.MatchString(line) {
				kept = append(kept, line)
			}
		}
		return strings.Join(kept, ""), err
	})
	out := map[string]float64{}
	for line := range strings.Lines(text) {
		if m := sampleLine.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
			var v float64
			if _, err := fmt.Sscan(m[3], &v); err != nil {
				return nil, err
			}
			out[m[1]+labels(m[2], "finished_reason", "source")] += v
		}
	}
	return out, err
}

var counter = regexp.MustCompile(`^vllm:(prefix_cache_(queries|hits)|prompt_tokens(_cached|_by_source)?|generation_tokens|request_success|num_preemptions)_total\{`)

var label = regexp.MustCompile(`([a-zA-Z_]+)="((?:[^"\\]|\\.)*)"`)

// labels keeps the labels named.
func labels(text string, names ...string) string {
	var kept []string
	for _, m := range label.FindAllStringSubmatch(text, -1) {
		if slices.Contains(names, m[1]) {
			kept = append(kept, m[0])
		}
	}
	sort.Strings(kept)
	if len(kept) == 0 {
		return ""
	}
	return "{" + strings.Join(kept, ",") + "}"
}

// read are the families that a router can read: their labels and, of gauges, their values at rest are compared.
var read = regexp.MustCompile(`^vllm:(num_requests_(running|waiting|waiting_by_reason)|kv_cache_usage_perc|gpu_cache_usage_perc|` +
	`(gpu_)?prefix_cache_(queries|hits)_total|num_preemptions_total|prompt_tokens_total|generation_tokens_total|request_success_total|` +
	`engine_sleep_state|admission_rejections_total|lora_requests_info)$`)

// metrics notes the families that there are, and what routers read of them while nothing runs.
func (j *judge) metrics(ctx context.Context) error {
	text, err := j.scrape(ctx)
	if err != nil {
		return err
	}
	o := j.observation("metrics")
	kinds := map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if f := strings.Fields(line); len(f) == 4 && f[1] == "TYPE" && strings.HasPrefix(f[2], "vllm:") && !strings.HasSuffix(f[2], "_created") {
			o.set("type of "+f[2], f[3])
			kinds[f[2]] = f[3]
			continue
		}
		m := sampleLine.FindStringSubmatch(line)
		switch {
		case m == nil || j.Rank > 0 && !strings.Contains(m[2], fmt.Sprintf(`engine="%d"`, j.Rank)):
		case m[1] == "vllm:cache_config_info":
			o.set(m[1], labels(m[2], "block_size", "num_gpu_blocks", "enable_prefix_caching", "engine", "model_name", "kv_cache_size_tokens"))
		case read.MatchString(m[1]):
			value := "number"
			if kinds[m[1]] == "gauge" {
				value = m[3]
			}
			o.set(m[1]+"{"+m[2]+"}", value)
		}
	}
	return nil
}

// idle notes whether the engine closes a connection on which nothing is asked, and after how long.
func (j *judge) idle(ctx context.Context) error {
	u, err := url.Parse(j.URL)
	if err != nil {
		return err
	}
	c, err := new(net.Dialer).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return err
	}
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	start := time.Now()
	if err := c.SetReadDeadline(start.Add(15 * time.Second)); err != nil {
		return err
	}
	_, err = r.ReadByte()
	value := "no"
	if waited := time.Since(start); errors.Is(err, io.EOF) {
		value = "yes, at once"
		if waited > 4*time.Second {
			value = "yes, after five seconds"
		}
	}
	j.observation("an idle connection").set("closed", value)
	return nil
}

// queue notes how requests are refused while the queue is full.
func (j *judge) queue(ctx context.Context) error {
	full, empty := context.WithCancel(ctx)
	defer empty()
	if err := j.fill(full); err != nil {
		return err
	}
	list := refusable()
	if j.Options {
		list = []request{
			post("/v1/completions", "plain", with(`"prompt": [5, 6, 7]`)),
			post("/v1/chat/completions", "plain", with(hello)),
			post("/v1/completions", "streamed", with(`"prompt": [5, 6, 7], "stream": true`)),
			post("/v1/chat/completions", "streamed", with(hello+`, "stream": true`)),
		}
	}
	for _, r := range list {
		r.name = "with full queues: " + r.name
		if err := j.ask(ctx, r); err != nil {
			return err
		}
	}
	text, err := j.scrape(ctx)
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		if m := sampleLine.FindStringSubmatch(strings.TrimSpace(line)); m != nil && m[1] == "vllm:admission_rejections_total" {
			j.observation("with full queues: metrics").set(m[1]+labels(m[2], "reason"), m[3])
		}
	}
	empty()
	// Gauges are those of the last step: one more request shows that the others are gone.
	for {
		resp, _, err := j.send(ctx, post("/v1/completions", "", with(`"prompt": [5, 6, 7]`)))
		if err != nil || resp.StatusCode == http.StatusOK {
			return err
		}
	}
}

// fill sends as many requests as the queue allows and returns when they run; they end with ctx.
func (j *judge) fill(ctx context.Context) error {
	long := with(fmt.Sprintf(`"max_tokens": %d, "stream": true, "prompt": %s`, j.long(), list(consecutive(40000, 40))))
	for range maxSeqs {
		go func() {
			if resp, err := j.open(ctx, post("/v1/completions", "", long)); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		}()
	}
	return j.gauge(ctx, "vllm:num_requests_running", maxSeqs)
}
