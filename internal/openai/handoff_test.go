package openai

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBodiesOfLegs(t *testing.T) {
	const asked = `"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,` +
		`"remote_block_ids":null,"remote_host":null,"remote_port":null}`
	type bodies struct{ body, prefill, decode string }
	routes := map[string]Route{"a response": Responses, "messages": Messages}
	for name, tc := range map[string]bodies{
		"a response": {
			`{"model":"m","input":"x","store":true,"stream":true,"max_output_tokens":9}`,
			`{"model":"m","input":"x","store":false,"stream":false,"max_output_tokens":1,` + asked + `}`,
			`{"model":"m","input":"x","store":true,"stream":true,"max_output_tokens":9,"kv_transfer_params":{"a":[1]}}`,
		},
		"messages": {
			`{"model":"m","messages":[],"stream":true,"max_tokens":9}`,
			`{"model":"m","messages":[],"stream":false,"max_tokens":1,` + asked + `}`,
			`{"model":"m","messages":[],"stream":true,"max_tokens":9,"kv_transfer_params":{"a":[1]}}`,
		},
		"a completion": {
			`{"model":"m","prompt":"x"}`,
			`{"model":"m","prompt":"x","stream":false,"max_tokens":1,` + asked + `}`,
			`{"model":"m","prompt":"x","kv_transfer_params":{"a":[1]}}`,
		},
		"a stream": {
			`{"stream":true,"stream_options":{"include_usage":true},"model":"m","prompt":"x","min_tokens":5,"max_tokens":100}`,
			`{"model":"m","prompt":"x","stream":false,"max_tokens":1,` + asked + `}`,
			`{"stream":true,"stream_options":{"include_usage":true},"model":"m","prompt":"x","min_tokens":5,"max_tokens":100,"kv_transfer_params":{"a":[1]}}`,
		},
		"what makes an answer large": {
			`{"model":"m","echo":true,"logprobs":5,"top_logprobs":5,"return_token_ids":true,"prompt":"x"}`,
			`{"model":"m","prompt":"x","stream":false,"max_tokens":1,` + asked + `}`,
			`{"model":"m","echo":true,"logprobs":5,"top_logprobs":5,"return_token_ids":true,"prompt":"x","kv_transfer_params":{"a":[1]}}`,
		},
		"another bound": {
			`{"model":"m","messages":[{"role":"user","content":"}"}],"max_completion_tokens":9}`,
			`{"model":"m","messages":[{"role":"user","content":"}"}],"max_completion_tokens":1,"stream":false,"max_tokens":1,` + asked + `}`,
			`{"model":"m","messages":[{"role":"user","content":"}"}],"max_completion_tokens":9,"kv_transfer_params":{"a":[1]}}`,
		},
		"members given twice, and parameters of null": {
			`{"stream":true,"model":"m","kv_transfer_params":null,"stream":true,"prompt":"x","kv_transfer_params":null}` + " \n",
			`{"model":"m","prompt":"x","stream":false,"max_tokens":1,` + asked + `}`,
			`{"stream":true,"model":"m","stream":true,"prompt":"x","kv_transfer_params":{"a":[1]}}`,
		},
		"a name with an escape": {
			`{"str\u0065am":true,"model":"m","prompt":"x"}`,
			`{"model":"m","prompt":"x","stream":false,"max_tokens":1,` + asked + `}`,
			`{"str\u0065am":true,"model":"m","prompt":"x","kv_transfer_params":{"a":[1]}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			for leg, got := range map[string][2]string{
				"prefill": {string(AppendPrefill([]byte("x"), routes[name], []byte(tc.body), AsksPrefill)[1:]), tc.prefill},
				"decode":  {string(AppendDecode([]byte("x"), []byte(tc.body), []byte(`{"a":[1]}`))[1:]), tc.decode},
			} {
				if diff := cmp.Diff(compact(t, got[1]), compact(t, got[0])); diff != "" {
					t.Errorf("%s (-want +got):\n%s", leg, diff)
				}
			}
		})
	}
}

// compact is JSON without the spaces between its parts, members in their order, twice where they are given twice.
func compact(t *testing.T, text string) string {
	t.Helper()
	out, err := json.Marshal(json.RawMessage(text))
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return string(out)
}

func TestParametersOfAPrefill(t *testing.T) {
	for answer, want := range map[string]string{
		`{"choices":[],"kv_transfer_params":{"do_remote_prefill": true,"remote_block_ids":[[1]]}}`: `{"do_remote_prefill": true,"remote_block_ids":[[1]]}`,
		`{"kv_transfer_params":{"do_remote_prefill":false}}`:                                       "",
		`{"kv_transfer_params":null}`:                                                              "",
		`{"kv_transfer_params":[1]}`:                                                               "",
		`{"choices":[{"kv_transfer_params":{"do_remote_prefill":true}}]}`:                          "",
		`{"kv_transfer_params":{"do_remote_prefill":true}`:                                         "",
		``: "",
	} {
		if got, owed := HandoffParameters([]byte(answer)); string(got) != want || owed {
			t.Errorf("of %s: %q, want %q; owed %v", answer, got, want, owed)
		}
	}
	for reason, want := range map[string]bool{"length": true, "stop": false, "": false} {
		answer := `{"choices":[{"index":0,"text":"a","finish_reason":"` + reason + `"}],"kv_transfer_params":null}`
		if got, owed := HandoffParameters([]byte(answer)); got != nil || owed != want {
			t.Errorf("an answer that has ended by %q: %q, owed %v", reason, got, owed)
		}
	}
}

func FuzzBodiesOfLegs(f *testing.F) {
	f.Add([]byte(`{"stream":true,"model":"m","prompt":"x","max_completion_tokens":3}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var r Request
		if Parse(Completions, body, &r) != nil {
			return
		}
		for _, leg := range [][]byte{AppendPrefill(nil, Completions, body, AsksPrefill), AppendDecode(nil, body, []byte(`{}`))} {
			if err := Parse(Completions, leg, &r); err != nil {
				t.Errorf("%q becomes %q: %v", body, leg, err)
			}
		}
	})
}
