package vllm

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func page(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/metrics/two_ranks.txt")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestParseMetricsChoosesTheRank(t *testing.T) {
	cases := map[string]struct {
		rank int
		want Metrics
	}{
		"rank 0": {0, Metrics{Running: 7, Waiting: 2, KVUsage: 0.34567901234567904, BlockSize: 16, NumBlocks: 27728,
			CacheTokens: 16 * 27728, PrefixQueries: 123456, PrefixHits: 100000, Preemptions: 4, Generated: 5, CountsGenerated: true, MaxAdapters: 4,
			Adapters: "a,b"}},
		"rank 1": {1, Metrics{Running: 3, KVUsage: 0.125, BlockSize: 16, NumBlocks: 27728, CacheTokens: 16 * 27728,
			PrefixQueries: 1.2e7, PrefixHits: 1.1e7, Generated: 6, CountsGenerated: true, MaxAdapters: 4, Adapters: "a,b"}},
		"all ranks": {-1, Metrics{Running: 10, Waiting: 2, KVUsage: (0.34567901234567904 + 0.125) / 2, BlockSize: 16,
			NumBlocks: 55456, CacheTokens: 16 * 55456, PrefixQueries: 12123456, PrefixHits: 11100000, Preemptions: 4, Generated: 11, CountsGenerated: true, MaxAdapters: 4, Adapters: "a,b"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ParseMetrics(page(t), tc.rank)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	if _, err := ParseMetrics(page(t), 2); !errors.Is(err, ErrMetrics) {
		t.Errorf("a rank that is not there: got %v", err)
	}
}

// TestARankHasItsOwnBlocks: the recorded engines have two ranks of 64 blocks, and report 128 for each.
func TestARankHasItsOwnBlocks(t *testing.T) {
	for _, release := range []string{"0.26.0", "0.32.0"} {
		recorded, err := os.ReadFile("../../test/real/judge/testdata/" + release + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		_, section, ok := bytes.Cut(recorded, []byte("== rank 1 of two: metrics\n"))
		if !ok {
			t.Fatalf("%s: no recording of two ranks", release)
		}
		section, _, _ = bytes.Cut(section, []byte("\n=="))
		section = bytes.ReplaceAll(section, []byte(" = "), []byte(" "))
		config := bytes.Index(section, []byte("vllm:cache_config_info {"))
		section = append(append([]byte(nil), section[:config]...), bytes.Replace(section[config:], []byte("}"), []byte("} 1.0"), 1)...)
		text := append(bytes.ReplaceAll(section, []byte(`engine="1"`), []byte(`engine="0"`)), '\n')
		text = append(text, section...) // the engine shows both ranks, the recording the second one
		for rank, want := range map[int]int{0: 64, 1: 64, -1: 128} {
			got, err := ParseMetrics(text, rank)
			if err != nil || got.BlockSize != 32 || got.NumBlocks != want || got.CacheTokens != 32*want {
				t.Errorf("%s, rank %d: %+v (%v), want %d blocks", release, rank, got, err, want)
			}
		}
	}
}

func TestParseMetricsTolerates(t *testing.T) {
	cases := map[string]struct {
		text string
		rank int
		want Metrics
	}{
		"series without labels":            {"vllm:num_requests_running 3\nvllm:num_requests_waiting 1", 5, Metrics{Running: 3, Waiting: 1}},
		"a sole rank with another number":  {`vllm:num_requests_running{engine="8"} 3`, 0, Metrics{Running: 3}},
		"a rank among unlabelled series":   {"vllm:num_requests_running{engine=\"1\"} 3\nvllm:kv_cache_usage_perc 0.5", 1, Metrics{Running: 3, KVUsage: 0.5}},
		"one series per served model name": {"vllm:num_requests_running{engine=\"0\",model_name=\"a\"} 3\nvllm:num_requests_running{model_name=\"b\",engine=\"0\"} 4", 0, Metrics{Running: 7}},
		"line ends of other systems":       {"vllm:num_requests_running 3\r\nvllm:num_requests_waiting{} 4\r\n", 0, Metrics{Running: 3, Waiting: 4}},
		"timestamps and exemplars":         {"vllm:num_requests_running{engine=\"0\"} 3 1700000000000\nvllm:prefix_cache_hits_total 8 # {trace_id=\"x\"} 0.5 17", 0, Metrics{Running: 3, PrefixHits: 8}},
		"scientific notation":              {"vllm:num_requests_running 1e2", 0, Metrics{Running: 100}},
		"refusals by queue limits": {"vllm:num_requests_running{engine=\"0\"} 1\n" +
			"vllm:admission_rejections_total{model_name=\"m\",reason=\"max_num_queued_reqs\"} 40.0\nvllm:admission_rejections_total{model_name=\"m\",reason=\"max_num_queued_tokens\"} 2.0\n" +
			"vllm:admission_rejections_created{model_name=\"m\",reason=\"max_num_queued_tokens\"} 1.7e9", 0, Metrics{Running: 1, Rejections: 42}},
		"no number":                            {"vllm:num_requests_running 1\nvllm:kv_cache_usage_perc NaN\nvllm:num_requests_waiting x\nvllm:num_preemptions_total +Inf", 0, Metrics{Running: 1}},
		"negative numbers":                     {"vllm:num_requests_running 1\nvllm:num_requests_waiting -1", 0, Metrics{Running: 1}},
		"huge numbers":                         {"vllm:num_requests_running 1e300\nvllm:kv_cache_usage_perc 1e9", 0, Metrics{Running: math.MaxInt32, KVUsage: 1}},
		"escapes, braces and line ends quoted": {`vllm:num_requests_running{model_name="a\\\"},engine=\"7\"\n{",engine="0",} 3`, 0, Metrics{Running: 3}},
		"spaces everywhere":                    {"  vllm:num_requests_running { engine = \"0\" , model_name=\"a\" }\t3 \n", 0, Metrics{Running: 3}},
		"a series that is not sized": {"vllm:num_requests_running{engine=\"0\"} 3\n" +
			"vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"None\"} 1\n" +
			"vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"100\"} 1", 0, Metrics{Running: 3, BlockSize: 16, NumBlocks: 100, CacheTokens: 1600}},
		"comments":                        {"# vllm:num_requests_waiting 5\n#\nvllm:num_requests_running 3", 0, Metrics{Running: 3}},
		"names that only begin alike":     {"vllm:num_requests_running 3\nvllm:num_requests_running_x 4\nvllm:num_requests_runnin 5", 0, Metrics{Running: 3}},
		"labels cut short":                {"vllm:num_requests_running 3\nvllm:num_requests_waiting{engine=\"0\nvllm:num_requests_waiting{engine} 1\nvllm:num_requests_waiting{a=\"b\" 2", 0, Metrics{Running: 3}},
		"the old name beside the new one": {"vllm:num_requests_running 3\nvllm:gpu_cache_usage_perc 0.1\nvllm:kv_cache_usage_perc 0.2", 0, Metrics{Running: 3, KVUsage: 0.2}},
		"the old names alone":             {"vllm:num_requests_running 3\nvllm:gpu_cache_usage_perc 0.1\nvllm:gpu_prefix_cache_hits_total 2\nvllm:gpu_prefix_cache_queries 4", 0, Metrics{Running: 3, KVUsage: 0.1, PrefixHits: 2, PrefixQueries: 4}},
		"the cache's size in tokens":      {"vllm:num_requests_running 3\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\",kv_cache_size_tokens=\"800\"} 1", 0, Metrics{Running: 3, BlockSize: 16, NumBlocks: 100, CacheTokens: 800}},
		"the blocks of two ranks, without a size in tokens": {"vllm:num_requests_running 3\n" +
			"vllm:cache_config_info{engine=\"0\",block_size=\"16\",num_gpu_blocks=\"100\"} 1\nvllm:cache_config_info{engine=\"1\",block_size=\"16\",num_gpu_blocks=\"100\"} 1",
			1, Metrics{Running: 3, BlockSize: 16, NumBlocks: 50, CacheTokens: 800}},
		"the blocks of one of two ranks": {"vllm:num_requests_running 3\n" +
			"vllm:cache_config_info{engine=\"0\",block_size=\"16\",num_gpu_blocks=\"100\",kv_cache_size_tokens=\"1600\"} 1\n" +
			"vllm:cache_config_info{engine=\"1\",block_size=\"16\",num_gpu_blocks=\"100\",kv_cache_size_tokens=\"1600\"} 1",
			1, Metrics{Running: 3, BlockSize: 16, NumBlocks: 100, CacheTokens: 1600}},
		"adapters, the last series":     {"vllm:num_requests_running 3\nvllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"old\",waiting_lora_adapters=\"\"} 1.7e+09\nvllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"a,b\",waiting_lora_adapters=\"c\"} 1.8e+09", 0, Metrics{Running: 3, MaxAdapters: 4, Adapters: "a,b,c"}},
		"adapters, only some wait":      {"vllm:num_requests_running 3\nvllm:lora_requests_info{max_lora=\"1\",running_lora_adapters=\"\",waiting_lora_adapters=\"c\"} 1", 0, Metrics{Running: 3, MaxAdapters: 1, Adapters: "c"}},
		"no adapter":                    {"vllm:num_requests_running 3\nvllm:lora_requests_info{max_lora=\"1\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} 1", 0, Metrics{Running: 3, MaxAdapters: 1}},
		"a cache that is not sized yet": {"vllm:num_requests_running 3\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1", 0, Metrics{Running: 3, BlockSize: 16}},
		"SGLang": {"sglang:num_running_reqs{tp_rank=\"0\"} 3\nsglang:num_queue_reqs{tp_rank=\"0\"} 4\nsglang:token_usage{tp_rank=\"0\"} 0.5\nsglang:cache_config_info{page_size=\"64\",num_pages=\"10\"} 1",
			0, Metrics{Running: 3, Waiting: 4, KVUsage: 0.5, BlockSize: 64, NumBlocks: 10, CacheTokens: 640}},
		"SGLang's shards tell the same": {"sglang:num_running_reqs{tp_rank=\"0\"} 3\nsglang:num_running_reqs{tp_rank=\"1\"} 3", 0, Metrics{Running: 3}},
		"SGLang's ranks do not":         {"sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"0\"} 3\nsglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"1\"} 4", 1, Metrics{Running: 4}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ParseMetrics([]byte(tc.text), tc.rank)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestParseMetricsReadsSleep(t *testing.T) {
	state := func(engine string, awake, offloaded, discarded int) string {
		text := "vllm:num_requests_running{engine=\"" + engine + "\"} 0\n"
		for label, v := range map[string]int{"awake": awake, "weights_offloaded": offloaded, "discard_all": discarded} {
			text += fmt.Sprintf("vllm:engine_sleep_state{engine=%q,model_name=\"m\",sleep_state=%q} %d.0\n", engine, label, v)
		}
		return text
	}
	for name, tc := range map[string]struct {
		text              string
		rank              int
		asleep, discarded bool
	}{
		"awake":                       {state("0", 1, 0, 0), 0, false, false},
		"level 0 keeps the cache":     {state("0", 0, 0, 0), 0, true, false},
		"level 1":                     {state("0", 0, 1, 0), 0, true, true},
		"level 2":                     {state("0", 0, 0, 1), 0, true, true},
		"another rank":                {state("0", 0, 1, 0) + state("1", 1, 0, 0), 1, false, false},
		"some rank":                   {state("0", 1, 0, 0) + state("1", 0, 0, 1), -1, true, true},
		"a release that says nothing": {"vllm:num_requests_running 0\n", 0, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseMetrics([]byte(tc.text), tc.rank)
			if err != nil || got.Asleep != tc.asleep || got.Discarded != tc.discarded {
				t.Errorf("got %+v (%v)", got, err)
			}
		})
	}
}

func TestParseMetricsRefusesOtherPages(t *testing.T) {
	for _, text := range []string{"", "\n\n", "go_goroutines 5", "<html>not found</html>", "vllm:kv_cache_usage_perc 0.5", "vllm:num_requests_running"} {
		if m, err := ParseMetrics([]byte(text), 0); !errors.Is(err, ErrMetrics) || m != (Metrics{}) {
			t.Errorf("%q: got %+v, %v", text, m, err)
		}
	}
}

func TestParseMetricsAllocatesForAdaptersOnly(t *testing.T) {
	text := page(t)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := ParseMetrics(text, 1); err != nil {
			t.Fatal(err)
		}
	}); n > 1 {
		t.Errorf("%v allocations", n)
	}
	text = bytes.ReplaceAll(text, []byte("vllm:lora_requests_info"), []byte("vllm:other_info"))
	if n := testing.AllocsPerRun(100, func() {
		if _, err := ParseMetrics(text, 1); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations without adapters", n)
	}
}

func FuzzParseMetrics(f *testing.F) {
	// Not the whole page: the engine would spend its time on making it smaller.
	var short []string
	for line := range strings.Lines(string(page(f))) {
		if field, _ := fieldOf([]byte(line)); field != noField {
			short = append(short, line)
		}
	}
	f.Add(strings.Join(short, ""), 1)
	f.Add("vllm:num_requests_running{engine=\"0\",a=\"\\\"}\"} 3 17\r\nvllm:num_requests_waiting 1e1", 0)
	f.Add("sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"1\"} 3\nsglang:cache_config_info{page_size=\"64\",num_pages=\"10\"} 1", -1)
	f.Add("vllm:num_requests_running 0\nvllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0\nvllm:engine_sleep_state{sleep_state=\"discard_all\"} 1", 0)
	f.Add("vllm:num_requests_running 0x1p3\nvllm:kv_cache_usage_perc NaN", 0)
	f.Add("vllm:num_requests_running 1\nvllm:cache_config_info{engine=\"1\",block_size=\"16\",num_gpu_blocks=\"9\",kv_cache_size_tokens=\"5\"} 1", 1)
	f.Fuzz(func(t *testing.T, text string, rank int) {
		rank = max(rank, -1)
		want, ok := slowMetrics(text, rank)
		got, err := ParseMetrics([]byte(text), rank)
		if ok != (err == nil) {
			t.Fatalf("got %v, want success %v", err, ok)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("-want +got:\n%s", diff)
		}
	})
}

func BenchmarkParseMetrics(b *testing.B) {
	text := page(b)
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := ParseMetrics(text, 1); err != nil {
			b.Fatal(err)
		}
	}
}

// TestFewNamesOfAdaptersAreRead: they are looked through for each request.
func TestFewNamesOfAdaptersAreRead(t *testing.T) {
	for name, tc := range map[string]struct{ list, want string }{
		"none":            {"", ""},
		"one":             {"a", "a"},
		"an empty name":   {"a,", "a,"},
		"as many as read": {strings.Repeat("a,", maxAdapters-1) + "b", strings.Repeat("a,", maxAdapters-1) + "b"},
		"one more":        {strings.Repeat("a,", maxAdapters-1) + "b,c", strings.Repeat("a,", maxAdapters-1) + "b"},
		"millions":        {strings.Repeat("a,", 1<<21), strings.Repeat("a,", maxAdapters-1) + "a"},
		"long names":      {strings.Repeat("a", 10<<10) + "," + strings.Repeat("b", 10<<10), strings.Repeat("a", 10<<10)},
		"a longer name":   {strings.Repeat("a", 1<<20), ""},
	} {
		if got := string(firstNames([]byte(tc.list))); got != tc.want {
			t.Errorf("%s: %d bytes are read, want %d", name, len(got), len(tc.want))
		}
		m, err := ParseMetrics([]byte("vllm:num_requests_running 3\nvllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\""+tc.list+
			"\",waiting_lora_adapters=\""+tc.list+"\"} 1"), 0)
		if n := strings.Count(m.Adapters, ","); err != nil || n >= 2*maxAdapters {
			t.Errorf("%s: %d adapters are kept, %v", name, n, err)
		}
	}
}
