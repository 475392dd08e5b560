package picker

import (
	"context"
	"errors"
	"time"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

// TokenSource tells where a request's token ids came from. A request without ids is matched against nothing and
// routed by load: this is counted, never silent.
type TokenSource uint8

// The sources.
const (
	// TokensNone: there are no ids.
	TokensNone TokenSource = iota
	// TokensGiven: the request carries ids.
	TokensGiven
	// TokensExact: computed in process.
	TokensExact
	// TokensEngine: an engine was asked.
	TokensEngine
	numTokenSources int = iota
)

// String is the value of the metric label.
func (s TokenSource) String() string {
	return [...]string{"none", "given", "exact", "engine"}[s]
}

// errRoute marks requests of routes whose prompts are not known yet: they go by load.
var errRoute = errors.New("the prompts of this route are not known")

// errKeyless marks requests whose ids do not tell their blocks apart, or cannot be known.
var errKeyless = errors.New("the prompt has content besides tokens")

// ErrUnrenderable is what a Renderer's error wraps when it says nothing of the engine: no other would have answered.
var ErrUnrenderable = errors.New("the request cannot be rendered")

// tokens finds the ids of the request's (first) prompt within the policy's budgets. They lie in the request, or in
// buf, which grows as needed and is given back.
func (p *Picker) tokens(ctx context.Context, v *view, r *openai.Request, body []byte, buf []uint32) (ids, grown []uint32, source TokenSource, err error) {
	policy := &v.spec.Policy
	if r.Route != openai.Completions && r.Route != openai.ChatCompletions {
		return nil, buf, TokensNone, errRoute
	}
	if r.Embeds || r.Multimodal || r.TruncatePrompt < 0 {
		return nil, buf, TokensNone, errKeyless
	}
	if r.Route == openai.Completions && r.Prompts[0].IsTokens {
		return truncate(r.Prompts[0].Tokens, r.TruncatePrompt), buf, TokensGiven, nil
	}
	if r.Route == openai.Completions && v.encoder != nil {
		ids, err := p.encode(ctx, v, r, buf[:0])
		if err == nil {
			return truncate(ids, r.TruncatePrompt), ids, TokensExact, nil
		}
		if policy.EngineTokens != "BeyondBudget" {
			return nil, buf, TokensNone, err
		}
	}
	if policy.EngineTokens == "Never" || p.options.Renderer == nil || len(r.Prompts) > 1 {
		return nil, buf, TokensNone, errors.New("no tokenizer, and no engine may be asked")
	}
	if ids, err = p.askEngine(ctx, v, r, body); err != nil {
		return nil, buf, TokensNone, err
	}
	return ids, buf, TokensEngine, nil
}

func (p *Picker) encode(ctx context.Context, v *view, r *openai.Request, dst []uint32) ([]uint32, error) {
	ctx, cancel := context.WithTimeout(ctx, v.spec.Policy.TokenBudget)
	defer cancel()
	special := r.AddSpecialTokens == nil || *r.AddSpecialTokens // the engine's default for completions
	return v.encoder.Encode(ctx, dst, r.Prompts[0].Text, special)
}

// askEngine lets an engine render the request. The engines take turns; one that has not answered is left alone for a
// while, and one that fails at once is replaced by the next.
func (p *Picker) askEngine(ctx context.Context, v *view, r *openai.Request, body []byte) ([]uint32, error) {
	ctx, cancel := context.WithTimeout(ctx, v.spec.Policy.EngineTokenBudget)
	defer cancel()
	err := error(noEndpoint(v.spec.Name))
	for range renderAttempts {
		i := v.nextRenderer(p.now())
		if i < 0 {
			break
		}
		var ids []uint32
		if ids, err = p.options.Renderer.Tokens(ctx, &v.spec.Endpoints[i], r.Route, body, v.spec.EngineAPIKey); err == nil {
			p.rendered(v, i, true)
			return ids, nil
		}
		if errors.Is(err, ErrUnrenderable) || errors.Is(ctx.Err(), context.Canceled) {
			break
		}
		p.rendered(v, i, false)
		if ctx.Err() != nil {
			break
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return nil, err
}

const (
	// renderAttempts is how many engines are asked for a request's tokens, within one budget.
	renderAttempts = 2
	// renderPause is how long an engine that did not answer is not asked again, unless no other is left.
	renderPause = 5 * time.Second
)

// nextRenderer chooses the engine to ask, by turns; -1 if there is none.
func (v *view) nextRenderer(now time.Time) int {
	n := len(v.members)
	last := -1
	for range n {
		i := int(v.turn.Add(1) % uint64(n)) //nolint:gosec // less than n
		if !v.spec.Endpoints[i].Pickable() || !v.members[i].circuit.closed(now, v.spec.Policy.CircuitFailures) {
			continue
		}
		if now.UnixNano() >= v.members[i].renderFrom.Load() {
			return i
		}
		last = i
	}
	return last
}

// rendered keeps whether an engine has answered, and tells when that changes.
func (p *Picker) rendered(v *view, i int, ok bool) {
	from := int64(0)
	if !ok {
		from = p.now().Add(renderPause).UnixNano()
	}
	before := v.members[i].renderFrom.Swap(from)
	if pod := v.spec.Endpoints[i].Pod; ok && before != 0 {
		p.options.Log.Info("An engine renders requests again", "pool", v.spec.Name, "pod", pod)
	} else if !ok && before == 0 {
		p.options.Log.Info("An engine does not render requests: others are asked for tokens", "pool", v.spec.Name, "pod", pod)
	}
}

// truncate keeps the last n ids, all for 0.
func truncate(ids []uint32, n int) []uint32 {
	if n > 0 && len(ids) > n {
		return ids[len(ids)-n:]
	}
	return ids
}
