package real

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// apart is the policy of pools whose endpoints prefill or decode: all that lack more than a block are handed over.
const (
	apart         = "  disaggregation: {type: Threshold, uncachedTokens: 33}\n"
	apartMooncake = "  disaggregation: {type: Threshold, uncachedTokens: 33, connector: Mooncake, connectorPort: %d}\n"
)

// startApart starts an engine that prefills, one that decodes, and a picker.
func startApart(t *testing.T, connector string) ([]*engine, *picker) {
	t.Helper()
	need(t)
	if connector == mooncake {
		needWholeRun(t)
	}
	if !atLeast("0.32") {
		leaveOut(t, "hand-offs are tested with vLLM 0.32 and newer")
	}
	config := engineConfig{model: attentive, connector: connector}
	engines := startEngines(t, config, config)
	policy := apart
	if connector == mooncake {
		policy = fmt.Sprintf(apartMooncake, engines[0].side)
	}
	return engines, startPicker(t, engines, pickerConfig{files: true, policy: policy, roles: []string{"prefill", "decode"}})
}

// said is the text of an answer, streamed or not.
func (a answer) said() (string, error) {
	if a.err != nil || a.status != http.StatusOK {
		return "", fmt.Errorf("%s: status %d, error %w: %.600s", a.request.shape, a.status, a.err, a.body)
	}
	lines := []string{a.body}
	if a.events > 0 {
		lines = strings.Split(a.body, "\n")
	}
	var out strings.Builder
	for _, line := range lines {
		line = strings.TrimPrefix(line, "data: ")
		var body struct {
			Error   any
			Type    string
			Choices []struct {
				Text           string
				Message, Delta struct{ Content string }
			}
			Output  []struct{ Content []struct{ Text string } } // of Responses
			Content []struct{ Text string }                     // of Messages
			Delta   json.RawMessage                             // of both
		}
		if json.Unmarshal([]byte(line), &body) != nil {
			continue
		}
		if body.Error != nil {
			return "", fmt.Errorf("%s: an error in the answer: %s", a.request.shape, line)
		}
		for _, c := range body.Choices {
			out.WriteString(c.Text + c.Message.Content + c.Delta.Content)
		}
		for _, o := range body.Output {
			for _, c := range o.Content {
				out.WriteString(c.Text)
			}
		}
		for _, c := range body.Content {
			out.WriteString(c.Text)
		}
		var piece struct{ Text string }
		var text string
		if json.Unmarshal(body.Delta, &piece) == nil {
			out.WriteString(piece.Text)
		} else if json.Unmarshal(body.Delta, &text) == nil && body.Type == "response.output_text.delta" {
			out.WriteString(text)
		}
	}
	return out.String(), nil
}

// alone is the answer of one engine that finds nothing in its cache.
func alone(t *testing.T, e *engine, r request) string {
	t.Helper()
	text, err := post(context.Background(), e.url, r.with(object{"cache_salt": fmt.Sprint(rand.Uint64())})).said()
	if err != nil || text == "" {
		t.Fatalf("an engine alone answers %q: %v", text, err)
	}
	return text
}

// handoffs waits until so many hand-offs have ended in a way.
func (p *picker) handoffs(outcome string, want int) {
	p.t.Helper()
	p.until(fmt.Sprintf("%d hand-offs are %s", want, outcome), func() error {
		if n := p.metric("kvasir_handoffs_total", `outcome="`+outcome+`"`); n != float64(want) {
			return fmt.Errorf("kvasir_handoffs_total is %v", n)
		}
		return nil
	})
}

// steady makes a request whose answer depends on nothing but its prompt.
func steady(r request, stream bool) request {
	r = r.with(object{"temperature": 0, "stream": stream})
	switch r.path {
	case "/v1/responses":
		return r.with(object{"max_output_tokens": 12})
	case "/v1/messages":
		return r.with(object{"max_tokens": 12})
	}
	r = r.with(object{"max_tokens": 12, "seed": 1, "ignore_eos": true})
	if stream {
		r = r.with(object{"stream_options": object{"include_usage": true}})
	}
	return r
}

// TestPromptsAreHandedOver: an engine that prefills and another one that decodes answer as one alone does, and the first finds in its
// cache what was predicted.
func TestPromptsAreHandedOver(t *testing.T) {
	n, cached, engines, p := handOver(t, nixl)
	if found := p.metric("kvasir_delivered_hit_tokens_total", `endpoint="pod-0/0"`); found != float64(cached) {
		t.Errorf("the engine that prefills has found %v tokens, and clients have got %d", found, cached)
	}
	if moved := engines[1].metric("vllm:nixl_xfer_time_seconds_count"); moved != float64(n) {
		t.Errorf("%v transfers, want %d", moved, n)
	}
}

// TestPromptsAreHandedOverAtOnce is the same with MooncakeConnector, for which both engines get the request at once.
func TestPromptsAreHandedOverAtOnce(t *testing.T) { handOver(t, mooncake) }

// handOver sends requests of all routes and compares their answers. It returns how many, and the cached tokens that clients have seen.
func handOver(t *testing.T, connector string) (n, cached int, engines []*engine, p *picker) {
	engines, p = startApart(t, connector)
	for _, stream := range []bool{false, true} {
		opening := say("user", text(fmt.Sprint("a hand-off, streamed: ", stream), 300))
		for _, r := range []request{
			chat("handed over", opening), completion("handed over", ids(41+n, 500)), completion("handed over", text(fmt.Sprint("bridge ", n), 200)),
			{shape: "a response", path: "/v1/responses", body: object{"model": "m", "input": text(fmt.Sprint("a response, streamed: ", stream), 250)}},
			{shape: "messages", path: "/v1/messages", body: object{"model": "m", "messages": []object{
				say("user", text(fmt.Sprint("messages, streamed: ", stream), 250))}}},
			chat("handed over again", opening, say("assistant", "Yes."), say("user", text("and then", 200))),
		} {
			r = steady(r, stream)
			want := alone(t, engines[0], r)
			a := p.try(context.Background(), r)
			got, err := a.said()
			if err != nil || got != want {
				t.Errorf("%s, streamed %v: %q, %v; want %q", r.shape, stream, got, err, want)
			}
			if by := a.header.Get("x-kvasir-prefill-endpoint"); a.pod != "pod-1" || by != "pod-0/0" {
				t.Errorf("%s, streamed %v: prefilled by %q, answered by %q", r.shape, stream, by, a.pod)
			}
			n++
			cached += a.delivered
			p.handoffs("completed", n)
			verdict(t, p.settled(engines))
		}
	}
	predicted, found := p.metric("kvasir_predicted_hit_tokens_total", `endpoint="pod-0/0"`), p.metric("kvasir_delivered_hit_tokens_total", `endpoint="pod-0/0"`)
	if off := p.metric("kvasir_hit_deviation_tokens_total"); off != 0 || predicted != found || found == 0 {
		t.Errorf("the engine that prefills was predicted to find %v tokens and has found %v", predicted, found)
	}
	const source = "vllm:prompt_tokens_by_source_total"
	if computed, loaded := engines[1].metric(source, `"local_compute"`), engines[1].metric(source, `"external_kv_transfer"`); computed != 0 || loaded == 0 {
		t.Errorf("the engine that decodes has computed %v tokens of prompts and loaded %v", computed, loaded)
	}
	return n, cached, engines, p
}

// TestAKilledEngineThatPrefilledLosesNoRequest: while requests are handed over, the engine that prefills dies.
func TestAKilledEngineThatPrefilledLosesNoRequest(t *testing.T) {
	needWholeRun(t)
	killPrefill(t, nixl)
}

// TestAKilledEngineLosesNoRequestSentAtOnce is the same with MooncakeConnector.
func TestAKilledEngineLosesNoRequestSentAtOnce(t *testing.T) { killPrefill(t, mooncake) }

func killPrefill(t *testing.T, connector string) {
	engines, p := startApart(t, connector)
	var wrong []error
	var mu sync.Mutex
	var clients sync.WaitGroup
	ask := func(family int) {
		r := completion("while an engine dies", ids(family, 600))
		if family%3 == 0 {
			r = request{shape: "a response", path: "/v1/responses", body: object{"model": "m", "input": text(fmt.Sprint("while it dies: ", family), 300)}}
		}
		r = steady(r, family%2 == 0)
		got, err := p.try(context.Background(), r).said()
		if want := alone(t, engines[1], r); err == nil && got != want {
			err = fmt.Errorf("prompt %d: %q, want %q", family, got, want)
		}
		mu.Lock()
		defer mu.Unlock()
		wrong = append(wrong, err)
	}
	const each = 12
	reached := make(chan struct{}, 3*each)
	for client := range 3 {
		clients.Go(func() {
			for i := range each {
				ask(100*client + i)
				reached <- struct{}{}
			}
		})
	}
	for range each {
		<-reached
	}
	engines[0].kill()
	clients.Wait()
	if err := errors.Join(wrong...); err != nil || len(wrong) != 3*each {
		t.Errorf("of %d requests: %v", len(wrong), err)
	}
	if n := p.metric("kvasir_handoffs_total", `outcome="completed"`); n < 1 {
		t.Errorf("%v hand-offs are completed", n)
	}
}

// TestParametersServeOnce: an engine that reads blocks does not ask whether they are still those of the prompt. After one has read them
// they are free, and another one that gets the same parameters answers with what has taken their place. So must an expired lease.
// This is why no parameters are sent twice.
func TestParametersServeOnce(t *testing.T) {
	engines, _ := startApart(t, nixl)
	prefill, decode := engines[0], engines[1]
	r := steady(completion("twice", ids(7, 300)), false)
	want := alone(t, decode, r)
	first := post(context.Background(), prefill.url, r.with(object{"max_tokens": 1, "kv_transfer_params": object{
		"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": nil, "remote_block_ids": nil, "remote_host": nil, "remote_port": nil}}))
	var reply struct {
		Parameters json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal([]byte(first.body), &reply); err != nil {
		t.Fatal(err)
	}
	load := func() string {
		got, err := post(context.Background(), decode.url, r.with(object{"kv_transfer_params": reply.Parameters})).said()
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := load(); got != want {
		t.Errorf("the first time: %q, want %q", got, want)
	}
	for _, e := range engines { // other prompts take all blocks of both
		for family := range 4 {
			alone(t, e, steady(completion("filler", ids(900+family, 4000)), false))
		}
	}
	time.Sleep(100 * time.Millisecond)
	if got := load(); got == want {
		t.Error("parameters serve twice with this release: read blocks are kept, or the engine that reads asks whether they are")
	}
}
