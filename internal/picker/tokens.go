package picker

import (
	"context"
	"errors"
	"time"

	"github.com/kvasir-dev/kvasir/internal/chatprompt"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokenizer"
)

// TokenSource tells where a request's block keys came from. A request without exact ones is matched by the chunks of
// its text, and one without text goes by load: both are counted, never silent.
type TokenSource uint8

// The sources.
const (
	// TokensNone: there is no prompt to match.
	TokensNone TokenSource = iota
	// TokensGiven: the request carries ids.
	TokensGiven
	// TokensExact: ids are computed in process.
	TokensExact
	// TokensEngine: an engine was asked for the ids.
	TokensEngine
	// TokensApproximate: there are no ids; chunks of the text are matched against what was routed before.
	TokensApproximate
	numTokenSources int = iota
)

// String is the value of the metric label.
func (s TokenSource) String() string {
	return [...]string{"none", "given", "exact", "engine", "approximate"}[s]
}

// Prompter makes the keys of requests in process, as a *chatprompt.Prompter does.
type Prompter interface {
	AppendKeys(ctx context.Context, dst []kvblock.Key, body []byte, r *openai.Request, chain tokenizer.Chain) (keys []kvblock.Key, tokens int, err error)
}

// Exact is how far exact tokens can be had for a pool at the moment. It is not changed once it was handed over.
type Exact struct {
	// Texts and Chats make the keys of prompts that are texts, and of chats: each nil unless its ids have been shown to
	// be those of the engines.
	Texts, Chats Prompter
	// AdaptersUntold and SaltsUntold: some engine is of a release whose events do not tell adapters or cache salts
	// apart, so that such requests have no exact keys.
	AdaptersUntold, SaltsUntold bool
}

// SetExact tells how far exact tokens can be had for a pool; nil is not at all. The pool need not exist yet.
func (p *Picker) SetExact(namespace, pool string, e *Exact) {
	p.applyMu.Lock()
	defer p.applyMu.Unlock()
	p.exactOf(namespace + "/" + pool).Store(e)
}

// prompt is what is known of a request's (first) prompt.
type prompt struct {
	// keys of its whole blocks; empty unless tokens are known. former are those by the former root, while keys are
	// rotated.
	keys   []kvblock.Key
	former []kvblock.Key
	tokens int
	source TokenSource
	// ids of the prompt, while the pick goes on; nil where only the keys are known.
	ids []uint32
	// err is why there are no exact keys.
	err error
}

// Why a request has no exact keys, besides what a Prompter or an engine says.
var (
	// errRoute: nobody knows the prompts of the route.
	errRoute = errors.New("the prompts of this route are not known")
	// errContent: ids do not tell the prompt's blocks apart, or cannot be known.
	errContent = errors.New("the prompt has content besides tokens")
	// errIdentity: the engines' events do not tell adapters or salts apart.
	errIdentity = errors.New("the engines' events do not tell the request's adapter or salt")
	// errNoSource: there is no tokenizer, and no engine may be asked.
	errNoSource = errors.New("no tokenizer, and no engine may be asked")
	// errRefused: the model's template refuses the request, as it will in the engine.
	errRefused = errors.New("the chat template refuses the request")
)

// ErrUnrenderable is what a Renderer's error wraps when it says nothing of the engine: no other would have answered.
var ErrUnrenderable = errors.New("the request cannot be rendered")

// exactKeys finds the keys of a request within the policy's budgets: of ids in the request, in process, or by asking an
// engine. They lie in s.
func (p *Picker) exactKeys(ctx context.Context, v *view, s *scratch, body []byte) prompt {
	r, exact := &s.request, v.exact.Load()
	if exact == nil {
		exact = &Exact{}
	}
	chain := tokenizer.Chain{Root: v.root(r), BlockTokens: v.spec.BlockTokens}
	switch {
	case r.Embeds || r.Multimodal || r.Stateful:
		return prompt{err: errContent}
	case exact.AdaptersUntold && v.identity(r.Model) != v.spec.Model, exact.SaltsUntold && r.CacheSalt != "":
		return prompt{err: errIdentity}
	case len(r.Prompts) > 0 && r.Prompts[0].IsTokens:
		if r.TruncatePrompt < 0 {
			return prompt{err: errContent}
		}
		return v.keyed(s, truncate(r.Prompts[0].Tokens, r), chain, TokensGiven)
	}
	err := errRoute
	prompter := exact.Texts
	if len(r.Prompts) == 0 {
		prompter = exact.Chats
	}
	if prompter != nil {
		var out prompt
		if out, err = p.compute(ctx, v, s, body, prompter, chain); err == nil {
			return out
		}
		beyond := errors.Is(err, context.DeadlineExceeded)
		if errors.Is(err, errRefused) || beyond && v.spec.Policy.EngineTokens != "BeyondBudget" {
			return prompt{err: err}
		}
	}
	if r.Route != openai.Completions && r.Route != openai.ChatCompletions {
		return prompt{err: errRoute}
	}
	if v.spec.Policy.EngineTokens == "Never" || p.options.Renderer == nil || len(r.Prompts) > 1 || v.spec.Tokenizer.Type == "None" {
		if prompter == nil {
			err = errNoSource
		}
		return prompt{err: err}
	}
	ids, err := p.askEngine(ctx, v, r, body)
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			v.stats.unrendered(err)
		}
		return prompt{err: err}
	}
	v.stats.rendering.Store(nil)
	return v.keyed(s, ids, chain, TokensEngine)
}

// compute makes the keys in process, within the policy's budget.
func (p *Picker) compute(ctx context.Context, v *view, s *scratch, body []byte, prompter Prompter, chain tokenizer.Chain) (prompt, error) {
	ctx, cancel := context.WithTimeout(ctx, v.spec.Policy.TokenBudget)
	defer cancel()
	keys, n, err := prompter.AppendKeys(ctx, s.keys[:0], body, &s.request, chain)
	if err != nil {
		late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
		if !late && !errors.Is(err, chatprompt.ErrUnsupported) {
			err = errRefused // the message is the template's, and may quote the request
		}
		return prompt{}, err
	}
	s.keys = keys
	most := maxKeyed / chain.BlockTokens
	out := prompt{keys: keys[:min(len(keys), most)], tokens: n, source: TokensExact}
	if v.rotating() {
		chain.Root = v.formerRoot(&s.request)
		if former, _, err := prompter.AppendKeys(ctx, s.former[:0], body, &s.request, chain); err == nil {
			s.former, out.former = former, former[:min(len(former), most)]
		}
	}
	return out, nil
}

// keyed makes the keys of ids.
func (v *view) keyed(s *scratch, ids []uint32, chain tokenizer.Chain, source TokenSource) prompt {
	tokens := len(ids)
	ids = ids[:min(tokens, maxKeyed)]
	s.keys = kvblock.AppendKeys(s.keys[:0], chain.Root, ids, chain.BlockTokens)
	out := prompt{keys: s.keys, tokens: tokens, source: source, ids: ids}
	if v.rotating() {
		s.former = kvblock.AppendKeys(s.former[:0], v.formerRoot(&s.request), ids, chain.BlockTokens)
		out.former = s.former
	}
	return out
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

// truncate keeps as many of the ids as the request asks for.
func truncate(ids []uint32, r *openai.Request) []uint32 {
	n := r.TruncatePrompt
	switch {
	case n <= 0 || len(ids) <= n:
		return ids
	case r.KeepFirst:
		return ids[:n]
	}
	return ids[len(ids)-n:]
}
