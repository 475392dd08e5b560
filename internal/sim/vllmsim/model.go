package vllmsim

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/chatprompt"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

// LoadModel sets Text, Chat and Vocabulary to the tokenizer and the chat template of the model whose files are in dir, as the
// configured release uses them. The configuration's other fields are not changed.
//
// Both use the packages that the picker renders with: here the simulator does not check the picker. The real engine checks
// both: the recordings of package judge hold its ids for each kind of request.
func (c *Config) LoadModel(dir string) error {
	release := NewestRelease
	if c.Release != 0 {
		release = c.Release
	}
	t, err := tokenizer.Load(dir)
	if err != nil {
		return fmt.Errorf("loading the tokenizer of %s: %w", dir, err)
	}
	t = chatprompt.TokenizerOf(t, release.String())
	chats, err := chatprompt.New(chatprompt.Options{Dir: dir, Release: release.String(), Encoder: t})
	if err != nil {
		return fmt.Errorf("loading the chat template of %s: %w", dir, err)
	}
	c.Text = t
	var config struct {
		Vocabulary uint32 `json:"vocab_size"`
	}
	if text, err := os.ReadFile(filepath.Join(dir, "config.json")); err == nil {
		if err := json.Unmarshal(text, &config); err != nil {
			return fmt.Errorf("reading the model's configuration: %w", err)
		}
		c.Vocabulary = config.Vocabulary
	}
	c.Chat = func(route openai.Route, body []byte) ([]uint32, error) {
		var req openai.Request
		if err := openai.ParseFor(route, body, DefaultModel, &req); err != nil { // its model was found before
			return nil, fmt.Errorf("reading a request of %v: %w", route, err)
		}
		return chats.Tokens(context.Background(), nil, body, &req)
	}
	return nil
}
