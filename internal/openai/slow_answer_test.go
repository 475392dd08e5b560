package openai

import (
	"encoding/json"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// slowWatch is what an AnswerScanner must find in a complete stream, by way of lines and trees. It does not know where the
// first token is.
func slowWatch(route Route, answer string) (want outcome) {
	answer = regexp.MustCompile("\r\n?").ReplaceAllString(answer, "\n") + "\n\n"
	counts := map[string]int{}
	for _, event := range strings.Split(answer, "\n\n") {
		var lines []string
		for _, line := range strings.Split(event, "\n") {
			if data, ok := strings.CutPrefix(line, "data:"); ok {
				lines = append(lines, strings.TrimPrefix(data, " "))
			}
		}
		data := strings.Join(lines, "\n")
		before := want.Failed
		if data == "[DONE]" && lines != nil {
			want.Done = true
			continue
		}
		e := object(data)
		switch {
		case e == nil:
		case route == Responses:
			slowResponsesEvent(e, &want)
		case route == Messages:
			slowMessagesEvent(e, &want, counts)
		default:
			slowChoicesEvent(route, e, &want)
		}
		if want.Failed && !before {
			want.Error = slowError(route, e)
		}
	}
	want.Empty = !want.FirstToken && !want.Finished && !want.Failed && !want.Aborted
	return want
}

// slowError is the error of an event, or of an answer that is not streamed.
func slowError(route Route, e tree) (want AnswerError) {
	if o := e.obj("error"); o != nil {
		code, isNumber := slowCount(o["code"])
		message := ""
		if _, ok := o["message"].(string); ok {
			message = o.str("message")
		}
		byKind := map[string]int{
			"invalid_request_error": 400, "authentication_error": 401, "permission_error": 403, "not_found_error": 404, "request_too_large": 413,
			"rate_limit_error": 429, "overloaded_error": 529, "timeout_error": 504, "api_error": 500, "internal_error": 500,
		}[o.str("type")]
		want.Status = byKind
		if isNumber && code != 0 {
			want.Status = code
		}
		busy := o.str("type") == "Service Unavailable" && (code == 0 || code == 503)
		if busy || byKind == 500 && strings.Contains(message, "'code': 503") {
			want = AnswerError{Status: 503, Full: RequestLimit}
			if strings.Contains(message, "prefill token backlog") {
				want.Full = TokenLimit
			}
		}
		return want
	}
	if route != Responses && route != Messages && e["error"] == nil && e["object"] == "error" {
		want.Status, _ = slowCount(e["code"])
	}
	return want
}

// slowJSON is what an AnswerScanner must find in JSON that is not streamed.
func slowJSON(route Route, o tree) (want outcome) {
	choices, _ := o["choices"].([]any)
	for _, c := range choices {
		if c, ok := c.(map[string]any); ok && c["finish_reason"] == "abort" {
			want.Aborted = true
		}
	}
	want.Failed = o["error"] != nil || o["object"] == "error" || route == Responses && o["status"] == "failed"
	if want.Failed {
		want.Error = slowError(Completions, o)
	}
	usage, have := slowUsage(route, o["usage"])
	switch {
	case route == Responses && o["status"] == "cancelled":
		want.Aborted = true
	case route == Responses && o["status"] == "completed" && have && usage.CompletionTokens == 0 && !want.Failed:
		want.Aborted = true
	case route == Messages && o["type"] == "message" && o["stop_reason"] == nil && !want.Failed:
		want.Aborted = true
	}
	return want
}

func slowChoicesEvent(route Route, e tree, want *outcome) {
	want.Failed = want.Failed || e["error"] != nil || e["object"] == "error"
	if u, ok := slowUsage(route, e["usage"]); ok {
		want.Usage = u
	}
	choices, _ := e["choices"].([]any)
	for _, c := range choices {
		c, ok := c.(map[string]any)
		if !ok {
			continue
		}
		finished, aborted := c["finish_reason"] != nil, c["finish_reason"] == "abort"
		want.Finished = want.Finished || finished
		want.Aborted = want.Aborted || aborted
		content := route != ChatCompletions || finished
		delta, _ := c["delta"].(map[string]any)
		for _, k := range []string{"content", "reasoning", "reasoning_content", "refusal", "tool_calls", "function_call"} {
			switch v := delta[k].(type) {
			case string:
				content = content || v != ""
			case []any:
				content = content || len(v) > 0
			case map[string]any:
				content = true
			}
		}
		want.FirstToken = want.FirstToken || content && !aborted
	}
}

func slowResponsesEvent(e tree, want *outcome) {
	typ, r := e.str("type"), e.obj("response")
	failed := e["error"] != nil || r["error"] != nil || r["status"] == "failed" || typ == "response.failed" || typ == "error"
	aborted := r["status"] == "cancelled" || typ == "response.cancelled"
	want.Failed, want.Aborted = want.Failed || failed, want.Aborted || aborted
	finished := typ == "response.completed" || typ == "response.incomplete"
	want.Finished = want.Finished || finished
	want.Done = want.Done || finished || typ == "response.failed" || typ == "error" || typ == "response.cancelled"
	ours := strings.HasPrefix(typ, "response.")
	want.FirstToken = want.FirstToken || finished && !failed && !aborted ||
		ours && strings.HasSuffix(typ, ".delta") && e.str("delta") != "" || ours && strings.HasSuffix(typ, ".done")
	if u, ok := slowUsage(Responses, r["usage"]); ok {
		want.Usage = u
	}
}

func slowMessagesEvent(e tree, want *outcome, counts map[string]int) {
	typ, d := e.str("type"), e.obj("delta")
	usage := tree{}
	switch typ {
	case "message_start":
		usage = e.obj("message").obj("usage")
	case "message_delta":
		stopped := d["stop_reason"] != nil
		want.Finished, want.FirstToken = want.Finished || stopped, want.FirstToken || stopped
		usage = e.obj("usage")
	case "content_block_start":
		want.FirstToken = want.FirstToken || e.obj("content_block").str("type") == "tool_use"
	case "content_block_delta":
		want.FirstToken = want.FirstToken || d.str("text")+d.str("thinking")+d.str("partial_json") != ""
	case "message_stop":
		want.Done, want.Aborted = true, want.Aborted || !want.Finished
	}
	want.Failed = want.Failed || e["error"] != nil || typ == "error"
	if usage != nil && (typ == "message_start" || typ == "message_delta") {
		want.Usage.Have = true
	}
	slowCounts(usage, counts)
	have := want.Usage.Have
	want.Usage = messageCountsOf(counts)
	want.Usage.Have = have
}

// slowCounts takes over the numbers of a usage object.
func slowCounts(usage tree, counts map[string]int) {
	for _, k := range []string{"input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"} {
		if n, ok := slowCount(usage[k]); ok {
			counts[k] = n
		}
	}
}

func messageCountsOf(counts map[string]int) Usage {
	cached, haveCached := counts["cache_read_input_tokens"]
	return Usage{
		PromptTokens: counts["input_tokens"] + cached + counts["cache_creation_input_tokens"], CompletionTokens: counts["output_tokens"],
		CachedTokens: cached, HaveCached: haveCached,
	}
}

// object is the object that text is, or nil.
func object(text string) (o tree) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	if !json.Valid([]byte(text)) || !utf8.ValidString(text) || depthOf([]byte(text)) > MaxDepth || dec.Decode(&o) != nil {
		return nil
	}
	return o
}

func slowCount(v any) (int, bool) {
	n, ok := v.(json.Number)
	x, err := strconv.ParseFloat(string(n), 64)
	if err == nil && x != math.Trunc(x) {
		x = 0
	}
	return int(min(max(x, 0), math.MaxInt32)), ok
}

func slowUsage(route Route, v any) (u Usage, ok bool) {
	m, ok := v.(map[string]any)
	o := tree(m)
	if route == Messages {
		counts := map[string]int{}
		slowCounts(o, counts)
		u = messageCountsOf(counts)
		u.Have = ok
		return u, ok
	}
	prompt, output := "prompt_tokens", "completion_tokens"
	if route == Responses {
		prompt, output = "input_tokens", "output_tokens"
	}
	u.Have = ok
	u.PromptTokens, _ = slowCount(o[prompt])
	u.CompletionTokens, _ = slowCount(o[output])
	u.CachedTokens, u.HaveCached = slowCount(o.obj(prompt + "_details")["cached_tokens"])
	return u, ok
}
