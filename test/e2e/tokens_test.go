package e2e

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokencheck"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

// The ids of requests by the reference tools: see hack/goldens/README.md.
const (
	goldenTokens = "testdata/tokens.jsonl.gz"
	qwen         = "../../internal/tokens/tokenizer/testdata/qwen2_5"
)

var writeRequests = flag.String("requests", "", "write the requests whose ids the tests need to this `file`, and stop")

// golden is a request and the ids of its prompt by the reference library.
type golden struct {
	Route string   `json:"route"`
	Body  string   `json:"body"`
	IDs   []uint32 `json:"ids"`
}

// toolChat is a conversation with tools: the body of each of its requests, a turn longer each time.
func toolChat() []string {
	type object = map[string]any
	type list = []any
	tools := list{
		object{"type": "function", "function": object{"name": "get_weather", "description": "The weather at a place.",
			"parameters": object{"type": "object", "required": list{"place"}, "properties": object{
				"place": object{"type": "string", "description": "A city, e.g. Köln"}, "days": object{"type": "integer", "minimum": 1},
			}}}},
		object{"type": "function", "function": object{"name": "search", "parameters": object{"type": "object", "properties": object{"q": object{"type": "string"}}}}},
	}
	say := func(role, text string) object { return object{"role": role, "content": text} }
	turns := []list{
		{say("system", "You are a careful assistant. "+strings.Repeat("Answer briefly, and say when you do not know. ", 20)),
			say("user", "What will the weather be in Köln tomorrow? 🌦")},
		{object{"role": "assistant", "content": nil, "tool_calls": list{object{"id": "call_1", "type": "function",
			"function": object{"name": "get_weather", "arguments": `{"place": "Köln", "days": 2}`}}}},
			object{"role": "tool", "tool_call_id": "call_1", "content": `{"days": [{"t": 7.5, "sky": "grey"}, {"t": 9, "sky": "light rain"}]}`}},
		{say("assistant", "About 9 °C, with light rain."), say("user", "And what should I wear?\n\n```go\nfunc main() {}\n```")},
		{say("assistant", "A rain coat."), say("user", "谢谢！ "+strings.Repeat("One more thing. ", 30))},
	}
	var bodies []string
	var messages list
	for i, turn := range turns {
		messages = append(messages, turn...)
		request := object{"model": "m", "messages": messages, "tools": tools, "max_tokens": 8}
		if i != 2 {
			request["stream"], request["stream_options"] = true, object{"include_usage": true}
		}
		body, err := json.Marshal(request)
		if err != nil {
			panic(err) // cannot be: nothing in it is unusual
		}
		bodies = append(bodies, string(body))
	}
	return bodies
}

// TestWriteRequests writes the requests for the reference tools.
func TestWriteRequests(t *testing.T) {
	if *writeRequests == "" {
		t.Skip("no -requests")
	}
	var lines []byte
	add := func(route, body string) {
		line, err := json.Marshal(golden{Route: route, Body: body})
		if err != nil {
			t.Fatal(err)
		}
		lines = append(append(lines, line...), '\n')
	}
	for _, c := range tokencheck.Cases("m") {
		add(c.Route.String(), string(c.Body))
	}
	for _, body := range toolChat() {
		add(openai.ChatCompletions.String(), body)
	}
	if err := os.WriteFile(*writeRequests, lines, 0o600); err != nil {
		t.Fatal(err)
	}
}

// stranger tokenizes as the reference library does, without any code of ours: it knows the ids of certain requests, and
// refuses all others. Only the words that the simulated engine generates are ours.
type stranger struct {
	words *tokenizer.Tokenizer
	chats map[string][]uint32 // by body
	texts map[text][]uint32
}

type text struct {
	prompt  string
	special bool
}

func newStranger(t *testing.T, words *tokenizer.Tokenizer) *stranger {
	t.Helper()
	s := &stranger{words: words, chats: map[string][]uint32{}, texts: map[text][]uint32{}}
	f, err := os.Open(goldenTokens)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var g golden
		if err := json.Unmarshal(lines.Bytes(), &g); err != nil {
			t.Fatal(err)
		}
		if g.Route == openai.ChatCompletions.String() {
			s.chats[g.Body] = g.IDs
			continue
		}
		var body struct {
			Prompt  string `json:"prompt"`
			Special *bool  `json:"add_special_tokens"`
		}
		if err := json.Unmarshal([]byte(g.Body), &body); err != nil {
			t.Fatal(err)
		}
		s.texts[text{body.Prompt, body.Special == nil || *body.Special}] = g.IDs
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return s
}

var errStrange = errors.New("the ids of this prompt are not known")

// Encode is for vllmsim.Text.
func (s *stranger) Encode(dst []uint32, prompt string, special bool) ([]uint32, error) {
	if ids, ok := s.texts[text{prompt, special}]; ok {
		return append(dst, ids...), nil
	}
	if !special && strings.HasPrefix(prompt, " ") && len(prompt) < 32 {
		return s.words.Encode(dst, prompt, special)
	}
	return dst, errStrange
}

// Decode is for vllmsim.Text.
func (s *stranger) Decode(ids []uint32) string { return s.words.Decode(ids) }

// chat is for vllmsim.Config.Chat.
func (s *stranger) chat(_ openai.Route, body []byte) ([]uint32, error) {
	if ids, ok := s.chats[string(body)]; ok {
		return ids, nil
	}
	return nil, errStrange
}

// unpack writes a compressed file out.
func unpack(t *testing.T, from, to string) {
	t.Helper()
	f, err := os.Open(from)
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
	if err := os.WriteFile(to, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// qwenFiles writes the files of a model to a directory, and returns its tokenizer.
func qwenFiles(t *testing.T, dir string) *tokenizer.Tokenizer {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	unpack(t, filepath.Join(qwen, "tokenizer.json.gz"), filepath.Join(dir, "tokenizer.json"))
	config, err := os.ReadFile(filepath.Join(qwen, "tokenizer_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	words, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return words
}

// TestAChatWithToolsIsTokenizedHereAsInTheEngine: chats are sent as text, the engines know their ids from Python and Rust,
// the picker makes them itself, and finds every block that the engine has stored.
func TestAChatWithToolsIsTokenizedHereAsInTheEngine(t *testing.T) {
	root := t.TempDir()
	words := qwenFiles(t, filepath.Join(root, "qwen"))
	engine := newStranger(t, words)

	f := newFleetWith(t, 3, vllmsim.Config{SpeedUp: 20, Text: engine, Chat: engine.chat}, "MarginalCost", func(f *fleet) {
		f.args = []string{"--model-root", root}
		f.write("pool.yaml", strings.Replace(poolYAML, "{name: m}\n  selector", "{name: m, tokenizer: {type: Directory, directory: {path: qwen}}}\n  selector", 1))
		f.write("policy.yaml", strings.Replace(fmt.Sprintf(policyYAML, "MarginalCost"), "tokens: {", "tokens: {engine: Never, budgetMilliseconds: 5000, ", 1))
	})
	f.until("the probe has passed", func() bool {
		_, status := f.get(f.metrics + "/status?output=json")
		if strings.Contains(status, "ProbeFailed") {
			t.Fatalf("the probe has failed:\n%s", status)
		}
		return strings.Contains(status, `"type":"TokensExact","status":"True"`)
	})
	home, delivered := -1, 0
	for turn, body := range toolChat() {
		a := f.do("/v1/chat/completions", json.RawMessage(body))
		if a.status != http.StatusOK || a.tokens != "exact" {
			t.Fatalf("turn %d: status %d, tokens from %q: %s", turn, a.status, a.tokens, a.body)
		}
		if a.cached != a.predicted || a.confirmed != a.predicted {
			t.Errorf("turn %d: %d tokens predicted, %d confirmed, %d delivered", turn, a.predicted, a.confirmed, a.cached)
		}
		if turn > 0 {
			// All full blocks of the turn before are found, but the one in which it ended.
			if before := len(engine.chats[toolChat()[turn-1]]); a.pod != home || a.predicted < before-2*16 || a.predicted <= delivered {
				t.Errorf("turn %d: pod %d of %d, %d tokens predicted; the turn before has %d", turn, a.pod, home, a.predicted, before)
			}
		}
		home, delivered = a.pod, a.cached
		f.untilIndexed(home)
	}
	if n := f.metric("kvasir_tokenized_requests_total", `source="exact"`); int(n) != len(toolChat()) {
		t.Errorf("%v requests were tokenized here", n)
	}
	if n := f.metric("kvasir_hit_deviation_tokens_total"); n != 0 {
		t.Errorf("predicted and delivered hits differ by %v tokens", n)
	}
}
