package chatprompt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/kvasir-dev/kvasir/internal/tokens/chattemplate"
)

// specialTokens are the variables that a template gets from the tokenizer.
var specialTokens = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// plainClasses are tokenizer classes that set no special token by themselves.
var plainClasses = []string{"PreTrainedTokenizerFast", "TokenizersBackend"}

// otherRenderers are the types of models, and architectures, whose prompts vLLM makes without a template or with a tokenizer of
// their own: by config/model.py, tokenizers/registry.py and renderers/ of vLLM 0.11 to 0.32. --tokenizer-mode can choose such a
// renderer for any other model (cohere, mistral), which only the proof shows.
var otherRenderers = []string{
	"deepseek_v32", "deepseek_v4", "deepseek_v41", "gpt_oss", "grok-2", "inkling", "inkling_mm_model", "inkling_model", "kimi_audio",
	"kimi_k3",
	"DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration", "DeepseekV41ForCausalLM", "InklingForCausalLM",
	"InklingForConditionalGeneration", "KimiK3ForConditionalGeneration", "MoonshotKimiaForCausalLM",
}

// otherFiles mark models whose prompts vLLM makes in another way, or can take from another template.
var otherFiles = []string{"tekken.json", "tekken.json.gz", "tiktoken.model"}

// processorTemplate is the file with the template of a model's processor (of images and the like). vLLM uses it for requests without
// tools, and the tokenizer's for others (resolve_chat_template of its renderers/hf.py). A processor without one has the tokenizer's
// chat_template.jinja, or none.
const processorTemplate = "chat_template.json"

// config is the part of tokenizer_config.json about prompts.
type config struct {
	class    string
	members  map[string]json.RawMessage
	template json.RawMessage
}

// readFile is a file's content, nil if there is none.
func readFile(files fs.FS, name string) ([]byte, error) {
	data, err := fs.ReadFile(files, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

func readConfig(files fs.FS) (*config, error) {
	c := &config{}
	data, err := readFile(files, "tokenizer_config.json")
	if err != nil {
		return nil, err
	}
	if data != nil {
		if err := json.Unmarshal(data, &c.members); err != nil {
			return nil, fmt.Errorf("reading tokenizer_config.json: %w", err)
		}
		if class, ok := c.members["tokenizer_class"]; ok {
			_ = json.Unmarshal(class, &c.class) // anything but a string is no class
		}
		c.template = c.members["chat_template"]
	}
	return c, c.checkModel(files)
}

// checkModel refuses models whose prompts are not made from a template.
func (c *config) checkModel(files fs.FS) error {
	for _, name := range otherFiles {
		if data, err := readFile(files, name); err != nil || data != nil {
			return errors.Join(err, unsupported("models with %s", name))
		}
	}
	data, err := readFile(files, "config.json")
	if err != nil || data == nil {
		return err
	}
	var model struct {
		Type          string   `json:"model_type"`
		Architectures []string `json:"architectures"`
	}
	if err := json.Unmarshal(data, &model); err != nil {
		return fmt.Errorf("reading config.json: %w", err)
	}
	for _, name := range append(model.Architectures, model.Type) {
		if slices.Contains(otherRenderers, name) {
			return unsupported("models of type %s", name)
		}
	}
	return nil
}

// source finds the model's own template: with tools, and without.
func (c *config) source(files fs.FS) (plain, withTools string, err error) {
	processor, err := c.processorTemplate(files)
	if err != nil {
		return "", "", err
	}
	file, err := readFile(files, "chat_template.jinja")
	if err != nil {
		return "", "", err
	}
	plain, withTools, err = templates(c.template)
	switch {
	case err != nil:
		return "", "", err
	case processor != "" && (file != nil || plain == ""):
		return "", "", unsupported("%s beside chat_template.jinja, or without a template of the tokenizer", processorTemplate)
	case processor != "":
		return processor, withTools, nil
	case file == nil && plain == "":
		return "", "", unsupported("a model without a template")
	case file != nil && plain != "" && (plain != string(file) || withTools != plain):
		return "", "", unsupported("chat_template.jinja beside another template in tokenizer_config.json")
	case file != nil:
		return string(file), string(file), nil
	}
	return plain, withTools, nil
}

// processorTemplate reads the template of the model's processor; empty if it has none of its own.
func (c *config) processorTemplate(files fs.FS) (string, error) {
	own, processor, err := templateIn(files, "processor_config.json")
	switch {
	case err != nil:
		return "", err
	case len(own) > 0:
		return "", unsupported("a template in processor_config.json, unless it is named")
	}
	preprocessor, err := readFile(files, "preprocessor_config.json")
	if err != nil || !processor && preprocessor == nil {
		return "", err
	}
	raw, has, err := templateIn(files, processorTemplate)
	if err != nil || !has {
		return "", err
	}
	plain, withTools, err := templates(raw)
	if err == nil && (plain == "" || withTools != plain) {
		err = unsupported("this form of %s, unless it is named", processorTemplate)
	}
	return plain, err
}

// templateIn reads the member chat_template of a file, which is empty if it is absent or null; has reports whether there is the file.
func templateIn(files fs.FS, name string) (raw json.RawMessage, has bool, err error) {
	data, err := readFile(files, name)
	if err != nil || data == nil {
		return nil, false, err
	}
	var of struct {
		Template json.RawMessage `json:"chat_template"`
	}
	if err := json.Unmarshal(data, &of); err != nil {
		return nil, true, fmt.Errorf("reading %s: %w", name, err)
	}
	if string(of.Template) == "null" {
		return nil, true, nil
	}
	return of.Template, true, nil
}

// templates reads chat_template of tokenizer_config.json: a template, or several with names.
func templates(raw json.RawMessage) (plain, withTools string, err error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", "", nil
	}
	if raw[0] == '"' {
		err = json.Unmarshal(raw, &plain)
		return plain, plain, err
	}
	var named []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &named); err != nil {
		return "", "", unsupported("this form of chat_template")
	}
	for _, t := range named {
		switch t.Name {
		case "default":
			plain = t.Template
		case "tool_use":
			withTools = t.Template
		}
	}
	if plain == "" {
		return "", "", unsupported("templates without a default")
	}
	if withTools == "" {
		withTools = plain
	}
	return plain, withTools, nil
}

// variables are the special tokens that the template can use. Tokens of the value null are not set.
func (c *config) variables(templates ...*chattemplate.Template) (vars []chattemplate.Var, err error) {
	uses := func(name string) bool {
		return slices.ContainsFunc(templates, func(t *chattemplate.Template) bool { return t.Uses(name) })
	}
	for _, name := range specialTokens {
		if !uses(name) {
			continue
		}
		raw, ok := c.members[name]
		switch {
		case !ok && !slices.Contains(plainClasses, c.class):
			return nil, unsupported("the default of %s in %s", name, c.class)
		case !ok || string(raw) == "null":
			continue
		}
		text, err := tokenText(raw)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
		if text != "" {
			vars = append(vars, chattemplate.Var{Name: name, Value: chattemplate.String(text)})
		}
	}
	var extra map[string]json.RawMessage
	if raw := c.members["extra_special_tokens"]; json.Unmarshal(raw, &extra) != nil {
		extra = nil // a list, which has no names
	}
	for name := range extra {
		if uses(name) {
			return nil, unsupported("the token %s in a template", name)
		}
	}
	if uses("additional_special_tokens") {
		return nil, unsupported("additional_special_tokens in a template")
	}
	return vars, nil
}

// tokenText reads a token: its text, or an object that holds it.
func tokenText(raw json.RawMessage) (text string, err error) {
	if bytes.HasPrefix(raw, []byte("{")) {
		var token struct{ Content string }
		err = json.Unmarshal(raw, &token)
		return token.Content, err
	}
	err = json.Unmarshal(raw, &text)
	return text, err
}
