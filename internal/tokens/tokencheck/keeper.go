package tokencheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tokens/chatprompt"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

// keeper keeps the promise for one pool, in one goroutine.
type keeper struct {
	config          *Config
	namespace, name string
	cancel          context.CancelFunc
	done            chan struct{}
	bell            chan struct{}

	mu       sync.Mutex
	pool     *Pool                        // guarded by mu; replaced, never changed
	status   Status                       // guarded by mu
	probeAll bool                         // guarded by mu; all engines must be probed again
	doubts   [openai.NumKinds][]time.Time // guarded by mu; the last doubtLimit ones of each kind

	// What follows is the goroutine's own.
	model      model
	identities map[string]identified // by the endpoint's epoch
	answers    map[Identity]answers
	images     imageProof
	published  *picker.Exact
	retry      time.Duration
	chosen     choice
	refuted    refuted
}

type identified struct {
	Identity
	at time.Time
}

// answers are those of an engine to all cases.
type answers struct {
	number  uint64 // of the probe, from 1
	replies []reply
	at      time.Time
	epoch   string // of the engine's endpoint
	// outvoted: two engines have given these answers, and another one that was asked before them has given others.
	outvoted bool
	// secondOpinion is the earliest time at which outvote asks other engines.
	secondOpinion time.Time
}

func newKeeper(c *Config, p *Pool) *keeper {
	ctx, cancel := context.WithCancel(context.Background())
	k := &keeper{
		config: c, namespace: p.Namespace, name: p.Name, cancel: cancel, done: make(chan struct{}), bell: make(chan struct{}, 1),
		pool: p, status: Status{Namespace: p.Namespace, Pool: p.Name, State: Starting},
		identities: map[string]identified{}, answers: map[Identity]answers{},
	}
	go func() {
		defer close(k.done)
		k.run(ctx)
	}()
	return k
}

func (k *keeper) stop() {
	k.cancel()
	<-k.done
}

func (k *keeper) wake() {
	select {
	case k.bell <- struct{}{}:
	default:
	}
}

func (k *keeper) set(p *Pool) {
	k.mu.Lock()
	k.pool = p
	k.mu.Unlock()
	k.wake()
}

func (k *keeper) doubt(kinds openai.Kinds) {
	k.mu.Lock()
	k.probeAll = true
	k.status.Doubts++
	for kind := range kinds.All {
		k.doubts[kind] = append(k.doubts[kind], time.Now())
		k.doubts[kind] = k.doubts[kind][max(0, len(k.doubts[kind])-doubtLimit):]
	}
	k.mu.Unlock()
	k.wake()
}

// doubted are the kinds with repeated doubts, though the probe has passed each time.
func (k *keeper) doubted() (kinds openai.Kinds) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for kind, of := range k.doubts {
		if len(of) == doubtLimit && time.Since(of[0]) < proveEvery {
			kinds |= openai.KindsOf(openai.Kind(kind))
		}
	}
	return kinds
}

func (k *keeper) read() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

func (k *keeper) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-k.bell:
		}
		wait := k.look(ctx)
		if ctx.Err() != nil {
			return
		}
		timer.Reset(wait)
	}
}

// look does the pending work, and returns when to check again.
func (k *keeper) look(ctx context.Context) time.Duration {
	k.mu.Lock()
	pool := k.pool
	if k.probeAll {
		k.probeAll = false
		clear(k.answers)
	}
	k.mu.Unlock()

	present := k.identify(ctx, pool)
	exact := &picker.Exact{Releases: k.releases()}
	for _, id := range present {
		exact.AdaptersUnreported = exact.AdaptersUnreported || before(id.Version, 14)
		exact.SaltsUnreported = exact.SaltsUnreported || before(id.Version, 17)
		// Before 0.30 the render routes can leave what they have made of images in a cache, so that the engine then fails to serve them.
		release, known := chatprompt.ParseRelease(id.Version)
		exact.ItemsUnreported = exact.ItemsUnreported || !known || release < 30
	}
	found := k.prove(ctx, pool, present, exact)
	if ctx.Err() != nil {
		return 0
	}
	if doubted := k.doubted(); (found.texts || found.chats) && doubted != 0 {
		found = distrust(exact, found, doubted)
	}
	k.publish(exact)
	k.recordFinding(found, exact)
	if k.judge(&pool.Files, found) {
		return firstRetry
	}
	if found.State == Unproven {
		k.retry = min(max(2*k.retry, firstRetry), lastRetry)
		return k.retry
	}
	k.retry = 0
	return lookEvery
}

// distrust removes kinds from exact if the engines count and announce other tokens for them, although the probe passes.
func distrust(exact *picker.Exact, found finding, doubted openai.Kinds) finding {
	var names []string
	for kind := range doubted.All {
		names = append(names, kind.String())
	}
	exact.Unproven |= doubted
	if doubted.Has(openai.KindText) {
		exact.Texts, found.texts = nil, false
	}
	if doubted.Has(openai.KindChat) {
		exact.Chats, exact.Images, found.chats = nil, nil, false
	}
	if !found.texts || !found.chats {
		found.State = Failed
	}
	found.message = fmt.Sprintf("the probe passes, and yet what engines announce and count for requests of the kind %s did not fit %d times within %s; %s",
		strings.Join(names, ", "), doubtLimit, proveEvery, found.message)
	return found
}

// finding is what a look has found.
type finding struct {
	State
	message string
	texts   bool
	chats   bool
}

// prove loads the files and holds ids made of them against the engines'. What is proven goes into exact.
func (k *keeper) prove(ctx context.Context, pool *Pool, present []Identity, exact *picker.Exact) finding {
	if !pool.Files.wanted() {
		k.want(modelfiles.Repository{})
		return finding{State: NoFiles}
	}
	found, ok := k.find(pool, present)
	if !ok {
		return found
	}
	if len(present) == 0 {
		// No engine can be asked. The earlier proof remains valid: without engines no request is served either.
		if k.published != nil {
			exact.Texts, exact.Chats = k.published.Texts, k.published.Chats
			exact.Images, exact.ImageRoutes = k.published.Images, k.published.ImageRoutes
			exact.Unproven, exact.APIs = k.published.Unproven, k.published.APIs
		}
		if exact.Texts != nil || exact.Chats != nil {
			return k.same()
		}
		return finding{State: Unproven, message: "no engine has said what it is yet"}
	}
	cases := sync.OnceValue(func() []Case { return Cases(pool.Model) })
	for _, id := range present {
		if err := k.answer(ctx, pool, id, cases); err != nil {
			return finding{State: Unproven, message: "no engine has answered the probe: " + err.Error()}
		}
	}
	last := k.comparison(ctx, present, cases)
	if (last.found.State == Failed || last.unproven != 0) && k.outvote(ctx, pool, present, cases) {
		last = k.comparison(ctx, present, cases)
	}
	exact.Texts, exact.Chats, exact.Unproven, exact.APIs = last.texts, last.chats, last.unproven, last.apis
	found = last.found
	if message := k.proveImages(ctx, pool, present, exact); message != "" {
		found.message += "; " + message
	}
	return found
}

// same is the present status as a finding.
func (k *keeper) same() finding {
	s := k.read()
	return finding{State: s.State, message: s.Message, texts: s.Texts, chats: s.Chats}
}

// answer lets an engine of an identity answer the cases, unless one has recently that is still there: those that replace
// it might have been started with another template. While an engine is there that has outvoted another one, only it
// is asked. When none answers, what one has answered before still counts, and they
// are asked again with the next look.
func (k *keeper) answer(ctx context.Context, pool *Pool, id Identity, cases func() []Case) error {
	before, answered := k.answers[id]
	there := slices.ContainsFunc(pool.Endpoints, func(ep endpoint.Endpoint) bool { return ep.Epoch() == before.epoch })
	if answered && there && time.Since(before.at) < proveEvery {
		return nil
	}
	err := errors.New("no engine of that kind is left")
	for i := range pool.Endpoints {
		ep := &pool.Endpoints[i]
		known, ok := k.identities[ep.Epoch()]
		if !ok || known.Identity != id || there && before.outvoted && ep.Epoch() != before.epoch {
			continue
		}
		var got answers
		if got, err = k.askEngine(ctx, pool, ep, cases()); err == nil {
			got.outvoted = there && before.outvoted
			k.answers[id] = got
			return nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	if answered && ctx.Err() == nil {
		return nil
	}
	return err
}

// askEngine lets one engine answer the cases.
func (k *keeper) askEngine(ctx context.Context, pool *Pool, ep *endpoint.Endpoint, cases []Case) (answers, error) {
	replies, err := ask(ctx, cases, func(ctx context.Context, c *Case) (Tokens, error) {
		return k.config.Engine.Tokens(ctx, ep, c.Route, c.Body, pool.APIKey)
	})
	if err != nil {
		return answers{}, err
	}
	k.mu.Lock()
	k.status.Probes++
	number := k.status.Probes
	k.mu.Unlock()
	return answers{number: number, replies: replies, at: time.Now(), epoch: ep.Epoch()}, nil
}

// identify asks the engines what they are that have not said so recently, and lists the identities there are, in order.
func (k *keeper) identify(ctx context.Context, pool *Pool) []Identity {
	now := time.Now()
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, identifyAtOnce)
	next := map[string]identified{}
	for i := range pool.Endpoints {
		ep := &pool.Endpoints[i]
		if !ep.Pickable() {
			continue
		}
		epoch := ep.Epoch()
		known, ok := k.identities[epoch]
		if ok && now.Sub(known.at) < lookEvery-time.Second {
			mu.Lock()
			next[epoch] = known
			mu.Unlock()
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			id, err := k.identity(ctx, ep, pool)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				next[epoch] = identified{id, now}
			case ok:
				next[epoch] = known
			}
		})
	}
	wg.Wait()
	k.identities = next
	var present []Identity
	for _, id := range next {
		if !slices.Contains(present, id.Identity) {
			present = append(present, id.Identity)
		}
	}
	slices.SortFunc(present, func(a, b Identity) int {
		return cmp.Or(strings.Compare(a.Version, b.Version), strings.Compare(a.Root, b.Root))
	})
	for id := range k.answers {
		if !slices.Contains(present, id) && len(present) > 0 {
			delete(k.answers, id)
			delete(k.images.answers, id)
		}
	}
	return present
}

func (k *keeper) identity(ctx context.Context, ep *endpoint.Endpoint, pool *Pool) (Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	return k.config.Engine.Identity(ctx, ep, pool.Model, pool.APIKey)
}

// common is the version that all engines have; empty where they differ, so that only what all do alike is done.
func common(present []Identity) string {
	for _, id := range present {
		if id.Version != present[0].Version {
			return ""
		}
	}
	return present[0].Version
}

// releases are those of the engines that have reported theirs; those that were published, if they are the same.
func (k *keeper) releases() *picker.Releases {
	all := make(picker.Releases, len(k.identities))
	for epoch, id := range k.identities {
		all[epoch], _ = chatprompt.ParseRelease(id.Version)
	}
	if k.published != nil && k.published.Releases != nil && maps.Equal(*k.published.Releases, all) {
		return k.published.Releases
	}
	return &all
}

// before reports whether a version is known and older than 0.minor.
func before(version string, minor int) bool {
	v, ok := chatprompt.ParseRelease(version)
	return ok && v < minor
}

// publish hands over what has changed.
func (k *keeper) publish(exact *picker.Exact) {
	if k.published != nil && *k.published == *exact { // pointers and sets
		return
	}
	k.published = exact
	k.config.Publish(k.namespace, k.name, exact)
}

// recordFinding stores the findings, and logs new ones.
func (k *keeper) recordFinding(f finding, exact *picker.Exact) {
	k.mu.Lock()
	old := k.status
	k.status.State, k.status.Message, k.status.Texts, k.status.Chats = f.State, f.message, f.texts, f.chats
	k.status.AdaptersUnreported, k.status.SaltsUnreported = exact.AdaptersUnreported, exact.SaltsUnreported
	k.status.Unproven, k.status.Origin = exact.Unproven, k.model.origin
	if f.State == Failed && (old.State != Failed || old.Message != f.message) {
		k.status.Mismatches++
	}
	k.mu.Unlock()
	if old.State != f.State || old.Unproven != exact.Unproven || old.State == Failed && old.Message != f.message {
		k.config.Log.Info("Tokenizer state changed", "pool", k.name, "state", f.State, "reason", f.message)
	}
}
