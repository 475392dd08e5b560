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
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tokens/chatprompt"
)

// enoughImages is how many requests with images must have been compared, and have been equal, for trust, by their route.
var enoughImages = map[openai.Kind]int{openai.KindChat: 4, openai.KindMessages: 2, openai.KindResponses: 2}

const (
	// announceTimeout is how long the blocks of a prompt that an engine has served can take to be in the index, and announceAgain how often
	// they are looked for.
	announceTimeout = 5 * time.Second
	announceAgain   = 50 * time.Millisecond
)

// Items are an engine's tokens of a request with images, and the images among them.
type Items struct {
	IDs   []uint32
	Items []kvblock.Item
	// Served: the engine has no render route and has served the request. Items is nil: only its events name the images. Number is that of
	// the ids where the answer has no more of them.
	Served bool
	Number int
	// at is the endpoint of an engine that has served. announcedIDs and announcedItems are those by which it has announced the prompt, whose
	// blocks it can evict later.
	at             endpoint.Endpoint
	announcedIDs   []uint32
	announcedItems []kvblock.Item
}

// empty reports whether the engine has refused the request.
func (i *Items) empty() bool { return len(i.IDs) == 0 && i.Number == 0 }

// imageProof is what is known of the images of a pool.
type imageProof struct {
	answers map[Identity]imageAnswers
	// The last comparison: what was compared, and what came of it.
	with     *chatprompt.Prompter
	root     string
	compared []time.Time // of the answers
	prompter *chatprompt.ImagePrompter
	proven   openai.Kinds // the routes on which images are
	message  string
}

// imageAnswers are those of an engine to the cases with images; one that was refused has no ids.
type imageAnswers struct {
	replies []Items
	at      time.Time
	epoch   string // of the engine's endpoint
}

// proveImages compares ids and items made here of chats with images with those of the engines, for models whose images are followed:
// with the answers of their render routes, or else with the ids of the prompts that they serve, and what they announce then. What is
// proven goes into exact.
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
	if p.proven != 0 {
		exact.Images, exact.ImageRoutes = p.prompter, p.proven
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
			replies[i], err = k.config.Engine.Items(asking, ep, cases[i].Route, cases[i].Body, pool.APIKey)
			cancel()
			replies[i].at = *ep
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

// compareImages compares what is made here with the answers of all engines, and returns the routes on which all is equal.
func (k *keeper) compareImages(
	ctx context.Context, model string, present []Identity, own *chatprompt.ImagePrompter,
) (proven openai.Kinds, message string, err error) {
	var equal [openai.NumKinds]int // by the main route
	var wrong openai.Kinds
	var says []string
	cases := ImageCases(model)
	for i := range cases {
		c := &cases[i]
		var r openai.Request
		if err := openai.Parse(c.Route, c.Body, &r); err != nil {
			return 0, "", fmt.Errorf("reading case %d: %w", i, err)
		}
		kind := imageRoute(c.Route)
		ids, items, failure := own.AppendItems(ctx, nil, c.Body, &r)
		if ctx.Err() != nil {
			return 0, "", ctx.Err()
		}
		all := failure == nil
		for _, id := range present {
			reply := &k.images.answers[id].replies[i]
			if failure != nil || reply.empty() || wrong.Has(kind) {
				all = false
				continue
			}
			differs, conclusive := k.compareImage(ctx, reply, ids, items)
			if all = all && conclusive; differs != "" {
				wrong |= openai.KindsOf(kind)
				says = append(says, fmt.Sprintf("case %d (%s): %s", i, c.Name, differs))
			}
		}
		if all {
			equal[kind]++
		}
	}
	n := 0
	for kind, least := range enoughImages {
		if n += equal[kind]; equal[kind] >= least && !wrong.Has(kind) {
			proven |= openai.KindsOf(kind)
		}
	}
	switch {
	case len(says) > 0:
	case n < enoughImages[openai.KindChat]:
		says = append(says, fmt.Sprintf("only %d of %d cases could be compared", n, len(cases)))
	default:
		says = append(says, fmt.Sprintf("%d of %d cases are equal, none differs", n, len(cases)))
	}
	return proven, "images: " + strings.Join(says, ", "), nil
}

// compareImage compares an engine's answer with ids and items made here.
func (k *keeper) compareImage(ctx context.Context, reply *Items, ids []uint32, items []kvblock.Item) (differs string, conclusive bool) {
	switch {
	case reply.IDs != nil && !slices.Equal(ids, reply.IDs), reply.Number > 0 && len(ids) != reply.Number:
		return fmt.Sprintf("%d tokens here, %d in the engine, the first %d are equal", len(ids), max(reply.Number, len(reply.IDs)),
			commonPrefix(ids, reply.IDs)), true
	case !reply.Served:
		if !slices.Equal(items, reply.Items) {
			return "the engine gives the images other keys", true
		}
		return "", true
	case len(items) > 0 && slices.Equal(ids, reply.announcedIDs) && slices.Equal(items, reply.announcedItems):
		return "", true
	}
	holds, conclusive := k.announced(ctx, reply, ids, items)
	switch {
	case conclusive && !holds:
		return "the engine announces the images by other keys", true
	case conclusive:
		reply.announcedIDs, reply.announcedItems = ids, items
	}
	return "", conclusive
}

// imageRoute is the kind of a route of requests with images.
func imageRoute(route openai.Route) openai.Kind {
	switch route {
	case openai.Messages:
		return openai.KindMessages
	case openai.Responses:
		return openai.KindResponses
	}
	return openai.KindChat
}

// announced reports whether the events of an engine name the images of a prompt that it has served as items does; not conclusive if that
// cannot be known.
func (k *keeper) announced(ctx context.Context, reply *Items, ids []uint32, items []kvblock.Item) (holds, conclusive bool) {
	ctx, cancel := context.WithTimeout(ctx, announceTimeout)
	defer cancel()
	for k.config.Holds != nil {
		if holds, conclusive = k.config.Holds(k.namespace, k.name, &reply.at, ids, items); holds || !conclusive {
			return holds, conclusive
		}
		select {
		case <-ctx.Done():
			return holds, conclusive
		case <-time.After(announceAgain):
		}
	}
	return false, false
}

// imageChats are the cases with images: files of the kinds that are read here, in several places and sizes. Most have one image, since
// engines can be limited to that.
var imageChats = sync.OnceValue(func() []imageChat {
	text := func(text string) any { return map[string]any{"type": "text", "text": text} }
	ask := func(parts ...any) message { return message{"role": "user", "content": parts} }
	grey := shown("image/png", encoded(png.Encode, image.NewGray(image.Rect(0, 0, 300, 100))))
	colours := shown("image/png", encoded(png.Encode, painted(64, 48, 255)))
	through := shown("image/png", encoded(png.Encode, painted(90, 200, 99)))
	photo := shown("image/jpeg", encoded(func(w io.Writer, m image.Image) error { return jpeg.Encode(w, m, nil) }, painted(640, 480, 255)))
	large := shown("image/png", encoded(png.Encode, painted(1500, 2100, 255)))
	base64Of := func(file []byte, mediaType string) any {
		return block{"type": "image", "source": block{"type": "base64", "media_type": mediaType, "data": base64.StdEncoding.EncodeToString(file)}}
	}
	input := func(part any) any {
		url, _ := part.(map[string]any)["image_url"].(map[string]any) // as shown makes it
		return block{"type": "input_image", "image_url": url["url"], "detail": "auto"}
	}
	plain := encoded(png.Encode, painted(224, 224, 255))
	return []imageChat{
		{openai.ChatCompletions, namedChat{"an image", with(ask(colours, text("What is it?")))}},
		{openai.ChatCompletions, namedChat{"a grey image behind a text", with(say("system", "You are brief."), ask(text("What is it?"), grey))}},
		{openai.ChatCompletions, namedChat{"an image with transparency", with(ask(through, text("What is it?")))}},
		{openai.ChatCompletions, namedChat{"a photo in a conversation", with(say("user", "Hi."), say("assistant", "Hello!"),
			ask(photo, text("What is it?")), say("assistant", "A photo."), say("user", "Of what?"))}},
		{openai.ChatCompletions, namedChat{"a large image", with(ask(text("One"), large, text("two")))}},
		{openai.ChatCompletions, namedChat{"images in two turns", with(ask(colours, text("and"), grey), say("assistant", "Two."), ask(photo))}},
		{openai.ChatCompletions, namedChat{"an image twice", with(ask(colours, colours, text("Are they equal?")))}},
		{openai.Messages, namedChat{"messages: an image between texts", with(ask(textBlock("One"), base64Of(plain, "image/png"),
			textBlock("two, longer than one")))}},
		{openai.Messages, namedChat{"messages: an image alone", with(say("user", "Hi."), say("assistant", "Hello!"),
			ask(base64Of(plain, "image/png")), say("assistant", "A picture."), say("user", "Of what?"))}},
		{openai.Messages, namedChat{"messages: an image as the result of a tool", with(say("user", "Take a picture."),
			message{"role": "assistant", "content": []any{block{"type": "tool_use", "id": "toolu_1", "name": "search", "input": block{"q": "a"}}}},
			ask(block{"type": "tool_result", "tool_use_id": "toolu_1", "content": []any{textBlock("Taken."), base64Of(plain, "image/png")}}))}},
		{openai.Responses, namedChat{"responses: an image between texts", map[string]any{"input": []any{block{"role": "user", "content": []any{
			block{"type": "input_text", "text": "One"}, input(photo), block{"type": "input_text", "text": "two"}}}}, "store": false}}},
		{openai.Responses, namedChat{"responses: an image before a turn", map[string]any{"input": []any{
			block{"role": "user", "content": []any{input(photo)}}, block{"role": "assistant", "content": "A photo."},
			block{"role": "user", "content": "Of what?"}}, "store": false}}},
	}
})

// imageChat is a request with images on a route.
type imageChat struct {
	route openai.Route
	namedChat
}

// ImageCases are the questions of the probe about images, for a model's name.
func ImageCases(model string) []Case {
	var cases []Case
	for _, c := range imageChats() {
		body := maps.Clone(c.body)
		body["model"] = model
		switch c.route {
		case openai.Responses:
			body["max_output_tokens"], body["enable_response_messages"] = 1, true
		case openai.Messages:
			body["max_tokens"] = 1
		default:
			body["max_tokens"], body["return_token_ids"] = 1, true
		}
		raw, err := json.Marshal(body)
		if err != nil {
			panic(err) // impossible: all of them are constants
		}
		cases = append(cases, Case{Name: c.name, Route: c.route, Body: raw})
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
