package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func salted(body, salt string) string {
	b := []byte(body)
	keep, tail := PutSalt(b, salt)
	return string(append(b[:keep], tail...))
}

func TestPutSalt(t *testing.T) {
	for body, want := range map[string]string{
		`{"a":1}`:                  `{"a":1,"cache_salt":"s"}`,
		`{"a":1 }` + "\n":          `{"a":1,"cache_salt":"s"}`,
		`{}`:                       `{"cache_salt":"s"}`,
		`{"cache_salt":"x"}`:       `{"cache_salt":"s"}`,
		`{"cache_salt":"x","a":1}`: `{                 "a":1,"cache_salt":"s"}`,
		`{"a":1,"cache_salt":"x"}`: `{"a":1,"cache_salt":"s"}`,
		`{"cache\u005fsalt":1,"a":1,"cache_salt":null}`: `{` + strings.Repeat(" ", 20) + `"a":1,"cache_salt":"s"}`,
		`{"a":{"cache_salt":"x"}}`:                      `{"a":{"cache_salt":"x"},"cache_salt":"s"}`,
		"\ufeff{\"a\":1}":                               "\ufeff{\"a\":1,\"cache_salt\":\"s\"}",
		`{"a":"}"}`:                                     `{"a":"}","cache_salt":"s"}`,
	} {
		if got := salted(body, "s"); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", body, got, want)
		}
	}
	if got := salted(`{}`, "a\"\\"); got != `{"cache_salt":"a\"\\"}` {
		t.Errorf("a salt that needs escapes: %s", got)
	}
}

// FuzzPutSalt: an engine's parser finds the salt and no other, and all other members as they were.
func FuzzPutSalt(f *testing.F) {
	for _, s := range []string{`"a":1,"cache_salt":"x"`, `"cache_salt":1,"cache\u005fsalt":[1,{"cache_salt":2}],"b":"}"`, ` "b":2 } `, ``} {
		f.Add([]byte(`{"model":"m","prompt":"x",` + s + `}`))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var r Request
		if Parse(Completions, body, &r) != nil {
			return
		}
		got := salted(string(body), "salt")
		if err := Parse(Completions, []byte(got), &r); err != nil || r.CacheSalt != "salt" {
			t.Fatalf("%q became %q: %q, %v", body, got, r.CacheSalt, err)
		}
		if strings.Count(got, `"salt"`) == 1 && !strings.HasSuffix(got, `"cache_salt":"salt"}`) {
			t.Fatalf("%q became %q", body, got)
		}
		var before, after map[string]json.RawMessage
		if json.Unmarshal(bytes.TrimPrefix(body, byteOrderMark), &before) != nil {
			return
		}
		if err := json.Unmarshal(bytes.TrimPrefix([]byte(got), byteOrderMark), &after); err != nil {
			t.Fatalf("%q became %q: %v", body, got, err)
		}
		before["cache_salt"] = json.RawMessage(`"salt"`)
		if diff := cmp.Diff(before, after); diff != "" {
			t.Fatalf("%q became %q:\n%s", body, got, diff)
		}
	})
}

// TestOnlyRoutesThatComputeNothingAreLeftAlone: what is not known to compute nothing counts as a prompt.
func TestOnlyRoutesThatComputeNothingAreLeftAlone(t *testing.T) {
	for _, path := range []string{"/v1/completions", "/v1/messages", "/v1/rerank", "/pooling", "/inference/v1/generate", "/invocations", "/v1/new", ""} {
		if !Computes("POST", path) || !Computes("", path) || Computes("GET", path) {
			t.Errorf("%q", path)
		}
	}
	for _, path := range []string{CountTokens, "/tokenize", "/detokenize"} {
		if Computes("POST", path) {
			t.Errorf("%q", path)
		}
	}
}

// TestPutStreamUsage: a stream that does not report its usage gets the option, once; others are left alone.
func TestPutStreamUsage(t *testing.T) {
	const added = `,"stream_options":{"include_usage":true}}`
	for members, want := range map[string]string{
		`"stream":true`:                                                  `"stream":true` + added,
		`"stream_options":null,"stream":true`:                            strings.Repeat(" ", 22) + `"stream":true` + added,
		`"stream":true,"stream_options":{"include_usage":false}`:         `"stream":true` + added,
		`"stream":true,"stream_options":{"include_usage":null}`:          `"stream":true` + added,
		`"stream":true,"stream_options":{}`:                              `"stream":true` + added,
		`"stream_options":7,"stream":true,"stream\u005foptions":{}`:      strings.Repeat(" ", 19) + `"stream":true` + added,
		`"stream":false`:                                                 "",
		`"user":"x"`:                                                     "",
		`"stream":true,"stream_options":{"include_usage":true}`:          "",
		`"stream":true,"stream_options":{"continuous_usage_stats":true}`: "",
		`"stream":true,"stream_options":{"include_usage":"yes"}`:         "",
		`"stream":true,"stream_options":[]`:                              "",
		`"stream":true,"stream_options":"x"`:                             "",
		`"stream":true,"use_beam_search":true`:                           "",
		`"stream":true,"n":2`:                                            "",
		`"stream":true,"n":1`:                                            `"stream":true,"n":1` + added,
	} {
		for _, route := range []Route{Completions, ChatCompletions} {
			const before = `{"model":"m","messages":[],"prompt":"x",`
			body := []byte(before + members + "}")
			var r Request
			if err := Parse(route, body, &r); err != nil {
				t.Fatalf("%s: %v", members, err)
			}
			if r.TakesUsage != (want != "") {
				t.Errorf("%s: takes the option: %v", members, r.TakesUsage)
			}
			if want == "" {
				continue
			}
			keep, tail := PutStreamUsage(body)
			got := string(append(body[:keep], tail...))
			if got != before+want {
				t.Errorf("%s became %s", members, got)
			}
			if err := Parse(route, []byte(got), &r); err != nil || !r.IncludeUsage || r.TakesUsage {
				t.Errorf("%s became %s: %v", members, got, err)
			}
		}
	}
}

// TestPutReport: a request without arguments for the engine asks it for a report, and stays the same otherwise.
func TestPutReport(t *testing.T) {
	const added = `,"vllm_xargs":{"kv_cache_report_mode":"full"}}`
	for members, takes := range map[string]bool{
		`"user":"x"`: true, `"stream":true,"priority":0` + " ": true, `"vllm_xargs":{"a":1}`: false, `"vllm_xargs":null`: false,
		`"vllm\u005fxargs":{}`: false, `"extra_args":{}`: true,
	} {
		for _, route := range []Route{Completions, ChatCompletions} {
			before := `{"model":"m","messages":[],"prompt":"x",` + members
			body := []byte(before + "}")
			var r Request
			if err := Parse(route, body, &r); err != nil || r.TakesReport != takes {
				t.Errorf("%s: takes a report: %v, %v", members, r.TakesReport, err)
			}
			if !takes {
				continue
			}
			keep, tail := PutReport(body)
			got := string(append(body[:keep], tail...))
			if got != strings.TrimRight(before, " ")+added {
				t.Errorf("%s became %s", members, got)
			}
			if err := Parse(route, []byte(got), &r); err != nil || r.TakesReport || r.Steering&SteersEvents == 0 {
				t.Errorf("%s became %s: %v", members, got, err)
			}
		}
	}
	for _, route := range []Route{Responses, Messages, Embeddings} {
		var r Request
		if err := Parse(route, []byte(`{"model":"m","messages":[],"input":"x"}`), &r); err != nil || r.TakesReport {
			t.Errorf("%v: takes a report: %v, %v", route, r.TakesReport, err)
		}
	}
}

// TestSaltOf: what an engine's parser finds as the salt of a body that is not parsed here.
func TestSaltOf(t *testing.T) {
	for body, want := range map[string]string{
		`{"token_ids":[1]}`: "", `{"cache_salt":"s"}`: "s", "\n" + `{"a":{"cache_salt":"x"},"cache_salt":null}`: "", `{"cache_salt":"x","cache\u005fsalt":"\u0079"}`: "y",
		"\ufeff" + `{"cache_salt":1,"cache_salt":"z"}`: "z",
	} {
		if got, err := SaltOf([]byte(body)); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", body, got, err, want)
		}
	}
	for _, body := range []string{`{"cache_salt":""}`, `{"cache_salt":1}`, `{"cache_salt":"s","cache_salt":[]}`} {
		if _, err := SaltOf([]byte(body)); !errors.Is(err, ErrSalt) {
			t.Errorf("%s: %v", body, err)
		}
	}
	for _, body := range []string{``, `[]`, `"cache_salt"`, `{"a":1`, `{"a":1}{}`, `{"a":NaN}`} {
		if _, err := SaltOf([]byte(body)); err == nil {
			t.Errorf("%s is taken", body)
		}
	}
}

// TestSeveralPromptsAreLeftAlone: vLLM changes the last event of each of their answers.
func TestSeveralPromptsAreLeftAlone(t *testing.T) {
	for body, want := range map[string]bool{`["a"]`: true, `["a","b"]`: false, `[1,2]`: true, `[[1],[2]]`: false} {
		var r Request
		if err := Parse(Completions, []byte(`{"model":"m","stream":true,"prompt":`+body+`}`), &r); err != nil || r.TakesUsage != want {
			t.Errorf("%s: %v, %v", body, r.TakesUsage, err)
		}
	}
}
