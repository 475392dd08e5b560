package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/rpc"
)

func TestMetricsAreForThoseWhoMayGetThem(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k", Use: "sig", Algorithm: "ES256"}}})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_800_000_000, 0)
	clock := func() time.Time { return now }
	token := func(audience, subject string) string {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := jwt.Signed(signer).Claims(jwt.Claims{
			Issuer: "https://cluster", Audience: jwt.Audience{audience}, Subject: subject, Expiry: jwt.NewNumericDate(now.Add(time.Hour)),
		}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	rights, asked := map[string]bool{accountPrefix + "monitoring:prometheus": true}, 0
	away := false
	g := &guard{
		tokens: rpc.Tokens{
			Issuer: "https://cluster", Audience: "api", Now: clock,
			Keys: &rpc.Keys{Fetch: func(context.Context) ([]byte, error) { return set, nil }},
		},
		review: func(_ context.Context, account string) (bool, error) {
			asked++
			if away {
				return false, errors.New("away")
			}
			return rights[account], nil
		},
		now: clock, log: logr.Discard(), grants: map[string]grant{},
	}
	h := g.protect(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil)
	get := func(authorization string) int {
		r, w := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody), httptest.NewRecorder()
		if authorization != "" {
			r.Header.Set("Authorization", authorization)
		}
		h.ServeHTTP(w, r)
		return w.Code
	}
	prometheus := "Bearer " + token("api", accountPrefix+"monitoring:prometheus")
	other := "Bearer " + token("api", accountPrefix+"default:default")
	for name, tc := range map[string]struct {
		authorization string
		want          int
	}{
		"the right":        {prometheus, 200},
		"no right":         {other, 403},
		"no token":         {"", 401},
		"another scheme":   {"Basic x", 401},
		"nonsense":         {"Bearer x", 401},
		"another audience": {"Bearer " + token("kvasir.dev/report", accountPrefix+"monitoring:prometheus"), 401},
		"a person":         {"Bearer " + token("api", "admin"), 401},
	} {
		if got := get(tc.authorization); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
	closed := httptest.NewRecorder()
	withToken := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
	withToken.Header.Set("Authorization", prometheus)
	(&guard{}).protect(h, nil).ServeHTTP(closed, withToken)
	if closed.Code != 401 {
		t.Errorf("without keys: %d, want 401", closed.Code)
	}
	asked = 0
	get(prometheus)
	get(other)
	if asked != 0 {
		t.Errorf("the API server was asked %d times for what it has just said", asked)
	}
	away = true
	now = now.Add(2 * grantLife)
	if got := get(prometheus); got != 200 {
		t.Errorf("while the API server is away: %d, want what was granted", got)
	}
	if got := get(other); got != 503 {
		t.Errorf("while the API server is away: %d for a caller that was not authorized before", got)
	}
	away = false
	rights = nil
	if got := get(prometheus); got != 403 {
		t.Errorf("%d after the right was taken away", got)
	}
}

// TestProfilesAreForThisMachineOrForThoseWhoMayGetMetrics: without authentication, no other machine gets one.
func TestProfilesAreForThisMachineOrForThoseWhoMayGetMetrics(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		flag  bool
		guard *guard
		from  string
		want  int
	}{
		"without the flag":                        {false, nil, "127.0.0.1:5000", http.StatusNotFound},
		"this machine":                            {true, nil, "127.0.0.1:5000", http.StatusOK},
		"this machine by IPv6":                    {true, nil, "[::1]:5000", http.StatusOK},
		"another machine":                         {true, nil, "10.0.0.7:5000", http.StatusForbidden},
		"another machine, in a cluster":           {true, &guard{log: logr.Discard()}, "10.0.0.7:5000", http.StatusUnauthorized},
		"this machine, in a cluster":              {true, &guard{log: logr.Discard()}, "127.0.0.1:5000", http.StatusUnauthorized},
		"a client of a cluster, without the flag": {false, &guard{log: logr.Discard()}, "10.0.0.7:5000", http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := &options{pprof: tc.flag}
			mux := http.NewServeMux()
			serveProfiles(mux, o.profiles(tc.guard))
			request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/debug/pprof/goroutine?debug=1", nil)
			request.RemoteAddr, request.Host = tc.from, "127.0.0.1:9090"
			answer := httptest.NewRecorder()
			tc.guard.protect(mux, nil).ServeHTTP(answer, request)
			if answer.Code != tc.want {
				t.Errorf("%d: %s, want %d", answer.Code, answer.Body, tc.want)
			}
		})
	}
}

// TestRefusedAccountsEvictNoGrants: however many there are, accounts with the right do not wait for the API server again.
func TestRefusedAccountsEvictNoGrants(t *testing.T) {
	now, asked := time.Unix(1_800_000_000, 0), 0
	g := &guard{grants: map[string]grant{}, now: func() time.Time { return now }}
	g.review = func(_ context.Context, account string) (bool, error) {
		asked++
		return account == accountPrefix+"monitoring:prometheus", nil
	}
	allows := func(account string) bool {
		allowed, err := g.allows(t.Context(), accountPrefix+account)
		return err == nil && allowed
	}
	for i := range 3 * maxGrants {
		if !allows("monitoring:prometheus") {
			t.Fatal("the right is gone")
		}
		if allows(fmt.Sprint("other:", i)) {
			t.Fatal("an account without the right is allowed")
		}
	}
	if want := 1 + 3*maxGrants; asked != want || len(g.grants) != maxGrants {
		t.Errorf("the API server was asked %d times, want %d; %d accounts are kept", asked, want, len(g.grants))
	}
}
