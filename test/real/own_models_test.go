package real

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestAdaptersAreKeptApart loads an adapter while the engine runs. Its requests share no block with those of the model,
// are predicted exactly, and are forgotten when other weights are loaded under the same name.
func TestAdaptersAreKeptApart(t *testing.T) {
	need(t)
	if !atLeast("0.14") {
		t.Skipf("events of vLLM %s name no adapters", run.release)
	}
	engines := startEngines(t, engineConfig{flags: []string{"--enable-lora", "--max-lora-rank", "8", "--max-loras", "2"},
		env: []string{"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"}})
	if atLeast(hybridSince) {
		startAhead(t, hybrid)
	}
	e := engines[0]
	p := startPicker(t, engines, pickerConfig{files: true})
	load := func(path string) {
		t.Helper()
		if status, body := e.call(http.MethodPost, "/v1/load_lora_adapter", object{"lora_name": "tuned", "lora_path": path}); status != http.StatusOK {
			stop(t, fmt.Errorf("loading an adapter answers %d: %s", status, body))
		}
	}
	load(writeAdapter(t, 1))
	messages := []object{say("user", text("adapters", 300))}
	verdict(t, p.repeated(chat("beside an adapter", messages...)))
	r := chat("adapter", messages...).with(object{"model": "tuned"})
	p.until("the adapter is served", func() error {
		if a := p.try(t.Context(), chat("-", say("user", "hello")).with(object{"model": "tuned"})); a.status != http.StatusOK {
			return fmt.Errorf("status %d: %s", a.status, a.body)
		}
		return nil
	})
	verdict(t, p.repeated(r))

	t.Run("loaded again with other weights", func(t *testing.T) {
		if status, body := e.call(http.MethodPost, "/v1/unload_lora_adapter", object{"lora_name": "tuned"}); status != http.StatusOK {
			stop(t, fmt.Errorf("unloading an adapter answers %d: %s", status, body))
		}
		p.until("the adapter is gone", func() error {
			if a := p.try(t.Context(), chat("-", say("user", "hello")).with(object{"model": "tuned"})); a.status == http.StatusOK {
				return fmt.Errorf("status %d", a.status)
			}
			return nil
		})
		path := writeAdapter(t, 2)
		load(path)
		p.until("the adapter is listed with its new path", func() error { return p.lists("tuned", path) })
		verdict(t, p.send(r).exact())
	})
}

// lists reports whether the picker's list of models has one with a path.
func (p *picker) lists(model, path string) error {
	var list struct {
		Data []struct{ ID, Root string }
	}
	response, err := http.Get(p.proxy + "/v1/models")
	if err != nil {
		return fmt.Errorf("asking the picker for its models: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
		return fmt.Errorf("reading the picker's models: %w", err)
	}
	for _, m := range list.Data {
		if m.ID == model && m.Root == path {
			return nil
		}
	}
	return fmt.Errorf("the picker lists %+v", list.Data)
}

// writeAdapter writes a LoRA adapter of rank 8 whose weights depend on a seed.
func writeAdapter(t *testing.T, seed uint32) (dir string) {
	t.Helper()
	dir = t.TempDir()
	header, data := object{}, []byte(nil)
	add := func(name string, rows, columns int) {
		start := len(data)
		for i := range rows * columns {
			seed = seed*1664525 + 1013904223
			data = binary.LittleEndian.AppendUint16(data, uint16(0x3c00|seed>>31<<15|uint32(i&0x7f))) // about ±0.008, bfloat16
		}
		header[name] = object{"dtype": "BF16", "shape": []int{rows, columns}, "data_offsets": []int{start, len(data)}}
	}
	for layer := range 2 {
		for module, width := range map[string]int{"q_proj": 64, "v_proj": 32} {
			prefix := fmt.Sprintf("base_model.model.model.layers.%d.self_attn.%s.", layer, module)
			add(prefix+"lora_A.weight", 8, 64)
			add(prefix+"lora_B.weight", width, 8)
		}
	}
	raw, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(raw))), raw...)
	if err := os.WriteFile(filepath.Join(dir, "adapter_model.safetensors"), append(file, data...), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(object{"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 16, "lora_dropout": 0.0, "bias": "none",
		"target_modules": []string{"q_proj", "v_proj"}, "base_model_name_or_path": "m"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "adapter_config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

var (
	hybrid  = engineConfig{model: "hybrid", flags: []string{"--max-model-len", "2048"}} // its cache must hold a whole context
	sliding = engineConfig{model: "sliding"}
)

// hybridSince is the first release that publishes events of models like hybrid.
const hybridSince = "0.20"

// TestAHybridModelIsExact: three of four layers look back 128 tokens. Predictions are exact while prompts evict each other. In the end
// the index has as many blocks of full attention as the engine, and says what the engine finds of each prompt.
func TestAHybridModelIsExact(t *testing.T) {
	need(t)
	if !atLeast(hybridSince) {
		t.Skipf("vLLM %s publishes no events of such models", run.release)
	}
	engines := startEngines(t, hybrid)
	startAhead(t, sliding)
	p := startPicker(t, engines, pickerConfig{files: true})
	verdict(t, p.repeated(chat("window hybrid", say("user", text("window hybrid", 600)))))
	p.cycle(t, "window hybrid", 60)
	for i := range 20 { // each conversation again, on an idle engine: the index says what the engine finds in all of its groups
		verdict(t, p.settled(engines))
		verdict(t, p.send(cycled("window hybrid", i)).exact())
	}
	verdict(t, p.settled(engines))
	verdict(t, p.seen.within("window hybrid", true, goalEvictionExact, goalEvictionDeviation))
}

// TestAModelOfWindowsOnlySaysThatItIsApproximate: all layers look back 128 tokens. vLLM keeps and announces the end of each
// prompt only, which has no key without the blocks before it. That is no fault of the engine, and a condition says it.
func TestAModelOfWindowsOnlySaysThatItIsApproximate(t *testing.T) {
	need(t)
	engines := startEngines(t, sliding)
	if atLeast("0.31") {
		startAhead(t, anyPorts)
	}
	p := startPicker(t, engines, pickerConfig{files: true})
	p.uncounted = true
	p.cycle(t, "window sliding", 120)
	verdict(t, within(10*time.Second, func() error {
		s, err := p.status()
		if err != nil {
			return err
		}
		c := s.conditions["PredictionsTrusted"]
		if c.Status != "True" || c.Reason != "MatchesApproximate" || !strings.Contains(c.Message, "without what identifies them") {
			return fmt.Errorf("PredictionsTrusted is %q, %s: %s", c.Status, c.Reason, c.Message)
		}
		return nil
	}))
}

// cycle sends n chats: twenty conversations in turn, each longer than before.
func (p *picker) cycle(t *testing.T, name string, n int) {
	t.Helper()
	for i := range n {
		a := p.send(cycled(name, i))
		if a.err != nil || a.status != http.StatusOK {
			stop(t, fmt.Errorf("request %d: status %d, error %w: %s", i, a.status, a.err, a.body))
		}
	}
}

// cycled is the request of cycle number i.
func cycled(name string, i int) request {
	id := fmt.Sprintf("%s %d", name, i%20)
	return chat(name, say("user", text(id, 500+i%20*20)), say("assistant", "Yes."), say("user", text("z"+id, 1+i/20*60)))
}
