package fleet

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// modelName is the directory of the model's files, below the picker's root of models.
const modelName = "model"

// chatTemplate is the model's: ChatML, as many models have it.
const chatTemplate = `{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`

// WriteModel makes the files of a model with a chat template in the directory to, from the tokenizer.json.gz and the
// tokenizer_config.json in the directory from. Engines and picker then make the same tokens of a text, each by itself.
func WriteModel(from, to string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return fmt.Errorf("making the model's directory: %w", err)
	}
	if err := unpack(filepath.Join(from, "tokenizer.json.gz"), filepath.Join(to, "tokenizer.json")); err != nil {
		return err
	}
	config := map[string]any{}
	text, err := os.ReadFile(filepath.Join(from, "tokenizer_config.json"))
	if err == nil {
		err = json.Unmarshal(text, &config)
	}
	if err != nil {
		return fmt.Errorf("reading the tokenizer's configuration: %w", err)
	}
	config["chat_template"] = chatTemplate
	if text, err = json.Marshal(config); err != nil {
		return fmt.Errorf("encoding the tokenizer's configuration: %w", err)
	}
	for name, content := range map[string][]byte{
		"tokenizer_config.json": text, "config.json": []byte(`{"model_type": "gpt2"}`),
	} {
		if err := os.WriteFile(filepath.Join(to, name), content, 0o600); err != nil {
			return fmt.Errorf("writing the model's files: %w", err)
		}
	}
	return nil
}

func unpack(from, to string) error {
	f, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("opening the tokenizer: %w", err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return fmt.Errorf("reading the tokenizer %s: %w", from, err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		return fmt.Errorf("reading the tokenizer %s: %w", from, err)
	}
	if err := os.WriteFile(to, data, 0o600); err != nil {
		return fmt.Errorf("writing the tokenizer: %w", err)
	}
	return nil
}
