package chatprompt

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/chattemplate"
)

var moreRequests = flag.String("requests", "", "a file with more requests")

// golden is a request and the variables that the engine gives the template for it, or an error where the engine
// refuses it.
type golden struct {
	Release string          `json:"release"`
	OpenAI  bool            `json:"openai"`
	Body    json.RawMessage `json:"body"`
	Vars    json.RawMessage `json:"vars"`
	Err     string          `json:"err"`
}

func readLines(t testing.TB, path string, each func(line []byte)) {
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
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		each(lines.Bytes())
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

// dumping are the templates that print their variables; the second asks for parts.
const (
	dumping = `{% for name, value in [("messages", messages), ("tools", tools), ("documents", documents),
("add_generation_prompt", add_generation_prompt), ("enable_thinking", enable_thinking), ("reasoning_effort", reasoning_effort),
("custom", custom)] %}{% if value is defined %}{{ name }}={{ value | tojson }}
{% endif %}{% endfor %}`
	dumpingParts = dumping + `{% for m in messages %}{% for part in m.content %}{% endfor %}{% endfor %}`
)

// byteEncoder makes an id of each byte.
type byteEncoder struct{}

func (byteEncoder) EncodeContext(_ context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	if special {
		dst = append(dst, 1<<16)
	}
	for _, b := range []byte(text) {
		dst = append(dst, uint32(b))
	}
	return dst, nil
}

// modelDir writes files of a model.
func modelDir(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func newRenderer(t testing.TB, template string, options Options) *Renderer {
	t.Helper()
	if options.Dir == "" {
		options.Dir = modelDir(t, map[string]string{
			"tokenizer_config.json": `{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"}`,
			"chat_template.jinja":   template,
		})
	}
	if options.Encoder == nil {
		options.Encoder = byteEncoder{}
	}
	r, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func prompt(t testing.TB, r *Renderer, body []byte) (string, error) {
	t.Helper()
	var req openai.Request
	if err := openai.Parse(openai.ChatCompletions, body, &req); err != nil {
		return "", err
	}
	p, err := r.Render(t.Context(), body, &req)
	if err != nil {
		return "", err
	}
	defer p.Release()
	return strings.Clone(p.Text), nil
}

// expected renders the variables of a golden.
func expected(t *testing.T, source string, vars []byte) string {
	t.Helper()
	template, err := chattemplate.Parse(source)
	if err != nil {
		t.Fatal(err)
	}
	var a chattemplate.Arena
	v, err := a.DecodeJSON(vars)
	if err != nil {
		t.Fatal(err)
	}
	var in chattemplate.Input
	for i := range v.Dict().Len() {
		key, value := v.Dict().At(i)
		in.Vars = append(in.Vars, chattemplate.Var{Name: key.Text(), Value: value})
	}
	out, err := template.Render(t.Context(), nil, &a, &in)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestRequests: what reaches the template is what the engine gives it, or the request is refused.
func TestRequests(t *testing.T) {
	paths := []string{"testdata/requests.jsonl.gz"}
	if *moreRequests != "" {
		paths = append(paths, *moreRequests)
	}
	renderers := map[string]*Renderer{}
	for _, path := range paths {
		all, equal, refused, invalid := 0, 0, 0, 0
		reasons := map[string]int{}
		readLines(t, path, func(line []byte) {
			var g golden
			if err := json.Unmarshal(line, &g); err != nil {
				t.Fatal(err)
			}
			all++
			source := dumping
			if g.OpenAI {
				source = dumpingParts
			}
			key := fmt.Sprint(g.Release, g.OpenAI)
			if renderers[key] == nil {
				renderers[key] = newRenderer(t, source, Options{Release: g.Release})
			}
			got, err := prompt(t, renderers[key], g.Body)
			switch {
			case g.Err != "":
				invalid++ // in any case the engine refuses it
			case errors.Is(err, ErrUnsupported):
				refused++
				reasons[err.Error()]++
			case err != nil:
				t.Errorf("%s: %v", g.Body, err)
			default:
				if diff := cmp.Diff(expected(t, source, g.Vars), got); diff != "" {
					t.Errorf("%s %v %s\n%s", g.Release, g.OpenAI, g.Body, diff)
				}
				equal++
			}
		})
		t.Logf("%d requests: %d equal, %d refused, %d that the engine refuses", all, equal, refused, invalid)
		for reason, n := range reasons {
			t.Logf("%5d %s", n, reason)
		}
		if equal*2 < all {
			t.Errorf("only %d of %d requests are rendered", equal, all)
		}
	}
}
