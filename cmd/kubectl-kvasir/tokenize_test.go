package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func unzip(t *testing.T, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const models = "../../internal/tokens/tokenizer/testdata"

// modelDir is a directory with the files of a model.
func modelDir(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	config, err := os.ReadFile(filepath.Join(models, name, "tokenizer_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string][]byte{
		"tokenizer.json": unzip(t, filepath.Join(models, name, "tokenizer.json.gz")), "tokenizer_config.json": config,
	} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestTokenizeGoldens(t *testing.T) {
	dir := modelDir(t, "gpt2")
	type golden struct {
		Text    string   `json:"text"`
		IDs     []uint32 `json:"ids"`
		Special []uint32 `json:"ids_sp"`
	}
	var cases []golden
	for line := range bytes.Lines(unzip(t, filepath.Join(models, "gpt2", "golden.jsonl.gz"))) {
		var g golden
		if err := json.Unmarshal(line, &g); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, g)
	}
	if len(cases) < 300 {
		t.Fatalf("%d cases", len(cases))
	}
	for name, tc := range map[string]struct {
		args []string
		line func(g golden) any
		want func(g golden) []uint32
	}{
		"strings without special tokens": {
			[]string{"--no-special"}, func(g golden) any { return g.Text }, func(g golden) []uint32 { return g.IDs }},
		"requests, which have them": {
			[]string{"--completions"}, func(g golden) any { return map[string]any{"model": "m", "prompt": g.Text} }, func(g golden) []uint32 { return g.Special }},
		"requests that want none": {
			nil, func(g golden) any { return map[string]any{"prompt": []string{g.Text}, "add_special_tokens": false} }, func(g golden) []uint32 { return g.IDs }},
	} {
		t.Run(name, func(t *testing.T) {
			var input bytes.Buffer
			in := json.NewEncoder(&input)
			for _, g := range cases {
				if err := in.Encode(tc.line(g)); err != nil {
					t.Fatal(err)
				}
			}
			status, stdout, stderr := exec(t, input.String(), append([]string{"tokenize", "--tokenizer", dir}, tc.args...)...)
			if status != 0 || stderr != "" {
				t.Fatalf("status is %d, said %q", status, stderr)
			}
			out := json.NewDecoder(strings.NewReader(stdout))
			for _, g := range cases {
				var got one
				if err := out.Decode(&got); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(append([]uint32{}, tc.want(g)...), got.IDs); diff != "" {
					t.Errorf("%.100q (-want +got):\n%s", g.Text, diff)
				}
			}
			if out.More() {
				t.Error("there are more answers than lines")
			}
		})
	}
}

func TestTokenize(t *testing.T) {
	dir := modelDir(t, "gpt2")
	cases := map[string]struct{ line, want string }{
		"no text":                   {`""`, `{"ids":[]}`},
		"escapes":                   {`"\ud83d\ude00"`, `{"ids":[47249,222]}`},
		"several prompts":           {`{"prompt":["hello","",[7,8]]}`, `{"error":"prompt: must be a string, a list of strings, a list of token ids, or a list of lists of token ids"}`},
		"several texts":             {`{"prompt":["hello",""]}`, `{"ids":[[31373],[]]}`},
		"ids":                       {`{"prompt":[7,8]}`, `{"ids":[7,8]}`},
		"several lists of ids":      {`{"prompt":[[7,8],[]]}`, `{"ids":[[7,8],[]]}`},
		"only the last":             {`{"prompt":"hello world","truncate_prompt_tokens":1}`, `{"ids":[995]}`},
		"only the first":            {`{"prompt":"hello world","truncate_prompt_tokens":1,"truncation_side":"right"}`, `{"ids":[31373]}`},
		"the model's limit":         {`{"prompt":"hello","truncate_prompt_tokens":-1}`, `{"error":"truncate_prompt_tokens asks for the model's limit, which is not known here"}`},
		"a model that is no name":   {`{"model":7,"prompt":"hello"}`, `{"ids":[31373]}`},
		"no members":                {`{ }`, `{"error":"prompt: is missing"}`},
		"nothing to be tokenized":   {`{"prompt_embeds":"AAAA"}`, `{"error":"prompt_embeds has no token ids"}`},
		"a request that is none":    {`[1]`, `{"error":"the body must be a JSON object"}`},
		"a string of no characters": {"\"\xff\"", `{"error":"invalid UTF-8"}`},
		"a prompt of no characters": {"{\"prompt\":\"\xff\"}", `{"error":"invalid JSON at byte 11: invalid UTF-8 in a string"}`},
		"a string that is none":     {`"x`, `{"error":"unexpected end of JSON input"}`},
		"an object that is cut off": {`{"prompt":`, `{"error":"invalid JSON at byte 10: unexpected end"}`},
	}
	names, input := slices.Sorted(maps.Keys(cases)), ""
	for _, name := range names {
		input += cases[name].line + "\n"
	}
	status, stdout, stderr := exec(t, input, "tokenize", "--tokenizer", dir)
	if status != 0 || stderr != "" {
		t.Fatalf("status is %d, said %q", status, stderr)
	}
	lines := strings.Split(stdout, "\n")
	if len(lines) != len(names)+1 {
		t.Fatalf("%d lines for %d", len(lines)-1, len(names))
	}
	for i, name := range names {
		if diff := cmp.Diff(cases[name].want, lines[i]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestTokenizeForARelease: older engines went by the class in tokenizer_config.json for what stands around a text.
func TestTokenizeForARelease(t *testing.T) {
	dir := modelDir(t, "spm")
	config := []byte(`{"tokenizer_class":"LlamaTokenizer","add_bos_token":false,"add_eos_token":true,"bos_token":"<s>","eos_token":"</s>"}`)
	if err := os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	ids := func(args ...string) []uint32 {
		t.Helper()
		status, stdout, stderr := exec(t, `{"prompt":"Hello"}`, append([]string{"tokenize", "--tokenizer", dir}, args...)...)
		var out one
		if err := json.Unmarshal([]byte(stdout), &out); err != nil || status != 0 {
			t.Fatalf("%v: status %d, %q, %q: %v", args, status, stdout, stderr, err)
		}
		return out.IDs
	}
	bare := ids("--no-special")
	file, class := slices.Concat([]uint32{1}, bare), slices.Concat(bare, []uint32{2})
	for release, want := range map[string][]uint32{"": file, "0.18.1": class, "0.20.0": file} {
		if got := ids("--release", release); !slices.Equal(got, want) {
			t.Errorf("release %q: %v, want %v", release, got, want)
		}
	}
}
