package oidc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-logr/logr"
)

const (
	// keysAge is when keys are fetched again, keysPause the least time between two attempts, also for tokens of unknown keys.
	keysAge, keysPause = 5 * time.Minute, 10 * time.Second
	// fetchTimeout bounds an attempt, maxDocument and maxKeys what it can bring, in bytes and keys.
	fetchTimeout, maxDocument, maxKeys = 5 * time.Second, 1 << 20, 64
)

// keys are those of an issuer. They are kept for as long as they cannot be fetched again.
type keys struct {
	source source
	log    logr.Logger
	now    func() time.Time

	fetches atomic.Uint64 // that have succeeded

	mu       sync.Mutex // guards what follows
	set      []jose.JSONWebKey
	good     time.Time // when they were fetched
	tried    time.Time // when the last attempt began
	fetching chan struct{}
	failed   error // of the last attempt
}

// find returns the keys that a token can be signed with: those of its id, or all of a few if it has none. If there are none, or they are
// old, they are fetched in the background.
func (k *keys) find(id string, now time.Time) (found []jose.JSONWebKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.set {
		if id == "" || k.set[i].KeyID == id {
			found = append(found, k.set[i])
		}
	}
	if len(found) == 0 || now.Sub(k.good) > keysAge {
		k.begin(now)
	}
	if len(found) > maxTried {
		return nil
	}
	return found
}

// begin begins an attempt, unless one is under way or was made just now. mu is held. It returns the one under way; nil for none.
func (k *keys) begin(now time.Time) (done chan struct{}) {
	if k.fetching != nil {
		return k.fetching
	}
	if !k.tried.IsZero() && now.Sub(k.tried) < keysPause {
		return nil
	}
	k.tried, k.fetching = now, make(chan struct{})
	go k.fetch(k.fetching)
	return k.fetching
}

// start is begin for the first keys.
func (k *keys) start() (done chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.begin(k.now())
}

// fetch makes an attempt. It ends within twice fetchTimeout.
func (k *keys) fetch(done chan struct{}) {
	set, err := k.source.read(context.Background())
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil && (k.failed == nil || k.failed.Error() != err.Error()) {
		k.log.Error(err, "Fetching the keys of an issuer of tokens failed")
	}
	if k.failed = err; err == nil {
		k.set, k.good = set, k.now()
		k.fetches.Add(1)
	}
	k.fetching = nil
	close(done)
}

// problem is why keys cannot be fetched; empty if they can.
func (k *keys) problem() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failed == nil {
		return ""
	}
	return k.failed.Error()
}

// source is where an issuer's keys are: at a URL, or where the issuer's own document says.
type source struct {
	client      *http.Client
	issuer, url string
}

// read brings the keys that can verify signatures.
func (s *source) read(ctx context.Context) ([]jose.JSONWebKey, error) {
	at := s.url
	if at == "" {
		var err error
		if at, err = s.discover(ctx); err != nil {
			return nil, err
		}
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := s.get(ctx, at, &set); err != nil {
		return nil, err
	}
	var keys []jose.JSONWebKey
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(raw, &key) != nil || !key.IsPublic() || !key.Valid() || key.Use != "" && key.Use != "sig" {
			continue // keys of another kind are no fault
		}
		if keys = append(keys, key); len(keys) > maxKeys {
			return nil, fmt.Errorf("the key set has more than %d keys", maxKeys)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("the key set has no key for signatures")
	}
	return keys, nil
}

// discover reads where the issuer says that its keys are.
func (s *source) discover(ctx context.Context) (string, error) {
	var document struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := s.get(ctx, strings.TrimSuffix(s.issuer, "/")+"/.well-known/openid-configuration", &document); err != nil {
		return "", err
	}
	if document.Issuer != s.issuer {
		return "", errors.New("the issuer's document is of another issuer")
	}
	if at, err := url.Parse(document.Keys); err != nil || at.Scheme != "https" || at.Host == "" {
		return "", errors.New("the issuer's document has no https URL of keys")
	}
	return document.Keys, nil
}

// get reads a document in JSON.
func (s *source) get(ctx context.Context, at string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return fmt.Errorf("asking %s: %w", at, err)
	}
	r.Header.Set("Accept", "application/json")
	answer, err := s.client.Do(r)
	if err != nil {
		return fmt.Errorf("asking the issuer: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", at, answer.Status)
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxDocument+1))
	if err != nil {
		return fmt.Errorf("reading the answer of %s: %w", at, err)
	}
	if len(text) > maxDocument {
		return fmt.Errorf("the answer of %s has more than %d bytes", at, maxDocument)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("reading the answer of %s: %w", at, err)
	}
	return nil
}
