package clients

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Load tools measure Kvasir as they measure vLLM, and need no option that they do not need with vLLM. The commands are those of
// docs/load-tools.md.

func TestGuidellm(t *testing.T) { onEach(t, (*house).guidellm) }

func TestInferencePerf(t *testing.T) { onEach(t, (*house).inferencePerf) }

func TestAiperf(t *testing.T) { onEach(t, (*house).aiperf) }

// vllm bench serve is in vLLM itself, which test/real installs.
func TestVLLMBench(t *testing.T) { onEach(t, (*house).vllmBench) }

// onEach measures the proxy, and Envoy in front of the picker.
func onEach(t *testing.T, measure func(*house, *testing.T)) {
	h := start(t)
	t.Run("proxy", func(t *testing.T) { measure(h, t) })
	t.Run("Envoy", func(t *testing.T) { measure(h.behindEnvoy(t), t) })
}

func (h *house) guidellm(t *testing.T) {
	out := filepath.Join(t.TempDir(), "result.json")
	command(t, []string{"HF_HUB_OFFLINE=1"}, filepath.Join(environment(t, "guidellm"), "bin", "guidellm"), "run",
		"--backend", "kind=openai_http,target="+h.url+",model="+*model,
		"--tokenizer", "kind=hf_auto,model="+files(t),
		"--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=16",
		"--profile", "kind=concurrent,streams=4",
		"--constraint", "kind=max_requests,count=20",
		"--output", "kind=json,path="+out, "--disable-console-interactive")
	var report struct {
		Benchmarks []struct {
			Metrics struct {
				Totals map[string]float64 `json:"request_totals"`
			} `json:"metrics"`
		} `json:"benchmarks"`
	}
	read(t, out, &report)
	if len(report.Benchmarks) != 1 || report.Benchmarks[0].Metrics.Totals["successful"] < 20 || report.Benchmarks[0].Metrics.Totals["errored"] > 0 {
		t.Errorf("%+v, want 20 successful requests", report)
	}
}

func (h *house) inferencePerf(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "config.yaml", `
api: {type: chat, streaming: true}
data:
  type: shared_prefix
  shared_prefix: {num_groups: 2, num_prompts_per_group: 4, system_prompt_len: 64, question_len: 16, output_len: 8}
load: {type: constant, stages: [{rate: 4, duration: 5}], num_workers: 1}
server: {type: vllm, model_name: `+*model+`, base_url: `+h.url+`, ignore_eos: true}
tokenizer: {pretrained_model_name_or_path: `+files(t)+`}
storage: {local_storage: {path: `+dir+`/reports}}
`)
	out := command(t, []string{"HF_HUB_OFFLINE=1"}, filepath.Join(environment(t, "inference-perf"), "bin", "inference-perf"), "--config_file", filepath.Join(dir, "config.yaml"))
	var report struct {
		Successes struct {
			Count int `json:"count"`
		} `json:"successes"`
		Failures struct {
			Count int `json:"count"`
		} `json:"failures"`
	}
	found, err := filepath.Glob(filepath.Join(dir, "reports", "*summary*.json"))
	if err != nil || len(found) == 0 {
		t.Fatalf("no summary:\n%s", out)
	}
	read(t, found[0], &report)
	if report.Successes.Count < 10 || report.Failures.Count > 0 {
		t.Errorf("%+v, want successes only:\n%s", report, out)
	}
}

// aiperf looks for the engine's metrics on the address under load, and goes on where it finds none.
func (h *house) aiperf(t *testing.T) {
	for name, args := range map[string][]string{"metrics of the address": nil, "metrics of the picker": {"--server-metrics", h.metrics + "/metrics"}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			command(t, nil, filepath.Join(environment(t, "aiperf"), "bin", "aiperf"), append([]string{"profile",
				"--model", *model, "--url", h.url, "--endpoint-type", "chat", "--streaming", "--tokenizer", files(t),
				"--synthetic-input-tokens-mean", "64", "--output-tokens-mean", "16", "--concurrency", "4", "--request-count", "20",
				"--ui", "simple", "--artifact-dir", dir}, args...)...)
			var report struct {
				Requests struct {
					Avg float64 `json:"avg"`
				} `json:"request_count"`
				Errors []any `json:"error_summary"`
			}
			read(t, filepath.Join(dir, "profile_export_aiperf.json"), &report)
			if report.Requests.Avg < 20 || len(report.Errors) > 0 {
				t.Errorf("%+v, want 20 requests without errors", report)
			}
			if metrics, err := filepath.Glob(filepath.Join(dir, "server_metrics_*")); args != nil && (err != nil || len(metrics) == 0) {
				t.Errorf("no metrics of the picker were kept: %v", err)
			}
		})
	}
}

func (h *house) vllmBench(t *testing.T) {
	found, err := filepath.Glob(filepath.Join(filepath.Dir(cache(t)), "real", "*", "venv", "bin", "vllm"))
	if err != nil || len(found) == 0 {
		t.Skip("vLLM is not installed: run make test-real once")
	}
	dir := t.TempDir()
	var trace strings.Builder
	for i := range 20 { // two prefixes of four chunks, and a chunk of its own for each request
		first := 10 * (i % 2)
		fmt.Fprintf(&trace, `{"timestamp": %.2f, "input_length": 80, "output_length": 8, "hash_ids": [%d, %d, %d, %d, %d]}`+"\n",
			0.05*float64(i), first, first+1, first+2, first+3, 100+i)
	}
	write(t, dir, "trace.jsonl", trace.String())
	for name, args := range map[string][]string{
		"random": {"--dataset-name", "random", "--random-prefix-len", "32", "--random-input-len", "64", "--random-output-len", "16"},
		"prefix repetition": {"--dataset-name", "prefix_repetition", "--prefix-repetition-prefix-len", "64", "--prefix-repetition-suffix-len", "16",
			"--prefix-repetition-num-prefixes", "2", "--prefix-repetition-output-len", "8"},
		"timed trace": {"--dataset-name", "timed_trace", "--dataset-path", filepath.Join(dir, "trace.jsonl")},
	} {
		t.Run(name, func(t *testing.T) {
			result := strings.ReplaceAll(name, " ", "-") + ".json"
			command(t, []string{"HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1"}, found[len(found)-1], append([]string{"bench", "serve", "--backend", "openai",
				"--base-url", h.url, "--model", *model, "--tokenizer", files(t), "--num-prompts", "20", "--save-result", "--result-dir", dir, "--result-filename", result}, args...)...)
			var report struct {
				Completed int `json:"completed"`
			}
			read(t, filepath.Join(dir, result), &report)
			if report.Completed != 20 {
				t.Errorf("%d of 20 requests were completed", report.Completed)
			}
		})
	}
}

func read(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}
