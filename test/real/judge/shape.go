package judge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Values that engines of one release need not agree on, by the last name of their path: they are noted by type.
var opaque = map[string]bool{
	"id": true, "created": true, "created_at": true, "request_id": true, "message": true, "msg": true, "text": true, "content": true,
	"prompt": false, "logprob": true, "token": true, "bytes": true, "decoded_token": true, "rank": true, "system_fingerprint": true,
	"version": true, "arrival_time": true, "url": true, "ctx": true, "error": false, "seed": true, "stop_reason": false, "root": true, "topic": true,
	"completed_at": true, "delta": true, "embedding": true, "item_id": true, "relevance_score": true, "score": true, "signature": true,
}

// generated are lists of ids that depend on the model's weights: only their length is compared.
var generated = map[string]bool{"token_ids": true, "tokens": true, "token_logprobs": true, "top_logprobs": true, "text_offset": true}

// socket is an address of a ZeroMQ socket, which each engine has its own of.
var socket = regexp.MustCompile(`tcp://\S+:\d+`)

// noteJSON notes the shape of a JSON value under path.
func (o Observation) noteJSON(path string, data []byte, ids bool) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		o.set(path, fmt.Sprintf("%d bytes that are not JSON", len(data)))
		if len(data) == 0 {
			o[path] = "empty"
		}
		return
	}
	o.note(path, v, ids)
}

// note notes a decoded value. Fields that are null are passed over: releases differ in which of them they send, and a
// client that asks for the field sees no difference. With ids, lists of token ids are compared by their content, not by their length alone.
func (o Observation) note(path string, v any, ids bool) {
	name := path[strings.LastIndexByte(path, '.')+1:]
	switch v := v.(type) {
	case map[string]any:
		if name == "logprobs" {
			o.set(path, "object") // what is in it depends on the model's weights
			return
		}
		if len(v) == 0 {
			o.set(path, "{}")
		}
		for key, item := range v {
			o.note(path+"."+key, item, ids)
		}
	case []any:
		if numbers, ok := numbers(v); ok && len(v) > 0 {
			o.set(path, describe(numbers, path, name, ids))
			return
		}
		if len(v) == 0 {
			o.set(path, "[]")
		}
		for i, item := range v {
			o.note(path+"["+strconv.Itoa(i)+"]", item, ids)
		}
	case json.Number:
		o.set(path, hide(name, "number", v.String()))
	case string:
		o.set(path, hide(name, "string", strconv.Quote(socket.ReplaceAllString(v, "tcp://address"))))
	case bool:
		o.set(path, strconv.FormatBool(v))
	}
}

func hide(name, kind, value string) string {
	name, _, _ = strings.Cut(name, "[")
	if opaque[name] {
		return kind
	}
	return value
}

func numbers(list []any) ([]string, bool) {
	var out []string
	for _, item := range list {
		n, ok := item.(json.Number)
		if !ok {
			return nil, false
		}
		out = append(out, n.String())
	}
	return out, true
}

func describe(list []string, path, name string, ids bool) string {
	if (!ids || strings.Contains(path, "choices[")) && generated[name] || opaque[name] {
		return fmt.Sprintf("%d numbers", len(list))
	}
	if len(list) <= 8 {
		return "[" + strings.Join(list, " ") + "]"
	}
	sum := fnv.New32a()
	sum.Write([]byte(strings.Join(list, " ")))
	return fmt.Sprintf("%d numbers, %08x", len(list), sum.Sum32())
}

// noteStream notes a stream of server-sent events: the chunks with choices, and what follows. How many tokens come in a
// chunk depends on timing, so of the chunks the paths of all are noted, with the values of the last one that has them, and
// how many ids all have together.
func (o Observation) noteStream(path string, body []byte) {
	if bytes.HasPrefix(body, []byte("event: ")) {
		o.noteEvents(path, body)
		return
	}
	var events []string
	for line := range strings.SplitSeq(string(body), "\n") {
		line = strings.TrimSuffix(line, "\r")
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			events = append(events, data)
		} else if line != "" {
			o.set(path+".other", line)
		}
	}
	if n := len(events); n > 0 && events[n-1] == "[DONE]" {
		o.set(path+".end", "[DONE]")
		events = events[:n-1]
	}
	end := len(events)
	for end > 0 && !strings.Contains(events[end-1], `"choices":[{`) {
		end--
	}
	chunks, ids := Observation{}, map[string]int{}
	for _, data := range events[:end] {
		chunk := Observation{}
		chunk.noteJSON(path+".chunks", []byte(data), false)
		for name, value := range chunk {
			if n := 0; strings.HasSuffix(name, "].token_ids") {
				_, _ = fmt.Sscan(value, &n)
				ids[name] += n
				value = fmt.Sprintf("%d numbers", ids[name])
			}
			chunks[name] = value
		}
	}
	for name, value := range chunks {
		o.set(name, value)
	}
	for _, data := range events[end:] {
		o.noteJSON(path+".after", []byte(data), false)
	}
	if len(events) == 0 {
		o.set(path, "no events")
	}
}

// noteEvents notes a stream whose events have names: their order, in which one that repeats is named once, and what events of each
// name show together. Whether they are numbered from 0 on is noted in place of their numbers.
func (o Observation) noteEvents(path string, body []byte) {
	var order []string
	numbered, last, next := true, "", 0
	for event := range strings.SplitSeq(strings.TrimSuffix(string(body), "\n\n"), "\n\n") {
		name, data, ok := strings.Cut(event, "\n")
		name, named := strings.CutPrefix(name, "event: ")
		data, hasData := strings.CutPrefix(data, "data: ")
		if !ok || !named || !hasData {
			o.set(path+".other", event)
			continue
		}
		if name != last {
			order, last = append(order, name), name
		}
		shown := Observation{}
		shown.noteJSON(path+"."+name, []byte(data), false)
		number := path + "." + name + ".sequence_number"
		numbered = numbered && shown[number] == strconv.Itoa(next)
		next++
		delete(shown, number)
		for at, value := range shown {
			o.set(at, value)
		}
	}
	o.set(path+".order", strings.Join(order, " "))
	o.set(path+".numbered", strconv.FormatBool(numbered))
}

// Headers that depend on the moment or on the length of the body, or that belong to the connection.
var passing = []string{"Date", "Content-Length"}

func (o Observation) noteHeaders(h http.Header) {
	var list []string
	for name, values := range h {
		if !slices.Contains(passing, name) {
			list = append(list, strings.ToLower(name)+": "+strings.Join(values, ", "))
		}
	}
	slices.Sort(list)
	o.set("headers", strings.Join(list, "; "))
}
