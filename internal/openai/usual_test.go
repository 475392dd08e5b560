package openai

import "testing"

func TestFieldsThatMayConcernTheCacheAreNoticed(t *testing.T) {
	type found struct{ salt, other bool }
	for fields, want := range map[string]found{
		`"temperature":0,"stop":["x"],"stream":true,"stream_options":{"include_usage":true}`: {},
		`"tools":[],"tool_choice":"auto","chat_template_kwargs":{"a":1},"metadata":{}`:       {},
		`"vllm_xargs":null,"cache_salt":null`:                                                {},
		`"vllm_xargs":{"kv_cache_report_mode":"full"}`:                                       {other: true},
		`"kv_transfer_params":{"do_remote_prefill":true}`:                                    {other: true},
		`"cache_salt":"s"`:                   {salt: true},
		`"cache_salt":7`:                     {salt: true},
		`"cache_salt":"s","cache_salt":null`: {salt: true},
		`"cache_salt":"s","priority":-1`:     {salt: true, other: true},
		`"truncate_prompt_tokens":64`:        {other: true},
		`"priority":-1`:                      {other: true},
		`"mm_processor_kwargs":{}`:           {other: true},
		`"a field of a later release":false`: {other: true},
		`"vllm_xargs":{"kv_cache_report_mode":"full"},"vllm_xargs":null`: {other: true},
	} {
		t.Run(fields, func(t *testing.T) {
			var r Request
			if err := Parse(ChatCompletions, []byte(`{"model":"m","messages":[{"role":"user","content":"vllm_xargs"}],`+fields+`}`), &r); err != nil {
				t.Fatal(err)
			}
			if got := (found{r.SetsSalt, r.OtherFields}); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
			if err := Parse(ChatCompletions, []byte(`{"model":"m","messages":[]}`), &r); err != nil || r.SetsSalt || r.OtherFields {
				t.Errorf("the next request has such fields, too (%v)", err)
			}
		})
	}
}
