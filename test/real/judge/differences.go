package judge

import (
	"fmt"
	"regexp"
	"slices"
)

// Allowed is a difference between engine and simulator that stays.
type Allowed struct {
	// Case and Path are regular expressions that must match all of a difference's case and path; Real and Sim, unless
	// empty, all of the two values.
	Case, Path, Real, Sim string
	// Reason says why it stays.
	Reason string
}

// Differences is the complete list of differences between the simulator and the engine, in any release. An entry that
// matches nothing fails the test, so that the list stays accurate.
var Differences = []Allowed{
	{Path: `.*\.system_fingerprint`, Reason: "the fingerprint of an engine is not used"},
	{Path: `.*\.logprobs`, Real: `object`, Sim: `\(absent\)`, Reason: "log probabilities are not simulated: they need a model"},
	{
		Path: `type of vllm:(estimated_.*|external_prefix_cache_.*|mm_cache_.*|inter_token_latency_seconds|iteration_tokens_total|` +
			`prompt_tokens_(cached_by_source|recomputed)_total|request_(decode|inference)_time_seconds|request_generation_tokens|request_prompt_tokens|` +
			`request_max_num_generation_tokens|request_num_preemptions|request_params_.*|request_prefill_kv_computed_tokens|` +
			`request_time_per_output_token_seconds|time_per_output_token_seconds)`,
		Sim: `\(absent\)`, Reason: "metrics that no part of Kvasir reads",
	},
	{
		Case: `.*/(render .*|generate ids)`, Path: `body(\[\d+\])?\.(output_mode|sampling_params\.([^m].*|m[^a].*))`,
		Reason: "of a rendered request only the ids and the bound of the answer are simulated",
	},
	{
		Case: `.*/inference/v1/generate ids`, Path: `body\.choices\[0\]\.weight_versions.*`, Sim: `\(absent\)`,
		Reason: "versions of weights are not simulated",
	},
	{
		Case: `with options: SIGTERM: while running requests end: /tokenize text|.* of a list`, Path: `headers`,
		Reason: "internal errors of the engine come without the header Vary",
	},
	{
		Path: `headers`, Real: `content-type: application/json; server: uvicorn`, Sim: `content-type: application/json; server: uvicorn; vary: Origin`,
		Reason: "0.24 and older leave the header Vary out of more errors than newer releases do",
	},
	{
		Path: `body\.error\.param`, Real: `\(absent\)|.*(constrained-int|function-wrap).*`,
		Reason: "errors of 0.17 name no parameter, and those of 0.24 name types of Python in it",
	},
	{
		Case: `.* of a list`, Path: `body(\.error\..*)?`, Real: `\(absent\)|21 bytes that are not JSON`,
		Reason: "0.17 answers a body that is a list with an error in plain text",
	},
	{
		Case: `.*/render .*`, Path: `body(\[\d+\])*\.(arrival_time|content|prompt|prompt_token_ids|role|tool_.*|type)`, Sim: `\(absent\)`,
		Reason: "0.17 renders requests in a form of its own, which package render reads and the simulator does not write",
	},
	{
		Case: `.*/render .*`, Path: `body(\[\d+\])?\.(model|priority|request_id|stream|token_ids|sampling_params\.max_tokens)`, Real: `\(absent\)`,
		Reason: "0.17 renders requests in a form of its own, which package render reads and the simulator does not write",
	},
	{
		Case: `.*/inference/v1/generate ids`, Path: `body\.(created|model|usage\..*)`, Real: `\(absent\)`,
		Reason: "0.24 and older count nothing there; no part of Kvasir reads the answer",
	},
	{
		Case: `/inference/v1/generate  without a key`, Path: `body\.error\.type`, Real: `"Bad Request"`,
		Reason: "the kind of an error in 0.17",
	},
	{
		Case: `with options: SIGTERM: .*`, Path: `waits for running requests|connection`, Real: `yes|broken`, Sim: `no|\(absent\)`,
		Reason: "before --shutdown-timeout running requests hang for a while after SIGTERM and are then aborted; the simulator aborts them at once",
	},
	{
		Case: `rank 1 of two: GET /kv_event_sources`, Path: `body\.0\..*`, Sim: `\(absent\)`,
		Reason: "a process of the simulator is one rank and knows of no other",
	},
	{
		Case: `rank 1 of two: metrics`, Path: `vllm:cache_config_info`,
		Reason: "the engine reports the blocks of all ranks together as num_gpu_blocks of each; a process of the simulator knows its own",
	},
	{
		Case: `(with options: )?/tokenize text with its tokens`, Path: `body\.token_strs.*`,
		Reason: "the engine shows entries of the vocabulary, the simulator the text of each",
	},
}

type matcher struct {
	Allowed
	patterns [4]*regexp.Regexp
}

func (a Allowed) compile() (matcher, error) {
	m := matcher{Allowed: a}
	for i, text := range []string{a.Case, a.Path, a.Real, a.Sim} {
		if text == "" {
			text = ".*"
		}
		p, err := regexp.Compile(`\A(?:` + text + `)\z`)
		if err != nil {
			return m, fmt.Errorf("difference %q: %w", a.Reason, err)
		}
		m.patterns[i] = p
	}
	return m, nil
}

func (m *matcher) allows(d *Difference) bool {
	for i, text := range []string{d.Case, d.Path, d.Real, d.Sim} {
		if !m.patterns[i].MatchString(text) {
			return false
		}
	}
	return true
}

// Verdict splits differences: those that no entry of the list allows, and the entries that allow none of them.
func Verdict(list []Allowed, found []Difference) (refused []Difference, idle []Allowed, err error) {
	used := make([]bool, len(list))
	var matchers []matcher
	for _, a := range list {
		m, err := a.compile()
		if err != nil {
			return nil, nil, err
		}
		matchers = append(matchers, m)
	}
	for _, d := range found {
		ok := false
		for i := range matchers {
			if matchers[i].allows(&d) {
				ok, used[i] = true, true
			}
		}
		if !ok {
			refused = append(refused, d)
		}
	}
	for i, a := range list {
		if !used[i] {
			idle = append(idle, a)
		}
	}
	return slices.Clip(refused), idle, nil
}
