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
// by them. The request is small: one token, with return_token_ids, and enable_response_messages for Responses. If the
// engine's render routes are not open, the engine serves the request, because /tokenize does not know all fields that
// change a prompt; /tokenize is the last resort, for engines that serve the request and do not return its ids (before vLLM
// 0.10.2), and for those that generate nothing and so have no route to serve it by. No answer to a Messages request has ids: only
// their number is known, from its usage.
func (c *Client) Proof(ctx context.Context, ep *endpoint.Endpoint, route openai.Route, body []byte, apiKey string) (Answer, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	default:
		c.busy.Add(1)
		return Answer{}, ErrBusy
	}
	m := c.shares.open(ep)
	defer m.close() // the caller keeps few ids: the request is small, and so is what is plausible
	out, lack, err := c.render(ctx, m, ep, route, payload{body: body}, apiKey, false)
	if lack != LacksNothing {
		out, err = c.serve(ctx, m, ep, route, body, apiKey)
	}
	switch {
	case !errors.Is(err, errNoIDs):
	case route == openai.Messages || route == openai.Responses:
		err = ErrUnsupported // the conversion to a chat is what is proven
	default:
		out, err = c.tokenize(ctx, m, ep, route, body, apiKey, lack)
	}
	if err == nil {
		err = out.plausible(len(body))
	}
	if err != nil {
		return Answer{}, fmt.Errorf("asking %s for the tokens of a request: %w", ep.ID, err)
	}
	return out, nil
}

// errNoIDs: the engine has served the request without returning the ids of its prompt, or has no such route.
var errNoIDs = errors.New("the answer has no ids of its prompt")

// serve lets the engine serve the request.
func (c *Client) serve(ctx context.Context, m *memory, ep *endpoint.Endpoint, route openai.Route, body []byte,
	apiKey string) (out Answer, err error) {
	err = c.post(ctx, m, ep, "/v1/"+route.String(), payload{body: body}, apiKey, func(status int, answer []byte) error {
		switch {
		case (route == openai.Messages || route == openai.Responses) && doesNotServe(status, answer):
			return ErrUnsupported // which says nothing about chats
		case status == http.StatusNotFound && !aboutModel(answer):
			return errNoIDs // its model generates nothing
		case status != http.StatusOK:
			return &StatusError{status, messageOf(answer)}
		}
		if err := m.take(treeCost * len(answer)); err != nil {
			return err
		}
		defer m.Put(treeCost * len(answer))
		var a served
		if err := json.Unmarshal(answer, &a); err != nil {
			return fmt.Errorf("%w: %w", ErrAnswer, err)
		}
		if route == openai.Messages {
			out = Answer{Number: a.Usage.number(), Source: Served}
		} else {
			out = Answer{IDs: a.ids(), Source: Served}
		}
		if out.IDs == nil && out.Number <= 0 {
			return errNoIDs
		}
		return nil
	})
	return out, err
}

// doesNotServe reports whether an engine does not serve an API, or fails at it.
func doesNotServe(status int, answer []byte) bool {
	switch status {
	case http.StatusNotFound:
		return !aboutModel(answer)
	case http.StatusMethodNotAllowed, http.StatusInternalServerError, http.StatusNotImplemented:
		return true
	}
	return false
}

// served is what answers have of the prompt's tokens, each in the way of its API.
type served struct {
	IDs     []uint32 `json:"prompt_token_ids"`
	Choices []struct {
		IDs []uint32 `json:"prompt_token_ids"`
	}
	Input []struct {
		IDs []uint32 `json:"tokens"`
	} `json:"input_messages"`
	Usage promptUsage
}

// ids are those of the prompt; nil where the answer does not have them.
func (a *served) ids() []uint32 {
	switch {
	case a.IDs != nil:
		return a.IDs
	case len(a.Choices) == 1:
		return a.Choices[0].IDs
	case len(a.Input) == 1:
		return a.Input[0].IDs
	}
	return nil
}

// promptUsage is the part of a Messages answer's usage that counts the prompt.
type promptUsage struct {
	Input   int `json:"input_tokens"`
	Read    int `json:"cache_read_input_tokens"`
	Created int `json:"cache_creation_input_tokens"`
}

// number is the number of the prompt's tokens. If an engine counts those that it found in its cache or put there, Input is without them.
func (u *promptUsage) number() int { return u.Input + u.Read + u.Created }
