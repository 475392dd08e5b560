package chatprompt

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/chattemplate"
)

// apiGolden is a request of another API and the chat that a release of vLLM makes of it, or an error where vLLM refuses it.
type apiGolden struct {
	Release string          `json:"release"`
	Route   string          `json:"route"`
	Body    json.RawMessage `json:"body"`
	Chat    json.RawMessage `json:"chat"`
	Err     string          `json:"err"`
}

// TestRequestsOfOtherAPIsAreConvertedAsRecorded: the prompt of a request is that of the chat that vLLM's own code makes of it,
// whether the template takes texts or parts, or it is left to the engine.
func TestRequestsOfOtherAPIsAreConvertedAsRecorded(t *testing.T) {
	routes := map[string]openai.Route{"messages": openai.Messages, "responses": openai.Responses}
	type count struct{ equal, left, refused int }
	counts := map[string]*count{}
	reasons := map[string]int{}
	renderers := map[string]*Renderer{}
	readLines(t, "testdata/apis.jsonl.gz", func(line []byte) {
		var g apiGolden
		if err := json.Unmarshal(line, &g); err != nil {
			t.Fatal(err)
		}
		key := g.Release + " " + g.Route
		n := counts[key]
		if n == nil {
			n = &count{}
			counts[key] = n
		}
		if g.Err != "" {
			n.refused++
			return
		}
		for i, template := range []string{inAnyOrder(dumping), inAnyOrder(dumpingParts)} {
			made := fmt.Sprint(g.Release, i)
			r := renderers[made]
			if r == nil {
				r = newRenderer(t, template, Options{Release: g.Release + ".0"})
				renderers[made] = r
			}
			got, err := promptOf(t, r, routes[g.Route], string(g.Body))
			if errors.Is(err, ErrUnsupported) {
				n.left++
				reasons[err.Error()]++
				continue
			}
			if err != nil {
				t.Errorf("%s %s: %v", g.Release, g.Body, err)
				continue
			}
			want, err := promptOf(t, r, openai.ChatCompletions, string(g.Chat))
			if errors.Is(err, ErrUnsupported) {
				t.Errorf("%s %s: the chat is left to the engine, the request is not: %v", g.Release, g.Body, err)
				continue
			}
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%s %s\nchat %s\n%s\nerror %v", g.Release, g.Body, g.Chat, diff, err)
				continue
			}
			n.equal++
		}
	})
	for reason, n := range reasons {
		t.Logf("%5d %s", n, reason)
	}
	if len(counts) != 7 {
		t.Errorf("%d pairs of release and route, want 7", len(counts))
	}
	for key, n := range counts {
		t.Logf("%s: %d equal, %d left to the engine, %d that it refuses", key, n.equal, n.left, n.refused)
		if n.equal < 150 || n.equal < 3*n.left {
			t.Errorf("%s: %d prompts are made, %d are not", key, n.equal, n.left)
		}
	}
}

// TestMessagesBecomeChatsAsRecorded: the chat that MessagesChat writes has the prompt of the one that vLLM makes.
func TestMessagesBecomeChatsAsRecorded(t *testing.T) {
	r := newRenderer(t, inAnyOrder(dumpingParts), Options{Release: "0.32.0"})
	equal, left := 0, 0
	readLines(t, "testdata/apis.jsonl.gz", func(line []byte) {
		var g apiGolden
		if err := json.Unmarshal(line, &g); err != nil {
			t.Fatal(err)
		}
		if g.Release != "0.32" || g.Route != "messages" || g.Err != "" {
			return
		}
		var req openai.Request
		if err := openai.Parse(openai.Messages, g.Body, &req); err != nil {
			t.Fatal(err)
		}
		chat, err := MessagesChat(t.Context(), g.Body, &req, "0.32")
		if errors.Is(err, ErrUnsupported) {
			left++
			return
		}
		if err != nil {
			t.Errorf("%s: %v", g.Body, err)
			return
		}
		got, err := promptOf(t, r, openai.ChatCompletions, string(chat))
		if errors.Is(err, ErrUnsupported) {
			left++
			return
		}
		want, wantErr := promptOf(t, r, openai.ChatCompletions, string(g.Chat))
		if got != want || err != nil || wantErr != nil {
			t.Errorf("%s\nchat %s\nwant %s\n%s\nerrors %v, %v", g.Body, chat, g.Chat, cmp.Diff(want, got), err, wantErr)
			return
		}
		equal++
	})
	t.Logf("%d equal, %d left to the engine", equal, left)
	if equal < 40 {
		t.Errorf("only %d chats are compared", equal)
	}
}

// FuzzOtherAPIs: whatever the body, it becomes a prompt, is left to the engine, or is refused by the template. The same body makes
// the same prompt twice, and the chat that is written of a Messages request makes it, too.
func FuzzOtherAPIs(f *testing.F) {
	readLines(f, "testdata/apis.jsonl.gz", func(line []byte) {
		var g apiGolden
		if err := json.Unmarshal(line, &g); err != nil {
			f.Fatal(err)
		}
		f.Add(g.Route == "messages", []byte(g.Body))
	})
	r := newRenderer(f, dumpingParts, Options{Release: "0.32.0"})
	f.Fuzz(func(t *testing.T, messages bool, body []byte) {
		route := openai.Responses
		if messages {
			route = openai.Messages
		}
		var req openai.Request
		if openai.Parse(route, body, &req) != nil {
			return
		}
		var texts []string
		for range 2 {
			p, err := r.Render(t.Context(), body, &req)
			var raised *chattemplate.RaisedError
			if err != nil {
				if !errors.Is(err, ErrUnsupported) && !errors.As(err, &raised) {
					t.Errorf("unexpected error %v", err)
				}
				return
			}
			texts = append(texts, strings.Clone(p.Text))
			p.Release()
		}
		if texts[0] != texts[1] {
			t.Errorf("one body makes two prompts:\n%s\n%s", texts[0], texts[1])
		}
		if !messages {
			return
		}
		chat, err := MessagesChat(t.Context(), body, &req, "0.32")
		if err != nil || openai.Parse(openai.ChatCompletions, chat, &req) != nil {
			return
		}
		if p, err := r.Render(t.Context(), chat, &req); err == nil {
			if p.Text != texts[0] {
				t.Errorf("the chat %s has the prompt\n%s\nwant\n%s", chat, p.Text, texts[0])
			}
			p.Release()
		}
	})
}
