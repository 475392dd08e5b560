package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/engines/render"
	"github.com/kvasir-dev/kvasir/internal/engines/transport"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tokens/chatprompt"
)

// renderer requests tokens from engines, and reports to the picker which failures are not the engine's.
type renderer struct {
	*render.Client
	releases *releases
}

// Tokens is picker.Renderer's.
func (r renderer) Tokens(ctx context.Context, ep *endpoint.Endpoint, request *openai.Request, body []byte,
	apiKey string) (picker.Rendered, error) {
	ask := r.Client.Tokens
	if request.Multimodal {
		ask = r.Items
	}
	got, err := ask(ctx, ep, request.Route, body, apiKey)
	out := picker.Rendered{IDs: got.IDs, More: got.More, Items: got.Items, Tokenized: got.Source == render.Tokenized, Lacking: r.lacking(ep),
		Release: got.Release}
	switch {
	case errors.Is(err, budget.ErrFull):
		err = fmt.Errorf("%w: %w: %w", picker.ErrUnrenderable, picker.ErrNoRoom, err)
	case errors.Is(err, render.ErrBusy), transport.LocalFault(err):
		err = fmt.Errorf("%w: %w: %w", picker.ErrUnrenderable, picker.ErrNotAsked, err)
	case errors.Is(err, render.ErrMultimodal), errors.Is(err, render.ErrPrompts), errors.Is(err, render.ErrUnsupported), refuses(err):
		err = fmt.Errorf("%w: %w", picker.ErrUnrenderable, err)
	case undialed(err):
		err = fmt.Errorf("%w: %w", picker.ErrUnreachable, err)
	}
	return out, err
}

// undialed reports whether an error means that there was no connection to the engine. A dial that the request's own deadline
// has ended says nothing about the engine.
func undialed(err error) bool {
	var network *net.OpError
	return errors.As(err, &network) && network.Op == "dial" && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

// refuses reports whether an error means that the engine refuses the request itself. Other statuses, including 401 and 403,
// concern the engine or a proxy in front of it.
func refuses(err error) bool {
	var refusal *render.StatusError
	if !errors.As(err, &refusal) {
		return false
	}
	switch refusal.Status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// lacking returns why an engine has no render route open, and the cure; empty where it has one.
func (r renderer) lacking(ep *endpoint.Endpoint) string {
	name, version := ep.Pod, r.releases.of(ep.ID)
	if name == "" {
		name = ep.Address
	}
	number, known := chatprompt.ParseRelease(version)
	if version != "" {
		version = " (vLLM " + version + ")"
	}
	switch lack := r.Lacks(ep); {
	case lack == render.SwitchedOff, lack == render.Absent && known && number >= scaleOut:
		return name + version + " runs without --enable-scale-out, which switches its /render routes off; start it with that flag"
	case lack == render.Forbidden:
		return name + version + " answers 403 at its /render routes; see what stands before it"
	case lack == render.Absent && known:
		return name + version + " has no /render routes; they came with vLLM 0.15"
	case lack == render.Absent:
		return name + version + " has no /render routes; they came with vLLM 0.15 and need --enable-scale-out from 0.30 on"
	}
	return ""
}

// scaleOut is the first release whose render routes need --enable-scale-out. Without the flag 0.30 and 0.31 answer like a
// release that has no such routes.
const scaleOut = 30

// releases are the versions that engines have reported, for messages.
type releases struct{ known sync.Map }

func (r *releases) set(id endpoint.ID, version string) { r.known.Store(id, version) }

func (r *releases) of(id endpoint.ID) string {
	version, _ := r.known.Load(id)
	text, _ := version.(string)
	return text
}

// keep drops removed engines.
func (r *releases) keep(there map[endpoint.ID]bool) {
	r.known.Range(func(id, _ any) bool {
		if key, ok := id.(endpoint.ID); !ok || !there[key] {
			r.known.Delete(id)
		}
		return true
	})
}
