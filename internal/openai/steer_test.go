package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSteeringFieldsAreFoundInAnySpelling: what controls the scheduler or a transfer is found wherever an engine looks for
// it, and however its name is written.
func TestSteeringFieldsAreFoundInAnySpelling(t *testing.T) {
	const both = SteersPriority | SteersTransfer
	for name, tc := range map[string]struct {
		fields string
		want   Steering
	}{
		"neither":                             {`"n":1`, 0},
		"a priority":                          {`"priority":-5`, SteersPriority},
		"a priority of the default":           {`"priority":0`, SteersPriority},
		"a priority as a string":              {`"priority":"-5"`, SteersPriority},
		"a priority in a fraction":            {`"priority":-5.0`, SteersPriority},
		"an escaped name":                     {`"pr\u0069\u006Frity":-5`, SteersPriority},
		"a name of escapes alone":             {`"\u0070\u0072\u0069\u006f\u0072\u0069\u0074\u0079":-5`, SteersPriority},
		"twice, the last one null":            {`"priority":-5,"priority":null`, SteersPriority},
		"null":                                {`"priority":null,"kv_transfer_params":null`, 0},
		"another case":                        {`"Priority":-5`, 0}, // engines compare exactly
		"a transfer":                          {`"kv_transfer_params":{"do_remote_prefill":true}`, SteersTransfer},
		"a transfer that is empty":            {`"kv_transfer_params":{}`, SteersTransfer},
		"a transfer, escaped":                 {`"kv\u005ftransfer_params":{"do_remote_prefill":true}`, SteersTransfer},
		"a transfer of encoders' work":        {`"ec_transfer_params":{"a":1}`, SteersTransfer},
		"a transfer among the extras":         {`"vllm_xargs":{"kv_transfer_params":"x"}`, SteersTransfer},
		"a transfer among the extras, hidden": {`"vllm_xargs":{"a":1,"kv\u005ftransfer_params":"x"}`, SteersTransfer},
		"extras given twice":                  {`"vllm_xargs":{"kv_transfer_params":"x"},"vllm_xargs":{}`, SteersTransfer},
		"a report of reused blocks":           {`"vllm_xargs":{"kv_cache_report_mode":"full"}`, SteersEvents},
		"a report, escaped":                   {`"vllm_xargs":{"kv_cache\u005freport_mode":"full"}`, SteersEvents},
		"a report in sampling parameters":     {`"sampling_params":{"extra_args":{"kv_cache_report_mode":"full"}}`, SteersEvents},
		"a report and a transfer":             {`"vllm_xargs":{"kv_cache_report_mode":"full","kv_transfer_params":{}}`, SteersEvents | SteersTransfer},
		"a long salt":                         {`"cache_salt":` + quoted(MaxEventText+1), SteersEvents},
		"a salt that is not too long":         {`"cache_salt":` + quoted(MaxEventText), 0},
		"a long session":                      {`"session_id":` + quoted(MaxEventText+1), SteersEvents},
		"a long session, escaped, and null":   {`"s\u0065ssion_id":` + quoted(MaxEventText+1) + `,"session_id":null`, SteersEvents},
		"a long session in the arguments":     {`"vllm_xargs":{"session_id":` + quoted(MaxEventText+1) + `}`, SteersEvents},
		"a session that is not too long":      {`"session_id":"s","vllm_xargs":{"session_id":` + quoted(MaxEventText) + `}`, 0},
		"long texts of other names":           {`"user":` + quoted(MaxEventText+1) + `,"vllm_xargs":{"x":` + quoted(MaxEventText+1) + `}`, 0},
		"sampling parameters":                 {`"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1}}}`, SteersTransfer},
		"extras of other names":               {`"vllm_xargs":{"a":[1,2],"b":"kv_transfer_params","priority":1}`, 0},
		"extras that are no object":           {`"vllm_xargs":["kv_transfer_params"]`, 0},
		"a name in a text":                    {`"user":"\"priority\":1"`, 0},
		"a name inside of another field":      {`"metadata":{"priority":1,"kv_transfer_params":{}}`, 0},
		"a partner of SGLang":                 {`"bootstrap_host":"10.0.0.1","bootstrap_room":7`, SteersTransfer},
		"a rank":                              {`"data_parallel_rank":1`, SteersTransfer},
		"both":                                {`"priority":1,"kv_transfer_params":{}`, both},
		"behind 300 fields":                   {manyFields(300) + `"priority":1`, SteersPriority},
	} {
		t.Run(name, func(t *testing.T) {
			for route, prompt := range map[Route]string{
				Completions: `"prompt":"x"`, ChatCompletions: `"messages":[]`, Responses: `"input":"x"`, Messages: `"messages":[]`, Embeddings: `"input":"x"`,
			} {
				body := []byte(`{"model":"m",` + prompt + `,` + tc.fields + `}`)
				var r Request
				if err := Parse(route, body, &r); err != nil {
					t.Fatal(err)
				}
				if r.Steering != tc.want {
					t.Errorf("route %v: %b, want %b", route, r.Steering, tc.want)
				}
				if got, err := SteeringOf(body); got != tc.want || err != nil {
					t.Errorf("unknown route: %b (%v), want %b", got, err, tc.want)
				}
			}
		})
	}
}

// quoted is a string of so many bytes with its quotes.
func quoted(n int) string { return `"` + strings.Repeat("s", n-2) + `"` }

// TestLongNamesOfImagesSteer: engines repeat the names that clients give images in their events.
func TestLongNamesOfImagesSteer(t *testing.T) {
	for n, want := range map[int]Steering{MaxEventText: 0, MaxEventText + 1: SteersEvents} {
		image := `{"type":"image_url","image_url":{"url":"data:x,` + strings.Repeat("y", 2*MaxEventText) + `"},"uuid":` + quoted(n) + `}`
		chat := []byte(`{"model":"m","messages":[{"role":"user","content":[` + image + `]}]}`)
		var r Request
		if err := Parse(ChatCompletions, chat, &r); err != nil || r.Steering != want {
			t.Errorf("%d bytes: %b, %v, want %b", n, r.Steering, err, want)
		}
		for _, body := range []string{string(chat), `{"messages":[[{"content":[` + image + `]}]]}`, `{"content_parts":[` + image + `]}`,
			`{"features":{"kwargs_data":{"image":[` + quoted(2*MaxEventText) + `]},"mm_hashes":{"image":["a",` + quoted(n) + `]}}}`} {
			if got, err := SteeringOf([]byte(body)); err != nil || got != want {
				t.Errorf("%d bytes in %.40s: %b, %v, want %b", n, body, got, err, want)
			}
		}
	}
}

func manyFields(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"x%d":1,`, i)
	}
	return b.String()
}

// TestWhatAnEngineMightReadOtherwiseIsNoBody: a body of a route that is not parsed is refused if an engine's parser could
// see an object in it that is not seen here.
func TestWhatAnEngineMightReadOtherwiseIsNoBody(t *testing.T) {
	for body, want := range map[string]bool{
		"":                                  true,
		"--form\r\n{":                       true,
		"[1]":                               true,
		"\x89PNG\r\n":                       true,
		`{}`:                                true,
		"\t{\"a\":1}":                       true,
		"\ufeff{}":                          true,
		`{"a":NaN}`:                         false,
		`{"a":1}x`:                          false,
		`{"a":1`:                            false,
		`{"a":` + strings.Repeat("[", 2000): false,
		"{\x00\"\x00p\x00":                  false,
		"\xff\xfe{\x00":                     false,
		"\x00{\x00\"":                       false,
		"{\x00\x00\x00":                     false,
		"\"\xff\"":                          true,
		"{\"\xff\":1}":                      false,
		"{\"a\":1}\xff":                     false,
	} {
		if _, err := SteeringOf([]byte(body)); (err == nil) != want {
			t.Errorf("%.20q: %v", body, err)
		}
	}
}

func TestDropPriority(t *testing.T) {
	for body, want := range map[string]string{
		`{}`:                                     `{}`,
		`{"priority":1}`:                         `{            }`,
		`{"a":1}`:                                `{"a":1}`,
		`{"priority":1,"a":2}`:                   `{             "a":2}`,
		`{"a":2,"priority":-10}`:                 `{"a":2               }`,
		`{"a":2,"priority":1,"priority":2}`:      `{"a":2                          }`,
		`{"priority":1,"priority":2}`:            `{                         }`,
		`{"priority":1,"a":2,"priority":3}`:      `{             "a":2             }`,
		`{"a":1 , "priority" : "x" , "b":2}`:     `{"a":1 ,                    "b":2}`,
		`{"a":1 , "priority" : [1,{"a":2}] }`:    `{"a":1                            }`,
		`{"a":{"priority":1},"\u0070riority":1}`: `{"a":{"priority":1}                  }`,
		"\ufeff{\"priority\":1}":                 "\ufeff{            }",
		`[{"priority":1}]`:                       `[{"priority":1}]`,
	} {
		got := []byte(body)
		dropped := DropPriority(got)
		if string(got) != want || dropped != (body != want) {
			t.Errorf("%s:\ngot  %s (%v)\nwant %s", body, got, dropped, want)
		}
	}
}

// FuzzDropPriority: what is left is the object without its priorities, in as many bytes, and steers no scheduler.
func FuzzDropPriority(f *testing.F) {
	for _, s := range []string{`{"a":1,"priority":2}`, `{"priority":1,"priority":2,"b":[1,{"priority":3}],"\u0070riority":4}`, ` {"a" : 1 , "priority":null } `, "\ufeff{\"priority\":1}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if _, err := SteeringOf(body); err != nil {
			return
		}
		got := bytes.Clone(body)
		dropped := DropPriority(got)
		if len(got) != len(body) || !dropped && !bytes.Equal(got, body) {
			t.Fatalf("%q became %q", body, got)
		}
		if again := DropPriority(bytes.Clone(got)); again {
			t.Fatalf("%q has a priority left", got)
		}
		if found, err := SteeringOf(got); err != nil || found&SteersPriority != 0 {
			t.Fatalf("%q became %q: %b, %v", body, got, found, err)
		}
		var before, after map[string]json.RawMessage
		if json.Unmarshal(bytes.TrimPrefix(body, byteOrderMark), &before) != nil {
			return
		}
		if err := json.Unmarshal(bytes.TrimPrefix(got, byteOrderMark), &after); err != nil {
			t.Fatalf("%q became %q: %v", body, got, err)
		}
		delete(before, "priority")
		if diff := cmp.Diff(before, after); diff != "" {
			t.Fatalf("%q became %q:\n%s", body, got, diff)
		}
	})
}
