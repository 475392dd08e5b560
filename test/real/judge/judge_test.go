package judge

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// tokenizerFiles is what the engines' model is made of; see package real.
const tokenizerFiles = "../../../internal/tokens/tokenizer/testdata/qwen2_5"

// model writes the model's small files into a directory.
func model(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Open(filepath.Join(tokenizerFiles, "tokenizer.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(tokenizerFiles, "tokenizer_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"tokenizer.json": data, "tokenizer_config.json": config,
		"config.json": []byte(`{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 151680}`),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestTheSimulatorIsAsEachRecordedRelease compares vllmsim with what real engines have shown. Differences that stay are
// listed; the list has nothing else.
func TestTheSimulatorIsAsEachRecordedRelease(t *testing.T) {
	releases, err := Releases()
	if err != nil || len(releases) == 0 {
		t.Fatalf("releases %v, %v", releases, err)
	}
	// All at the same time, however few processors there are: most of it is waiting.
	dir := model(t)
	differences, failures := make([][]Difference, len(releases)), make([]error, len(releases))
	var wg sync.WaitGroup
	for i, release := range releases {
		wg.Go(func() {
			var engine Transcript
			if engine, failures[i] = Recording(release); failures[i] == nil {
				differences[i], failures[i] = Judge(t.Context(), release, dir, engine)
			}
		})
	}
	wg.Wait()
	var found []Difference
	for i, release := range releases {
		t.Run(release, func(t *testing.T) {
			list, err := differences[i], failures[i]
			if err != nil {
				t.Fatal(err)
			}
			refused, _, err := Verdict(Differences, list)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range refused {
				t.Error(d)
			}
			found = append(found, list...)
		})
	}
	_, idle, err := Verdict(Differences, found)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range idle {
		t.Errorf("The list has a difference that no release shows any more: %s, %s: %s", a.Case, a.Path, a.Reason)
	}
}
