package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/kvasir-dev/kvasir/internal/cli/command"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/chatprompt"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

const aboutTokenize = `Turns what is on standard input into token ids, as the picker does: one JSON value per line, a request or a string.
Each becomes one line {"ids": [...]}, or {"error": "..."}. A request with several prompts gives a list of lists.`

// tokenize is the command of that name.
func tokenize(std stdio) *cobra.Command {
	c := command.New("tokenize", "The token ids of texts and requests", aboutTokenize)
	set := c.Flags()
	dir := set.String("tokenizer", "", "directory with the model's tokenizer.json, tokenizer_config.json and what else it has")
	completions := set.Bool("completions", false, "the requests are those of /v1/completions (the default)")
	chat := set.Bool("chat", false, "the requests are those of /v1/chat/completions")
	noSpecial := set.Bool("no-special", false, "add no special tokens, unless a request asks for them")
	template := set.String("template", "", "with --chat: file with the template to use in place of the model's own")
	release := set.String("release", "", "release of vLLM, as in 0.17.1; without one, chats that differ between releases are errors")
	now := set.String("now", "", nowUsage)
	c.RunE = func(c *cobra.Command, _ []string) error {
		ctx := c.Context()
		switch {
		case *dir == "":
			return command.Usage("--tokenizer is missing")
		case *completions && *chat:
			return command.Usage("--completions and --chat exclude each other")
		case !*chat && (*template != "" || *now != ""):
			return command.Usage("--template and --now need --chat")
		}
		at, err := timeOf(*now)
		if err != nil {
			return err
		}
		t, err := tokenizer.Load(*dir)
		if err != nil {
			return err
		}
		t = chatprompt.TokenizerOf(t, *release)
		e := encoder{tokenizer: t, special: !*noSpecial && !*chat}
		if *chat {
			e.chats, err = chatprompt.New(chatprompt.Options{
				Dir: *dir, Template: *template, Release: *release, Encoder: t, Now: func() time.Time { return at }, Zone: at.Location(),
			})
			if err != nil {
				return err
			}
		}
		return eachLine(ctx, std, func(line []byte) (any, error) { return e.answer(ctx, line) }, fail)
	}
	return c
}

// encoder turns requests and strings into ids.
type encoder struct {
	tokenizer *tokenizer.Tokenizer
	chats     *chatprompt.Renderer // nil for completions
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

func (e *encoder) answer(ctx context.Context, line []byte) (any, error) {
	if len(line) > 0 && line[0] == '"' {
		if !utf8.Valid(line) {
			return nil, errors.New("invalid UTF-8")
		}
		var text string
		if err := json.Unmarshal(line, &text); err != nil {
			return nil, err
		}
		ids, err := e.tokenizer.EncodeContext(ctx, []uint32{}, text, e.special)
		return one{ids}, err
	}
	route := openai.Completions
	if e.chats != nil {
		route = openai.ChatCompletions
	}
	r := &e.request
	body, err := parseRequest(route, line, r)
	switch {
	case err != nil:
		return nil, err
	case r.Embeds:
		return nil, errors.New("prompt_embeds has no token ids")
	case r.TruncatePrompt < 0:
		return nil, errors.New("truncate_prompt_tokens asks for the model's limit, which is not known here")
	case e.chats != nil:
		ids, err := e.chats.Tokens(ctx, []uint32{}, body, r)
		return one{truncate(r, ids)}, err
	}
	return e.prompts(ctx, r)
}

// prompts encodes the prompts of a completion request.
func (e *encoder) prompts(ctx context.Context, r *openai.Request) (any, error) {
	special := e.special
	if r.AddSpecialTokens != nil {
		special = *r.AddSpecialTokens
	}
	all := make([][]uint32, len(r.Prompts))
	for i, p := range r.Prompts {
		ids := append([]uint32{}, p.Tokens...)
		if !p.IsTokens {
			var err error
			if ids, err = e.tokenizer.EncodeContext(ctx, ids, p.Text, special); err != nil {
				return nil, fmt.Errorf("prompt %d: %w", i, err)
			}
		}
		all[i] = truncate(r, ids)
	}
	if len(all) == 1 {
		return one{all[0]}, nil
	}
	return several{all}, nil
}

// truncate keeps as many ids as the request wants.
func truncate(r *openai.Request, ids []uint32) []uint32 {
	n := r.TruncatePrompt
	switch {
	case n <= 0 || len(ids) <= n:
		return ids
	case r.KeepFirst:
		return ids[:n]
	}
	return ids[len(ids)-n:]
}

// parseRequest is openai.Parse that does without a model. It returns the body that it has parsed.
func parseRequest(route openai.Route, body []byte, r *openai.Request) ([]byte, error) {
	err := openai.Parse(route, body, r)
	var field *openai.FieldError
	if errors.As(err, &field) && field.Field == "model" {
		// Of a key given twice the last one counts. The body is an object, for the error to be about a field.
		last := `,"model":"-"}`
		if len(bytes.TrimSpace(body[1:len(body)-1])) == 0 {
			last = last[1:]
		}
		body = slices.Concat(body[:len(body)-1], []byte(last))
		err = openai.Parse(route, body, r)
	}
	return body, err
}
