package vllmsim

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Release is a release of vLLM: 0.24.1 is 24<<8 | 1. What an engine answers, publishes and refuses follows from it.
type Release int

// NewestRelease is the newest release that vllmsim was compared with (package test/real/judge).
const NewestRelease Release = 32 << 8

// Releases from which on a flag exists.
const (
	SinceShutdownTimeout Release = 18 << 8 // --shutdown-timeout
	SinceQueueLimits     Release = 29 << 8 // --max-num-queued-reqs
	SinceScaleOut        Release = 30 << 8 // --enable-scale-out
)

// Releases from which on a metric has its present name or exists.
const (
	sinceKVUsage    Release = 9<<8 | 2
	sinceSleepState Release = 11<<8 | 1
	sinceCacheSize  Release = 24 << 8
	sinceRejections Release = 32 << 8
)

// Releases from which on a request is checked or answered in the present way.
const (
	sinceBaseNameRefused Release = 31 << 8 // an adapter cannot be loaded under the model's name
	sinceSleepAnswers    Release = 32 << 8 // /sleep and /wake_up check the level and answer with what they have done
)

// oldestRelease is the first one with KV events.
const oldestRelease Release = 9 << 8

// ParseRelease reads a release such as "0.24.0", "v0.11.1" or "0.24".
func ParseRelease(text string) (Release, error) {
	parts := strings.Split(strings.TrimPrefix(text, "v"), ".")
	var numbers [3]int
	for i, part := range parts {
		n, err := strconv.Atoi(part)
		if i >= len(numbers) || err != nil || n < 0 || n > 255 {
			return 0, fmt.Errorf("%q is not a release of vLLM such as 0.24.0", text)
		}
		numbers[i] = n
	}
	r := Release(numbers[1]<<8 | numbers[2])
	if numbers[0] != 0 || len(parts) < 2 || r < oldestRelease || r>>8 > NewestRelease>>8 {
		return 0, fmt.Errorf("release %q is not simulated: %v to %v are", text, oldestRelease, NewestRelease)
	}
	return r, nil
}

// String is the release as vLLM's /version reports it.
func (r Release) String() string { return fmt.Sprintf("0.%d.%d", int(r>>8), int(r&255)) }

// minor reports whether r is 0.n.0 or newer.
func (r Release) minor(n int) bool { return r >= Release(n<<8) }

// The functions below return since when vLLM has a behaviour. Behaviours that this file does not name were the same in all
// releases that the judge has compared.

// signedHashes: block hashes were Python's own, which are signed.
func (r Release) signedHashes() bool { return r < 10<<8|2 }

// topicInReplay: replies to replay requests carry the topic.
func (r Release) topicInReplay() bool { return r.minor(26) }

// explicitZero: cached_tokens is 0 when nothing was cached; before, prompt_tokens_details was null.
func (r Release) explicitZero() bool { return r.minor(24) }

// createdCacheTokens: usage counts the tokens that were added to the cache.
func (r Release) createdCacheTokens() bool { return r.minor(26) }

// emptyToolCalls: messages of answers without tool calls have an empty list of them.
func (r Release) emptyToolCalls() bool { return !r.minor(24) }

// rendersRequests: /render routes exist.
func (r Release) rendersRequests() bool { return r.minor(15) }

// rendersMessages: /v1/messages/render exists.
func (r Release) rendersMessages() bool { return r.minor(29) }

// rendersResponses: /v1/responses/render exists.
func (r Release) rendersResponses() bool { return r.minor(30) }

// gatesScaleOut: /render and the like answer 403 without --enable-scale-out; in 0.30 and 0.31 they are not there then.
func (r Release) gatesScaleOut() bool { return r.minor(32) }

// refusesLongAnswers: a bound of the answer is refused where prompt and answer together exceed the context; later
// releases cut the answer.
func (r Release) refusesLongAnswers() bool { return !r.minor(32) }

// closesBeforeDraining: after SIGTERM nothing listens any more while running requests end.
func (r Release) closesBeforeDraining() bool { return !r.minor(29) }

// amend changes an error of the newest release into that of r.
func (r Release) amend(a *apiError) {
	if r.minor(30) || a.status != http.StatusBadRequest {
		return
	}
	form := http.StatusText(http.StatusBadRequest)
	switch {
	case a.list && !r.minor(29):
		a.status, a.kind, a.param = http.StatusInternalServerError, "InternalServerError", ""
	case a.param == "cache_salt" && r.minor(29):
		a.kind, a.param = form, "body.cache_salt"
	case !r.minor(29) && (a.param == "cache_salt" || a.param == "stream_options" || a.param == "prompt"):
		a.kind = form
	}
}

// generates: /inference/v1/generate exists.
func (r Release) generates() bool { return r >= 11<<8|1 }

// saltsMessages: /v1/messages takes a cache_salt. Older releases ignore it.
func (r Release) saltsMessages() bool { return r.minor(27) }

// pauses: the routes that pause and resume exist.
func (r Release) pauses() bool { return r.minor(14) }

// hashesPaths: hashes of blocks depend on the path of an adapter, not on its name alone.
func (r Release) hashesPaths() bool { return r.minor(31) }

// namesEventSources: GET /kv_event_sources exists.
func (r Release) namesEventSources() bool { return r.minor(31) }

// finishReasons are the values of the label finished_reason.
func (r Release) finishReasons() []string {
	reasons := []string{finishStop, finishLength, finishAbort}
	if r.minor(14) {
		reasons = append(reasons, "error")
	}
	if r.minor(17) {
		reasons = append(reasons, "repetition")
	}
	return reasons
}

// sendsReset: /reset_prefix_cache answers whether the cache was reset; before, 200 with nothing.
func (r Release) sendsReset() bool { return r.minor(26) }

// guardedPrefixes are what API keys guard.
func (r Release) guardedPrefixes() []string {
	if r.minor(21) {
		return []string{"/v1", "/v2", "/inference"}
	}
	return []string{"/v1"}
}

// layout of events.
func (r Release) layout() Layout {
	layout := Layout090
	for _, l := range layouts {
		if r >= l.since {
			layout = l.layout
		}
	}
	return layout
}

var layouts = []struct {
	layout Layout
	since  Release
}{
	{Layout091, 9<<8 | 1}, {Layout0102, 10<<8 | 2}, {Layout014, 14 << 8}, {Layout017, 17 << 8}, {Layout020, 20 << 8},
	{Layout022, 22 << 8}, {Layout024, 24 << 8},
}

// Layout is an encoding of KV events, named for the first release that has it.
type Layout int

// The layouts. Each adds to the one before, until v0.24 turns events from arrays into maps.
const (
	Layout090  Layout = iota + 1 // batch [ts, events]
	Layout091                    // + data_parallel_rank in the batch
	Layout0102                   // + medium
	Layout014                    // + lora_name
	Layout017                    // + extra_keys
	Layout020                    // + group_idx
	Layout022                    // + kv_cache_spec_kind and kv_cache_spec_sliding_window
	Layout024                    // events are maps
)
