package chatprompt

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/images"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

// seeingTemplate writes <unk> for an image.
const seeingTemplate = `{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}{% if c.type == 'image' %}<unk>{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}
{% endfor %}`

// seeing is an ImagePrompter whose images of w × h pixels have a token for each 28 × 28, at least 4. prompter makes texts without images.
func seeing(t *testing.T) (p *ImagePrompter, prompter *Prompter, placeholder uint32) {
	t.Helper()
	f, err := os.Open("../tokenizer/testdata/spm/tokenizer.json.gz")
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
	files := fstest.MapFS{
		"tokenizer.json":           {Data: vocabulary},
		"tokenizer_config.json":    {Data: []byte(`{"tokenizer_class": "PreTrainedTokenizerFast"}`)},
		"chat_template.jinja":      {Data: []byte(seeingTemplate)},
		"preprocessor_config.json": {Data: []byte(`{"min_pixels": 3136, "max_pixels": 1003520}`)},
	}
	enc, err := tokenizer.LoadFS(files)
	if err != nil {
		t.Fatal(err)
	}
	placeholder, ok := enc.TokenID("<unk>")
	if !ok {
		t.Fatal("no <unk>")
	}
	files["config.json"] = &fstest.MapFile{Data: fmt.Appendf(nil,
		`{"model_type": "qwen2_vl", "image_token_id": %d, "vision_config": {"patch_size": 14, "spatial_merge_size": 2}}`, placeholder)}
	m, err := images.New(files, enc)
	if err != nil {
		t.Fatal(err)
	}
	chats, err := New(Options{Files: files, Release: "0.32.0", Encoder: enc})
	if err != nil {
		t.Fatal(err)
	}
	prompter = NewPrompter(enc, tokenizer.NewCache(1<<20), chats, nil)
	return prompter.WithImages(m, "m"), prompter, placeholder
}

// pngOf is the base64 of a picture.
func pngOf(width, height int) string {
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewRGBA(image.Rect(0, 0, width, height))); err != nil {
		panic(err) // into memory
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

func imageURLOf(width, height int) string {
	return `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + pngOf(width, height) + `"}}`
}

func userSays(parts ...string) string {
	return `{"model":"m","messages":[{"role":"user","content":[` + strings.Join(parts, ",") + `]}]}`
}

const one = `{"type":"text","text":"one"}`

// The prompt of a chat with images is that of its template, with as many placeholders for each image as its size asks for, whatever the API.
func TestImagesTakeTheirPlaceInThePrompt(t *testing.T) {
	p, texts, placeholder := seeing(t)
	wide, small := pngOf(280, 56), pngOf(56, 56) // 20 and 4 tokens
	for name, tc := range map[string]struct {
		route openai.Route
		body  string
		plain string   // a chat of texts with the same prompt, in which each image is a placeholder
		sizes []int    // of the images, in tokens
		keys  []string // "" is that of the content
	}{
		"between texts": {openai.ChatCompletions, userSays(one, imageURLOf(280, 56), one), `[{"role":"user","content":"one<unk>one"}]`, []int{20}, []string{""}},
		"in two turns": {openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":[` + imageURLOf(56, 56) + `]},{"role":"assistant","content":"two"},` +
			`{"role":"user","content":[` + imageURLOf(280, 56) + `,` + imageURLOf(56, 56) + `]}]}`,
			`[{"role":"user","content":"<unk>"},{"role":"assistant","content":"two"},{"role":"user","content":"<unk><unk>"}]`, []int{4, 20, 4}, []string{"", "", ""}},
		"with a name": {openai.ChatCompletions, userSays(strings.Replace(imageURLOf(56, 56), `"type"`, `"uuid":"nä me","type"`, 1)), `[{"role":"user","content":"<unk>"}]`,
			[]int{4}, []string{"nä me"}},
		"of Messages": {openai.Messages, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"text","text":"one"},` +
			`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + wide + `"}}]}]}`, `[{"role":"user","content":"one<unk>"}]`, []int{20}, []string{""}},
		"as a tool's result": {openai.Messages, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"go"},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]},` +
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{"type":"base64","data":"` + small + `"}},{"type":"text","text":"one"}]},{"type":"text","text":"well?"}]}]}`,
			`[{"role":"user","content":"go"},{"role":"assistant","content":""},{"role":"tool","content":"one","tool_call_id":"t"},{"role":"user","content":"<unk>"},{"role":"user","content":"well?"}]`, []int{4}, []string{""}},
		"of Responses": {openai.Responses, `{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,` + wide + `","detail":"low"},` +
			`{"type":"input_text","text":"one"}]}]}`, `[{"role":"user","content":"<unk>one"}]`, []int{20}, []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			var r openai.Request
			if err := openai.Parse(tc.route, []byte(tc.body), &r); err != nil {
				t.Fatal(err)
			}
			ids, items, err := p.AppendItems(t.Context(), []uint32{9}, []byte(tc.body), &r)
			if err != nil {
				t.Fatal(err)
			}
			plain := []byte(`{"model":"m","messages":` + tc.plain + `}`)
			route := openai.ChatCompletions
			if tc.route == openai.Responses { // which adds special tokens
				plain, route = []byte(`{"model":"m","input":`+tc.plain+`}`), openai.Responses
			}
			var q openai.Request
			if err := openai.Parse(route, plain, &q); err != nil {
				t.Fatal(err)
			}
			short, err := texts.AppendTokens(t.Context(), nil, plain, &q)
			if err != nil {
				t.Fatal(err)
			}
			want := []uint32{9}
			n := 0
			for _, id := range short {
				if id != placeholder {
					want = append(want, id)
					continue
				}
				if item := items[n]; item.Offset != len(want)-1 || item.Length != tc.sizes[n] || tc.keys[n] != "" && item.Key != tc.keys[n] || len(item.Key) < 6 {
					t.Errorf("item %d is %+v, want %d tokens at %d", n, item, tc.sizes[n], len(want)-1)
				}
				want = append(want, slices.Repeat([]uint32{placeholder}, tc.sizes[n])...)
				n++
			}
			if !slices.Equal(ids, want) || n != len(items) {
				t.Errorf("%d tokens, %d images; want %d, %d", len(ids), len(items), len(want), n)
			}
		})
	}
}

// What is not understood is left to the engine, and the prompt before it stays as it was.
func TestUnusualImagesAreLeftToTheEngine(t *testing.T) {
	p, _, _ := seeing(t)
	ok := imageURLOf(56, 56)
	for name, body := range map[string]string{
		"a link":                         userSays(`{"type":"image_url","image_url":{"url":"https://127.0.0.1/x.png"}}`),
		"a text as an URL":               userSays(strings.TrimSuffix(strings.Replace(ok, `{"url":`, ``, 1), `}`)),
		"no data":                        userSays(`{"type":"image_url","image_url":{"url":"data:image/png;base64,"}}`),
		"data of the form of other APIs": userSays(`{"type":"image_url","image_url":{"data":"` + pngOf(9, 9) + `"}}`),
		"without a type":                 userSays(strings.Replace(ok, `"type":"image_url",`, ``, 1)),
		"fields that are not known":      userSays(strings.Replace(ok, `"type"`, `"x":1,"type"`, 1)),
		"a name that is none":            userSays(strings.Replace(ok, `"type"`, `"uuid":3,"type"`, 1)),
		"a very long name":               userSays(strings.Replace(ok, `"type"`, `"uuid":"`+strings.Repeat("x", maxImageName+1)+`","type"`, 1)),
		"a name and no image":            userSays(`{"type":"image_url","image_url":null,"uuid":"x"}`),
		"a text like an image":           userSays(ok, `{"type":"text","text":"<unk>"}`),
		"only a text like an image":      userSays(`{"type":"text","text":"<unk>"}`),
		"a video":                        userSays(ok, `{"type":"video_url","video_url":{"url":"data:video/mp4;base64,AAAA"}}`),
		"arguments of the processor":     strings.Replace(userSays(ok), `"model"`, `"mm_processor_kwargs":{"max_pixels":9},"model"`, 1),
		"arguments of the reader":        strings.Replace(userSays(ok), `"model"`, `"media_io_kwargs":{"image":{}},"model"`, 1),
		"a shortened prompt":             strings.Replace(userSays(ok), `"model"`, `"truncate_prompt_tokens":9,"model"`, 1),
		"very many images":               userSays(slices.Repeat([]string{ok}, maxImages+1)...),
		"images of very many tokens": userSays(slices.Repeat([]string{`{"type":"image_url","image_url":{"url":"data:image/png;base64,` +
			base64.StdEncoding.EncodeToString(append([]byte("\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR\x00\x00\x40\x00\x00\x00\x40\x00\x08\x02\x00\x00\x00\x00\x00\x00\x00"),
				"\x00\x00\x00\x00IEND\x00\x00\x00\x00"...)) + `"}}`}, maxImages)...),
	} {
		t.Run(name, func(t *testing.T) {
			var r openai.Request
			if err := openai.Parse(openai.ChatCompletions, []byte(body), &r); err != nil {
				t.Fatal(err)
			}
			ids, items, err := p.AppendItems(t.Context(), []uint32{9}, []byte(body), &r)
			if !errors.Is(err, ErrUnsupported) || len(items) > 0 || !slices.Equal(ids, []uint32{9}) {
				t.Errorf("%d tokens, %d images, %v", len(ids), len(items), err)
			}
		})
	}
}

func TestImagesAreReadWithinTheirTime(t *testing.T) {
	p, _, _ := seeing(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	body := []byte(userSays(imageURLOf(56, 56)))
	var r openai.Request
	if err := openai.Parse(openai.ChatCompletions, body, &r); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.AppendItems(ctx, nil, body, &r); !errors.Is(err, ctx.Err()) {
		t.Error(err)
	}
}

// TestNamesOfImagesLast: later requests use the memory that earlier ones were decoded into.
func TestNamesOfImagesLast(t *testing.T) {
	p, _, _ := seeing(t)
	key := func(uuid string) string {
		body := []byte(userSays(strings.Replace(imageURLOf(56, 56), `"type"`, `"uuid":"`+uuid+`","type"`, 1)))
		var r openai.Request
		if err := openai.Parse(openai.ChatCompletions, body, &r); err != nil {
			t.Fatal(err)
		}
		_, items, err := p.AppendItems(t.Context(), nil, body, &r)
		if err != nil {
			t.Fatal(err)
		}
		return items[0].Key
	}
	first := key(`a\/1`)
	for range 100 {
		key(`b\/2`)
	}
	if first != "a/1" {
		t.Errorf("the name has become %q", first)
	}
}
