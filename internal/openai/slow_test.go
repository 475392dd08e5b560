package openai

import (
	"bytes"
	"encoding/json"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// tree is a decoded object.
type tree map[string]any

func (o tree) str(name string) string { s, _ := o[name].(string); return s }

func (o tree) flag(name string) bool { b, _ := o[name].(bool); return b }

// truth is a flag as pydantic reads it.
func (o tree) truth(name string) bool {
	switch v := o[name].(type) {
	case bool:
		return v
	case string:
		return slices.Contains([]string{"1", "t", "true", "y", "yes", "on"}, strings.ToLower(v))
	}
	return o.whole(name, 0) == 1
}

// wordOf is the form of numbers that pydantic reads from text.
var wordOf = regexp.MustCompile(`^\s*([-+]?[0-9]+(?:_[0-9]+)*)(?:\.0+)?\s*$`)

func (o tree) whole(name string, least int) int {
	n, _ := o[name].(json.Number)
	switch v := o[name].(type) {
	case bool:
		n = json.Number(map[bool]string{true: "1", false: "0"}[v])
	case string:
		if m := wordOf.FindStringSubmatch(v); m != nil {
			n = json.Number(strings.ReplaceAll(m[1], "_", ""))
		}
	}
	x, err := strconv.ParseFloat(string(n), 64)
	if err != nil && math.Abs(x) <= 1 || x != math.Trunc(x) {
		x = 0
	}
	return max(int(min(max(x, math.MinInt32), math.MaxInt32)), least)
}

func (o tree) obj(name string) tree { m, _ := o[name].(map[string]any); return m }

func (o tree) is(name string) (string, bool) { s, ok := o[name].(string); return s, ok }

// slowParse is what Parse must find, by way of a tree. The error is "syntax", a field's name, or empty.
func slowParse(route Route, body []byte) (want seen, bad string) {
	body = bytes.TrimPrefix(body, byteOrderMark)
	if !json.Valid(body) || !utf8.Valid(body) || depthOf(body) > MaxDepth {
		return want, "syntax"
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var doc any
	if err := dec.Decode(&doc); err != nil {
		return want, "syntax"
	}
	m, ok := doc.(map[string]any)
	if !ok {
		return want, "body"
	}
	o := tree(m)
	want.Model = o.str("model")
	if want.Model == "" {
		return want, "model"
	}
	want.N, want.PrefixLen = 1, o.whole("prefix_len", 0)
	want.CacheSalt = o.str("cache_salt")
	if route != Messages {
		want.User, want.Priority = o.str("user"), o.whole("priority", math.MinInt32)
	}
	want.Stream = o.truth("stream") && route != Embeddings
	if _, ok := o["tools"].([]any); ok && route != Completions && route != Embeddings {
		want.Tools = "set"
	}
	switch route {
	case Completions, ChatCompletions:
		return want, slowGenerate(route, o, &want)
	case Responses:
		return want, slowResponses(o, &want)
	case Messages:
		return want, slowAnthropic(o, &want)
	}
	slowOpen(o, &want)
	if o["input"] == nil && o["messages"] != nil {
		return want, slowMessages(route, "messages", o["messages"], &want)
	}
	if o["messages"] != nil {
		slowMessages(route, "messages", o["messages"], &want)
	}
	if chats, mixed := slowChats(o["input"]); chats {
		if mixed {
			return want, "input"
		}
		return want, ""
	}
	return want, slowPrompt("input", o["input"], &want)
}

// slowOpen reads the fields of the routes that are not of other companies' making.
func slowOpen(o tree, want *seen) {
	if o["add_special_tokens"] != nil {
		b := o.truth("add_special_tokens")
		want.AddSpecialTokens = &b
	}
	_, want.SideGiven = o.is("truncation_side")
	want.Truncate, want.KeepFirst = o.whole("truncate_prompt_tokens", -1), o.str("truncation_side") == "right"
}

func slowGenerate(route Route, o tree, want *seen) string {
	slowOpen(o, want)
	want.IncludeUsage = o.obj("stream_options").flag("include_usage")
	if _, named := o["tool_choice"].(map[string]any); named || o.str("tool_choice") == "required" {
		want.ForcesTool = true
	}
	want.Echo, want.CacheUnreported = o.truth("echo"), o.truth("use_beam_search")
	switch o["prompt_embeds"].(type) {
	case string, []any:
		want.Embeds = true
	}
	want.N, want.MaxTokens = o.whole("n", 1), o.whole("max_tokens", 0)
	if route == Completions {
		want.NoCacheRead = o["prompt_logprobs"] != nil || want.Echo && o["logprobs"] != nil
		return slowPrompt("prompt", o["prompt"], want)
	}
	want.NoCacheRead = o["prompt_logprobs"] != nil || want.Echo
	if o["max_completion_tokens"] != nil {
		want.MaxTokens = o.whole("max_completion_tokens", 0)
	}
	return slowMessages(route, "messages", o["messages"], want)
}

func slowResponses(o tree, want *seen) string {
	want.MaxTokens, want.IncludeUsage, want.Background = o.whole("max_output_tokens", 0), want.Stream, o.truth("background")
	if v, ok := o["truncation"]; ok && v != "disabled" {
		want.Truncate = -1
	}
	_, id := o["previous_response_id"].(string)
	_, response := o["previous_response"].(map[string]any)
	_, list := o["previous_input_messages"].([]any)
	want.Stateful = id || response || list
	top, ok := o.is("instructions")
	if ok {
		want.System = "set"
	}
	text, ok := o.is("input")
	if !ok {
		bad := slowMessages(Responses, "input", o["input"], want)
		want.Stable = slowCut(top) + want.Stable
		return bad
	}
	want.Messages, want.NumMessages, want.Stable = "set", 1, slowCut(top)+"\x00"+slowCut(text)
	return ""
}

func slowAnthropic(o tree, want *seen) string {
	want.MaxTokens, want.IncludeUsage = o.whole("max_tokens", 0), want.Stream
	want.User = o.obj("metadata").str("user_id")
	var top seen
	switch s := o["system"].(type) {
	case string, []any:
		want.System = "set"
		top.Stable, _ = slowContent(s, 0, &top)
	}
	bad := slowMessages(Messages, "messages", o["messages"], want)
	want.Stable = top.Stable + want.Stable
	return bad
}

// slowCut takes out what is not stable.
func slowCut(text string) string {
	if strings.HasPrefix(text, changing) {
		return ""
	}
	return text
}

// slowChats reports whether v is a list of messages or of chats, and whether it has something else in it.
func slowChats(v any) (chats, mixed bool) {
	list, _ := v.([]any)
	if len(list) == 0 {
		return false, false
	}
	if _, ok := list[0].(map[string]any); ok {
		for _, e := range list {
			if _, ok := e.(map[string]any); !ok {
				mixed = true
			}
		}
		return true, mixed
	}
	first, _ := list[0].([]any)
	if len(first) == 0 {
		return false, false
	}
	if _, ok := first[0].(map[string]any); !ok {
		return false, false
	}
	for _, e := range list {
		if _, ok := e.([]any); !ok {
			mixed = true
		}
	}
	return true, mixed
}

func slowIDs(v any) (ids []uint32, ok bool) {
	list, ok := v.([]any)
	for _, e := range list {
		n, isNumber := e.(json.Number)
		x, err := strconv.ParseFloat(string(n), 64)
		if !isNumber || err != nil || x < 0 || x > math.MaxUint32 || x != math.Trunc(x) {
			return nil, false
		}
		ids = append(ids, uint32(x))
	}
	return ids, ok
}

func slowPrompt(field string, v any, want *seen) string {
	switch v := v.(type) {
	case nil:
		if !want.Embeds {
			return field
		}
		return ""
	case string:
		want.Prompts = []Prompt{{Text: v}}
	case []any:
		if len(v) == 0 {
			return field
		}
		if ids, ok := slowIDs(v); ok {
			want.Prompts = []Prompt{{Tokens: ids, IsTokens: true}}
			break
		}
		for _, e := range v {
			if s, ok := e.(string); ok {
				want.Prompts = append(want.Prompts, Prompt{Text: s})
			} else if ids, ok := slowIDs(e); ok {
				want.Prompts = append(want.Prompts, Prompt{Tokens: ids, IsTokens: true})
			} else {
				return field
			}
			if want.Prompts[0].IsTokens != want.Prompts[len(want.Prompts)-1].IsTokens {
				return field
			}
		}
	default:
		return field
	}
	return ""
}

func slowMessages(route Route, field string, v any, want *seen) string {
	list, ok := v.([]any)
	if !ok {
		return field
	}
	want.Messages, want.NumMessages = "set", len(list)
	system, user, haveUser := "", "", false
	for i, e := range list {
		m, ok := e.(map[string]any)
		if _, isList := e.([]any); isList && route == Embeddings {
			continue
		}
		if !ok {
			return field
		}
		text, multimodal := slowContent(m["content"], i, want)
		if v, ok := m["output"]; ok && route == Responses {
			text, multimodal = slowContent(v, i, want)
		}
		want.Multimodal = want.Multimodal || multimodal
		switch m["role"] {
		case "system", "developer":
			if !haveUser {
				system += text
			}
		case "user":
			if !haveUser {
				user, haveUser = text, true
			}
		}
	}
	want.Stable = system + "\x00" + user
	return ""
}

// slowContent adds the items of a message's content to want.
func slowContent(v any, message int, want *seen) (text string, multimodal bool) {
	switch c := v.(type) {
	case string:
		return slowCut(c), false
	case []any:
		for _, e := range c {
			s, mm := slowPart(e, message, want)
			text += slowCut(s)
			multimodal = multimodal || mm
		}
	}
	return text, multimodal
}

func slowPart(v any, message int, want *seen) (text string, multimodal bool) {
	if s, ok := v.(string); ok {
		return s, false
	}
	m, ok := v.(map[string]any)
	if !ok {
		return "", false
	}
	e := tree(m)
	text, haveText := e.is("text")
	typ, typed := e.is("type")
	switch typ {
	case "text", "input_text", "output_text", "refusal", "thinking", "reasoning_text", "summary_text":
		return text, false
	case "tool_use", "tool_reference", "redacted_thinking", "tool_addition", "tool_removal":
		return "", false
	case "tool_result":
		_, multimodal = slowContent(e["content"], message, want)
		return "", multimodal
	}
	if !typed {
		others := 0
		for k := range e {
			if k != "type" && k != "text" {
				others++
			}
		}
		if haveText && others == 0 {
			return text, false
		}
	}
	it := seenItem{Message: message, UUID: e.str("uuid"), Content: "-"}
	for kind, word := range itemKindNames {
		if strings.Contains(typ, word) && it.Kind == File {
			it.Kind = ItemKind(kind)
		}
	}
	for _, key := range contentKeys {
		if e[key] == nil {
			continue
		}
		it.Content = slowDatum(e[key])
		if !typed {
			it.Kind = map[string]ItemKind{
				"image_url": Image, "audio_url": Audio, "video_url": Video, "input_audio": Audio, "image_embeds": Image, "audio_embeds": Audio, "image": Image,
			}[key]
		}
		break
	}
	want.Items = append(want.Items, it)
	return "", true
}

// slowDatum is what an item's hash is of; "raw" for what is hashed as it is written.
func slowDatum(v any) string {
	if o, ok := v.(map[string]any); ok {
		for _, key := range innerKeys {
			if s, ok := o[key].(string); ok {
				return slowDatum(s)
			}
		}
	}
	s, ok := v.(string)
	if !ok {
		return "raw"
	}
	if strings.HasPrefix(s, "data:") {
		if _, data, ok := strings.Cut(s, ","); ok {
			return data
		}
	}
	return s
}
