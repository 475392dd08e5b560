package openai

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseOfOtherRoutes(t *testing.T) {
	const turns = `[{"role":"user","content":"U"},{"type":"function_call","name":"f","arguments":"{}"},{"type":"function_call_output","output":"42"}]`
	const tools = `[{"name":"z","input_schema":{"b":1,"a":2}},{"name":"a"}]`
	for name, tc := range map[string]struct {
		route Route
		body  string
		want  seen
	}{
		"a response to a text": {
			route: Responses, body: `{"model":"m","input":"hi\n","instructions":"S","stream":true,"max_output_tokens":7,"cache_salt":"s","user":"u","priority":2}`,
			want: seen{
				Model: "m", N: 1, Messages: `"hi\n"`, NumMessages: 1, System: `"S"`, Stable: "S\x00hi\n", Stream: true, IncludeUsage: true,
				MaxTokens: 7, CacheSalt: "s", User: "u", Priority: 2,
			},
		},
		"a response to a list": {
			route: Responses, body: `{"model":"m","input":` + turns + `,"tools":` + tools + `,"max_tokens":9,"messages":[1],"prompt":5}`,
			want: seen{Model: "m", N: 1, Messages: turns, NumMessages: 3, Tools: tools, Stable: "\x00U"},
		},
		"a response that goes on from another": {
			route: Responses, body: `{"model":"m","input":"x","previous_response_id":"resp_1","background":true,"truncation":"auto"}`,
			want: seen{Model: "m", N: 1, Messages: `"x"`, NumMessages: 1, Stable: "\x00x", Stateful: true, Background: true, Truncate: -1},
		},
		"a response that is as short as by default": {
			route: Responses, body: `{"model":"m","input":[],"previous_response_id":null,"truncation":"disabled","instructions":null,"background":false}`,
			want: seen{Model: "m", N: 1, Messages: `[]`, Stable: "\x00"},
		},
		"an image that a tool has answered": {
			route: Responses, body: `{"model":"m","input":[{"type":"function_call_output","output":[{"type":"input_image","image_url":"http://x","file_id":null}]}]}`,
			want: seen{
				Model: "m", N: 1, Messages: `[{"type":"function_call_output","output":[{"type":"input_image","image_url":"http://x","file_id":null}]}]`,
				NumMessages: 1, Stable: "\x00", Multimodal: true,
				Items: []seenItem{{Image, 0, "", `{"type":"input_image","image_url":"http://x","file_id":null}`, "http://x"}},
			},
		},
		"texts to embed": {
			route: Embeddings, body: `{"model":"m","input":["a","b"],"truncate_prompt_tokens":5,"truncation_side":"right","add_special_tokens":false,"stream":true,"n":4}`,
			want: seen{
				Model: "m", N: 1, Prompts: []Prompt{{Text: "a"}, {Text: "b"}}, Stable: "a", Truncate: 5, KeepFirst: true, SideGiven: true, AddSpecialTokens: ptr(false),
			},
		},
		"token ids to embed": {
			route: Embeddings, body: `{"model":"m","input":[[1],[2]]}`,
			want: seen{Model: "m", N: 1, Prompts: []Prompt{{Tokens: []uint32{1}, IsTokens: true}, {Tokens: []uint32{2}, IsTokens: true}}, Stable: "\x01\x00\x00\x00"},
		},
		"a chat to embed": {
			route: Embeddings, body: `{"model":"m","messages":[{"role":"user","content":"U"}]}`,
			want: seen{Model: "m", N: 1, Messages: `[{"role":"user","content":"U"}]`, NumMessages: 1, Stable: "\x00U"},
		},
		"chats to embed": {
			route: Embeddings, body: `{"model":"m","messages":[[{"role":"user"}],[]]}`,
			want: seen{Model: "m", N: 1, Messages: `[[{"role":"user"}],[]]`, NumMessages: 2, Stable: "\x00"},
		},
		"a chat to embed, in another place": {
			route: Embeddings, body: `{"model":"m","input":[{"role":"user","content":"U"}]}`, want: seen{Model: "m", N: 1, Stable: "\x00"},
		},
		"chats to embed, in another place": {
			route: Embeddings, body: `{"model":"m","input":[[{"role":"user"}]]}`, want: seen{Model: "m", N: 1, Stable: "\x00"},
		},
		"a message for Anthropic": {
			route: Messages, body: `{"model":"m","max_tokens":3,"messages":[{"role":"user","content":[{"type":"text","text":"U"}]}],"system":"S",` +
				`"stream":true,"tools":` + tools + `,"metadata":{"user_id":"u","x":1},"user":"v","cache_salt":"s","priority":4,"max_completion_tokens":5}`,
			want: seen{
				Model: "m", N: 1, MaxTokens: 3, Messages: `[{"role":"user","content":[{"type":"text","text":"U"}]}]`, NumMessages: 1, System: `"S"`,
				Tools: tools, Stable: "S\x00U", Stream: true, IncludeUsage: true, User: "u", CacheSalt: "s",
			},
		},
		"a system prompt in parts, one of them changing, and another one among the messages": {
			route: Messages, body: `{"model":"m","system":[{"type":"text","text":"` + changing + `: cc_version=1; cch=ab12;"},{"type":"text","text":"S"}],` +
				`"messages":[{"role":"system","content":"T"},{"role":"user","content":"U"}]}`,
			want: seen{
				Model: "m", N: 1, Messages: `[{"role":"system","content":"T"},{"role":"user","content":"U"}]`, NumMessages: 2,
				System: `[{"type":"text","text":"` + changing + `: cc_version=1; cch=ab12;"},{"type":"text","text":"S"}]`, Stable: "ST\x00U",
			},
		},
		"parts of tools are not multimodal": {
			route: Messages, body: `{"model":"m","messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"x"},{"type":"redacted_thinking","data":"AA"},` +
				`{"type":"tool_use","id":"1","name":"f","input":{"source":"x"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"42"}]}]}`,
			want: seen{
				Model: "m", N: 1, NumMessages: 2, Stable: "\x00",
				Messages: `[{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"x"},{"type":"redacted_thinking","data":"AA"},` +
					`{"type":"tool_use","id":"1","name":"f","input":{"source":"x"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"42"}]}]`,
			},
		},
		"images, one of them in a tool's answer": {
			route: Messages, body: `{"model":"m","messages":[{"role":"user","content":"x"},{"role":"user","content":[` +
				`{"type":"tool_result","content":[{"type":"text","text":"t"},{"type":"image","source":{"type":"url","url":"http://x"}}]},` +
				`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]}]}`,
			want: seen{
				Model: "m", N: 1, NumMessages: 2, Stable: "\x00x", Multimodal: true,
				Messages: `[{"role":"user","content":"x"},{"role":"user","content":[` +
					`{"type":"tool_result","content":[{"type":"text","text":"t"},{"type":"image","source":{"type":"url","url":"http://x"}}]},` +
					`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]}]`,
				Items: []seenItem{
					{Image, 1, "", `{"type":"image","source":{"type":"url","url":"http://x"}}`, "http://x"},
					{Image, 1, "", `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}`, "AAAA"},
				},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var r Request
			if err := Parse(tc.route, []byte(tc.body), &r); err != nil {
				t.Fatalf("Parse: %v", err)
			}
			if d := cmp.Diff(tc.want, see(&r)); d != "" {
				t.Errorf("request differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestRouteOf(t *testing.T) {
	for path, want := range map[string]Route{
		"/v1/completions": Completions, "/v1/chat/completions": ChatCompletions, "/v1/responses": Responses, "/v1/embeddings": Embeddings, "/v1/messages": Messages,
	} {
		if got, ok := RouteOf(path); got != want || !ok {
			t.Errorf("%s is %v, %v", path, got, ok)
		}
		if want.String() != strings.TrimPrefix(path, "/v1/") {
			t.Errorf("%v is the name for %s", want, path)
		}
		for _, other := range []string{path + "/", path[1:], strings.TrimPrefix(path, "/v1"), path + "x", strings.ToUpper(path)} {
			if r, ok := RouteOf(other); ok {
				t.Errorf("%s is %v", other, r)
			}
		}
	}
	if s := Route(99).String(); s != "Route(99)" {
		t.Errorf("an unknown route is %q", s)
	}
}

// chatWith is a chat request with the part, messagesWith a Messages request, responsesWith a Responses request.
func chatWith(part string) (Route, string) {
	return ChatCompletions, `{"model":"m","messages":[{"role":"user","content":[` + part + `]}]}`
}

func messagesWith(part string) (Route, string) {
	return Messages, `{"model":"m","messages":[{"role":"user","content":[` + part + `]}]}`
}

func responsesWith(part string) (Route, string) {
	return Responses, `{"model":"m","input":[{"role":"user","content":[` + part + `]}]}`
}

func TestItems(t *testing.T) {
	parse := func(t *testing.T, with func(string) (Route, string), part string) (it Item, hash [16]byte, known bool) {
		t.Helper()
		route, body := with(part)
		var r Request
		if err := Parse(route, []byte(body), &r); err != nil {
			t.Fatal(err)
		}
		if len(r.Items) != 1 || !r.Multimodal {
			t.Fatalf("%d items in %s, multimodal: %v", len(r.Items), part, r.Multimodal)
		}
		hash, known = r.ItemHash(&r.Items[0])
		return r.Items[0], hash, known
	}
	_, png, _ := parse(t, chatWith, `{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBO/w=="}}`)
	_, link, _ := parse(t, chatWith, `{"type":"image_url","image_url":{"url":"https://x/y.png"}}`)
	if png == link {
		t.Fatal("an image and a link have one hash")
	}
	for name, tc := range map[string]struct {
		with  func(string) (Route, string)
		part  string
		kind  ItemKind
		uuid  string
		same  *[16]byte // nil: another hash than the two
		blank bool      // no hash at all
	}{
		"an image as a plain string":      {with: chatWith, part: `{"type":"image_url","image_url":"data:image/png;base64,iVBO/w=="}`, kind: Image, same: &png},
		"an image without a type":         {with: chatWith, part: `{"image_url":"https://x/y.png"}`, kind: Image, same: &link},
		"an image with escapes":           {with: chatWith, part: `{"type":"image_url","image_url":{"url":"data:image\/png;base64,iVBO\/w\u003d="}}`, kind: Image, same: &png},
		"an image that claims to be GIF":  {with: chatWith, part: `{"type":"image_url","image_url":{"url":"data:image/gif;base64,iVBO/w=="}}`, kind: Image, same: &png},
		"an image for Anthropic":          {with: messagesWith, part: `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBO/w=="}}`, kind: Image, same: &png},
		"a link for Anthropic":            {with: messagesWith, part: `{"type":"image","source":{"type":"url","url":"https://x/y.png"}}`, kind: Image, same: &link},
		"an image for a response":         {with: responsesWith, part: `{"type":"input_image","detail":"auto","file_id":null,"image_url":"data:image/png;base64,iVBO/w=="}`, kind: Image, same: &png},
		"an image's other data":           {with: chatWith, part: `{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBO/x=="}}`, kind: Image},
		"audio":                           {with: chatWith, part: `{"type":"input_audio","input_audio":{"data":"iVBO/w==","format":"wav"}}`, kind: Audio, same: &png},
		"audio at a link":                 {with: chatWith, part: `{"audio_url":{"url":"https://x/y.png"}}`, kind: Audio, same: &link},
		"a video":                         {with: chatWith, part: `{"type":"video_url","video_url":{"url":"https://x/y.png"}}`, kind: Video, same: &link},
		"a file":                          {with: chatWith, part: `{"type":"file","file":{"file_data":"x","filename":"f"}}`, kind: File},
		"a file that is known already":    {with: responsesWith, part: `{"type":"input_file","file_id":"file-1"}`, kind: File},
		"a document":                      {with: messagesWith, part: `{"type":"document","source":{"type":"base64","data":"AA"}}`, kind: File},
		"an image that has only its name": {with: chatWith, part: `{"type":"image_url","image_url":null,"uuid":"a\u0062"}`, kind: Image, uuid: "ab", blank: true},
		"an image with a name":            {with: chatWith, part: `{"uuid":"ab","type":"image_url","image_url":{"url":"https://x/y.png"}}`, kind: Image, uuid: "ab", same: &link},
		"embeddings of an image":          {with: chatWith, part: `{"type":"image_embeds","image_embeds":{"image_embeds":"x","grid":"y"}}`, kind: Image},
		"an unknown type":                 {with: chatWith, part: `{"type":"smell"}`, kind: File, blank: true},
	} {
		t.Run(name, func(t *testing.T) {
			it, hash, known := parse(t, tc.with, tc.part)
			if it.Kind != tc.kind || it.UUID != tc.uuid || it.Message != 0 {
				t.Errorf("item is a %v named %q in message %d", it.Kind, it.UUID, it.Message)
			}
			if known == tc.blank {
				t.Errorf("it has a hash: %v", known)
			}
			if same := hash == png || hash == link; tc.same != nil && hash != *tc.same || tc.same == nil && same {
				t.Errorf("hash is %x", hash)
			}
		})
	}
}

func TestItemsAreBounded(t *testing.T) {
	const part = `{"type":"image_url"}`
	route, body := chatWith(part + strings.Repeat(","+part, MaxItems))
	var r Request
	if err := Parse(route, []byte(body), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Items) != MaxItems || !r.Multimodal {
		t.Errorf("%d items, multimodal: %v", len(r.Items), r.Multimodal)
	}
	r.Reset()
	if cap(r.Items) != 0 {
		t.Errorf("%d items are kept", cap(r.Items))
	}
}

func TestItemHashLeavesPromptsAlone(t *testing.T) {
	body := `{"model":"m","input":"a\nb","messages":[{"role":"user","content":[{"type":"image_url","image_url":"x\/y"}]}]}`
	var r Request
	if err := Parse(Embeddings, []byte(body), &r); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		if _, ok := r.ItemHash(&r.Items[0]); !ok || r.Prompts[0].Text != "a\nb" {
			t.Errorf("the prompt is %q", r.Prompts[0].Text)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestRaw(t *testing.T) {
	body := `{"model":"m","messages":[ 1 ],"tools":null,"chat_template_kwargs":{"b":1, "a":2},"chat_template_kwargs":{"b":2,"a":1} ,"x":"\u0041"}`
	var r Request
	if err := Parse(Completions, []byte(strings.Replace(body, "messages", "prompt", 1)), &r); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"prompt": "[ 1 ]", "tools": "", "chat_template_kwargs": `{"b":2,"a":1}`, "x": `"\u0041"`, "nothing": "", "model": `"m"`,
	} {
		if got, ok := r.Raw(name); string(got) != want || !ok || (got == nil) != (want == "") {
			t.Errorf("Raw(%q) = %q, %v; want %q", name, got, ok, want)
		}
	}
}

// TestReplaceModel checks the law of the rewrite on random requests: only the model's own value changes.
func TestReplaceModel(t *testing.T) {
	w := &writer{rng: rand.New(rand.NewPCG(9, 10))}
	var r, again Request
	for round := 0; round < 1000; {
		route := Route(w.rng.IntN(numRoutes))
		body := bytes.Clone(w.request())
		if Parse(route, body, &r) != nil {
			continue
		}
		round++
		name := w.text() + "x"
		at, end := r.ModelAt, len(body)-r.ModelEnd
		got := ReplaceModel([]byte("prefix"), body, &r, name)[len("prefix"):]
		if !bytes.Equal(got[:at], body[:at]) || !bytes.Equal(got[len(got)-end:], body[len(body)-end:]) {
			t.Fatalf("more than the model has changed:\n%q\n%q", body, got)
		}
		var value string
		if err := json.Unmarshal(got[at:len(got)-end], &value); err != nil || value != name {
			t.Fatalf("the model is %q now, want %q: %v", got[at:len(got)-end], name, err)
		}
		if err := Parse(route, got, &again); err != nil || again.Model != name {
			t.Fatalf("the model reads as %q, %v; want %q\nbody: %q", again.Model, err, name, got)
		}
	}
	var b Request
	body := []byte(`{"model":"old","model": "m" ,"prompt":"x"}`)
	if err := Parse(Completions, body, &b); err != nil {
		t.Fatal(err)
	}
	if got := string(ReplaceModel(nil, body, &b, "a\"\xff")); got != `{"model":"old","model": "a\"`+"\ufffd"+`" ,"prompt":"x"}` {
		t.Errorf("body is %s", got)
	}
}
