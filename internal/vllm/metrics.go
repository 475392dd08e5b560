package vllm

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"strings"
)

// ErrMetrics means that a text has none of an engine's gauges.
var ErrMetrics = errors.New("no engine metrics")

// Metrics is what an engine reports about one data-parallel rank. Gauges change only when an engine step ends, so an idle
// engine shows its last step.
type Metrics struct {
	// Running and Waiting requests.
	Running, Waiting int
	// KVUsage is the share of KV cache blocks that running requests hold, 0 to 1. Blocks that are merely cached do
	// not count.
	KVUsage float64
	// BlockSize in tokens and NumBlocks of the GPU tier; 0 when not reported.
	BlockSize, NumBlocks int
	// CacheTokens is the size of the GPU tier in tokens; 0 when not reported.
	CacheTokens int
	// PrefixQueries and PrefixHits count tokens looked up in, and found in, the prefix cache since the engine started.
	PrefixQueries, PrefixHits float64
	// Preemptions and Generated tokens since the engine started.
	Preemptions, Generated float64
	// CountsGenerated means that Generated was reported: 0 is a count, too.
	CountsGenerated bool
	// Speculates means that the engine decodes speculatively: only then vLLM has metrics about that.
	Speculates bool
	// Rejections counts the requests that the engine has refused by a limit of its queue since it started, of all ranks.
	Rejections float64
	// MaxAdapters is how many LoRA adapters run at once, 0 when not reported; Adapters names those of requests that run or
	// wait, with commas between them, the first of them if there are very many.
	MaxAdapters int
	Adapters    string
	// Asleep: the engine takes requests and computes none until it is woken. Discarded: it has given up its KV cache to
	// sleep (levels 1 and 2; at level 0 it keeps the cache).
	Asleep, Discarded bool
	// Paused is like Asleep, by the engine's control of generation. The metrics do not include it.
	Paused bool
}

// maxAdapters is how many adapters of an engine are read that run, and that wait, and maxAdapterText the bytes of each list: the names are
// looked through for each request.
const maxAdapters, maxAdapterText = 256, 16 << 10

// firstNames is the part of a list with commas that is read: its first names.
func firstNames(list []byte) []byte {
	whole := len(list) <= maxAdapterText
	if !whole {
		list = list[:maxAdapterText]
	}
	end := 0 // of the last whole name
	for range maxAdapters {
		i := bytes.IndexByte(list[end:], ',')
		if i < 0 {
			if whole {
				end = len(list) + 1
			}
			break
		}
		end += i + 1
	}
	return list[:max(0, end-1)]
}

// ParseMetrics reads the Prometheus text of vLLM or SGLang for one data-parallel rank, in one scan that stops only at the
// lines it needs and allocates for adapters only. Lines that are not understood are skipped.
//
// Series carry their rank in a label (engine, SGLang: dp_rank). Series of the requested rank count, and those without a
// label. If the text has only one rank, that one counts, whatever its number: the engine behind the address numbers ranks
// globally, the reporter inside the pod locally. A negative rank means all of them: counts are summed and usage is the
// mean. Several series of one rank (one per served model name) are summed likewise, except for the parallel shards of one
// model, which all report the same.
//
// The error wraps ErrMetrics when neither running nor waiting requests are reported.
func ParseMetrics(text []byte, rank int) (Metrics, error) {
	var s scan
	s.wanted = strconv.AppendInt(s.buf[:0], int64(rank), 10)
	s.all, s.mine.total = rank < 0, rank < 0
	for len(text) > 0 {
		line := text
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			line, text = text[:i], text[i+1:]
		} else {
			text = nil
		}
		if f, rest := fieldOf(line); f != noField {
			s.line(f, rest)
		}
	}
	return s.result()
}

// field is a thing worth reading. A lower one wins where two names mean the same.
type field uint8

const (
	noField field = iota
	running
	waiting
	usage
	usageOld
	queries
	queriesOld
	hits
	hitsOld
	preemptions
	generated
	rejections
	config // of vLLM
	pages  // the same of SGLang
	adapters
	sleepState
	drafts // of speculative decoding
	numFields
)

// longestName is the length of the longest name below, in bytes.
const longestName = len("vllm:gpu_prefix_cache_queries_total")

// firstLetters are those that vLLM's names below begin with.
const firstLetters = "nkgpacles"

// fieldOf reports what a line is about and returns what follows the name.
func fieldOf(line []byte) (field, []byte) {
	line = trimLeft(line)
	if len(line) < 7 || line[0] != 'v' && line[0] != 's' {
		return noField, nil
	}
	if line[0] == 'v' && strings.IndexByte(firstLetters, line[len("vllm:")]) < 0 {
		return noField, nil // most lines of a page
	}
	end := 0
	for end < len(line) && line[end] != '{' && line[end] != ' ' && line[end] != '\t' {
		if end++; end > longestName {
			return noField, nil
		}
	}
	if end == len(line) {
		return noField, nil
	}
	name, rest := line[:end], line[end:]
	switch string(name) {
	case "vllm:num_requests_running", "sglang:num_running_reqs":
		return running, rest
	case "vllm:num_requests_waiting", "sglang:num_queue_reqs":
		return waiting, rest
	case "vllm:kv_cache_usage_perc", "sglang:token_usage":
		return usage, rest
	case "vllm:gpu_cache_usage_perc":
		return usageOld, rest
	case "vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries":
		return queries, rest
	case "vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries":
		return queriesOld, rest
	case "vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits":
		return hits, rest
	case "vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits":
		return hitsOld, rest
	case "vllm:num_preemptions_total", "vllm:num_preemptions":
		return preemptions, rest
	case "vllm:generation_tokens_total", "vllm:generation_tokens", "sglang:generation_tokens_total":
		return generated, rest
	case "vllm:admission_rejections_total", "vllm:admission_rejections":
		return rejections, rest
	case "vllm:cache_config_info":
		return config, rest
	case "sglang:cache_config_info":
		return pages, rest
	case "vllm:lora_requests_info":
		return adapters, rest
	case "vllm:engine_sleep_state":
		return sleepState, rest
	case "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts":
		return drafts, rest
	}
	return noField, nil
}

// sums are sums over series, and how many there were of each kind.
type sums struct {
	total   bool // over ranks
	value   [numFields]float64
	samples [numFields]int
	labels  series
	// adapters is the last series about them.
	adapters          series
	asleep, discarded bool
}

// scan keeps sums for each answer that might turn out to be the right one.
type scan struct {
	buf    [20]byte
	wanted []byte
	all    bool

	mine    sums   // the rank wanted, and series without a rank
	sole    sums   // the first rank seen, and series without a rank
	first   []byte // the first rank seen
	matched bool   // the rank wanted was seen
	several bool   // more than one rank was seen
	configs int    // series of vLLM about its cache: one for each rank of the page
}

// series is the content of the labels of one series.
type series struct {
	rank              []byte
	shard             bool // of the model: reports the same as shard 0
	blockSize, blocks int
	cacheTokens       int
	// adapters: the lists of those whose requests run and wait, with commas.
	maxAdapters              int
	sleepState               sleepLabel
	adaptersRun, adaptersFor []byte
}

// sleepLabel is which state a series is about.
type sleepLabel uint8

const (
	otherState sleepLabel = iota
	awake
	discarded // the KV cache
)

// line reads what follows the name of a series.
func (s *scan) line(f field, rest []byte) {
	var l series
	rest, ok := l.read(f, rest)
	if !ok {
		return
	}
	v, ok := sample(rest)
	if !ok || l.shard && l.rank == nil {
		return
	}
	mine := s.all || l.rank == nil
	sole := l.rank == nil
	if f == config && l.blocks > 0 { // one without a number is of no rank: blocks that were not sized yet, say
		s.configs++
	}
	if l.rank != nil {
		if s.first == nil {
			s.first = l.rank
		}
		sole = bytes.Equal(l.rank, s.first)
		s.several = s.several || !sole
		if bytes.Equal(l.rank, s.wanted) {
			s.matched, mine = true, true
		}
	}
	if mine {
		s.mine.add(f, v, &l)
	}
	if sole {
		s.sole.add(f, v, &l)
	}
}

func (a *sums) add(f field, v float64, l *series) {
	if f == adapters {
		// The value is the time; of several series the last one holds.
		if v >= a.value[f] {
			a.value[f], a.adapters = v, *l
		}
		return
	}
	if f == sleepState {
		a.asleep = a.asleep || l.sleepState == awake && v == 0
		a.discarded = a.discarded || l.sleepState == discarded && v > 0
		return
	}
	a.value[f] += v
	a.samples[f]++
	if f != config && f != pages {
		return
	}
	blocks, tokens := float64(l.blocks), float64(l.cacheTokens)
	if a.total {
		blocks += float64(a.labels.blocks)
		tokens += float64(a.labels.cacheTokens)
	}
	a.labels = series{blockSize: l.blockSize, blocks: limit(blocks), cacheTokens: limit(tokens)}
}

// result chooses the sums that hold.
func (s *scan) result() (Metrics, error) {
	a := &s.mine
	if !s.all && !s.matched && !s.several {
		a = &s.sole
	}
	if a.samples[running]+a.samples[waiting] == 0 {
		return Metrics{}, ErrMetrics
	}
	m := Metrics{
		Running:       limit(a.value[running]),
		Waiting:       limit(a.value[waiting]),
		BlockSize:     a.labels.blockSize,
		NumBlocks:     s.blocks(&a.labels),
		CacheTokens:   a.labels.cacheTokens,
		PrefixQueries: a.either(queries, queriesOld),
		PrefixHits:    a.either(hits, hitsOld),
		Preemptions:   a.value[preemptions],
		Generated:     a.value[generated],
		Rejections:    a.value[rejections],
		MaxAdapters:   a.adapters.maxAdapters,
		Asleep:        a.asleep,
		Discarded:     a.asleep && a.discarded,
		Speculates:    a.samples[drafts] > 0,

		CountsGenerated: a.samples[generated] > 0,
	}
	if m.CacheTokens == 0 {
		m.CacheTokens = limit(float64(m.NumBlocks) * float64(m.BlockSize))
	}
	switch run, wait := firstNames(a.adapters.adaptersRun), firstNames(a.adapters.adaptersFor); {
	case len(run) > 0 && len(wait) > 0:
		m.Adapters = string(run) + "," + string(wait)
	default: // one of them is empty
		m.Adapters = string(run) + string(wait)
	}
	for _, f := range [...]field{usage, usageOld} {
		if n := a.samples[f]; n > 0 {
			m.KVUsage = min(a.value[f]/float64(n), 1)
			break
		}
	}
	return m, nil
}

// blocks is the number of blocks. vLLM reports the sum over the ranks of the page for each of them, and the size in tokens
// (0.26 and newer) of one rank. Where the two agree, the number is not a sum.
func (s *scan) blocks(l *series) int {
	if s.configs < 2 || l.cacheTokens > 0 && l.cacheTokens == limit(float64(l.blocks)*float64(l.blockSize)) {
		return l.blocks
	}
	return l.blocks / s.configs
}

// either is the sum under the newer name, if there is one.
func (a *sums) either(newer, older field) float64 {
	if a.samples[newer] > 0 {
		return a.value[newer]
	}
	return a.value[older]
}

// limit makes an int of a sum of non-negative numbers.
func limit(v float64) int { return int(min(v, math.MaxInt32)) }

// read reads the labels in braces, if there are any, and returns what follows them.
func (l *series) read(f field, b []byte) ([]byte, bool) {
	b = trimLeft(b)
	if len(b) == 0 || b[0] != '{' {
		return b, true
	}
	for b = b[1:]; ; {
		b = trimLeft(b)
		if len(b) > 0 && b[0] == '}' {
			return b[1:], true
		}
		name, value, rest, ok := label(b)
		if !ok {
			return nil, false
		}
		l.set(f, name, value)
		b = trimLeft(rest)
		if len(b) > 0 && b[0] == ',' {
			b = b[1:]
		} else if len(b) == 0 || b[0] != '}' {
			return nil, false
		}
	}
}

// label reads name="value". The value keeps its escapes: none that matters here has any.
func label(b []byte) (name, value, rest []byte, ok bool) {
	eq := bytes.IndexByte(b, '=')
	if eq < 0 {
		return nil, nil, nil, false
	}
	name, b = trimRight(b[:eq]), trimLeft(b[eq+1:])
	if len(b) == 0 || b[0] != '"' {
		return nil, nil, nil, false
	}
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return name, b[1:i:i], b[i+1:], true
		}
	}
	return nil, nil, nil, false
}

// set takes a label. An empty value means the same as no label.
func (l *series) set(f field, name, value []byte) {
	if len(value) == 0 {
		return
	}
	switch string(name) {
	case "engine", "dp_rank":
		l.rank = value
	case "tp_rank", "pp_rank":
		l.shard = l.shard || string(value) != "0"
	}
	switch {
	case f == config && string(name) == "block_size", f == pages && string(name) == "page_size":
		l.blockSize = digits(value)
	case f == config && string(name) == "num_gpu_blocks", f == pages && string(name) == "num_pages":
		l.blocks = digits(value)
	case f == config && string(name) == "kv_cache_size_tokens":
		l.cacheTokens = digits(value)
	case f == sleepState && string(name) == "sleep_state":
		l.sleepState = sleepLabelOf(value)
	case f == adapters && string(name) == "max_lora":
		l.maxAdapters = digits(value)
	case f == adapters && string(name) == "running_lora_adapters":
		l.adaptersRun = value
	case f == adapters && string(name) == "waiting_lora_adapters":
		l.adaptersFor = value
	}
}

// sleepLabelOf reads the label of vllm:engine_sleep_state. Levels 1 and 2 discard the KV cache.
func sleepLabelOf(value []byte) sleepLabel {
	switch string(value) {
	case "awake":
		return awake
	case "weights_offloaded", "discard_all":
		return discarded
	}
	return otherState
}

// digits is an integer below 2^31 in decimal digits, 0 for anything else.
func digits(b []byte) int {
	n := int64(0)
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0
		}
		if n = 10*n + int64(c-'0'); n > math.MaxInt32 {
			return 0
		}
	}
	return int(n)
}

// maxNumber is the longest number read, bytes. Shortest forms of doubles have 24 at most.
const maxNumber = 32

// sample reads the value at the start of b; a timestamp or an exemplar can follow. Values that are negative or no
// number mean nothing for what is read here.
func sample(b []byte) (float64, bool) {
	b = trimLeft(b)
	if end := bytes.IndexAny(b, " \t\r"); end >= 0 {
		b = b[:end]
	}
	if len(b) == 0 || len(b) > maxNumber {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(b), 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return 0, false
	}
	return v, true
}

func trimLeft(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	return b
}

func trimRight(b []byte) []byte {
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}
