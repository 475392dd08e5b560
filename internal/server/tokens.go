package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/internal/callout"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/engines/render"
	"github.com/kvasir-dev/kvasir/internal/engines/scrape"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/redisstore"
	"github.com/kvasir-dev/kvasir/internal/respcache"
	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/internal/tokens/hub"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokencheck"
)

// engines is what asks engines: for tokens, releases, metrics and models.
type engines struct {
	renderer *render.Client
	releases releases
	tokens   *tokencheck.Manager
	scraper  *scrape.Scraper
	reach    *reach   // nil in a cluster
	hub      *hub.Hub // nil where nothing is downloaded
	wanted   wanted
}

// asking is what asks services that policies name.
type asking struct{ services *callout.Services }

// openStore opens the store of a response cache. Each failure of it is in the state of the cache.
func (a *app) openStore(r *respcache.Redis, root [kvblock.SecretBytes]byte, counters *respcache.Counters) (respcache.Store, error) {
	return redisstore.Open(r, root, counters, time.Now, a.log.WithName("redis"))
}

// wanted are the repositories of the model hub whose files pools want.
type wanted struct {
	following sync.Mutex // held while the hub learns of a change: one at a time

	mu   sync.Mutex
	pool map[types.NamespacedName]modelfiles.Repository // guarded by mu
}

// set sets the repository of a pool, and returns those of all pools.
func (w *wanted) set(pool types.NamespacedName, r modelfiles.Repository) (all []modelfiles.Repository) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.Name == "" {
		delete(w.pool, pool)
	} else {
		if w.pool == nil {
			w.pool = map[types.NamespacedName]modelfiles.Repository{}
		}
		w.pool[pool] = r
	}
	return slices.Collect(maps.Values(w.pool))
}

// by are the pools that want a repository.
func (w *wanted) by(r modelfiles.Repository) (pools []types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for pool, of := range w.pool {
		if of == r {
			pools = append(pools, pool)
		}
	}
	return pools
}

// prober asks engines to prove tokens, and reports which answers are refusals.
type prober struct {
	*render.Client
	releases *releases
}

// Tokens is tokencheck.Engine's.
func (p prober) Tokens(
	ctx context.Context, ep *endpoint.Endpoint, route openai.Route, body []byte, apiKey string,
) (tokencheck.Tokens, error) {
	got, err := p.Proof(ctx, ep, route, body, apiKey)
	var refusal *render.StatusError
	switch {
	case errors.Is(err, render.ErrMultimodal), errors.Is(err, render.ErrPrompts), errors.Is(err, render.ErrUnsupported),
		errors.As(err, &refusal) && (refusal.Status == http.StatusBadRequest || refusal.Status == http.StatusUnprocessableEntity):
		return tokencheck.Tokens{}, fmt.Errorf("%w: %w", tokencheck.ErrRefused, err)
	}
	return tokencheck.Tokens{IDs: got.IDs, Number: got.Number}, err
}

// Items is tokencheck.Engine's.
func (p prober) Items(
	ctx context.Context, ep *endpoint.Endpoint, route openai.Route, body []byte, apiKey string,
) (tokencheck.Items, error) {
	got, err := p.Client.Items(ctx, ep, route, body, apiKey)
	if errors.Is(err, render.ErrMultimodal) { // there is no render route
		got, err = p.Proof(ctx, ep, route, body, apiKey)
	}
	switch {
	case errors.Is(err, render.ErrMultimodal), errors.Is(err, render.ErrUnsupported), refuses(err):
		return tokencheck.Items{}, fmt.Errorf("%w: %w", tokencheck.ErrRefused, err)
	case err != nil:
		return tokencheck.Items{}, err
	}
	out := tokencheck.Items{
		IDs: slices.Clone(got.IDs), Items: slices.Clone(got.Items), Number: got.Number, Served: got.Source == render.Served,
	}
	if got.Release != nil {
		got.Release()
	}
	return out, nil
}

// Identity is tokencheck.Engine's.
func (p prober) Identity(ctx context.Context, ep *endpoint.Endpoint, model, apiKey string) (tokencheck.Identity, error) {
	id, err := p.Client.Identity(ctx, ep, model, apiKey)
	if err == nil {
		p.releases.set(ep.ID, id.Version)
	}
	return tokencheck.Identity{Version: id.Version, Root: id.Root}, err
}

// setTokens sets the pools that need tokens.
func (a *app) setTokens() {
	a.mu.Lock()
	var pools []tokencheck.Pool
	pods, names := map[string]string{}, map[string]string{} // of pools whose reporters can have the files
	there := map[endpoint.ID]bool{}
	for name := range a.applied {
		spec := a.applied[name]
		pools = append(pools, tokencheck.Pool{
			Namespace: spec.Namespace, Name: spec.Name, Model: spec.Model, APIKey: spec.EngineAPIKey,
			Files: filesOf(&spec.Tokenizer), Endpoints: spec.Endpoints,
		})
		for i := range spec.Endpoints {
			there[spec.Endpoints[i].ID] = true
			if takesFiles(&spec.Tokenizer) {
				ep := &spec.Endpoints[i]
				pods[ep.ID.Pod], names[ep.ID.Pod] = name.String(), ep.Pod
			}
		}
	}
	a.filePods, a.fileNames = pods, names
	a.mu.Unlock()
	a.library.Keep(pods)
	a.releases.keep(there)
	a.tokens.Set(pools)
}

// newLibrary takes models' files from reporters.
func (a *app) newLibrary() *rpc.Library {
	return &rpc.Library{
		Log: a.log.WithName("tokens"),
		PoolOf: func(pod string) (string, bool) {
			a.mu.Lock()
			defer a.mu.Unlock()
			pool, ok := a.filePods[pod]
			return pool, ok
		},
		OnFiles: func(pool string) {
			key := config.ParseKey(pool)
			a.tokens.Look(key.Namespace, key.Name)
		},
	}
}

// takesFiles reports whether files of a pool's reporters are used.
func takesFiles(t *picker.TokenizerSpec) bool { return t.Type == "Reporter" || t.Type == "Auto" }

// handed returns the files that reporters of a pool have sent.
func (a *app) handed(namespace, pool string) tokencheck.Handed {
	held := a.library.Held(namespace + "/" + pool)
	a.mu.Lock()
	defer a.mu.Unlock()
	return tokencheck.Handed{Set: held.Set, Hash: held.Hash, Note: noteOf(&held, a.fileNames)}
}

// noteOf describes where files are from, or why there are none. names are those of the pods by their identity.
func noteOf(held *rpc.HeldFiles, names map[string]string) string {
	name := func(pod string) string { return cmp.Or(names[pod], pod) }
	var parts []string
	switch {
	case held.Set != nil:
		parts = append(parts, fmt.Sprintf("files from the reporter of pod %s, which %d of %d pods with files have (SHA-256 %.8s)",
			name(held.Pod), held.Same, max(held.Pods-held.Without, held.Same), held.Hash))
	case held.Pods == 0:
		return "no reporter has offered any"
	case held.Pods > held.Failed:
		parts = append(parts, fmt.Sprintf("%d reporters offer some", held.Pods-held.Failed))
	}
	if held.Failed > 0 {
		parts = append(parts, fmt.Sprintf("the reporter of pod %s has none that can be used: %.300q", name(held.FailedPod), held.Failure))
	}
	if held.Failed > 1 {
		parts = append(parts, fmt.Sprintf("nor have those of %d more pods", held.Failed-1))
	}
	return strings.Join(parts, "; ")
}

// proved passes on how far files from reporters were proven.
func (a *app) proved(namespace, pool, hash string, proof modelfiles.Proof) {
	a.library.Proved(namespace+"/"+pool, hash, proof)
}

// newHub makes what downloads models' files; nil where nothing is downloaded.
func (a *app) newHub(o *hubOptions) *hub.Hub {
	if !o.wanted() {
		return nil
	}
	return hub.New(hub.Config{
		Endpoint: o.endpoint, Authorities: o.authorities, Proxy: o.through, TokenFile: o.tokenFile, Dir: o.cache, Log: a.log.WithName("hub"),
		Changed: func(r modelfiles.Repository) {
			for _, pool := range a.wanted.by(r) {
				a.tokens.Look(pool.Namespace, pool.Name)
			}
		},
	})
}

// want lets the hub follow the repository that a pool wants now.
func (a *app) want(namespace, pool string, r modelfiles.Repository) {
	if a.hub == nil {
		return
	}
	a.wanted.following.Lock()
	defer a.wanted.following.Unlock()
	a.hub.Keep(a.wanted.set(types.NamespacedName{Namespace: namespace, Name: pool}, r))
}

// fetched returns where the files of a repository are.
func (a *app) fetched(r modelfiles.Repository) (dir, note string, err error) {
	if a.hub == nil {
		return "", "", errors.New("the picker has no --hub-endpoint")
	}
	files := a.hub.Files(r)
	return files.Dir, files.Note, files.Err
}

// doubtTokens makes the engines of a pool be asked again.
func (a *app) doubtTokens(namespace, pool string, kinds openai.Kinds) {
	a.tokens.Doubt(namespace, pool, kinds)
}

// filesOf returns the source of a model's files.
func filesOf(t *picker.TokenizerSpec) tokencheck.Files {
	f := tokencheck.Files{
		Dir: t.Dir, Set: t.Files, Reporters: takesFiles(t), Repository: t.Repository, Template: t.ChatTemplate,
		Optional: t.Type == "Auto", ByRoot: t.ByRoot,
	}
	if t.Missing != "" {
		f.Missing = errors.New(t.Missing)
	}
	return f
}
