package openai

// usualField reports whether a top-level field is known to leave the engine's prefix cache alone: it selects tokens that
// are generated, or it is part of the prompt, which is read elsewhere. Other fields are SetsSalt or OtherFields. The list is
// of vLLM 0.11 to 0.33 and of the OpenAI and Anthropic APIs; cache_salt, truncation, vllm_xargs, kv_transfer_params and
// whatever a later release adds are not on it.
func usualField(name []byte) bool {
	switch string(name) {
	case "model", "messages", "prompt", "input", "system", "instructions", "tools", "stream", "stream_options", "user", "metadata",
		"chat_template_kwargs", "reasoning_effort", "documents", "add_generation_prompt", "continue_final_message",
		"add_special_tokens", "chat_template",
		"max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "n", "stop", "stop_token_ids",
		"stop_sequences", "seed", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
		"repetition_penalty", "logit_bias", "logprobs", "top_logprobs", "allowed_token_ids", "bad_words", "ignore_eos",
		"skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "response_format",
		"structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "text", "tool_choice",
		"parallel_tool_calls", "max_tool_calls", "include_reasoning", "reasoning", "thinking", "thinking_token_budget",
		"verbosity", "store", "include", "service_tier", "safety_identifier", "request_id", "return_token_ids",
		"return_tokens_as_token_ids", "modalities", "encoding_format", "dimensions", "background", "prefix_len":
		return true
	}
	return false
}
