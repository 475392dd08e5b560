package picker

import (
	"context"
	"errors"

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

// errKeyless marks requests whose ids do not tell their blocks apart, or cannot be known.
var errKeyless = errors.New("the prompt has content besides tokens")

// tokens finds the ids of the request's (first) prompt, appended to dst, within the policy's budgets.
func (p *Picker) tokens(ctx context.Context, v *view, r *openai.Request, body []byte, dst []uint32) ([]uint32, TokenSource, error) {
	policy := &v.spec.Policy
	if r.Embeds || r.Multimodal || r.TruncatePrompt < 0 {
		return dst, TokensNone, errKeyless
	}
	if r.Route == openai.Completions && r.Prompts[0].IsTokens {
		return truncate(append(dst, r.Prompts[0].Tokens...), r.TruncatePrompt), TokensGiven, nil
	}
	ask := policy.EngineTokens == "WhenNoTokenizer" || policy.EngineTokens == "BeyondBudget"
	if r.Route == openai.Completions && v.encoder != nil {
		ids, err := p.encode(ctx, v, r, dst)
		if err == nil {
			return truncate(ids, r.TruncatePrompt), TokensExact, nil
		}
		if policy.EngineTokens != "BeyondBudget" {
			return dst, TokensNone, err
		}
	}
	if !ask || p.options.Renderer == nil || len(r.Prompts) > 1 {
		return dst, TokensNone, errors.New("no tokenizer, and no engine may be asked")
	}
	ids, err := p.askEngine(ctx, v, r, body)
	if err != nil {
		return dst, TokensNone, err
	}
	return append(dst, ids...), TokensEngine, nil
}

func (p *Picker) encode(ctx context.Context, v *view, r *openai.Request, dst []uint32) ([]uint32, error) {
	ctx, cancel := context.WithTimeout(ctx, v.spec.Policy.TokenBudget)
	defer cancel()
	special := r.AddSpecialTokens == nil || *r.AddSpecialTokens // the engine's default for completions
	return v.encoder.Encode(ctx, dst, r.Prompts[0].Text, special)
}

// askEngine lets the least loaded endpoint render the request.
func (p *Picker) askEngine(ctx context.Context, v *view, r *openai.Request, body []byte) ([]uint32, error) {
	ctx, cancel := context.WithTimeout(ctx, v.spec.Policy.EngineTokenBudget)
	defer cancel()
	now, best, least := p.now(), -1, 0
	for i := range v.spec.Endpoints {
		if !v.spec.Endpoints[i].Pickable() || !v.members[i].circuit.closed(now, v.spec.Policy.CircuitFailures) {
			continue
		}
		if n := v.members[i].load.View(now).InFlight; best < 0 || n < least {
			best, least = i, n
		}
	}
	if best < 0 {
		return nil, noEndpoint(v.spec.Name)
	}
	return p.options.Renderer.Tokens(ctx, &v.spec.Endpoints[best], r.Route, body, v.spec.EngineAPIKey)
}

// truncate keeps the last n ids, all for 0.
func truncate(ids []uint32, n int) []uint32 {
	if n > 0 && len(ids) > n {
		return append(ids[:0], ids[len(ids)-n:]...)
	}
	return ids
}
