package vllm

import (
	"math"
	"strconv"
	"strings"
)

// slowMetrics is the same reading, done with strings, maps and a list of all series.
func slowMetrics(text string, rank int) (Metrics, bool) {
	type sample struct {
		name   string
		labels map[string]string
		value  float64
	}
	var samples []sample
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimLeft(line, " \t")
		end := strings.IndexAny(line, "{ \t")
		if end < 0 {
			continue
		}
		s := sample{name: line[:end], labels: map[string]string{}}
		rest := strings.TrimLeft(line[end:], " \t")
		if strings.HasPrefix(rest, "{") {
			var ok bool
			if s.labels, rest, ok = slowLabels(rest[1:]); !ok {
				continue
			}
		}
		fields := strings.FieldsFunc(rest, func(r rune) bool { return r == ' ' || r == '\t' || r == '\r' })
		if len(fields) == 0 || len(fields[0]) > 32 {
			continue
		}
		// A carriage return ends the value even where nothing stands before it.
		if strings.HasPrefix(strings.TrimLeft(rest, " \t"), "\r") {
			continue
		}
		v, err := strconv.ParseFloat(fields[0], 64)
		if err != nil || !(v >= 0) || v > math.MaxFloat64 {
			continue
		}
		s.value = v
		samples = append(samples, s)
	}
	rankOf := func(s sample) (string, bool) {
		// The last of the two names counts, and labels keep no order here: see slowLabels.
		r, ok := s.labels["rank"]
		return r, ok
	}
	wanted := map[string]bool{
		"vllm:spec_decode_num_drafts_total": true, "vllm:spec_decode_num_drafts": true,
		"vllm:num_requests_running": true, "sglang:num_running_reqs": true, "vllm:num_requests_waiting": true, "sglang:num_queue_reqs": true,
		"vllm:kv_cache_usage_perc": true, "sglang:token_usage": true, "vllm:gpu_cache_usage_perc": true,
		"vllm:prefix_cache_queries_total": true, "vllm:prefix_cache_queries": true, "vllm:gpu_prefix_cache_queries_total": true,
		"vllm:gpu_prefix_cache_queries": true, "vllm:prefix_cache_hits_total": true, "vllm:prefix_cache_hits": true,
		"vllm:gpu_prefix_cache_hits_total": true, "vllm:gpu_prefix_cache_hits": true, "vllm:num_preemptions_total": true,
		"vllm:num_preemptions": true, "vllm:generation_tokens_total": true, "vllm:generation_tokens": true,
		"sglang:generation_tokens_total": true, "vllm:admission_rejections_total": true,
		"vllm:admission_rejections": true, "vllm:cache_config_info": true, "sglang:cache_config_info": true,
		"vllm:lora_requests_info": true, "vllm:engine_sleep_state": true,
	}
	ranks, kept := map[string]bool{}, []sample(nil)
	for _, s := range samples {
		r, ok := rankOf(s)
		if !wanted[s.name] || s.labels["shard"] != "" && !ok {
			continue
		}
		if ok {
			ranks[r] = true
		}
		kept = append(kept, s)
	}
	target := strconv.Itoa(rank)
	if len(ranks) == 1 && !ranks[target] {
		for r := range ranks {
			target = r
		}
	}
	sum := func(names ...string) (total float64, n int) {
		for _, s := range kept {
			r, ok := rankOf(s)
			for _, name := range names {
				if s.name == name && (rank < 0 || !ok || r == target) {
					total, n = total+s.value, n+1
				}
			}
		}
		return total, n
	}
	either := func(newer, older string) float64 {
		if v, n := sum(newer+"_total", newer); n > 0 {
			return v
		}
		v, _ := sum(older+"_total", older)
		return v
	}
	whole := func(v float64) int { return int(math.Min(v, math.MaxInt32)) }
	running, n1 := sum("vllm:num_requests_running", "sglang:num_running_reqs")
	waiting, n2 := sum("vllm:num_requests_waiting", "sglang:num_queue_reqs")
	if n1+n2 == 0 {
		return Metrics{}, false
	}
	m := Metrics{Running: whole(running), Waiting: whole(waiting),
		PrefixQueries: either("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
		PrefixHits:    either("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
	}
	_, drafts := sum("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts")
	m.Speculates = drafts > 0
	m.Preemptions, _ = sum("vllm:num_preemptions_total", "vllm:num_preemptions")
	made, n := sum("vllm:generation_tokens_total", "vllm:generation_tokens", "sglang:generation_tokens_total")
	m.Generated, m.CountsGenerated = made, n > 0
	m.Rejections, _ = sum("vllm:admission_rejections_total", "vllm:admission_rejections")
	if v, n := sum("vllm:kv_cache_usage_perc", "sglang:token_usage"); n > 0 {
		m.KVUsage = math.Min(v/float64(n), 1)
	} else if v, n := sum("vllm:gpu_cache_usage_perc"); n > 0 {
		m.KVUsage = math.Min(v/float64(n), 1)
	}
	for _, s := range kept {
		r, ok := rankOf(s)
		if s.name != "vllm:engine_sleep_state" || rank >= 0 && ok && r != target {
			continue
		}
		switch s.labels["label sleep_state"] {
		case "awake":
			m.Asleep = m.Asleep || s.value == 0
		case "weights_offloaded", "discard_all":
			m.Discarded = m.Discarded || s.value > 0
		}
	}
	m.Discarded = m.Discarded && m.Asleep
	last := 0.0
	for _, s := range kept {
		r, ok := rankOf(s)
		if s.name != "vllm:lora_requests_info" || rank >= 0 && ok && r != target || s.value < last {
			continue
		}
		last, m.MaxAdapters, m.Adapters = s.value, 0, ""
		if n, err := strconv.ParseUint(s.labels["label max_lora"], 10, 31); err == nil {
			m.MaxAdapters = int(n)
		}
		m.Adapters = s.labels["label running_lora_adapters"]
		if wait := s.labels["label waiting_lora_adapters"]; m.Adapters != "" && wait != "" {
			m.Adapters += "," + wait
		} else if wait != "" {
			m.Adapters = wait
		}
	}
	configs := 0
	for _, s := range kept {
		if blocks, err := strconv.ParseUint(s.labels["label num_gpu_blocks"], 10, 31); s.name == "vllm:cache_config_info" && err == nil && blocks > 0 {
			configs++
		}
		r, ok := rankOf(s)
		if !strings.HasSuffix(s.name, "cache_config_info") || rank >= 0 && ok && r != target {
			continue
		}
		names := []string{"block_size", "num_gpu_blocks", "kv_cache_size_tokens"}
		if strings.HasPrefix(s.name, "sglang") {
			names = []string{"page_size", "num_pages", "{}"}
		}
		var n [3]int
		for i, name := range names {
			if v, err := strconv.ParseUint(s.labels["label "+name], 10, 31); err == nil {
				n[i] = int(v)
			}
		}
		if rank >= 0 {
			m.NumBlocks, m.CacheTokens = 0, 0
		}
		m.BlockSize = n[0]
		m.NumBlocks = min(m.NumBlocks+n[1], math.MaxInt32)
		m.CacheTokens = min(m.CacheTokens+n[2], math.MaxInt32)
	}
	tokensOf := func() int { return int(min(int64(m.NumBlocks)*int64(m.BlockSize), math.MaxInt32)) }
	if configs > 1 && (m.CacheTokens == 0 || m.CacheTokens != tokensOf()) { // the sum of the ranks, for each of them
		m.NumBlocks /= configs
	}
	if m.CacheTokens == 0 {
		m.CacheTokens = tokensOf()
	}
	return m, true
}

// slowLabels reads labels up to the closing brace, each under "label NAME". The rank comes back as "rank", too, and
// shards other than the first as "shard".
func slowLabels(s string) (map[string]string, string, bool) {
	out := map[string]string{}
	for {
		s = strings.TrimLeft(s, " \t")
		if strings.HasPrefix(s, "}") {
			return out, s[1:], true
		}
		name, rest, ok := strings.Cut(s, "=")
		rest = strings.TrimLeft(rest, " \t")
		if !ok || !strings.HasPrefix(rest, `"`) {
			return nil, "", false
		}
		value, closed := "", false
		for i := 1; i < len(rest) && !closed; i++ {
			switch {
			case rest[i] == '\\' && i+1 < len(rest):
				value += rest[i : i+2]
				i++
			case rest[i] == '\\':
			case rest[i] == '"':
				closed, rest = true, rest[i+1:]
			default:
				value += rest[i : i+1]
			}
		}
		if !closed {
			return nil, "", false
		}
		name = strings.TrimRight(name, " \t")
		if value != "" {
			out["label "+name] = value
		}
		switch name {
		case "engine", "dp_rank":
			if value != "" {
				out["rank"] = value
			}
		case "tp_rank", "pp_rank":
			if value != "" && value != "0" {
				out["shard"] = value
			}
		}
		s = strings.TrimLeft(rest, " \t")
		if strings.HasPrefix(s, ",") {
			s = s[1:]
		} else if !strings.HasPrefix(s, "}") {
			return nil, "", false
		}
	}
}
