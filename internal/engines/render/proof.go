package render

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// Proof requests the ids of a request's first prompt from an endpoint, as Tokens does, for callers that prove a tokenizer
// by them. The request is small: one token, with return_token_ids. If the engine's render routes are not open, the engine
// serves the request, because /tokenize does not know all fields that change a prompt; /tokenize is the last resort, for
// engines that serve the request and do not return its ids (before vLLM 0.10.2).
func (c *Client) Proof(ctx context.Context, ep *endpoint.Endpoint, route openai.Route, body []byte, apiKey string) (Answer, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	default:
		c.busy.Add(1)
		return Answer{}, ErrBusy
	}
	out, lack, err := c.render(ctx, ep, route, body, apiKey)
	switch {
	case lack != LacksNothing && (route == openai.Messages || route == openai.Responses):
		err = ErrUnsupported // their answers have no ids
	case lack != LacksNothing:
		out, err = c.serve(ctx, ep, route, body, apiKey)
	}
	if errors.Is(err, errNoIDs) {
		out, err = c.tokenize(ctx, ep, route, body, apiKey, lack)
	}
	if err != nil {
		return Answer{}, fmt.Errorf("asking %s for the tokens of a request: %w", ep.ID, err)
	}
	return out, nil
}

// errNoIDs: the engine has served the request without returning the ids of its prompt.
var errNoIDs = errors.New("the answer has no prompt_token_ids")

// serve lets the engine serve the request.
func (c *Client) serve(ctx context.Context, ep *endpoint.Endpoint, route openai.Route, body []byte, apiKey string) (out Answer, err error) {
	err = c.post(ctx, ep, "/v1/"+route.String(), body, apiKey, func(status int, answer []byte) error {
		if status != http.StatusOK {
			return &StatusError{status, messageOf(answer)}
		}
		var a struct {
			IDs     []uint32 `json:"prompt_token_ids"`
			Choices []struct {
				IDs []uint32 `json:"prompt_token_ids"`
			}
		}
		if err := json.Unmarshal(answer, &a); err != nil {
			return fmt.Errorf("%w: %w", ErrAnswer, err)
		}
		if a.IDs == nil && len(a.Choices) == 1 {
			a.IDs = a.Choices[0].IDs
		}
		if a.IDs == nil {
			return errNoIDs
		}
		out = Answer{IDs: a.IDs, Source: Served}
		return nil
	})
	return out, err
}
