package tokencheck

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tokens/chatprompt"
)

// enoughImages is how many chats with images must have been compared, and have been equal, for trust.
const enoughImages = 4

// Items are an engine's tokens of a request with images, and the images among them.
type Items struct {
	IDs   []uint32
	Items []kvblock.Item
}

// imageProof is what is known of the images of a pool.
type imageProof struct {
	answers map[Identity]imageAnswers
	// The last comparison: what was compared, and what came of it.
	with     *chatprompt.Prompter
	root     string
	compared []time.Time // of the answers
	prompter *chatprompt.ImagePrompter
	proven   bool
	message  string
}

// imageAnswers are those of an engine to the cases with images; one that was refused has no ids.
type imageAnswers struct {
	replies []Items
	at      time.Time
	epoch   string // of the engine's endpoint
}

// proveImages compares ids and items made here of chats with images with those of the engines' render routes, for models whose images are
// followed. What is proven goes into exact.
func (k *keeper) proveImages(ctx context.Context, pool *Pool, present []Identity, exact *picker.Exact) (message string) {
	chats, _ := exact.Chats.(*chatprompt.Prompter)
	if chats == nil || k.model.images == nil || exact.ItemsUnreported {
		return ""
	}
	root := present[0].Root
	var compared []time.Time
	for _, id := range present {
		if id.Root != root {
			return "images: engines have models of several names"
		}
		if err := k.answerImages(ctx, pool, id); err != nil {
			return "images: no engine has answered the probe: " + err.Error()
		}
		compared = append(compared, k.images.answers[id].at)
	}
	p := &k.images
	if p.with != chats || p.root != root || !slices.Equal(p.compared, compared) {
		made := chats.WithImages(k.model.images, root)
		proven, message, err := k.compareImages(ctx, pool.Model, present, made)
		if err != nil {
			return "images: " + err.Error()
		}
		p.with, p.root, p.compared, p.prompter, p.proven, p.message = chats, root, compared, made, proven, message
	}
	if p.proven {
		exact.Images = p.prompter
	}
	return p.message
}

// answerImages lets an engine of an identity answer the cases with images, unless one has recently that is still there.
func (k *keeper) answerImages(ctx context.Context, pool *Pool, id Identity) error {
	before, answered := k.images.answers[id]
	there := slices.ContainsFunc(pool.Endpoints, func(ep endpoint.Endpoint) bool { return ep.Epoch() == before.epoch })
	if answered && there && time.Since(before.at) < proveEvery {
		return nil
	}
	err := errors.New("no engine of that kind is left")
	for i := range pool.Endpoints {
		ep := &pool.Endpoints[i]
		if known, ok := k.identities[ep.Epoch()]; !ok || known.Identity != id {
			continue
		}
		var replies []Items
		if replies, err = k.askImages(ctx, pool, ep); err == nil {
			if k.images.answers == nil {
				k.images.answers = map[Identity]imageAnswers{}
			}
			k.images.answers[id] = imageAnswers{replies: replies, at: time.Now(), epoch: ep.Epoch()}
			return nil
		}
	}
	if answered && ctx.Err() == nil {
		return nil
	}
	return err
}

// askImages lets one engine answer the cases with images.
func (k *keeper) askImages(ctx context.Context, pool *Pool, ep *endpoint.Endpoint) ([]Items, error) {
	cases := ImageCases(pool.Model)
	replies := make([]Items, len(cases))
	for i := range cases {
		var err error
		for range askAgain {
			asking, cancel := context.WithTimeout(ctx, askTimeout)
			replies[i], err = k.config.Engine.Items(asking, ep, cases[i].Body, pool.APIKey)
			cancel()
			if err == nil || ctx.Err() != nil || errors.Is(err, ErrRefused) {
				break
			}
		}
		if err != nil && !errors.Is(err, ErrRefused) {
			return nil, fmt.Errorf("case %d (%s): %w", i, cases[i].Name, err)
		}
	}
	return replies, nil
}

// compareImages compares what is made here with the answers of all engines.
func (k *keeper) compareImages(ctx context.Context, model string, present []Identity, own *chatprompt.ImagePrompter) (proven bool, message string, err error) {
	least := len(imageChats())
	for _, id := range present {
		equal := 0
		for i, c := range ImageCases(model) {
			reply := k.images.answers[id].replies[i]
			var r openai.Request
			if err := openai.Parse(c.Route, c.Body, &r); err != nil {
				return false, "", fmt.Errorf("reading case %d: %w", i, err)
			}
			ids, items, err := own.AppendItems(ctx, nil, c.Body, &r)
			switch {
			case ctx.Err() != nil:
				return false, "", ctx.Err()
			case err != nil || len(reply.IDs) == 0:
			case !slices.Equal(ids, reply.IDs):
				return false, fmt.Sprintf("images: case %d (%s): token %d differs, of %d here and %d in the engine",
					i, c.Name, commonPrefix(ids, reply.IDs), len(ids), len(reply.IDs)), nil
			case !slices.Equal(items, reply.Items):
				return false, fmt.Sprintf("images: case %d (%s): the engine gives the images other keys", i, c.Name), nil
			default:
				equal++
			}
		}
		least = min(least, equal)
	}
	if least < enoughImages {
		return false, fmt.Sprintf("images: only %d of %d cases could be compared", least, len(imageChats())), nil
	}
	return true, fmt.Sprintf("images: %d of %d cases are equal, none differs", least, len(imageChats())), nil
}

// imageChats are the cases with images: files of the kinds that are read here, in several places and sizes. Most have one image, since
// engines can be limited to that.
var imageChats = sync.OnceValue(func() []namedChat {
	text := func(text string) any { return map[string]any{"type": "text", "text": text} }
	ask := func(parts ...any) message { return message{"role": "user", "content": parts} }
	grey := shown("image/png", encoded(png.Encode, image.NewGray(image.Rect(0, 0, 300, 100))))
	colours := shown("image/png", encoded(png.Encode, painted(64, 48, 255)))
	through := shown("image/png", encoded(png.Encode, painted(90, 200, 99)))
	photo := shown("image/jpeg", encoded(func(w io.Writer, m image.Image) error { return jpeg.Encode(w, m, nil) }, painted(640, 480, 255)))
	large := shown("image/png", encoded(png.Encode, painted(1500, 2100, 255)))
	return []namedChat{
		{"an image", with(ask(colours, text("What is it?")))},
		{"a grey image behind a text", with(say("system", "You are brief."), ask(text("What is it?"), grey))},
		{"an image with transparency", with(ask(through, text("What is it?")))},
		{"a photo in a conversation", with(say("user", "Hi."), say("assistant", "Hello!"), ask(photo, text("What is it?")),
			say("assistant", "A photo."), say("user", "Of what?"))},
		{"a large image", with(ask(text("One"), large, text("two")))},
		{"images in two turns", with(ask(colours, text("and"), grey), say("assistant", "Two."), ask(photo))},
		{"an image twice", with(ask(colours, colours, text("Are they equal?")))},
	}
})

// ImageCases are the questions of the probe about images, for a model's name.
func ImageCases(model string) []Case {
	var cases []Case
	for _, c := range imageChats() {
		body := map[string]any{"model": model, "max_tokens": 1, "messages": c.body["messages"]}
		raw, err := json.Marshal(body)
		if err != nil {
			panic(err) // impossible: all of them are constants
		}
		cases = append(cases, Case{Name: c.name, Route: openai.ChatCompletions, Body: raw})
	}
	return cases
}

// painted is an image whose file is small.
func painted(width, height int, alpha uint8) image.Image {
	m := image.NewNRGBA(image.Rect(0, 0, width, height))
	for x := range width {
		for y := range height {
			m.Set(x, y, color.NRGBA{R: uint8(x / 16), G: uint8(y / 16), B: 7, A: alpha})
		}
	}
	return m
}

func encoded(encode func(w io.Writer, m image.Image) error, m image.Image) []byte {
	var b bytes.Buffer
	if err := encode(&b, m); err != nil {
		panic(err) // impossible: into memory
	}
	return b.Bytes()
}

func shown(mediaType string, file []byte) any {
	return map[string]any{"type": "image_url", "image_url": map[string]any{
		"url": "data:" + mediaType + ";base64," + base64.StdEncoding.EncodeToString(file)}}
}
