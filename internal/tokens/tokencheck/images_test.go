package tokencheck

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/images"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

// imaging is what engines make of images.
type imaging struct {
	// root is the model's name in the engines' keys; empty is that of their identity.
	root string
	// single: they take one image in a request. unrendered: they have no render route. silentAboutImages: they announce nothing.
	single, unrendered, silentAboutImages bool
	// shift changes the ids that they make.
	shift    func(route openai.Route, ids []uint32) []uint32
	imagesOf modelfiles.Set
	announce []string     // what they have announced
	queries  int          // about images
	blind    func() error // they do not answer
}

// Items is Engine's.
func (e *engines) Items(ctx context.Context, ep *endpoint.Endpoint, route openai.Route, body []byte, apiKey string) (Items, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queries++
	id, ok := e.identity[ep.Pod]
	if !ok || apiKey != "key" {
		return Items{}, errors.New("connection refused")
	}
	if e.blind != nil {
		if err := e.blind(); err != nil {
			return Items{}, err
		}
	}
	if e.imagesOf == nil || e.single && strings.Count(string(body), "image_url") > 2 {
		return Items{}, fmt.Errorf("%w: too many images", ErrRefused)
	}
	enc, err := tokenizer.LoadFS(e.imagesOf)
	if err != nil {
		return Items{}, err
	}
	m, err := images.New(e.imagesOf, enc)
	if err != nil {
		return Items{}, err
	}
	root := e.root
	if root == "" {
		root = id.Root
	}
	var r openai.Request
	if err := openai.Parse(route, body, &r); err != nil {
		return Items{}, err
	}
	ids, items, err := e.prompts[ep.Pod].WithImages(m, root).AppendItems(ctx, nil, body, &r)
	if err != nil {
		return Items{}, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if e.shift != nil {
		ids = e.shift(route, ids)
	}
	if !e.unrendered {
		return Items{IDs: ids, Items: items}, nil
	}
	if !e.silentAboutImages {
		e.announce = append(e.announce, fmt.Sprint(ep.Pod, ids, items))
	}
	return Items{IDs: ids, Served: true}, nil
}

// holds is for Config.Holds.
func (e *engines) holds(namespace, pool string, of *endpoint.Endpoint, ids []uint32, items []kvblock.Item) (holds, conclusive bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.announce, fmt.Sprint(of.Pod, ids, items)), namespace == "n" && pool == "p" && of.Pod != ""
}

// imageChatml is chatml for content in parts, with a placeholder for each image.
const imageChatml = `{%- for m in messages %}<s>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}{% if c.type == 'image' %}<unk>{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}</s>
{% endfor %}{% if add_generation_prompt %}<s>assistant
{% endif %}`

// seeingModel are the files of a small model that takes images.
func seeingModel(t *testing.T) modelfiles.Set {
	t.Helper()
	files := smallModel(t, imageChatml)
	enc, err := tokenizer.LoadFS(files)
	if err != nil {
		t.Fatal(err)
	}
	placeholder, ok := enc.TokenID("<unk>")
	if !ok {
		t.Fatal("the tokenizer has no <unk>")
	}
	files["config.json"] = fmt.Appendf(nil, `{"model_type": "qwen2_vl", "image_token_id": %d, "vision_config": {"patch_size": 14, "spatial_merge_size": 2}}`, placeholder)
	files["preprocessor_config.json"] = []byte(`{"min_pixels": 3136, "max_pixels": 1003520}`)
	return files
}

var seeing = Identity{Version: "0.32.0", Root: "/m"}

func TestImagesAreTrustedOnceTheyAreProven(t *testing.T) {
	blindly := chatml // a template without images
	for name, tc := range map[string]struct {
		change  func(e *engines)
		files   func(f modelfiles.Set)
		version string
		want    bool
		without openai.Kind // a route that is not proven; 0 is none
		says    string
	}{
		"as in the engine":             {want: true, says: "images: 12 of 12 cases are equal, none differs"},
		"one image at a time":          {change: func(e *engines) { e.single = true }, want: true, says: "images: 10 of 12 cases are equal"},
		"without a render route":       {change: func(e *engines) { e.unrendered = true }, want: true, says: "images: 12 of 12 cases are equal"},
		"nothing is announced":         {change: func(e *engines) { e.unrendered, e.silentAboutImages = true, true }, says: "announces the images by other keys"},
		"announced by other keys":      {change: func(e *engines) { e.unrendered, e.root = true, "/other" }, says: "announces the images by other keys"},
		"other keys":                   {change: func(e *engines) { e.root = "/other" }, says: "gives the images other keys"},
		"other ids":                    {change: func(e *engines) { e.shift = shiftAll }, says: "the first 3 are equal"},
		"other ids of Messages":        {change: func(e *engines) { e.shift = shiftMessages }, want: true, without: openai.KindMessages, says: "case 7 (messages: an image between texts): 89 tokens here, 89 in the engine"},
		"a release before 0.30":        {version: "0.29.1"},
		"images are refused":           {change: func(e *engines) { e.imagesOf = nil }, says: "only 0 of 12 cases could be compared"},
		"a model without images":       {files: func(f modelfiles.Set) { delete(f, "preprocessor_config.json") }},
		"another model's images":       {files: func(f modelfiles.Set) { f["config.json"] = []byte(`{"model_type": "gemma3"}`) }},
		"a template that hides images": {files: func(f modelfiles.Set) { f["chat_template.jinja"] = []byte(blindly) }, says: "only 0 of 12"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				whole := seeingModel(t)
				own := maps.Clone(whole)
				if tc.files != nil {
					tc.files(own)
				}
				h := newHouse(Files{Set: own}, "a")
				defer h.Set(nil)
				id := seeing
				if tc.version != "" {
					id.Version = tc.version
				}
				h.engine("a", id, own, settings[0])
				h.imagesOf = whole
				if tc.change != nil {
					tc.change(h.engines)
				}
				h.apply()
				time.Sleep(time.Minute)
				h.expect(t, name, Exact, true, true)
				h.expectImages(t, tc.want, tc.says)
				routes := openai.KindsOf(openai.KindChat, openai.KindMessages, openai.KindResponses)
				if tc.without != 0 {
					routes &^= openai.KindsOf(tc.without)
				}
				if got := h.published.ImageRoutes; tc.want && got != routes {
					t.Errorf("images are made here on the routes %b, want %b", got, routes)
				}
			})
		})
	}
}

func shiftAll(_ openai.Route, ids []uint32) []uint32 {
	ids[3]++
	return ids
}

func shiftMessages(route openai.Route, ids []uint32) []uint32 {
	if route == openai.Messages {
		return shiftAll(route, ids)
	}
	return ids
}

func (h *house) expectImages(t *testing.T, want bool, says string) {
	t.Helper()
	s, _ := h.Status("n", "p")
	h.mu.Lock()
	defer h.mu.Unlock()
	if got := h.published.Images != nil; got != want || !strings.Contains(s.Message, says) || (says == "") != !strings.Contains(s.Message, "images") {
		t.Errorf("images are made here: %v, want %v: %s", got, want, s.Message)
	}
}

// Engines are asked about images once in proveEvery, and again after they were replaced; an engine of another kind ends the trust until it
// has shown that it makes the same.
func TestImagesAreProvenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := seeingModel(t)
		h := newHouse(Files{Set: files}, "a")
		defer h.Set(nil)
		h.engine("a", seeing, files, settings[0])
		h.imagesOf = files
		h.apply()
		h.expectImages(t, true, "12 of 12")
		asked := h.asking()
		time.Sleep(proveEvery / 2)
		h.expectImages(t, true, "12 of 12")
		if n := h.asking(); n != asked {
			t.Errorf("%d further questions", n-asked)
		}
		time.Sleep(proveEvery)
		synctest.Wait()
		if n := h.asking(); n == asked {
			t.Error("no further questions")
		}
		h.pods("a", "b")
		h.engine("b", Identity{Version: "0.32.0", Root: "/n"}, files, settings[0])
		h.apply()
		time.Sleep(time.Minute)
		h.expectImages(t, false, "models of several names")
		h.pods("a")
		h.forget("b")
		h.apply()
		time.Sleep(time.Minute)
		h.expectImages(t, true, "12 of 12")

		h.Doubt("n", "p", openai.KindsOf(openai.KindContent))
		for range doubtLimit {
			h.Doubt("n", "p", openai.KindsOf(openai.KindContent))
			synctest.Wait()
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if !h.published.Unproven.Has(openai.KindContent) {
			t.Error("doubts change nothing")
		}
	})
}

func (e *engines) asking() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.queries
}

// An engine that is busy is asked again.
func TestABusyEngineIsAskedAboutImagesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := seeingModel(t)
		h := newHouse(Files{Set: files}, "a")
		defer h.Set(nil)
		h.engine("a", seeing, files, settings[0])
		h.imagesOf = files
		h.engines.mu.Lock()
		h.blind = func() error { return errors.New("busy") }
		h.engines.mu.Unlock()
		h.apply()
		h.expect(t, "busy", Exact, true, true)
		h.expectImages(t, false, "no engine has answered the probe")
		h.engines.mu.Lock()
		h.blind = nil
		h.engines.mu.Unlock()
		time.Sleep(lookEvery + time.Second)
		h.expectImages(t, true, "12 of 12")
	})
}

// TestWhatAnEngineHasEvictedStaysProven: another kind of engine joins long after the first has announced the blocks of its images.
func TestWhatAnEngineHasEvictedStaysProven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := seeingModel(t)
		h := newHouse(Files{Set: files}, "a")
		defer h.Set(nil)
		h.engine("a", seeing, files, settings[0])
		h.engines.mu.Lock()
		h.imagesOf, h.unrendered = files, true
		h.engines.mu.Unlock()
		h.apply()
		time.Sleep(time.Minute)
		h.expectImages(t, true, "12 of 12")
		h.engines.mu.Lock()
		h.announce = nil
		h.engines.mu.Unlock()
		h.pods("a", "b")
		h.engine("b", Identity{Version: "0.32.1", Root: seeing.Root}, files, settings[0])
		h.apply()
		time.Sleep(2 * time.Minute)
		h.expectImages(t, true, "7 of 12 cases are equal, none differs") // those of chats, as the two releases read other routes in two ways
	})
}
