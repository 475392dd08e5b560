package vllmsim

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
)

// FuzzRequest feeds bodies to everything that reads one. Whatever they are, the answer is a request or an error.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		`{"prompt": "x", "max_tokens": 3}`, `{"prompt": [1, 2, 3]}`, `{"prompt": ["a", [1]]}`, `{"prompt": [[]]}`,
		`{"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "tools": [{}]}`,
		`{"messages": [{}], "max_completion_tokens": 1, "stream": true, "stream_options": {"include_usage": true}}`, `[`, ``,
	} {
		f.Add([]byte(s))
	}
	e, err := Start(Config{Time: fast, Events: EventsConfig{Disabled: true}})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(e.Kill)
	f.Fuzz(func(t *testing.T, body []byte) {
		if req, prompts, err := e.completion(body); err == nil && (len(prompts) > maxPrompts || *req.MaxTokens < 1) {
			t.Errorf("accepted %d prompts, %d tokens", len(prompts), *req.MaxTokens)
		}
		if req, ids, err := e.chat(body); err == nil && (len(ids) == 0 && len(req.render()) > 0) {
			t.Error("a chat without tokens")
		}
	})
}

// FuzzIDs compares the scan for token ids with the library's.
func FuzzIDs(f *testing.F) {
	for _, s := range []string{`[]`, `[1]`, `[ 1 , 4294967295 ]`, `[4294967296]`, `[1.0]`, `[1e1]`, `[-0]`, `["a"]`, `[[1]]`, `[18446744073709551617]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if !json.Valid(raw) || raw[0] != '[' || bytes.Contains(raw, []byte("null")) {
			return // the library reads null as 0
		}
		got, ok := parseIDs(raw)
		var want []uint32
		if err := json.Unmarshal(raw, &want); (err == nil) != ok {
			t.Fatalf("%q: accepted %v, the library says %v", raw, ok, err)
		}
		if ok && !slices.Equal(got, want) {
			t.Fatalf("%q: %v, the library reads %v", raw, got, want)
		}
	})
}
