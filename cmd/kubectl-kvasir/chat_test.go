package main

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTokenizeChats goes two ways from requests to ids: at once, and by the text that the template makes.
func TestTokenizeChats(t *testing.T) {
	dir, template := modelDir(t, "gpt2"), filepath.Join(templates, "turns.jinja")
	chats := []string{
		`"messages":[{"role":"user","content":"Hi"}]`,
		`"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":" Hi "},{"role":"assistant","content":"Yes?"},{"role":"user","content":"世界 😀"}]`,
		`"messages":[{"role":"user","content":""}]`,
	}
	run := func(input string, args ...string) []string {
		t.Helper()
		status, stdout, stderr := exec(t, input, args...)
		if status != 0 || stderr != "" {
			t.Fatalf("%s: status is %d, said %q", args[0], status, stderr)
		}
		return strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	}
	var requests, contexts, texts []string
	for _, c := range chats {
		requests = append(requests, "{"+c+"}")
		contexts = append(contexts, "{"+c+`,"add_generation_prompt":true}`)
	}
	for _, line := range run(strings.Join(contexts, "\n"), "render", "--template", template) {
		var r rendered
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.Out == "" {
			t.Fatalf("%s: %v", line, err)
		}
		text, err := json.Marshal(r.Out)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	want := run(strings.Join(texts, "\n"), "tokenize", "--tokenizer", dir, "--no-special")
	got := run(strings.Join(requests, "\n"), "tokenize", "--tokenizer", dir, "--chat", "--template", template)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-by text +at once:\n%s", diff)
	}

	var whole one
	if err := json.Unmarshal([]byte(want[0]), &whole); err != nil {
		t.Fatal(err)
	}
	var last one
	line := strings.Replace(requests[0], "{", `{"truncate_prompt_tokens":3,`, 1)
	if err := json.Unmarshal([]byte(run(line, "tokenize", "--tokenizer", dir, "--chat", "--template", template)[0]), &last); err != nil ||
		!slices.Equal(last.IDs, whole.IDs[len(whole.IDs)-3:]) {
		t.Errorf("the last three are %v, %v", last.IDs, err)
	}
}

func TestTokenizeRefusesChats(t *testing.T) {
	dir := modelDir(t, "gpt2")
	status, _, stderr := exec(t, "", "tokenize", "--tokenizer", dir, "--chat")
	if status != 1 || !strings.Contains(stderr, "template") {
		t.Errorf("a model without a template: status is %d, said %q", status, stderr)
	}
	_, stdout, _ := exec(t, `{"prompt":"x"}`+"\n"+`{"messages":[{"role":"assistant","content":"x"}]}`+"\n", "tokenize", "--tokenizer", dir, "--chat",
		"--template", filepath.Join(templates, "alternating.jinja"))
	want := `{"error":"messages: is missing"}` + "\n" + `{"error":"TemplateError: Roles must alternate: assistant at 0"}` + "\n"
	if diff := cmp.Diff(want, stdout); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
