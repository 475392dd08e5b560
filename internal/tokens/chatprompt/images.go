package chatprompt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/chattemplate"
	"github.com/kvasir-dev/kvasir/internal/tokens/images"
)

const (
	// maxImages bounds the images of a request, and maxExpanded the tokens of a prompt with images.
	maxImages   = 256
	maxExpanded = 1 << 18
	// maxImageName bounds the client's own name of an image, in bytes, as it is hashed for each block of the image.
	maxImageName = 1 << 10
)

// imagePart is an image of a message.
type imagePart struct {
	// url of the image, or its data in base64.
	url, data string
	// name is the client's own (uuid), which is then the image's key; empty without.
	name string
}

// image is what the template gets of a part with an image, whose file is kept for the prompt; not ok if the part is no image. Forms of
// parts that are not usual are left to the engine.
func (q *request) image(part *chattemplate.Dict) (v chattemplate.Value, ok bool, err error) {
	if kind, _ := part.Get("type"); kind.Text() != "image_url" {
		return v, false, nil
	}
	image, _ := part.Get("image_url")
	url, _ := image.Dict().Get("url")
	if data, ok := image.Dict().Get(madeData); ok && q.chat != nil && len(q.images) < maxImages {
		return q.shown(imagePart{data: data.Text()})
	}
	name, named := part.Get("uuid")
	fields := 2
	if named {
		fields++
	}
	switch {
	case part.Len() != fields, len(q.images) == maxImages, url.Kind() != chattemplate.KindString,
		named && (name.Kind() != chattemplate.KindString || name.Text() == "" || len(name.Text()) > maxImageName):
		return v, false, unsupported("images of an unusual form")
	}
	return q.shown(imagePart{url: url.Text(), name: name.Text()})
}

// shown keeps an image, and returns what the template gets of it.
func (q *request) shown(image imagePart) (v chattemplate.Value, ok bool, err error) {
	q.images = append(q.images, image)
	out := q.arena.NewDict(1)
	out.Set("type", chattemplate.String("image"))
	return out.Value(), true, nil
}

// madeData is the field of an image_url, in chats that requests of other APIs stand for, with data that have no URL.
const madeData = "data"

// imageURL is a part of a chat with an image: its URL, or its data if field is madeData.
func (q *request) imageURL(field string, v chattemplate.Value) chattemplate.Value {
	url, out := q.arena.NewDict(1), q.arena.NewDict(2)
	url.Set(field, v)
	out.Set("type", chattemplate.String("image_url"))
	out.Set("image_url", url.Value())
	return out.Value()
}

// imageBlock appends the part that an image of a Messages request becomes.
func (q *request) imageBlock(parts []chattemplate.Value, block *chattemplate.Dict) ([]chattemplate.Value, error) {
	source, _ := block.Get("source")
	kind, _ := source.Dict().Get("type")
	data, _ := source.Dict().Get("data")
	if !q.takesImages || kind.Text() != "base64" || data.Kind() != chattemplate.KindString {
		return parts, unsupported("images of an unusual form")
	}
	return append(parts, q.imageURL(madeData, data)), nil
}

// ImagePrompter turns chats with images into the ids of their prompts, and into what the engine's events name the images. It does not
// change and is safe for many goroutines.
type ImagePrompter struct {
	prompter *Prompter
	model    *images.Model
	name     string
}

// WithImages returns an ImagePrompter of a model that takes images. name is that of the model in the engine (--model).
func (p *Prompter) WithImages(m *images.Model, name string) *ImagePrompter {
	return &ImagePrompter{prompter: p, model: m, name: name}
}

// imageFields are fields of a request that change what the engine makes of its images.
var imageFields = []string{"mm_processor_kwargs", "media_io_kwargs"}

// AppendItems appends the ids of a chat's prompt to dst, with the tokens that stand for its images, and returns the images in their order.
// The error wraps ErrUnsupported when only the engine knows the prompt, as that of Renderer.Tokens does.
func (p *ImagePrompter) AppendItems(ctx context.Context, dst []uint32, body []byte, req *openai.Request) ([]uint32, []kvblock.Item, error) {
	switch {
	case p.prompter.chats == nil:
		return dst, nil, p.prompter.why
	case req.Route == openai.Completions || req.Route == openai.Embeddings || req.Embeds || req.Stateful || req.TruncatePrompt != 0:
		return dst, nil, unsupported("images in this form of %s", req.Route)
	}
	for _, name := range imageFields {
		if value, ok := req.Raw(name); !ok || value != nil && string(value) != "null" {
			return dst, nil, unsupported("%s in the request", name)
		}
	}
	prompt, err := p.prompter.chats.renderWith(ctx, body, req, true)
	if err != nil {
		return dst, nil, err
	}
	defer prompt.Release()
	ids, err := p.prompter.tokenizer.EncodeCached(ctx, p.prompter.cache.Space(req.CacheSalt), nil, prompt.Text, prompt.Special)
	if err != nil {
		return dst, nil, textError(err)
	}
	return p.expand(ctx, dst, ids, prompt.images)
}

func (p *imagePart) read(ctx context.Context, model string) (images.Image, error) {
	if p.data != "" {
		return images.ReadBase64(ctx, p.data, model)
	}
	return images.Read(ctx, p.url, model)
}

// expand appends ids to dst, and puts the tokens of an image in the place of each placeholder.
func (p *ImagePrompter) expand(ctx context.Context, dst, ids []uint32, parts []imagePart) ([]uint32, []kvblock.Item, error) {
	placeholder := p.model.Placeholder()
	n := 0
	for _, id := range ids {
		if id == placeholder {
			n++
		}
	}
	if n != len(parts) || n == 0 {
		return dst, nil, unsupported("a template that shows %d of %d images", n, len(parts)) // or a text that looks like an image
	}
	out, items := dst, make([]kvblock.Item, 0, n)
	for _, part := range parts {
		at := slices.Index(ids, placeholder)
		out = append(out, ids[:at]...)
		ids = ids[at+1:]
		image, err := part.read(ctx, p.name)
		if err == nil {
			item := kvblock.Item{Key: image.Key, Offset: len(out) - len(dst)}
			if part.name != "" {
				item.Key = strings.Clone(part.name) // which can be in memory of the prompt, and items outlive that
			}
			out, err = p.model.Expand(out, image.Width, image.Height)
			item.Length = len(out) - len(dst) - item.Offset
			items = append(items, item)
		}
		switch {
		case len(out)-len(dst) > maxExpanded:
			return dst, nil, unsupported("images of so many tokens")
		case errors.Is(err, images.ErrUnsupported):
			return dst, nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
		case err != nil:
			return dst, nil, err
		}
	}
	return append(out, ids...), items, nil
}
