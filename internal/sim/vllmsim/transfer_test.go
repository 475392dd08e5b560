package vllmsim

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// decodes is what a request to prefill for another engine says.
var decodes = object{
	"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": nil, "remote_block_ids": nil,
	"remote_host": nil, "remote_port": nil,
}

// pair starts an engine that prefills and one that decodes.
func pair(t *testing.T, prefill, decode Transfer) (p, d *Engine) {
	t.Helper()
	prefill.Enabled, decode.Enabled = true, true
	return start(t, Config{Transfer: prefill}), start(t, Config{Transfer: decode})
}

// prefilled has p prefill a prompt, and returns the parameters of its answer.
func prefilled(t *testing.T, p *Engine, prompt []uint32) json.RawMessage {
	t.Helper()
	status, b := post(t, p, "/v1/completions", object{"prompt": prompt, "max_tokens": 1, "kv_transfer_params": decodes})
	var answer struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(b, &answer); err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v: %s", status, err, b)
	}
	return answer.Params
}

// loaded are the completion's tokens and cached tokens by an engine that gets params.
func loaded(t *testing.T, d *Engine, prompt []uint32, params any) (text string, cached int) {
	t.Helper()
	r := complete(t, d, "/v1/completions", object{"prompt": prompt, "max_tokens": 20, "kv_transfer_params": params})
	if r.Usage.Details == nil {
		t.Fatalf("no usage: %+v", r)
	}
	return r.Choices[0].Text, r.Usage.Details.Cached
}

func heldBy(t *testing.T, e *Engine) float64 {
	t.Helper()
	_, text := get(t, e, "/metrics")
	return sample(t, text, `vllmsim:held_requests{engine="0",model_name="sim-model"}`)
}

func counted(t *testing.T, e *Engine, name string) float64 {
	t.Helper()
	_, text := get(t, e, "/metrics")
	return sample(t, text, name+`{engine="0",model_name="sim-model"}`)
}

func TestAPromptIsHandedOver(t *testing.T) {
	p, d := pair(t, Transfer{}, Transfer{})
	prompt := ids(0, 100)
	want := complete(t, start(t, Config{}), "/v1/completions", object{"prompt": prompt, "max_tokens": 20}).Choices[0].Text
	params := prefilled(t, p, prompt)
	for _, field := range []string{`"do_remote_prefill":true`, `"do_remote_decode":false`, `"remote_block_ids":[[`, `"remote_port":`} {
		if !strings.Contains(string(params), field) {
			t.Errorf("%s lacks %s", params, field)
		}
	}
	if held, used := heldBy(t, p), p.Stats().UsedBlocks; held != 1 || used != 7 {
		t.Errorf("%v requests held in %d blocks, want 1 in 7", held, used)
	}
	text, cached := loaded(t, d, prompt, params)
	if text != want || cached != 0 {
		t.Errorf("answer %q with %d tokens cached, want %q with those that the first engine had found, 0", text, cached, want)
	}
	if n := d.Match("", "", prompt); n != 6 {
		t.Errorf("the prompt's blocks in the cache are %d, want 6", n)
	}
	eventually(t, "the blocks are free", func() bool { return heldBy(t, p) == 0 && p.Stats().UsedBlocks == 0 })
}

// TestAnEngineAnnouncesTheAddressThatItIsGiven: it can listen at 0.0.0.0, where others cannot reach it.
func TestAnEngineAnnouncesTheAddressThatItIsGiven(t *testing.T) {
	p := start(t, Config{Transfer: Transfer{Enabled: true, Host: "192.0.2.7"}})
	if params := string(prefilled(t, p, ids(0, 100))); !strings.Contains(params, `"remote_host":"192.0.2.7"`) {
		t.Errorf("parameters %s", params)
	}
}

// An engine that reads blocks does not notice that they are free (TestParametersServeOnce of test/real).
func TestBlocksThatNoEngineReadsExpire(t *testing.T) {
	p, d := pair(t, Transfer{Lease: 50 * time.Millisecond}, Transfer{})
	params := prefilled(t, p, ids(0, 100))
	eventually(t, "the lease ends", func() bool { return counted(t, p, "vllm:nixl_num_kv_expired_reqs_total") == 1 })
	eventually(t, "the blocks are free", func() bool { return p.Stats().UsedBlocks == 0 })
	right := complete(t, start(t, Config{}), "/v1/completions", object{"prompt": ids(0, 100), "max_tokens": 20}).Choices[0].Text
	if text, _ := loaded(t, d, ids(0, 100), params); text == right {
		t.Error("blocks that are free are read as if they were not")
	}
	if n := counted(t, d, "vllm:nixl_num_failed_transfers_total"); n != 0 {
		t.Errorf("%v failed transfers, want 0", n)
	}
}

func TestAnEngineThatIsGoneFailsTheRequest(t *testing.T) {
	p, d := pair(t, Transfer{}, Transfer{})
	params := prefilled(t, p, ids(0, 100))
	p.Kill()
	status, b := post(t, d, "/v1/completions", object{"prompt": ids(0, 100), "kv_transfer_params": params})
	if status != http.StatusInternalServerError {
		t.Errorf("status %d: %s", status, b)
	}
	if n := counted(t, d, "vllm:nixl_num_failed_transfers_total"); n != 1 {
		t.Errorf("%v failed transfers, want 1", n)
	}
	resp := open(context.Background(), t, d, "/v1/completions", object{"prompt": ids(0, 100), "stream": true, "kv_transfer_params": params})
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if s := string(text); !strings.HasPrefix(s, `data: {"error":`) || !strings.HasSuffix(s, "data: [DONE]\n\n") {
		t.Errorf("a stream whose blocks are gone: %q", s)
	}
}

// The usage of the engine that decodes counts what the one that prefills has found, from 0.31 on, and before what it has loaded.
func TestUsageOfLoadedPrompts(t *testing.T) {
	for release, want := range map[Release]int{30 << 8: 100, 31 << 8: 96} {
		c := Config{Release: release, Transfer: Transfer{Enabled: true}}
		p, d := start(t, c), start(t, c)
		prefilled(t, p, ids(0, 100))
		if _, cached := loaded(t, d, ids(0, 100), prefilled(t, p, ids(0, 100))); cached != want {
			t.Errorf("%v: %d tokens cached, want %d", release, cached, want)
		}
	}
}

func TestAnEngineThatRecomputesDoesNotFail(t *testing.T) {
	p, d := pair(t, Transfer{}, Transfer{Recompute: true})
	params := prefilled(t, p, ids(0, 100))
	p.Kill()
	if _, cached := loaded(t, d, ids(0, 100), params); cached != 0 {
		t.Errorf("%d tokens cached, want 0", cached)
	}
}

func TestATransferTakesItsTime(t *testing.T) {
	p, d := pair(t, Transfer{}, Transfer{Base: time.Hour})
	params := prefilled(t, p, ids(0, 100))
	ctx, cancel := context.WithCancel(context.Background())
	resp := open(ctx, t, d, "/v1/completions", object{"prompt": ids(0, 100), "stream": true, "kv_transfer_params": params})
	cancel()
	_ = resp.Body.Close()
	eventually(t, "an abort frees the blocks", func() bool { return heldBy(t, p) == 0 && p.Stats().UsedBlocks == 0 })
	if s := d.Stats(); s.Finished+s.Aborted != 0 {
		t.Errorf("the request was started: %+v", s)
	}
}

func TestEnginesWithoutConnectorServeLocally(t *testing.T) {
	e := start(t, Config{})
	if params := prefilled(t, e, ids(0, 100)); string(params) != "null" {
		t.Errorf("parameters %s, want null", params)
	}
	if _, cached := loaded(t, e, ids(200, 100), json.RawMessage(`{"do_remote_prefill":true,"remote_host":"127.0.0.1","remote_port":1}`)); cached != 0 {
		t.Errorf("%d tokens cached, want 0", cached)
	}
}

func TestTransferConfig(t *testing.T) {
	for text, want := range map[string]Transfer{
		`{"kv_connector":"NixlConnector","kv_role":"kv_both"}`: {Enabled: true},
		`{"kv_connector":"NixlConnector","kv_load_failure_policy":"recompute","kv_connector_extra_config":{"kv_lease_duration":2.5}}`: {
			Enabled: true, Recompute: true, Lease: 2500 * time.Millisecond},
	} {
		if got, err := ParseTransfer(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{``, `{}`, `{"kv_connector":"P2pNcclConnector"}`,
		`{"kv_connector":"NixlConnector","kv_load_failure_policy":"retry"}`,
		`{"kv_connector":"NixlConnector","kv_connector_extra_config":{"kv_lease_duration":-1}}`} {
		if got, err := ParseTransfer(text); err == nil {
			t.Errorf("%s: %+v, want an error", text, got)
		}
	}
}

// The simulated tier p2p takes from parameters what vLLM's own code does (own_offloading_test.go of test/real).
func TestTheTierUnderstandsAsRecorded(t *testing.T) {
	raw, err := os.ReadFile("../../../test/real/offloading/wire.json")
	if err != nil {
		t.Fatal(err)
	}
	var recorded []struct {
		Parameters json.RawMessage
		Source     *struct {
			Peer string `json:"peer_id"`
			Name string `json:"kv_request_id"`
			Asks bool   `json:"do_probe"`
		}
		Dest *struct {
			Name string `json:"kv_request_id"`
		}
	}
	if err := json.Unmarshal(raw, &recorded); err != nil {
		t.Fatal(err)
	}
	for _, r := range recorded {
		var p transferParams
		if err := json.Unmarshal(r.Parameters, &p); err != nil {
			t.Fatal(err)
		}
		concerns := p.read(Offloading)
		holds, loads := r.Dest != nil && r.Dest.Name != "", r.Source != nil
		if concerns != (holds || loads) || p.RemoteDecode != holds || p.loads() != loads || loads && p.pulls != r.Source.Asks {
			t.Errorf("%s: holds %v, loads %v, want %v and %v", r.Parameters, p.RemoteDecode, p.RemotePrefill, holds, loads)
		}
		if holds && p.holdAs != r.Dest.Name || loads && (p.Request != r.Source.Name || net.JoinHostPort(p.Host, strconv.Itoa(p.Port)) != r.Source.Peer) {
			t.Errorf("%s: holds as %q, loads %q of %s:%d", r.Parameters, p.holdAs, p.Request, p.Host, p.Port)
		}
	}
}
