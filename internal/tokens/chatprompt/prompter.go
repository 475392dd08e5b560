package chatprompt

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

// Prompter turns requests into the ids of their prompts, and into the keys of the blocks that those fill. What it has
// seen before it takes from a cache: of a conversation, only the newest turn is tokenized and hashed. It does not
// change and is safe for many goroutines.
type Prompter struct {
	tokenizer *tokenizer.Tokenizer
	cache     *tokenizer.Cache
	chats     *Renderer
	why       error // there are no chats
}

// NewPrompter returns a Prompter of a model. chats is nil when chats cannot be made here; why is then the reason. cache can
// be shared with other Prompters; nil remembers nothing.
func NewPrompter(t *tokenizer.Tokenizer, cache *tokenizer.Cache, chats *Renderer, why error) *Prompter {
	if chats == nil && why == nil {
		why = unsupported("chats")
	}
	return &Prompter{tokenizer: t, cache: cache, chats: chats, why: why}
}

// Chats is nil when chats can be made here, else why they cannot.
func (p *Prompter) Chats() error {
	if p.chats != nil {
		return nil
	}
	return p.why
}

// AppendKeys appends the keys of the full blocks of a request's prompt to dst, of the first one where there are several,
// and returns the prompt's length in tokens. body is the request and req what openai.Parse found in it.
//
// Errors are those of Renderer.Tokens; nothing is appended then.
func (p *Prompter) AppendKeys(ctx context.Context, dst []kvblock.Key, body []byte, req *openai.Request,
	chain tokenizer.Chain) (keys []kvblock.Key, tokens int, err error) {
	if req.TruncatePrompt != 0 {
		ids, err := p.AppendTokens(ctx, nil, body, req)
		if err != nil {
			return dst, 0, err
		}
		return kvblock.AppendKeys(dst, chain.Root, ids, chain.BlockTokens), len(ids), nil
	}
	space := p.cache.Space(req.CacheSalt)
	err = p.text(ctx, body, req, func(text string, special bool) (err error) {
		keys, tokens, err = p.tokenizer.AppendKeys(ctx, space, dst, text, special, chain)
		return err
	})
	if err != nil {
		return dst, 0, err
	}
	return keys, tokens, nil
}

// AppendTokens appends the ids of a request's prompt to dst, of the first one where there are several, shortened as the
// request asks for. Errors are as those of AppendKeys.
func (p *Prompter) AppendTokens(ctx context.Context, dst []uint32, body []byte, req *openai.Request) ([]uint32, error) {
	if req.TruncatePrompt < 0 {
		return dst, unsupported("a prompt shortened to the model's length")
	}
	space := p.cache.Space(req.CacheSalt)
	before := len(dst)
	out := dst
	err := p.text(ctx, body, req, func(text string, special bool) (err error) {
		out, err = p.tokenizer.EncodeCached(ctx, space, dst, text, special)
		if err != nil || !req.Cuts(len(out)-before) {
			return err
		}
		plain := out[before:]
		if special && req.KeepsSpecial() {
			if plain, err = p.tokenizer.EncodeCached(ctx, space, nil, text, false); err != nil {
				return err
			}
		}
		kept, ok := req.Truncate(out[before:], plain)
		if !ok {
			return unsupported("a prompt shortened to less than its special tokens")
		}
		out = append(out[:before], kept...)
		return nil
	})
	if err != nil {
		return dst, err
	}
	return out, nil
}

// text hands the text of a request's prompt to use, which must not keep it, and reports whether special tokens are added
// around it.
func (p *Prompter) text(ctx context.Context, body []byte, req *openai.Request, use func(text string, special bool) error) error {
	switch {
	case req.Embeds || req.Multimodal || req.Stateful:
		return unsupported("a prompt that is not text alone")
	case req.Route == openai.ChatCompletions, req.Route == openai.Messages, req.Route == openai.Responses:
		if p.chats == nil {
			return p.why
		}
		prompt, err := p.chats.Render(ctx, body, req)
		if err != nil {
			return err
		}
		defer prompt.Release()
		return textError(use(prompt.Text, prompt.Special))
	case req.Route == openai.Completions && hasSuffix(req):
		return unsupported("a suffix") // part of the prompt of models that fill in the middle, from vLLM 0.31 on
	case (req.Route == openai.Completions || req.Route == openai.Embeddings) && len(req.Prompts) > 0 && !req.Prompts[0].IsTokens:
		return textError(use(req.Prompts[0].Text, req.AddsSpecial()))
	}
	return unsupported("this form of %s", req.Route)
}

func hasSuffix(req *openai.Request) bool {
	suffix, known := req.Raw("suffix")
	return suffix != nil || !known
}

func textError(err error) error {
	if errors.Is(err, tokenizer.ErrText) {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return err
}

// Others passes the keys of the full blocks and the number of tokens of each of the request's prompts after the first to
// use. They must be texts. Errors are as those of AppendKeys; use was called for the prompts before then.
func (p *Prompter) Others(ctx context.Context, req *openai.Request, chain tokenizer.Chain, use func(keys []kvblock.Key, tokens int)) error {
	for i := 1; i < len(req.Prompts); i++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		one := *req
		one.Prompts = req.Prompts[i : i+1]
		keys, tokens, err := p.AppendKeys(ctx, nil, nil, &one, chain)
		if err != nil {
			return err
		}
		use(keys, tokens)
	}
	return nil
}
