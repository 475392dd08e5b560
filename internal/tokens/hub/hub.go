// Package hub downloads the files that the prompts of models are made with from a model hub: the Hugging Face Hub, or a mirror
// with its paths and headers. It downloads no weights, and nothing from any other server than the hub that the picker was started
// with and those that it redirects to.
//
// The files are kept on disk, in the layout of the Hugging Face cache, and are used from there while the hub is away. All files of
// a model are of one commit.
package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/fault"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

const (
	// DefaultCacheBytes bounds the cache on disk: 16 times what one model can take.
	DefaultCacheBytes = 16 * modelfiles.MaxBytes
	// pollEvery is how often the hub is asked for the commit of a branch; a quarter of it is random.
	pollEvery = 10 * time.Minute
	// firstRetry and lastRetry bound the pauses after failures. A hub can ask for longer ones, up to mostRetryAfter.
	firstRetry, lastRetry, mostRetryAfter = 5 * time.Second, 10 * time.Minute, time.Hour
	// updateTimeout bounds one update of a repository, with all of its downloads.
	updateTimeout = 5 * time.Minute
	// updatesAtOnce is how many repositories are downloaded at once.
	updatesAtOnce = 4
	// maxToken bounds a token, in bytes.
	maxToken = 4 << 10
)

// Config of a Hub.
type Config struct {
	// Endpoint is the URL of the hub, as ParseEndpoint returns it; nil to use only what is in the cache.
	Endpoint *url.URL
	// Authorities sign the certificates of the hub and of hosts to which it redirects; nil for those of the system alone.
	Authorities *certs.Authorities
	// Proxy through which the hub, and hosts to which it redirects, are reached; nil for none.
	Proxy *url.URL
	// TokenFile holds the token for repositories that have none of their own; empty for no token. It is read again for each update.
	TokenFile string
	// Dir is the directory of the cache. It can be shared by processes.
	Dir string
	// CacheBytes bounds the cache on disk; 0 is DefaultCacheBytes.
	CacheBytes int64
	// Changed is called when the files of a repository, or the reason why there are none, have changed; nil is not called.
	Changed func(modelfiles.Repository)
	Log     logr.Logger
}

// Files are where the files of a repository are.
type Files struct {
	// Dir has the files of one commit; empty if there are none.
	Dir string
	// Note describes their origin, for people.
	Note string
	// Err is why there are no files.
	Err error
}

// pace is how often a hub is asked.
type pace struct{ poll, firstRetry, lastRetry, timeout time.Duration }

// Hub follows repositories. It is safe for concurrent use.
type Hub struct {
	config Config
	cache  cache
	client *client // nil without an endpoint
	pace   pace
	limit  int64 // bytes of the files of a repository
	slots  chan struct{}

	mu       sync.Mutex
	followed map[modelfiles.Repository]*follower // guarded by mu
}

// follower follows one repository, in one goroutine.
type follower struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex
	files Files // guarded by mu
}

// errAsking is the state before the first answer.
var errAsking = errors.New("the model hub has not answered yet")

// New returns a Hub that follows no repository.
func New(c Config) *Hub {
	if c.CacheBytes == 0 {
		c.CacheBytes = DefaultCacheBytes
	}
	if c.Changed == nil {
		c.Changed = func(modelfiles.Repository) {}
	}
	h := &Hub{
		config: c, cache: cache{dir: c.Dir, max: c.CacheBytes, whole: c.Endpoint != nil},
		pace:  pace{pollEvery, firstRetry, lastRetry, updateTimeout},
		limit: modelfiles.MaxBytes,
		slots: make(chan struct{}, updatesAtOnce), followed: map[modelfiles.Repository]*follower{},
	}
	if c.Endpoint != nil {
		h.client = newClient(c.Endpoint, c.Proxy, c.Authorities)
	}
	return h
}

// Keep replaces the repositories that are followed. It waits for the work on others to end.
func (h *Hub) Keep(repositories []modelfiles.Repository) {
	h.mu.Lock()
	gone := maps.Clone(h.followed)
	for _, r := range repositories {
		if h.followed[r] == nil {
			h.followed[r] = h.follow(r)
		}
		delete(gone, r)
	}
	for r := range gone {
		delete(h.followed, r)
	}
	h.mu.Unlock()
	for _, l := range gone {
		l.stop()
	}
}

// Close follows no repository any more.
func (h *Hub) Close() {
	h.Keep(nil)
	if h.client != nil {
		h.client.close()
	}
}

// Files returns where the files of a repository are, if it is followed.
func (h *Hub) Files(r modelfiles.Repository) Files {
	h.mu.Lock()
	l := h.followed[r]
	h.mu.Unlock()
	if l == nil {
		return Files{Err: errAsking}
	}
	return l.read()
}

func (l *follower) read() Files {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.files
}

func (l *follower) stop() {
	l.cancel()
	<-l.done
}

// follow starts to follow a repository. What the cache has of it can be used at once: the hub can take long to answer, and a pool whose
// token was replaced must not lose its files meanwhile.
func (h *Hub) follow(r modelfiles.Repository) *follower {
	ctx, cancel := context.WithCancel(context.Background())
	l := &follower{cancel: cancel, done: make(chan struct{}), files: Files{Err: errAsking}}
	if err := r.Check(); err != nil {
		l.files.Err = err
	} else if commit := h.cache.current(&r); commit != "" {
		l.files = h.describe(&r, commit, nil)
	}
	go func() {
		defer close(l.done)
		h.run(ctx, l, r)
	}()
	return l
}

// run updates a repository again and again: at the pace of the hub, more seldom while it fails.
func (h *Hub) run(ctx context.Context, l *follower, r modelfiles.Repository) {
	if r.Check() != nil {
		return
	}
	backoff := fault.Backoff{Min: h.pace.firstRetry, Max: h.pace.lastRetry}
	for {
		commit, err := h.update(ctx, &r)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			commit = h.cache.current(&r)
		}
		h.set(l, r, h.describe(&r, commit, err))
		select {
		case <-ctx.Done():
			return
		case <-time.After(h.pause(&backoff, err)):
		}
	}
}

// pause is how long to wait after an update until the next one begins.
func (h *Hub) pause(backoff *fault.Backoff, err error) time.Duration {
	if err == nil {
		backoff.Reset()
		return h.pace.poll*3/4 + rand.N(h.pace.poll/4+1)
	}
	wait := backoff.Next()
	if status := (*StatusError)(nil); errors.As(err, &status) {
		wait = max(wait, status.RetryAfter)
	}
	return wait
}

// update brings the cache up to date, and returns the commit to use.
func (h *Hub) update(ctx context.Context, r *modelfiles.Repository) (commit string, err error) {
	if h.client == nil {
		if commit = h.cache.current(r); commit == "" {
			return "", errors.New("the cache has no files of it, and the picker has no --hub-endpoint")
		}
		return commit, nil
	}
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, h.pace.timeout, fmt.Errorf("not finished after %s", h.pace.timeout))
	defer cancel()
	commit, err = h.download(ctx, r)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return commit, err
}

// download downloads what the cache lacks, and returns the commit to use.
func (h *Hub) download(ctx context.Context, r *modelfiles.Repository) (commit string, err error) {
	token, err := h.token(r)
	if err != nil {
		return "", err
	}
	if commit = r.At(); !modelfiles.IsCommit(commit) {
		if commit, err = h.client.commit(ctx, r, token); err != nil {
			return "", err
		}
	}
	left, roomMade := h.limit, false
	for _, name := range r.Wanted() {
		size, known := h.cache.has(r, commit, name)
		switch {
		case known && size < 0 && r.Required(name):
			return "", absent(name)
		case known:
			left -= max(size, 0)
			continue
		case !roomMade:
			if err := h.cache.makeRoom(h.used(r, commit)); err != nil {
				return "", err
			}
			roomMade = true
		}
		size, err := h.cache.put(r, commit, name, func(f *os.File) error { return h.client.download(ctx, r, token, commit, name, f, left) })
		switch {
		case isAbsent(err) && r.Required(name):
			return "", absent(name)
		case isAbsent(err):
			err = h.cache.lacks(r, commit, name)
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		left -= size
	}
	return commit, h.cache.point(r, commit)
}

// used are the snapshots that must stay in the cache: those of all repositories that are followed, and one more.
func (h *Hub) used(r *modelfiles.Repository, commit string) map[string]bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	used := map[string]bool{h.cache.snapshot(r, commit): true}
	for _, l := range h.followed {
		used[l.read().Dir] = true
	}
	return used
}

// token is the one to send for a repository; empty for none. No error shows any of it.
func (h *Hub) token(r *modelfiles.Repository) (string, error) {
	token := []byte(r.Token)
	if r.Token == "" && h.config.TokenFile != "" {
		f, err := os.Open(h.config.TokenFile)
		if err != nil {
			return "", fmt.Errorf("reading the token: %w", err)
		}
		defer f.Close()
		token = make([]byte, maxToken+1)
		n, _ := f.Read(token) // of an empty file, nothing
		token = token[:n]
	}
	token = bytes.TrimSpace(token)
	if len(token) > maxToken || bytes.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return "", errors.New("the token for the model hub is none: want one line of ASCII characters")
	}
	if len(token) > 0 && !h.client.private() {
		return "", errors.New("the token is not sent to the model hub: its endpoint is not https")
	}
	return string(token), nil
}

// describe returns the files of a commit, if there is one, and what has failed.
func (h *Hub) describe(r *modelfiles.Repository, commit string, err error) Files {
	where := "the cache"
	if h.client != nil {
		where = h.client.endpoint.Host
	}
	if err != nil {
		err = fmt.Errorf("model hub (%s), %s: %w", where, r, err)
	}
	if commit == "" {
		return Files{Err: err}
	}
	h.cache.use(h.cache.snapshot(r, commit))
	files := Files{Dir: h.cache.snapshot(r, commit), Note: fmt.Sprintf("files of commit %.8s of %s, model hub (%s)", commit, r.Name, where)}
	if err != nil {
		files.Note += ", from the cache because the last question to the hub failed: " + err.Error()
	}
	return files
}

// set stores what is known of a repository, and reports changes.
func (h *Hub) set(l *follower, r modelfiles.Repository, files Files) {
	before := l.read()
	l.mu.Lock()
	l.files = files
	l.mu.Unlock()
	if files.Dir == before.Dir && files.Note == before.Note && fmt.Sprint(files.Err) == fmt.Sprint(before.Err) {
		return
	}
	if files.Err != nil {
		h.config.Log.Info("No files of a model from the hub", "repository", r.String(), "reason", files.Err.Error())
	} else {
		h.config.Log.Info("Files of a model from the hub", "repository", r.String(), "files", files.Note)
	}
	h.config.Changed(r)
}
