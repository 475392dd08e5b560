package attack

import (
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// modelFiles are those of a model with a large vocabulary, a normaliser and a template that reads tools.
const modelFiles = "../../internal/tokens/tokenizer/testdata/qwen2_5"

// longestText is more than the simulated engines' contexts, in bytes. Their own time for longer texts would be that of the attack, too.
const longestText = 256 << 10

var errTooLong = errors.New("the prompt is longer than the context")

// writeModel writes the files of a model to a directory.
func writeModel(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	packed, err := os.Open(filepath.Join(modelFiles, "tokenizer.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	z, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	vocabulary, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(modelFiles, "tokenizer_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"tokenizer.json": vocabulary, "tokenizer_config.json": config} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// engineOf is the configuration of engines of a model.
func engineOf(t *testing.T, dir string) vllmsim.Config {
	t.Helper()
	c := vllmsim.Config{ServedModelNames: []string{"m"}}
	if err := c.LoadModel(dir); err != nil {
		t.Fatal(err)
	}
	chat := c.Chat
	c.Text = bounded{c.Text}
	c.Chat = func(route openai.Route, body []byte) ([]uint32, error) {
		if len(body) > longestText {
			return nil, errTooLong
		}
		return chat(route, body)
	}
	return c
}

// bounded refuses texts that are too long before it makes their tokens.
type bounded struct{ vllmsim.Text }

func (b bounded) Encode(dst []uint32, text string, special bool) ([]uint32, error) {
	if len(text) > longestText {
		return dst, errTooLong
	}
	return b.Text.Encode(dst, text, special)
}
