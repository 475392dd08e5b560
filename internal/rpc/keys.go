package rpc

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-logr/logr"
)

const (
	// keysAge is when keys are fetched again, keysPause the least time between two attempts.
	keysAge   = time.Hour
	keysPause = 10 * time.Second
	// keysTimeout bounds an attempt, maxKeys and maxKeySet what it can bring.
	keysTimeout = 5 * time.Second
	maxKeys     = 64
	maxKeySet   = 1 << 20
)

// Keys are those that tokens are signed with. They are kept for as long as they cannot be fetched again. It is safe
// for concurrent use.
type Keys struct {
	// Fetch brings a JSON Web Key Set.
	Fetch func(ctx context.Context) ([]byte, error)
	Log   logr.Logger
	Now   func() time.Time

	mu    sync.Mutex // guards what follows
	keys  []jose.JSONWebKey
	good  time.Time // when the keys were fetched
	tried time.Time
	away  bool // the last attempt has failed
}

// KeysFile reads keys from a file.
func KeysFile(path string) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) { return os.ReadFile(path) }
}

// HTTPSClient trusts the CA in a file, or the system's if it is empty.
func HTTPSClient(caFile string) (*http.Client, error) {
	_, ca, err := (&Files{CA: caFile}).Read()
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: ca}}}, nil
}

// KeysURL asks a server, with the token in a file if it is not empty.
func KeysURL(client *http.Client, url, tokenFile string) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, err
		}
		if tokenFile != "" {
			token, err := os.ReadFile(tokenFile)
			if err != nil {
				return nil, fmt.Errorf("reading the token: %w", err)
			}
			r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
		}
		answer, err := client.Do(r)
		if err != nil {
			return nil, err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("%s answers %s", url, answer.Status)
		}
		return io.ReadAll(io.LimitReader(answer.Body, maxKeySet))
	}
}

// find returns the public keys of an id, all if it is empty. Keys that are not known, or known for long, are fetched;
// meanwhile other callers use the cached ones.
func (k *Keys) find(ctx context.Context, id string) []any {
	now := k.now()
	k.mu.Lock()
	found := k.known(id)
	wanted := (len(found) == 0 || now.Sub(k.good) > keysAge) && (k.tried.IsZero() || now.Sub(k.tried) >= keysPause)
	if wanted {
		k.tried = now
	}
	k.mu.Unlock()
	if !wanted {
		return found
	}
	k.again(ctx, now)
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.known(id)
}

// again fetches the keys; those that are known stay if that fails.
func (k *Keys) again(ctx context.Context, now time.Time) {
	keys, err := k.fetch(ctx)
	if err != nil {
		k.Log.Error(err, "Fetching token signing keys failed")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.away = err != nil; !k.away {
		k.keys, k.good = keys, now
	}
}

// unreachable reports whether keys cannot be fetched now, by an attempt unless one was just made.
func (k *Keys) unreachable(ctx context.Context) bool {
	now := k.now()
	k.mu.Lock()
	wanted := now.Sub(k.tried) >= keysPause
	if wanted {
		k.tried = now
	}
	k.mu.Unlock()
	if wanted {
		k.again(ctx, now)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.away
}

func (k *Keys) now() time.Time {
	if k.Now != nil {
		return k.Now()
	}
	return time.Now()
}

// known finds keys. mu is held.
func (k *Keys) known(id string) (found []any) {
	for i := range k.keys {
		if id == "" || k.keys[i].KeyID == id {
			found = append(found, k.keys[i].Key)
		}
	}
	return found
}

func (k *Keys) fetch(ctx context.Context) ([]jose.JSONWebKey, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keysTimeout)
	defer cancel()
	text, err := k.Fetch(ctx)
	if err != nil {
		return nil, err
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, fmt.Errorf("reading the key set: %w", err)
	}
	var keys []jose.JSONWebKey
	for _, key := range set.Keys {
		if key.IsPublic() && key.Valid() && (key.Use == "" || key.Use == "sig") && len(keys) < maxKeys {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("the key set has no key")
	}
	return keys, nil
}
