package vllmcpu

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// tokenizerFiles has the tokenizer and the chat template of the models.
func tokenizerFiles() string {
	return filepath.Join(sources(), "..", "..", "internal", "tokens", "tokenizer", "testdata", "qwen2_5")
}

// object is JSON.
type object = map[string]any

// modelConfig is the config.json of a model of some ten million parameters. The engine makes its weights itself
// (--load-format dummy), the same ones each time.
func modelConfig(change object) object {
	config := object{
		"architectures": []string{"Qwen2ForCausalLM"}, "model_type": "qwen2",
		"vocab_size": 151680, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
		"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "hidden_act": "silu", "rms_norm_eps": 1e-6,
		"max_position_embeddings": 32768, "rope_theta": 10000.0, "tie_word_embeddings": true,
		"bos_token_id": 151643, "eos_token_id": 151645, "torch_dtype": "bfloat16", "initializer_range": 0.02,
	}
	for key, value := range change {
		config[key] = value
	}
	return config
}

// A model whose template prints all that vLLM gives it shows what a request puts into its prompt: other values are other tokens.
// What grows with a conversation comes last. The second template asks for content in parts, by what vLLM looks for.
const (
	printing = `{% for name, value in [("tools", tools), ("documents", documents), ("add_generation_prompt", add_generation_prompt),
("enable_thinking", enable_thinking), ("reasoning_effort", reasoning_effort), ("note", note)] %}{% if value is defined %}{{ name }}={{ value | tojson }}
{% endif %}{% endfor %}{% for message in messages %}{{ message | tojson }}
{% endfor %}{# continued messages must have a content #}`
	printingParts = printing + `{% for message in messages %}{% for part in message.content %}{% endfor %}{% endfor %}`
)

// looking is a template in the way of Qwen2-VL: a placeholder for each image.
const looking = `{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}{% if part.type == 'image' or 'image_url' in part
%}<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in part %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`

// templates of models, where they are not that of tokenizerFiles.
var templates = map[string]string{"printing": printing, "printing parts": printingParts}

// processors of models that take images, by the names of their files. Requests without tools have the processor's template.
var processors = map[string]map[string]object{
	"vision": {"chat_template.json": {"chat_template": looking}, "preprocessor_config.json": {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor", "patch_size": 14, "temporal_patch_size": 2,
		"merge_size": 2, "min_pixels": 28 * 28, "max_pixels": 256 * 28 * 28, "image_mean": []float64{0.5, 0.5, 0.5}, "image_std": []float64{0.5, 0.5, 0.5}}},
}

// models by name. Cases that need no other use qwen2.
var models = map[string]object{
	"qwen2":          modelConfig(nil),
	attentive:        modelConfig(nil),
	"beginning":      modelConfig(nil), // its tokenizer puts a token before texts
	"printing":       modelConfig(nil),
	"printing parts": modelConfig(nil),
	// Every layer looks back 128 tokens.
	"sliding": modelConfig(object{"architectures": []string{"MistralForCausalLM"}, "model_type": "mistral", "sliding_window": 128}),
	// Three layers look back 128 tokens, one looks back all the way.
	"hybrid": modelConfig(object{"architectures": []string{"Gemma3ForCausalLM"}, "model_type": "gemma3_text", "sliding_window": 128,
		"num_hidden_layers": 4, "layer_types": []string{"sliding_attention", "sliding_attention", "sliding_attention", "full_attention"},
		"sliding_window_pattern": 4, "query_pre_attn_scalar": 32, "rope_local_base_freq": 10000.0, "hidden_activation": "gelu_pytorch_tanh"}),
	// It looks at images: 28 × 28 pixels are a token.
	"vision": modelConfig(object{"architectures": []string{"Qwen2VLForConditionalGeneration"}, "model_type": "qwen2_vl",
		"vision_start_token_id": 151652, "vision_end_token_id": 151653, "vision_token_id": 151654, "image_token_id": 151655, "video_token_id": 151656,
		"rope_scaling": object{"type": "mrope", "mrope_section": []int{4, 6, 6}},
		"vision_config": object{"depth": 2, "embed_dim": 64, "mlp_ratio": 2, "num_heads": 2, "in_channels": 3, "hidden_size": 64, "patch_size": 14,
			"spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2}}),
}

// WriteModel writes a model's files below the cache, where they are not yet as they should be, and returns its directory.
func WriteModel(root, name string) (dir string, err error) {
	config, ok := models[name]
	if !ok {
		return "", fmt.Errorf("no model is named %q", name)
	}
	raw, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return "", fmt.Errorf("writing the configuration of %s: %w", name, err)
	}
	dir = filepath.Join(root, "models", strings.ReplaceAll(name, " ", "-"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("making the directory of model %s: %w", name, err)
	}
	unlock, err := lock(filepath.Join(root, "models", ".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	tokens, err := tokenizerConfig(name)
	if err != nil {
		return "", err
	}
	words, err := tokenizer(name == "beginning")
	if err != nil {
		return "", err
	}
	// The configuration is written last: a model with the right one is complete.
	if isFile(filepath.Join(dir, "config.json"), raw) && isFile(filepath.Join(dir, "tokenizer_config.json"), tokens) &&
		isFile(filepath.Join(dir, "tokenizer.json"), words) {
		return dir, nil
	}
	if name == attentive {
		if err := writeWeights(dir, attentiveWeights()); err != nil {
			return "", err
		}
	}
	for file, content := range processors[name] {
		raw, err := json.Marshal(content)
		if err != nil {
			return "", fmt.Errorf("writing the processor of %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), raw, 0o644); err != nil {
			return "", fmt.Errorf("writing model %s: %w", name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), words, 0o644); err != nil {
		return "", fmt.Errorf("writing model %s: %w", name, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), tokens, 0o644); err != nil {
		return "", fmt.Errorf("writing model %s: %w", name, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o644); err != nil {
		return "", fmt.Errorf("writing model %s: %w", name, err)
	}
	return dir, nil
}

// isFile reports whether a file has a content.
func isFile(path string, content []byte) bool {
	old, err := os.ReadFile(path)
	return err == nil && bytes.Equal(old, content)
}

// tokenizerConfig is a model's tokenizer_config.json, with its template.
func tokenizerConfig(name string) ([]byte, error) {
	raw, err := os.ReadFile(filepath.Join(tokenizerFiles(), "tokenizer_config.json"))
	if err != nil {
		return nil, fmt.Errorf("reading the tokenizer's configuration: %w", err)
	}
	template, ok := templates[name]
	if !ok {
		return raw, nil
	}
	var config object
	if err := json.Unmarshal(raw, &config); err != nil {
		return nil, fmt.Errorf("reading the tokenizer's configuration: %w", err)
	}
	config["chat_template"] = template
	if raw, err = json.Marshal(config); err != nil {
		return nil, fmt.Errorf("writing the tokenizer's configuration: %w", err)
	}
	return raw, nil
}

// beginning is a post-processor that puts <|endoftext|> before texts, as the tokenizers of most families put a token there.
const beginning = `{"type": "Sequence", "processors": [
	{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
	{"type": "TemplateProcessing",
	 "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
	 "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
	 "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [151643], "tokens": ["<|endoftext|>"]}}}]}`

// tokenizer is the tokenizer.json of a model.
func tokenizer(begins bool) ([]byte, error) {
	f, err := os.Open(filepath.Join(tokenizerFiles(), "tokenizer.json.gz"))
	if err != nil {
		return nil, fmt.Errorf("opening the tokenizer: %w", err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("reading the tokenizer: %w", err)
	}
	raw, err := io.ReadAll(z)
	if err != nil || !begins {
		return raw, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, fmt.Errorf("reading the tokenizer: %w", err)
	}
	fields["post_processor"] = json.RawMessage(beginning)
	if raw, err = json.Marshal(fields); err != nil {
		return nil, fmt.Errorf("writing the tokenizer: %w", err)
	}
	return raw, nil
}
