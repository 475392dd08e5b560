// Package tokencheck keeps the promise that token ids made in the picker are those of the engines. For each pool it
// loads the model's files, asks the engines what they are, and lets one of each kind answer about a hundred requests: of a
// kind of request (see openai.Kind) ids made here are trusted when all are equal. That is repeated when files or engines
// change, every hour, and when what engines announce raises doubts.
package tokencheck

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

// Identity is what an engine reports about itself: engines of one identity make the same ids of a request.
type Identity struct {
	// Version of the engine, like "0.17.1"; empty where it does not report it.
	Version string
	// Root is where it has the model from; empty where it does not report it.
	Root string
}

// Tokens are what an engine has returned about the ids of a request's prompt.
type Tokens struct {
	IDs []uint32
	// Number is how many there are, where the engine returns nothing else of them (IDs is nil); else 0.
	Number int
}

// equal reports whether ids made here are the engine's, as far as the engine has shown those.
func (t *Tokens) equal(ids []uint32) bool {
	if t.Number > 0 {
		return len(ids) == t.Number
	}
	return slices.Equal(ids, t.IDs)
}

// len is how many ids the engine has made.
func (t *Tokens) len() int { return max(t.Number, len(t.IDs)) }

// Engine asks engines. It must be safe for concurrent use.
type Engine interface {
	// Tokens requests the ids of a probe's request, by the most exact route that the engine has. The error wraps ErrRefused
	// when the engine refuses the request itself.
	Tokens(ctx context.Context, ep *endpoint.Endpoint, route openai.Route, body []byte, apiKey string) (Tokens, error)
	// Items requests the ids of a request with images, and the images among them, by the render route; an engine without one serves it.
	// The error wraps ErrRefused when the engine refuses the request.
	Items(ctx context.Context, ep *endpoint.Endpoint, route openai.Route, body []byte, apiKey string) (Items, error)
	// Identity requests an engine's identity, as far as the engine reports it. An error means that it does not answer.
	Identity(ctx context.Context, ep *endpoint.Endpoint, model, apiKey string) (Identity, error)
}

// Pool is a pool that needs exact tokens.
type Pool struct {
	Namespace, Name string
	// Model is the canonical served name.
	Model     string
	APIKey    string
	Files     Files
	Endpoints []endpoint.Endpoint
}

// Files are the sources of a model's files: one, or Reporters and a Repository, or none.
type Files struct {
	// Dir is a directory.
	Dir string
	// Set has the files themselves. It must not be changed.
	Set modelfiles.Set
	// Missing is why there are no files though there should be. Those of reporters are used nevertheless.
	Missing error
	// Reporters hand the files over. With Optional, what they hand over is preferred to the repository of a model hub.
	Reporters bool
	// Repository of a model hub has them; the zero value for none.
	Repository modelfiles.Repository
	// Optional: they are used if they are found. Otherwise nothing is wrong.
	Optional bool
	// ByRoot: the repository that the engines have the model from is asked for instead, if they report one. Repository.Name can
	// be empty.
	ByRoot bool
	// Template is the file of the chat template that the engines use; empty for the model's own.
	Template string
}

func (f *Files) wanted() bool {
	return f.Optional || f.Dir != "" || f.Set != nil || f.Reporters || f.Repository.Name != "" || f.Missing != nil
}

// Config of a Manager.
type Config struct {
	// Engine asks engines; required.
	Engine Engine
	// Publish takes how far exact tokens can be had for a pool, whenever that changes; nil for not at all.
	Publish func(namespace, pool string, exact *picker.Exact)
	// Holds reports whether the index has the blocks of a prompt with items that an engine has served; see picker.Picker.Holds. nil is
	// never conclusive.
	Holds func(namespace, pool string, of *endpoint.Endpoint, ids []uint32, items []kvblock.Item) (holds, conclusive bool)
	// Handed returns the files that reporters of a pool have sent; nil is not called.
	Handed func(namespace, pool string) Handed
	// Proved is called each time that files which reporters have sent were compared with the engines; nil is not called.
	Proved func(namespace, pool, hash string, proof modelfiles.Proof)
	// Want is called when a pool wants the files of another repository of a model hub than before, and with the zero value when it
	// wants none any more; nil is not called.
	Want func(namespace, pool string, r modelfiles.Repository)
	// Fetched returns the directory with the files of a repository that is wanted, and a note on their origin; nil where no hub is
	// asked.
	Fetched func(modelfiles.Repository) (dir, note string, err error)
	// CacheBytes bounds what is remembered of the prompts of all pools; 0 is DefaultCacheBytes.
	CacheBytes int64
	Log        logr.Logger

	// cache of all pools, made when the first needs it.
	cache func() *tokenizer.Cache
}

// DefaultCacheBytes bounds the cache of prompts: about 10 million tokens.
const DefaultCacheBytes = 128 << 20

// State is how far exact tokens can be had in a pool.
type State string

// The states.
const (
	// Starting: nothing is known yet.
	Starting State = "Starting"
	// NoFiles: none are wanted, or none were found where none are needed; then the message says why.
	NoFiles State = "NoFiles"
	// FilesMissing: files are wanted, and there are none that can be read.
	FilesMissing State = "FilesMissing"
	// TokenizerUnsupported: the tokenizer asks for what is not known here.
	TokenizerUnsupported State = "TokenizerUnsupported"
	// Unproven: no engine has answered the probe yet.
	Unproven State = "Unproven"
	// Failed: ids made here are not the engine's, of texts or of chats.
	Failed State = "Failed"
	// TextsOnly: ids of texts are exact, and chats cannot be made here.
	TextsOnly State = "TextsOnly"
	// Exact: ids of texts and chats are the engine's.
	Exact State = "Exact"
)

// States lists them all.
var States = []State{Starting, NoFiles, FilesMissing, TokenizerUnsupported, Unproven, Failed, TextsOnly, Exact}

// Status is how a pool does.
type Status struct {
	Namespace, Pool string
	State           State
	// Message is the explanation, without any content of users.
	Message string
	// Origin is a note on where the model's files are from, and on what has failed there; empty where the pool says it all.
	Origin string
	// Texts and Chats report which ids made here are trusted.
	Texts, Chats bool
	// Unproven are the request kinds whose ids made here are not trusted, while those of others are.
	Unproven openai.Kinds
	// AdaptersUnreported and SaltsUntold are those of picker.Exact.
	AdaptersUnreported, SaltsUnreported bool
	// Probes and Mismatches count the probes that were answered, and those of them in which ids differ.
	Probes, Mismatches uint64
	// Doubts count how often what engines announce has raised doubts.
	Doubts uint64
}

// Manager keeps the promise for any number of pools. It is safe for concurrent use.
type Manager struct {
	config Config

	mu    sync.Mutex
	pools map[string]*keeper // by namespace/name
}

// New returns a manager without pools.
func New(c Config) *Manager {
	if c.CacheBytes == 0 {
		c.CacheBytes = DefaultCacheBytes
	}
	if c.Handed == nil {
		c.Handed = func(string, string) Handed { return Handed{} }
	}
	if c.Proved == nil {
		c.Proved = func(string, string, string, modelfiles.Proof) {}
	}
	if c.Fetched == nil {
		c.Fetched = func(modelfiles.Repository) (string, string, error) {
			return "", "", errors.New("the picker asks no model hub")
		}
	}
	if c.Want == nil {
		c.Want = func(string, string, modelfiles.Repository) {}
	}
	c.cache = sync.OnceValue(func() *tokenizer.Cache { return tokenizer.NewCache(c.CacheBytes) })
	return &Manager{config: c, pools: map[string]*keeper{}}
}

// Set replaces the pools. It waits only for work on removed pools to end.
func (m *Manager) Set(pools []Pool) {
	m.mu.Lock()
	gone := m.pools
	m.pools = map[string]*keeper{}
	for i := range pools {
		p := &pools[i]
		name := p.Namespace + "/" + p.Name
		k := gone[name]
		delete(gone, name)
		if k == nil {
			k = newKeeper(&m.config, p)
		} else {
			k.set(p)
		}
		m.pools[name] = k
	}
	m.mu.Unlock()
	for _, k := range gone {
		k.stop()
		m.config.Publish(k.namespace, k.name, nil)
		k.want(modelfiles.Repository{})
	}
}

// Look makes the manager check a pool at once, because its files might have appeared or changed.
func (m *Manager) Look(namespace, pool string) {
	if k := m.keeper(namespace, pool); k != nil {
		k.wake()
	}
}

// Doubt reports that announcements of a pool's engines contradict ids made here for some kinds of requests: the engines are
// probed again. It does not block.
func (m *Manager) Doubt(namespace, pool string, kinds openai.Kinds) {
	if k := m.keeper(namespace, pool); k != nil {
		k.doubt(kinds)
	}
}

func (m *Manager) keeper(namespace, pool string) *keeper {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pools[namespace+"/"+pool]
}

// Status of a pool; not ok when there is no such pool.
func (m *Manager) Status(namespace, pool string) (status Status, ok bool) {
	k := m.keeper(namespace, pool)
	if k == nil {
		return Status{}, false
	}
	return k.read(), true
}

// All is the status of all pools, in no order.
func (m *Manager) All() []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]Status, 0, len(m.pools))
	for _, k := range m.pools {
		all = append(all, k.read())
	}
	return all
}

// How often things are looked at.
const (
	// lookEvery is how often files and engines are looked at.
	lookEvery = 30 * time.Second
	// proveEvery is how long an engine's answers count.
	proveEvery = time.Hour
	// doubtLimit doubts about a kind within proveEvery end the trust in its ids though the probe passes, until the first
	// has been so long ago.
	doubtLimit = 3
	// firstRetry and lastRetry bound the wait after no engine has answered.
	firstRetry, lastRetry = time.Second, lookEvery
	// rechooseEvery is the shortest time between two changes of the repository that engines report: each can download files.
	rechooseEvery = 5 * time.Minute
	// identifyTimeout is how long an engine can take to report its identity.
	identifyTimeout = 2 * time.Second
	// identifyAtOnce is how many engines are asked that at once.
	identifyAtOnce = 8
)
