package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/render"
)

// renderer asks engines for tokens, and tells the picker which failures are not the engine's.
type renderer struct{ *render.Client }

// Tokens is picker.Renderer's.
func (r renderer) Tokens(ctx context.Context, ep *endpoint.Endpoint, route openai.Route, body []byte, apiKey string) ([]uint32, error) {
	ids, err := r.Client.Tokens(ctx, ep, route, body, apiKey)
	var refusal *render.StatusError
	switch {
	case errors.Is(err, render.ErrBusy), errors.Is(err, render.ErrMultimodal), errors.Is(err, render.ErrPrompts),
		errors.Is(err, render.ErrUnsupported),
		errors.As(err, &refusal) && refusal.Status < http.StatusInternalServerError:
		return nil, fmt.Errorf("%w: %w", picker.ErrUnrenderable, err)
	}
	return ids, err
}
