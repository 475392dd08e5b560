package main

import (
	"os"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/test/docpage"
)

// maxProgram bounds the stripped program, in bytes.
const maxProgram = 40 << 20

// offline are the page's examples that ask neither a cluster nor a picker nor an engine.
var offline = regexp.MustCompile(`kubectl kvasir (events|tokenize|render)\b`)

// TestTheExamplesWithoutAClusterPrintWhatThePageShows, to the letter.
func TestTheExamplesWithoutAClusterPrintWhatThePageShows(t *testing.T) {
	const page = "docs/kubectl-kvasir.md"
	text, err := os.ReadFile("../../" + page)
	if err != nil {
		t.Fatal(err)
	}
	dir, n := example(t), 0
	for _, b := range docpage.Blocks(page, string(text)) {
		for command, shown := range examples(b.Text) {
			if !offline.MatchString(command) || strings.Contains(command, "--connect") {
				continue
			}
			n++
			run := osexec.CommandContext(t.Context(), "bash", "-c", command)
			run.Dir, run.Env = dir, append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
			out, err := run.CombinedOutput()
			if got := strings.TrimSpace(string(out)); got != strings.TrimSpace(shown) {
				t.Errorf("%s: %v: the page shows\n%s\nand it prints\n%s", command, err, shown, got)
			}
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "bin", "kubectl-kvasir")); err != nil || info.Size() > maxProgram {
		t.Errorf("the stripped program: %v, %d bytes, at most %d: go build -ldflags=-dumpdep shows what reaches text/template, which keeps every method", err, info.Size(), maxProgram)
	}
	if n != 8 {
		t.Errorf("%d examples were found", n)
	}
}

// examples are the commands of a block, with what it shows that they print.
func examples(block string) map[string]string {
	all := map[string]string{}
	command, more := "", false
	for line := range strings.Lines(block) {
		switch rest, is := strings.CutPrefix(line, "$ "); {
		case is:
			command, more = rest, strings.HasSuffix(rest, "\\\n")
			all[command] = ""
		case more:
			delete(all, command)
			command, more = command+line, strings.HasSuffix(line, "\\\n")
			all[command] = ""
		case command != "":
			all[command] += line
		}
	}
	return all
}

// example is a directory as the page takes for granted: the repository's files, a model, and the program as kubectl's plugin.
func example(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	internal, err := filepath.Abs("../../internal")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(internal, filepath.Join(dir, "internal")); err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(models, "qwen2_5", "tokenizer_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"models/qwen2.5/tokenizer.json": unzip(t, filepath.Join(models, "qwen2_5", "tokenizer.json.gz")), "models/qwen2.5/tokenizer_config.json": config,
		"bin/kubectl": []byte("#!/bin/sh\nshift\nexec kubectl-kvasir \"$@\"\n"), // as kubectl does it
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o700); err != nil { // one of them is a program
			t.Fatal(err)
		}
	}
	if out, err := osexec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", filepath.Join(dir, "bin", "kubectl-kvasir"), ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}
