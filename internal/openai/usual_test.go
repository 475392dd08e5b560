package openai

import "testing"

func TestFieldsThatMayConcernTheCacheMakeARequestUnusual(t *testing.T) {
	for fields, want := range map[string]bool{
		`"temperature":0,"stop":["x"],"stream":true,"stream_options":{"include_usage":true}`: false,
		`"tools":[],"tool_choice":"auto","chat_template_kwargs":{"a":1},"metadata":{}`:       false,
		`"vllm_xargs":null,"cache_salt":null`:                                                false,
		`"vllm_xargs":{"kv_cache_report_mode":"full"}`:                                       true,
		`"kv_transfer_params":{"do_remote_prefill":true}`:                                    true,
		`"cache_salt":"s"`:                   true,
		`"truncate_prompt_tokens":64`:        true,
		`"priority":-1`:                      true,
		`"mm_processor_kwargs":{}`:           true,
		`"a field of a later release":false`: true,
		`"vllm_xargs":{"kv_cache_report_mode":"full"},"vllm_xargs":null`: true,
	} {
		t.Run(fields, func(t *testing.T) {
			var r Request
			if err := Parse(ChatCompletions, []byte(`{"model":"m","messages":[{"role":"user","content":"vllm_xargs"}],`+fields+`}`), &r); err != nil {
				t.Fatal(err)
			}
			if r.Unusual != want {
				t.Errorf("Unusual is %v, want %v", r.Unusual, want)
			}
			if err := Parse(ChatCompletions, []byte(`{"model":"m","messages":[]}`), &r); err != nil || r.Unusual {
				t.Errorf("the next request is unusual, too (%v)", err)
			}
		})
	}
}
