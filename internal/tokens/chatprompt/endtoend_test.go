package chatprompt

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/chattemplate"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

var (
	moreEndToEnd   = flag.String("endtoend", "", "a directory with more cases: end-to-end.jsonl.gz and *.jinja")
	moreTokenizers = flag.String("tokenizers", "", "a directory with their tokenizers: MODEL/tokenizer.json.gz")
)

// endToEnd is a context, the prompt that Python's Jinja2 makes of it or the exception that it raises, and the ids of the
// reference tokenizer.
type endToEnd struct {
	Model    string          `json:"model"`
	Template string          `json:"tmpl"`
	Case     string          `json:"case"`
	Context  json.RawMessage `json:"ctx"`
	Prompt   string          `json:"prompt"`
	Err      string          `json:"err"`
	IDs      []uint32        `json:"ids"`
}

const qwen = "../tokenizer/testdata/qwen2_5"

// unpacked is a directory with the files of a model whose tokenizer.json is compressed.
func unpacked(t testing.TB, dir string) string {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "tokenizer.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	vocabulary, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(dir, "tokenizer_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	return modelDir(t, map[string]string{"tokenizer.json": string(vocabulary), "tokenizer_config.json": string(config)})
}

// TestEndToEnd: context to prompt to ids.
func TestEndToEnd(t *testing.T) {
	var cases []endToEnd
	read := func(path string) {
		readLines(t, path, func(line []byte) {
			var c endToEnd
			if err := json.Unmarshal(line, &c); err != nil {
				t.Fatal(err)
			}
			cases = append(cases, c)
		})
	}
	read("testdata/qwen2_5.jsonl.gz")
	if *moreEndToEnd != "" {
		read(filepath.Join(*moreEndToEnd, "end-to-end.jsonl.gz"))
	}
	tokenizers := map[string]*tokenizer.Tokenizer{}
	exact, refusals, throughFrontEnd, refused := 0, 0, 0, 0
	r := newRenderer(t, "", Options{Dir: unpacked(t, qwen), Release: "0.24.0", Encoder: byteEncoder{}})
	for _, c := range cases {
		dir := filepath.Join(*moreTokenizers, c.Model)
		if c.Model == "qwen2_5" {
			dir = qwen
		}
		enc := tokenizers[c.Model]
		if enc == nil {
			var err error
			if enc, err = tokenizer.Load(unpacked(t, dir)); err != nil {
				t.Fatal(err)
			}
			tokenizers[c.Model] = enc
		}
		template := r.plain.Template
		if c.Template != "" {
			source, err := os.ReadFile(filepath.Join(*moreEndToEnd, c.Template))
			if err != nil {
				t.Fatal(err)
			}
			if template, err = chattemplate.Parse(string(source)); err != nil {
				t.Fatal(err)
			}
		}
		text, err := renderContext(t, template, c.Context)
		if class, _, _ := strings.Cut(c.Err, ":"); class != "" {
			var raised *chattemplate.RaisedError
			if !errors.As(err, &raised) || raised.Class != class {
				t.Errorf("%s, case %s: got %q, %v, want %s", c.Model, c.Case, text, err, c.Err)
			}
			refusals++
			continue
		}
		if err != nil {
			t.Errorf("%s, case %s: %v", c.Model, c.Case, err)
			continue
		}
		ids, err := enc.Encode(nil, text, false)
		if err != nil || text != c.Prompt || !slices.Equal(ids, c.IDs) {
			t.Errorf("%s, case %s: %v\n got %q %d\nwant %q %d", c.Model, c.Case, err, text, ids, c.Prompt, c.IDs)
			continue
		}
		exact++
		if template != r.plain.Template {
			continue
		}
		// The same as a request. What the engine changes in it is no business of this test: it must leave most as they are.
		got, err := prompt(t, r, requestOf(t, c.Context))
		switch {
		case errors.Is(err, ErrUnsupported):
			refused++
			t.Logf("case %s: %v", c.Case, err)
		case err == nil && got == c.Prompt:
			throughFrontEnd++
		default:
			t.Logf("case %s: %v\n got %q\nwant %q", c.Case, err, got, c.Prompt)
		}
	}
	t.Logf("%d of %d exact, %d exceptions; %d also as a request, %d refused as such", exact, len(cases)-refusals, refusals, throughFrontEnd, refused)
	if throughFrontEnd < 20 || exact < 27 {
		t.Errorf("only %d cases as a request, %d exact", throughFrontEnd, exact)
	}
}

func renderContext(t *testing.T, template *chattemplate.Template, vars []byte) (string, error) {
	t.Helper()
	var a chattemplate.Arena
	v, err := a.DecodeJSON(vars)
	if err != nil {
		t.Fatal(err)
	}
	in := chattemplate.Input{Now: time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)}
	for i := range v.Dict().Len() {
		key, value := v.Dict().At(i)
		in.Vars = append(in.Vars, chattemplate.Var{Name: key.Text(), Value: value})
	}
	out, err := template.Render(t.Context(), nil, &a, &in)
	return string(out), err
}

// requestOf is a context as the body of a request: the arguments of tool calls become strings.
func requestOf(t *testing.T, context []byte) []byte {
	t.Helper()
	var c map[string]json.RawMessage
	var messages []map[string]json.RawMessage
	if json.Unmarshal(context, &c) != nil || json.Unmarshal(c["messages"], &messages) != nil {
		t.Fatalf("unreadable context %s", context)
	}
	for _, m := range messages {
		if m["tool_calls"] == nil {
			continue
		}
		var calls []struct {
			ID       string `json:"id"`
			Type     string `json:"type"`
			Function struct {
				Name      string          `json:"name"`
				Arguments json.RawMessage `json:"arguments"`
			} `json:"function"`
		}
		if err := json.Unmarshal(m["tool_calls"], &calls); err != nil {
			t.Fatal(err)
		}
		for i := range calls {
			f := &calls[i].Function
			calls[i].Type = "function"
			if !bytes.HasPrefix(f.Arguments, []byte(`"`)) {
				text, err := json.Marshal(string(f.Arguments))
				if err != nil {
					t.Fatal(err)
				}
				f.Arguments = text
			}
		}
		m["tool_calls"] = marshal(t, calls)
	}
	body := map[string]any{"model": "m", "messages": messages}
	for _, name := range []string{"tools", "add_generation_prompt"} {
		if c[name] != nil {
			body[name] = c[name]
		}
	}
	return marshal(t, body)
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// BenchmarkTokens goes from a request's bytes to ids: a conversation of 24 turns, about 8,000 tokens, with tools.
func BenchmarkTokens(b *testing.B) {
	r := newRenderer(b, "", Options{Dir: unpacked(b, qwen), Release: "0.24.0"})
	if enc, err := tokenizer.Load(r.options.Dir); err != nil {
		b.Fatal(err)
	} else {
		r.encoder = enc
	}
	body := conversationBody(24, 1300)
	for name, encoder := range map[string]Encoder{"ids": r.encoder, "text": nothing{}} {
		b.Run(name, func(b *testing.B) {
			r.encoder = encoder
			var req openai.Request
			var dst []uint32
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if err := openai.Parse(openai.ChatCompletions, body, &req); err != nil {
					b.Fatal(err)
				}
				var err error
				if dst, err = r.Tokens(b.Context(), dst[:0], body, &req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
