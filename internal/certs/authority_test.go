package certs

import (
	"crypto/x509"
	"math/rand/v2"
	"testing"
	"time"
)

var names = ServiceNames("pool-picker", "llm")

func trusts(t *testing.T, trusted []byte, leaf Pair, now time.Time) error {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(trusted) {
		t.Fatal("nothing is trusted")
	}
	cert, _, err := leaf.parse()
	if err != nil {
		t.Fatal(err)
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if _, err := cert.Verify(x509.VerifyOptions{Roots: pool, DNSName: names[2], CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use}}); err != nil {
			return err
		}
	}
	return nil
}

// Through all renewals of twenty years, a client that last read the trusted certificates up to a day ago accepts the
// certificate in use, and a client that reads them now accepts the one of up to a day ago.
func TestNobodyIsEverRefused(t *testing.T) {
	for seed := range uint64(3) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var a Authority
		var leaf Pair
		type past struct {
			at      time.Time
			trusted []byte
			leaf    Pair
		}
		var lately []past
		now := time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
		changes, cas := 0, map[string]bool{}
		for end := now.AddDate(20, 0, 0); now.Before(end); {
			changed, next, err := a.Renew(&leaf, names, now)
			if err != nil {
				t.Fatal(err)
			}
			if changed {
				changes++
			}
			cas[string(a.Current.Cert)] = true
			if !next.After(now) {
				t.Fatalf("seed %d: at %s the next look is at %s", seed, now, next)
			}
			lately = append(lately, past{now, a.Trusted(), leaf})
			for _, p := range lately {
				if err := trusts(t, p.trusted, leaf, now); err != nil {
					t.Fatalf("seed %d: at %s, with what was trusted %s ago: %v", seed, now, now.Sub(p.at), err)
				}
				if err := trusts(t, a.Trusted(), p.leaf, now); err != nil {
					t.Fatalf("seed %d: at %s, the certificate of %s ago: %v", seed, now, now.Sub(p.at), err)
				}
			}
			// Checked at the returned time, or at any time before; seldom much later.
			step := next.Sub(now)
			if rng.IntN(2) == 0 {
				step = time.Duration(rng.Int64N(int64(step))) + 1
			}
			now = now.Add(step + time.Duration(rng.Int64N(int64(12*time.Hour))))
			for len(lately) > 0 && now.Sub(lately[0].at) > 23*time.Hour {
				lately = lately[1:]
			}
		}
		if len(cas) < 5 || changes < 100 {
			t.Errorf("seed %d: %d CAs and %d changes in twenty years", seed, len(cas), changes)
		}
	}
}

func TestNothingChangesBetweenRenewals(t *testing.T) {
	var a Authority
	var leaf Pair
	now := time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
	if changed, _, err := a.Renew(&leaf, names, now); err != nil || !changed {
		t.Fatal(changed, err)
	}
	if changed, _, err := a.Renew(&leaf, names, now.Add(time.Hour)); err != nil || changed {
		t.Errorf("changed %v (%v) an hour later", changed, err)
	}
	if changed, _, err := a.Renew(&leaf, names[:2], now.Add(time.Hour)); err != nil || !changed {
		t.Errorf("changed %v (%v) with other names", changed, err)
	}
}

func TestDamageIsMended(t *testing.T) {
	now := time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
	for name, damage := range map[string]func(*Authority, *Pair){
		"no key of the CA":         func(a *Authority, _ *Pair) { a.Current.Key = nil },
		"the CA is no certificate": func(a *Authority, _ *Pair) { a.Current.Cert = []byte("what") },
		"another's key":            func(a *Authority, leaf *Pair) { a.Current.Key = leaf.Key },
		"the leaf is gone":         func(_ *Authority, leaf *Pair) { *leaf = Pair{} },
		"the leaf is cut":          func(_ *Authority, leaf *Pair) { leaf.Cert = leaf.Cert[:100] },
		"a successor that is none": func(a *Authority, _ *Pair) { a.Next = Pair{Cert: []byte("x"), Key: []byte("y")} },
	} {
		t.Run(name, func(t *testing.T) {
			var a Authority
			var leaf Pair
			if _, _, err := a.Renew(&leaf, names, now); err != nil {
				t.Fatal(err)
			}
			damage(&a, &leaf)
			if changed, _, err := a.Renew(&leaf, names, now.Add(time.Minute)); err != nil || !changed {
				t.Fatal(changed, err)
			}
			if err := trusts(t, a.Trusted(), leaf, now.Add(time.Minute)); err != nil {
				t.Error(err)
			}
		})
	}
}
