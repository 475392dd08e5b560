package real

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"image"
	"image/color"
	"image/png"
	"slices"
	"strings"
	"testing"
)

// picture is a PNG file of a size whose content depends on a name, as a URL.
func picture(name string, width, height int) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	seed := h.Sum32()
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	for x := range width {
		for y := range height {
			seed = seed*1664525 + 1013904223
			img.Set(x, y, color.RGBA{R: uint8(seed >> 24), G: uint8(x), B: uint8(y), A: 255})
		}
	}
	var file bytes.Buffer
	if err := png.Encode(&file, img); err != nil {
		panic(err) // into memory
	}
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(file.Bytes())
}

// shown is a content part with a picture.
func shown(name string, width, height int) object {
	return object{"type": "image_url", "image_url": object{"url": picture(name, width, height)}}
}

// looking is a chat about pictures that grows by a turn, with another picture.
func looking(shape string, change func(id string, parts []object) []object) func(string, int) request {
	return func(id string, turn int) request {
		parts := []object{part(text(id, 100)), shown(id, 224, 224), part(text("b"+id, 60)), shown("b"+id, 56, 84), part("Which is larger?")}
		if change != nil {
			parts = change(id, parts)
		}
		messages := []object{say("user", parts)}
		if turn > 0 {
			messages = append(messages, say("assistant", "The first. "+text("c"+id, 60)), say("user", []object{shown("c"+id, 112, 112), part("And now?")}))
		}
		return chat(shape, messages...)
	}
}

// pictures are requests with images. Images come first in a prompt, one follows another at once, the same one appears twice, clients
// name them, and the routes of other APIs have them, too.
var pictures = []shape{
	{name: "images between texts", body: looking("images between texts", nil)},
	{name: "an image first", body: looking("an image first", func(_ string, parts []object) []object { return parts[1:] })},
	{name: "images in a row", body: looking("images in a row", func(id string, parts []object) []object {
		return append([]object{shown("d"+id, 28, 28), shown("e"+id, 28, 56)}, parts[1:]...)
	})},
	{name: "an image twice", body: looking("an image twice", func(id string, parts []object) []object {
		return append(parts, shown(id, 224, 224), part("Was it this?"))
	})},
	{name: "images with a salt", body: func(id string, turn int) request {
		return looking("images with a salt", nil)(id, turn).with(object{"cache_salt": "s"})
	}},
	{name: "images with names", body: looking("images with names", func(id string, parts []object) []object {
		parts[1]["uuid"] = "näme \"of\" " + id
		return parts
	})},
	{name: "images that name the payload", body: func(id string, turn int) request {
		return looking("images that name the payload", nil)(id, turn).with(object{"mm_payload": "tensors"})
	}},
	{name: "messages with images", since: "0.29", rendered: "0.29", body: func(id string, turn int) request {
		blocks := []object{part(text(id, 100)), {"type": "image", "source": object{"type": "base64", "media_type": "image/png",
			"data": picture(id, 112, 112)[len("data:image/png;base64,"):]}}, part("What is it?")}
		messages := []object{say("user", blocks)}
		if turn > 0 {
			messages = append(messages, say("assistant", "Noise. "+text("c"+id, 60)), say("user", "Why?"))
		}
		return request{shape: "messages with images", path: "/v1/messages", body: object{"model": "m", "max_tokens": 2, "messages": messages}}
	}},
	{name: "an image of a tool", since: "0.29", rendered: "0.29", body: func(id string, turn int) request {
		messages := []object{say("user", "Take a picture. "+text(id, 60)),
			say("assistant", []object{{"type": "tool_use", "id": "toolu_1", "name": "camera", "input": object{"zoom": 2}}}),
			say("user", []object{{"type": "tool_result", "tool_use_id": "toolu_1", "content": []object{part("Taken."), {"type": "image", "source": object{
				"type": "base64", "media_type": "image/png", "data": picture(id, 112, 112)[len("data:image/png;base64,"):]}}}}})}
		if turn > 0 {
			messages = append(messages, say("assistant", "Noise. "+text("c"+id, 60)), say("user", "Why?"))
		}
		return request{shape: "an image of a tool", path: "/v1/messages", body: object{"model": "m", "max_tokens": 2, "messages": messages}}
	}},
	{name: "responses with images", since: "0.30", rendered: "0.30", body: func(id string, turn int) request {
		input := []object{say("user", []object{{"type": "input_text", "text": text(id, 100)},
			{"type": "input_image", "image_url": picture(id, 112, 112), "detail": "auto"}, {"type": "input_text", "text": "What is it?"}})}
		if turn > 0 {
			input = append(input, say("user", text("c"+id, 60)))
		}
		return request{shape: "responses with images", path: "/v1/responses", body: object{"model": "m", "max_output_tokens": 16, "input": input}}
	}},
}

// TestImagesAreFollowed: prompts with images are predicted exactly by the engine's render route, and for texts around other images
// nothing is predicted that the engine does not find. Chats without images are made in the picker, by the templates of the model's
// processor and tokenizer.
func TestImagesAreFollowed(t *testing.T) {
	needWholeRun(t)
	if !atLeast("0.30") {
		t.Skipf("vLLM %s is not asked to leave out tensors", run.release)
	}
	vision := engineConfig{model: "vision", flags: []string{"--limit-mm-per-prompt", `{"image": 8, "video": 0}`,
		"--enable-auto-tool-choice", "--tool-call-parser", "hermes"}}
	unrendered := vision
	unrendered.flags = append(slices.Clip(vision.flags), noScaleOut)
	all := startEngines(t, vision, unrendered)
	engines := all[:1]
	p := startPicker(t, engines, pickerConfig{})
	verdict(t, p.repeated(chat("beside images", say("user", text("beside images", 300)))))
	t.Run("by the engine", func(t *testing.T) { p.follows(t, "by the engine", func(request) string { return "engine" }) })
	verdict(t, p.holdsTheSame(engines))
	if trusted := p.metric("kvasir_predictions_trusted"); trusted != 1 {
		t.Errorf("kvasir_predictions_trusted is %v", trusted)
	}
	p.stop()
	t.Run("in process", func(t *testing.T) { imagesInProcess(t, "in process", engines) })
	t.Run("without a render route", func(t *testing.T) { imagesInProcess(t, "without a render route", all[1:]) })
}

// imagesInProcess is TestImagesAreFollowed for a picker with the model's files.
func imagesInProcess(t *testing.T, name string, engines []*engine) {
	p := startPicker(t, engines, pickerConfig{files: true})
	p.until("images are proven", func() error {
		s, err := p.status()
		if c := s.conditions["TokensExact"]; err != nil || !strings.Contains(c.Message, "cases are equal, none differs") || !strings.Contains(c.Message, "images: ") {
			return fmt.Errorf("TokensExact is %+v, %w", c, err)
		}
		return nil
	})
	p.follows(t, name, func(request) string { return "exact" })
	messages := conversation(name+" texts beside images", 0)
	for _, r := range []request{chat("texts beside images", messages...), chat("tools beside images", messages...).with(object{"tools": weather})} {
		verdict(t, p.repeated(r))
		if a := p.send(r); a.tokens != "exact" {
			t.Errorf("the tokens of %s are %q", r.shape, a.tokens)
		}
	}
	if trusted := p.metric("kvasir_predictions_trusted"); trusted != 1 {
		t.Errorf("kvasir_predictions_trusted is %v", trusted)
	}
}

// follows sends prompts with images, each twice and with a further turn. tokens is where their tokens are from.
func (p *picker) follows(t *testing.T, name string, tokens func(request) string) {
	for _, s := range pictures {
		t.Run(s.name, func(t *testing.T) {
			for i, turn := range []int{0, 0, 1} {
				r := s.body(name+" "+s.name, turn)
				a := p.send(r)
				verdict(t, a.exact())
				if a.tokens != tokens(r) || (i == 0) != (a.delivered == 0) {
					t.Errorf("request %d: %d tokens of %d delivered, tokens are %q", i, a.delivered, a.promptEngine, a.tokens)
				}
				verdict(t, p.settled(p.engines))
			}
		})
	}
	t.Run("another image", func(t *testing.T) {
		id := name + " another image"
		for i, name := range []string{"x", "y", "x"} {
			a := p.send(chat(id, say("user", []object{part(text(id, 100)), shown(name, 224, 224), part(text("b"+id, 100))})))
			verdict(t, a.exact())
			if want := []bool{false, true, true}[i]; want != (a.delivered > 0) || i == 1 && a.delivered > 128 {
				t.Errorf("request %d: %d tokens of %d delivered", i, a.delivered, a.promptEngine)
			}
			verdict(t, p.settled(p.engines))
		}
	})
}
