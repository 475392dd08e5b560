package picker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/monotonic"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/chatprompt"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

// TokenSource is where a request's block keys came from. A request without exact ones is matched by the chunks of its text,
// and one without text is routed by load: both are counted.
type TokenSource uint8

// The sources.
const (
	// TokensNone: there is no prompt to match.
	TokensNone TokenSource = iota
	// TokensGiven: the request carries ids.
	TokensGiven
	// TokensExact: ids are computed in process.
	TokensExact
	// TokensEngine: an engine was asked for the ids, by a render route.
	TokensEngine
	// TokensTokenize: an engine without an open render route was asked for the ids by /tokenize.
	TokensTokenize
	// TokensApproximate: there are no ids; chunks of the text are matched against what was routed before.
	TokensApproximate
	numTokenSources int = iota
)

// String is the value of the metric label.
func (s TokenSource) String() string {
	return [...]string{"none", "given", "exact", "engine", "tokenize", "approximate"}[s]
}

// Prompter makes the keys of requests in process, as a *chatprompt.Prompter does.
type Prompter interface {
	AppendKeys(ctx context.Context, dst []kvblock.Key, body []byte, r *openai.Request, chain tokenizer.Chain) (keys []kvblock.Key, tokens int,
		err error)
	// Others hands the keys and the number of tokens of each of the request's prompts behind the first to use.
	Others(ctx context.Context, r *openai.Request, chain tokenizer.Chain, use func(keys []kvblock.Key, tokens int)) error
}

// ImagePrompter makes the ids of a chat with images in process, and the items that the images are, as a *chatprompt.ImagePrompter does.
type ImagePrompter interface {
	AppendItems(ctx context.Context, dst []uint32, body []byte, r *openai.Request) ([]uint32, []kvblock.Item, error)
}

// Exact is how far exact tokens can be had for a pool at the moment. It is not changed once it was handed over.
type Exact struct {
	// Texts and Chats make the keys of prompts that are texts, and of chats: each nil unless its ids have been shown to
	// be those of the engines.
	Texts, Chats Prompter
	// Images is nil unless the ids and the items of requests with images have been shown to be those of the engines, on some of the
	// routes of ImageRoutes (KindChat, KindMessages, KindResponses).
	Images      ImagePrompter
	ImageRoutes openai.Kinds
	// Unproven are the request kinds whose ids made here differ from the engines' ids, while those of other kinds are
	// equal.
	Unproven openai.Kinds
	// APIs are the request kinds of other APIs (KindMessages) whose prompts are proven to be those of the chats that they
	// stand for. Prompts of other kinds are made only by engines.
	APIs openai.Kinds
	// AdaptersUnreported and SaltsUnreported: the events of some engine's release do not distinguish adapters or cache salts, so
	// that such requests have no exact keys. ItemsUnreported: some engine's release is not asked about images and the like.
	AdaptersUnreported, SaltsUnreported, ItemsUnreported bool
	// Releases are what the engines have reported; nil as long as none has.
	Releases *Releases
}

// SetExact sets how far exact tokens are available for a pool; nil is not at all. The pool need not exist yet.
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
	// more are the further prompts. others is the number of tokens of those that are not among them; -1 where it is not
	// known.
	more   []further
	others int
	source TokenSource
	// rendered is the endpoint whose engine made the tokens, nil where they were made otherwise.
	rendered *member
	// ids of the prompt, during the pick; nil where only the keys are known.
	ids    []uint32
	kind   openai.Kind
	traits Traits
	// adapter that the request is for; empty for the base model.
	adapter string
	// noRead: the engine looks nothing up in its cache for the request, whatever it holds.
	noRead bool
	// err is why there are no exact keys.
	err error
}

// Why a request has no exact keys, besides the reasons of a Prompter or an engine.
var (
	// errRoute: the prompts of the route are unknown.
	errRoute = errors.New("the prompts of this route are not known")
	// errContent: ids do not identify the prompt's blocks, or cannot be known.
	errContent = errors.New("the prompt has content besides tokens")
	// errIdentity: the engines' events do not distinguish adapters or salts.
	errIdentity = errors.New("the engines' events do not identify the request's adapter or salt")
	// errNoSource: there is no tokenizer, and no engine can be asked.
	errNoSource = errors.New("no tokenizer, and no engine may be asked")
	// errRefused: the model's template refuses the request, as it will in the engine.
	errRefused = errors.New("the chat template refuses the request")
	// errUnproven: ids made here of such requests were not those of the engine.
	errUnproven = errors.New("the tokens of this kind of request are not proven")
)

// ErrUnrenderable is what a Renderer's error wraps when it does not concern the engine: hardly any other would have answered.
var ErrUnrenderable = errors.New("the request cannot be rendered")

// ErrNotAsked is what a Renderer's error wraps besides ErrUnrenderable if the engine was not asked, so that an answer of another engine
// says nothing about it.
var ErrNotAsked = errors.New("the engine was not asked")

// ErrNoRoom is what a Renderer's error wraps besides ErrUnrenderable if there was no room for the engine's answer. The error contains no
// text of the request.
var ErrNoRoom = errors.New("there is no room for the engine's answer")

// ErrUnreachable is what a Renderer's error wraps when there was no connection to the engine. The error contains no text of the
// request.
var ErrUnreachable = errors.New("the engine cannot be connected to")

// promptOf finds what can be known of a request's prompt.
func (p *Picker) promptOf(ctx context.Context, v *view, s *scratch, body []byte) prompt {
	out := p.exactKeys(ctx, v, s, body)
	r := &s.request
	out.noRead, out.kind = r.NoCacheRead, r.Kinds().Main()
	if v.identity(r.Model) != v.spec.Model {
		out.adapter = r.Model
	}
	out.traits = v.traits(r)
	return out
}

// class is the class by which trust in matches of the prompt is kept.
func (p *prompt) class() class { return class{source: p.source, kind: p.kind, traits: p.traits} }

// exactKeys finds the keys of a request within the policy's budgets: from ids in the request, in process, or by asking an
// engine. They are stored in s.
func (p *Picker) exactKeys(ctx context.Context, v *view, s *scratch, body []byte) prompt {
	r, exact := &s.request, v.exact.Load()
	if exact == nil {
		exact = &Exact{}
	}
	chain := tokenizer.Chain{Root: v.root(r), BlockTokens: v.spec.BlockTokens}
	switch {
	case r.Embeds || r.Stateful || isPadded(r), r.Multimodal && (exact.ItemsUnreported || v.commonGrain() == 0):
		return prompt{err: errContent}
	case exact.AdaptersUnreported && v.identity(r.Model) != v.spec.Model, exact.SaltsUnreported && r.CacheSalt != "":
		return prompt{err: errIdentity}
	case len(r.Prompts) > 0 && r.Prompts[0].IsTokens:
		if r.TruncatePrompt < 0 {
			return prompt{err: errContent}
		}
		ids := truncate(r.Prompts[0].Tokens, r)
		for i := range r.Prompts {
			if slices.ContainsFunc(truncate(r.Prompts[i].Tokens, r), func(id uint32) bool { return id >= maxID }) {
				return prompt{err: errContent} // the engine refuses it
			}
		}
		out := v.keyed(s, ids, nil, 0, chain, TokensGiven)
		for _, other := range r.Prompts[1:] {
			out.addIDs(truncate(other.Tokens, r), chain)
		}
		return out
	}
	err := errRoute
	prompter := exact.Texts
	if len(r.Prompts) == 0 {
		prompter = exact.Chats
	}
	engineOnly := onlyEngines(r) && exact.APIs&r.Kinds() == 0
	switch {
	case r.Multimodal:
		if out, err := p.computeImages(ctx, v, s, body, exact, chain); err == nil {
			return out
		}
		prompter, err = nil, errContent
	case engineOnly:
		prompter = nil
	case prompter != nil && (r.Kinds()&exact.Unproven != 0 || v.checks.distrusts(p.now(), TokensExact, r.Kinds(), v.traits(r))):
		prompter, err = nil, errUnproven
	}
	if prompter != nil {
		var out prompt
		if out, err = p.compute(ctx, v, s, body, prompter, chain); err == nil {
			return out
		}
		beyond := errors.Is(err, context.DeadlineExceeded)
		// Files that were found by themselves must not make a pool less exact than it is without them.
		if v.spec.Tokenizer.Type != "Auto" && (errors.Is(err, errRefused) || beyond && v.spec.Policy.EngineTokens != "BeyondBudget") {
			return prompt{err: err}
		}
	}
	if r.Route == openai.Embeddings && len(r.Prompts) == 0 { // of messages
		return prompt{err: errRoute}
	}
	if v.spec.Policy.EngineTokens == "Never" || p.options.Renderer == nil || v.spec.Tokenizer.Type == "None" {
		switch {
		case r.Multimodal:
		case engineOnly:
			err = errRoute
		case prompter == nil && !errors.Is(err, errUnproven):
			err = errNoSource
		}
		return prompt{err: err}
	}
	out := p.rendered(ctx, v, s, body, chain)
	if !engineOnly && errors.Is(out.err, errRoute) {
		out.err = err // why the prompt is not made here, as it is for other requests of the route
	}
	return out
}

// isPadded reports whether the engine pads the prompts to a length that is not known here, as far as the request's fields are known.
func isPadded(r *openai.Request) bool {
	if r.Route != openai.Embeddings {
		return false
	}
	padding, known := r.Raw("padding")
	return !known || padding != nil && string(padding) != `"do_not_pad"`
}

// onlyEngines reports whether only engines know the prompts of a request's route, unless they are proven (Exact.APIs).
func onlyEngines(r *openai.Request) bool {
	return r.Route == openai.Responses || r.Route == openai.Messages
}

// rendered makes the keys of the ids that an engine rendered.
func (p *Picker) rendered(ctx context.Context, v *view, s *scratch, body []byte, chain tokenizer.Chain) prompt {
	r := &s.request
	got, by, err := p.engineIDs(ctx, v, r, body, chain.Root)
	source := TokensEngine
	if got.Tokenized {
		source = TokensTokenize
	}
	if got.Release != nil {
		defer got.Release()
	}
	switch {
	case errors.Is(err, ErrUnrenderable) && r.Multimodal && !errors.Is(err, ErrNoRoom):
		return prompt{err: errContent}
	case errors.Is(err, ErrUnrenderable) && onlyEngines(r) && !errors.Is(err, ErrNoRoom):
		return prompt{err: errRoute}
	case err != nil:
		return prompt{err: err}
	case v.checks.distrusts(p.now(), source, r.Kinds(), v.traits(r)):
		return prompt{err: errUnproven}
	}
	grain := 0
	if len(got.Items) > 0 {
		if grain = v.commonGrain(); grain == 0 {
			return prompt{err: errContent} // an engine with other blocks has come meanwhile
		}
	}
	out := v.keyed(s, got.IDs, got.Items, grain, chain, source)
	out.rendered = by
	for _, ids := range got.More {
		out.addIDs(ids, chain)
	}
	if len(got.Items) > 0 || idBytes*cap(got.IDs) > len(body)+idBytes*templateTokens {
		// Ids without their items are another prompt. Those kept while the request waits must be no more than it pays for.
		out.ids = nil
	}
	return out
}

// engineIDs returns the ids that an engine has made of a prompt within the last minutes, or else asks one.
func (p *Picker) engineIDs(ctx context.Context, v *view, r *openai.Request, body []byte, root kvblock.Key) (Rendered, *member, error) {
	key, keeps := renderedKey{}, false
	if p.renders != nil {
		if key, keeps = v.keyOfRendered(r, len(body), root); keeps {
			if got, by, found := p.renders.get(p.now(), key, v); found {
				v.stats.reused.Add(1)
				return got, by, nil
			}
		}
	}
	got, by, err := p.askEngine(ctx, v, r, body)
	switch {
	case errors.Is(err, context.Canceled):
	case err != nil && !concernsEngine(r, err):
		v.stats.rendered(got.Lacking, ErrUnrenderable)
	default:
		v.stats.rendered(got.Lacking, err)
	}
	if err == nil && keeps {
		p.renders.put(p.now(), key, &got, by)
	}
	return got, by, err
}

// compute makes the keys in process, within the policy's budget.
func (p *Picker) compute(ctx context.Context, v *view, s *scratch, body []byte, prompter Prompter, chain tokenizer.Chain) (prompt, error) {
	ctx, cancel := context.WithTimeout(ctx, v.spec.Policy.TokenBudget)
	defer cancel()
	keys, n, err := prompter.AppendKeys(ctx, s.keys[:0], body, &s.request, chain)
	if err != nil {
		late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
		if !late && !errors.Is(err, chatprompt.ErrUnsupported) {
			err = errRefused // the message is the template's, and might quote the request
		}
		return prompt{}, err
	}
	s.keys = keys
	most := maxKeyed / chain.BlockTokens
	out := prompt{keys: keys[:min(len(keys), most)], tokens: n, source: TokensExact}
	if len(s.request.Prompts) > 1 {
		err = prompter.Others(ctx, &s.request, chain, func(keys []kvblock.Key, tokens int) { out.add(keys, tokens, chain.BlockTokens) })
		if err != nil {
			out.more, out.others = nil, -1
		}
	}
	if v.rotating() {
		chain.Root = v.formerRoot(&s.request)
		if former, _, err := prompter.AppendKeys(ctx, s.former[:0], body, &s.request, chain); err == nil {
			s.former, out.former = former, former[:min(len(former), most)]
		}
	}
	return out, nil
}

// computeImages makes the keys of a chat with images in process, within the policy's budget. If that is not possible an engine is asked.
func (p *Picker) computeImages(ctx context.Context, v *view, s *scratch, body []byte, exact *Exact, chain tokenizer.Chain) (prompt, error) {
	kinds := s.request.Kinds()
	if exact.Images == nil || kinds&exact.ImageRoutes == 0 || kinds&exact.Unproven != 0 ||
		v.checks.distrusts(p.now(), TokensExact, kinds, v.traits(&s.request)) {
		return prompt{}, errUnproven
	}
	ctx, cancel := context.WithTimeout(ctx, v.spec.Policy.TokenBudget)
	defer cancel()
	ids, items, err := exact.Images.AppendItems(ctx, nil, body, &s.request)
	if err != nil {
		return prompt{}, err
	}
	grain := v.commonGrain()
	if grain == 0 {
		return prompt{}, errContent // an engine with other blocks has come meanwhile
	}
	out := v.keyed(s, ids, items, grain, chain, TokensExact)
	out.ids = nil // without their items, they are another prompt
	return out, nil
}

// keyed makes the keys of ids, and of the items among them at engines whose blocks have as many of our blocks as grain says.
func (v *view) keyed(s *scratch, ids []uint32, items []kvblock.Item, grain int, chain tokenizer.Chain, source TokenSource) prompt {
	tokens := len(ids)
	ids = ids[:min(tokens, maxKeyed)]
	size := chain.BlockTokens
	s.keys = kvblock.AppendItemKeys(s.keys[:0], chain.Root, ids, size, grain*size, items)
	out := prompt{keys: s.keys, tokens: tokens, source: source, ids: ids}
	if v.rotating() {
		s.former = kvblock.AppendItemKeys(s.former[:0], v.formerRoot(&s.request), ids, size, grain*size, items)
		out.former = s.former
	}
	return out
}

// askEngine lets an engine render the request. The engines take turns; one that has not answered is left alone for a
// while, and one that fails at once is replaced by the next. What one engine refuses is asked of another, too: it counts as not having
// answered if that one answers. So an engine that refuses all requests does not switch matching by tokens off for its part of them.
func (p *Picker) askEngine(ctx context.Context, v *view, r *openai.Request, body []byte) (out Rendered, by *member, err error) {
	ctx, cancel := context.WithTimeout(ctx, v.spec.Policy.EngineTokenBudget)
	defer cancel()
	err = noEndpoint(v.spec.Name)
	refused, refusal := -1, error(nil)
	for range renderAttempts {
		i := v.nextRenderer(p.now())
		if i < 0 || i == refused {
			break
		}
		if out, err = p.options.Renderer.Tokens(ctx, &v.spec.Endpoints[i], r, body, v.spec.EngineAPIKey); err == nil {
			p.engineAnswered(v, i, nil)
			if refused >= 0 && !errors.Is(refusal, ErrNotAsked) && !errors.Is(refusal, ErrNoRoom) && concernsEngine(r, refusal) {
				p.engineAnswered(v, refused, refusal)
			}
			return out, v.members[i], nil
		}
		if errors.Is(ctx.Err(), context.Canceled) {
			break
		}
		if errors.Is(err, ErrUnrenderable) {
			refused, refusal = i, err
			if r.Multimodal { // each engine that is asked loads the images
				break
			}
			continue
		}
		if concernsEngine(r, err) {
			p.engineAnswered(v, i, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	switch {
	case refused >= 0 && !errors.Is(ctx.Err(), context.Canceled):
		err = refusal
	case ctx.Err() != nil:
		err = ctx.Err()
	}
	return Rendered{Lacking: out.Lacking}, nil, err
}

// concernsEngine reports whether an engine's failure to render a request says something about the engine. With images and the like
// it depends on what the client names, such as a server that answers slowly: one client must not keep others' requests from the engine.
func concernsEngine(r *openai.Request, err error) bool {
	return !r.Multimodal || errors.Is(err, ErrUnreachable)
}

// templateTokens is how many tokens a template adds to a request, generously.
const templateTokens = 4096

// idBytes is what an id takes in memory.
const idBytes = 4

const (
	// renderAttempts is how many engines are asked for a request's tokens, within one budget.
	renderAttempts = 2
	// renderPause is how long an engine that did not answer is not asked again, unless no other is left.
	renderPause = 5 * time.Second
)

// nextRenderer chooses the engine to ask, by turns; -1 if there is none. One that did not answer, and one that differs from the
// others in its tokens, is asked only if no other is left.
func (v *view) nextRenderer(now time.Time) int {
	n := len(v.members)
	last := -1
	for range n {
		i := int(v.nextEngine.Add(1) % uint64(n)) // less than n
		ep := &v.spec.Endpoints[i]
		if !ep.Pickable() || ep.Role == endpoint.Neither || !v.members[i].circuit.Closed(now, v.spec.Policy.CircuitFailures) {
			continue
		}
		from := v.members[i].renderFrom.Load()
		if (from == 0 || monotonic.Of(now) >= from) && !v.checks.differsAtAll(v.members[i]) {
			return i
		}
		last = i
	}
	return last
}

// engineAnswered keeps whether an engine has answered, and logs when that changes: err is why it has not.
func (p *Picker) engineAnswered(v *view, i int, err error) {
	from := int64(0)
	if err != nil {
		from = monotonic.Of(p.now().Add(renderPause))
	}
	before := v.members[i].renderFrom.Swap(from)
	switch pod := v.spec.Endpoints[i].Pod; {
	case err == nil && before != 0:
		p.options.Log.Info("Engine renders requests again", "pool", v.spec.Name, "pod", pod)
	case err == nil || before != 0:
	case errors.Is(err, ErrUnreachable):
		logging.Warn(p.options.Log, "Engine unreachable, asking others for tokens", "pool", v.spec.Name, "pod", pod, "reason", err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		logging.Warn(p.options.Log, "Engine did not render a request in time, asking others for tokens", "pool", v.spec.Name, "pod", pod)
	default:
		logging.Warn(p.options.Log, "Engine does not render requests, asking others for tokens", "pool", v.spec.Name, "pod", pod)
	}
}

// maxID is above the ids of all vocabularies, by far. Ids from there on could be chosen so that they cancel the constants of
// kvblock.Next, and with them all that was before.
const maxID = 1 << 27

// truncate keeps as many of the ids as the request asks for. No special tokens are added to ids.
func truncate(ids []uint32, r *openai.Request) []uint32 {
	kept, _ := r.Truncate(ids, ids)
	return kept
}
