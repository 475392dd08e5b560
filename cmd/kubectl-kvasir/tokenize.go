package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokenizer"
)

const aboutTokenize = `Turns what is on standard input into token ids, as the picker does: one JSON value per line, a request or a string.
Each becomes one line {"ids": [...]}, or {"error": "..."}. A request with several prompts gives a list of lists.`

// tokenize is the command of that name.
func tokenize(ctx context.Context, args []string, std stdio) error {
	set := newFlags("tokenize", aboutTokenize, std)
	dir := set.String("tokenizer", "", "directory with the model's tokenizer.json and tokenizer_config.json")
	completions := set.Bool("completions", false, "the requests are those of /v1/completions (the default)")
	chat := set.Bool("chat", false, "the requests are those of /v1/chat/completions")
	noSpecial := set.Bool("no-special", false, "add no special tokens, unless a request asks for them")
	if err := parse(set, args); err != nil {
		return err
	}
	switch {
	case *dir == "":
		return wrong(set, "--tokenizer is missing")
	case *completions && *chat:
		return wrong(set, "--completions and --chat exclude each other")
	case *chat:
		return errors.New("chats are not supported yet")
	}
	t, err := tokenizer.Load(*dir)
	if err != nil {
		return err
	}
	c := completer{tokenizer: t, special: !*noSpecial}
	return eachLine(ctx, std, func(line []byte) (any, error) { return c.answer(ctx, line) }, fail)
}

// completer tokenizes requests for completions, and strings.
type completer struct {
	tokenizer *tokenizer.Tokenizer
	// special is the default of add_special_tokens.
	special bool
	request openai.Request
}

// one and several are what is printed for a text, and for a request with several prompts.
type (
	one struct {
		IDs []uint32 `json:"ids"`
	}
	several struct {
		IDs [][]uint32 `json:"ids"`
	}
)

func (c *completer) answer(ctx context.Context, line []byte) (any, error) {
	if len(line) > 0 && line[0] == '"' {
		var text string
		if err := json.Unmarshal(line, &text); err != nil {
			return nil, err
		}
		ids, err := c.tokenizer.EncodeContext(ctx, []uint32{}, text, c.special)
		return one{ids}, err
	}
	r := &c.request
	if err := parseRequest(openai.Completions, line, r); err != nil {
		return nil, err
	}
	switch {
	case r.Embeds:
		return nil, errors.New("prompt_embeds has no token ids")
	case r.TruncatePrompt < 0:
		return nil, errors.New("truncate_prompt_tokens asks for the model's limit, which is not known here")
	}
	special := c.special
	if r.AddSpecialTokens != nil {
		special = *r.AddSpecialTokens
	}
	all := make([][]uint32, len(r.Prompts))
	for i, p := range r.Prompts {
		ids := append([]uint32{}, p.Tokens...)
		if !p.IsTokens {
			var err error
			if ids, err = c.tokenizer.EncodeContext(ctx, ids, p.Text, special); err != nil {
				return nil, fmt.Errorf("prompt %d: %w", i, err)
			}
		}
		if n := r.TruncatePrompt; n > 0 && len(ids) > n {
			ids = ids[len(ids)-n:]
		}
		all[i] = ids
	}
	if len(all) == 1 {
		return one{all[0]}, nil
	}
	return several{all}, nil
}

// parseRequest is openai.Parse that does without a model.
func parseRequest(route openai.Route, body []byte, r *openai.Request) error {
	err := openai.Parse(route, body, r)
	var field *openai.FieldError
	if errors.As(err, &field) && field.Field == "model" {
		// Of a key given twice the last one counts. The body is an object, for the error to be about a field.
		last := `,"model":"-"}`
		if len(bytes.TrimSpace(body[1:len(body)-1])) == 0 {
			last = last[1:]
		}
		err = openai.Parse(route, slices.Concat(body[:len(body)-1], []byte(last)), r)
	}
	return err
}
