package oidc

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// silent is a network in which nothing answers.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func manyIssuers(n int) (all []tenant.Issuer) {
	for i := range n {
		all = append(all, tenant.Issuer{URL: fmt.Sprintf("https://%d.example", i), Audiences: []string{"kvasir"}, Claim: "sub"})
	}
	return all
}

// TestSilentIssuersHoldUpPoliciesOnce: however many do not answer, policies wait for all of them together, and not again.
func TestSilentIssuersHoldUpPoliciesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, began := newRegistry(&http.Client{Transport: silent{}}, logr.Discard(), time.Now), time.Now()
		for range 2 {
			if all := r.Checkers(manyIssuers(2 * maxCheckers)); len(all) != 2*maxCheckers {
				t.Errorf("%d checkers", len(all))
			}
		}
		if took := time.Since(began); took > fetchTimeout {
			t.Errorf("policies wait for %v", took)
		}
		time.Sleep(time.Minute) // what is under way ends
		if n := len(r.Problems()); n != 2*maxCheckers {
			t.Errorf("%d of %d issuers show their problem", n, 2*maxCheckers)
		}
		r.Checkers(manyIssuers(1))
		if len(r.all) > maxCheckers || len(r.used) != len(r.all) {
			t.Errorf("%d checkers are kept, %d in the list", len(r.all), len(r.used))
		}
	})
}

// TestIssuersAreNoMetadataServices: whatever a policy or an issuer's document names, a picker does not connect to an address at which
// clouds serve credentials.
func TestIssuersAreNoMetadataServices(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dial := NewRegistry(logr.Discard()).client.Transport.(*http.Transport).DialContext
	for _, address := range []string{"169.254.169.254:443", "[fe80::1]:443", "[::ffff:169.254.169.254]:443", "100.100.100.200:443"} {
		if _, err := dial(ctx, "tcp", address); err == nil || !strings.Contains(err.Error(), "link-local") {
			t.Errorf("%s: %v", address, err)
		}
	}
}
