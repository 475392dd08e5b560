package render

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// withoutTensors makes a render route leave out what the model's processor has made of the items, which is megabytes. Releases that
// do not know the field ignore it.
const withoutTensors = `{"mm_payload":"none",`

const (
	maxItems    = 4096 // of a prompt
	maxItemName = 1 << 10
	itemBytes   = 64 // what an item takes besides its name
)

// Items is Tokens for a request with images, sound or video: the answer also has the items, at least one. Only render routes answer;
// without one the error wraps ErrMultimodal, as it does for items within one another. The engine loads and processes the items for it,
// as it does again when it serves the request. At most a quarter of all questions are of this kind.
func (c *Client) Items(ctx context.Context, ep *endpoint.Endpoint, route openai.Route, body []byte, apiKey string) (Answer, error) {
	content := payload{body: body}
	if i := bytes.IndexByte(body, '{'); i >= 0 {
		content = payload{head: withoutTensors, body: body[i+1:]}
	}
	select {
	case c.items <- struct{}{}:
		defer func() { <-c.items }()
	default:
		c.busy.Add(1)
		return Answer{}, ErrBusy
	}
	return c.question(ctx, ep, len(body), func(ctx context.Context, m *memory) (Answer, error) {
		out, lack, err := c.render(ctx, m, ep, route, content, apiKey, true)
		switch {
		case lack != LacksNothing || err == nil && len(out.Items) == 0:
			err = ErrMultimodal
		case err == nil:
			c.rendered.Add(1)
		}
		return out, err
	})
}

// items are the items of the first and only prompt of an answer, in the order of their offsets.
func (s *answerScan) items() ([]kvblock.Item, error) {
	var hashes map[string][]string
	var places map[string][]struct{ Offset, Length int }
	if json.Unmarshal(s.hashes, &hashes) != nil || json.Unmarshal(s.places, &places) != nil {
		return nil, fmt.Errorf("%w: its items are not lists of hashes and of places", ErrAnswer)
	}
	var out []kvblock.Item
	for modality, names := range hashes {
		if len(places[modality]) != len(names) || len(out)+len(names) > maxItems {
			return nil, fmt.Errorf("%w: %d items at %d places", ErrAnswer, len(names), len(places[modality]))
		}
		for i, name := range names {
			out = append(out, kvblock.Item{Key: name, Offset: places[modality][i].Offset, Length: places[modality][i].Length})
		}
		delete(places, modality)
	}
	slices.SortFunc(out, func(a, b kvblock.Item) int { return cmp.Compare(a.Offset, b.Offset) })
	free := 0 // from where on the tokens belong to no item
	for _, item := range out {
		if item.Offset >= 0 && item.Offset < free {
			return nil, ErrMultimodal // such as the sound of a video
		}
		if item.Key == "" || len(item.Key) > maxItemName || item.Offset < 0 || item.Length <= 0 || item.Length > len(s.ids)-item.Offset {
			return nil, fmt.Errorf("%w: an item that is not in the prompt, or in another one", ErrAnswer)
		}
		free = item.Offset + item.Length
	}
	for _, without := range places {
		if len(without) > 0 {
			return nil, fmt.Errorf("%w: places without items", ErrAnswer)
		}
	}
	return out, nil
}
