package picker

import (
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

// TestDoubtsNeedMostTenantsAndEndpoints: what does not fit for some tenants, or at some endpoints, is no doubt about the tokens of
// all others, however many requests there are of it.
func TestDoubtsNeedMostTenantsAndEndpoints(t *testing.T) {
	members := [4]*member{{}, {}, {}, {}}
	for name, tc := range map[string]struct {
		by   func(i int) asker
		fits func(by asker) bool
		want bool
	}{
		"nothing fits": {func(i int) asker { return asker{uint64(i % 3), members[i%4], nil} }, func(asker) bool { return false }, true},
		"one client":   {func(int) asker { return asker{} }, func(asker) bool { return false }, true},
		"all tenants but one": {func(i int) asker { return asker{uint64(i % 3), members[i%4], nil} },
			func(by asker) bool { return by.tenant == 0 }, true},
		"a tenant of two": {func(i int) asker { return asker{uint64(i % 2), members[i%4], nil} },
			func(by asker) bool { return by.tenant == 0 }, false},
		"a tenant that sends ten times as much": {func(i int) asker { return asker{uint64(min(i%11, 1)), members[i%4], nil} },
			func(by asker) bool { return by.tenant == 0 }, false},
		"an endpoint of two": {func(i int) asker { return asker{uint64(i % 3), members[i%2], nil} },
			func(by asker) bool { return by.endpoint == members[0] }, true},
		"an endpoint of three": {func(i int) asker { return asker{uint64(i % 5), members[i%3], nil} },
			func(by asker) bool { return by.endpoint != members[0] }, false},
		"two endpoints of three": {func(i int) asker { return asker{uint64(i % 5), members[i%3], nil} },
			func(by asker) bool { return by.endpoint == members[0] }, true},
	} {
		t.Run(name, func(t *testing.T) {
			var c checks
			doubt := false
			for i := range 400 {
				by := tc.by(i)
				// The others have been there before: a window that only one tenant has filled is judged by it.
				fits := i < doubtWindow || tc.fits(by)
				doubt = c.answered(time.Unix(0, 0), class{source: TokensExact, kind: openai.KindChat}, by, fits).kinds != 0 || doubt
			}
			if doubt != tc.want {
				t.Errorf("doubt: %v, want %v", doubt, tc.want)
			}
			for of, recent := range c.windows {
				if len(recent) > doubtWindow {
					t.Errorf("%d answers are kept of %+v", len(recent), of)
				}
			}
		})
	}
}

// TestTenantsThatHaveGoneHideNoDoubt: what fitted long ago says nothing of the engines that run now.
func TestTenantsThatHaveGoneHideNoDoubt(t *testing.T) {
	var c checks
	of, now := class{source: TokensExact, kind: openai.KindChat}, time.Unix(0, 0)
	for range doubtWindow {
		c.answered(now, of, asker{tenant: 1}, true)
	}
	doubt := false
	for i := range doubtEnough {
		doubt = c.answered(now.Add(trustAge+time.Duration(i+1)*time.Second), of, asker{tenant: 2}, false).kinds != 0
	}
	if !doubt {
		t.Error("no doubt about tokens that do not fit for the only tenant there is")
	}
}

// TestUnusualRequestsCostOthersNothing: requests with a field that is not known do not fit. They get no tokens made in process any
// more, nothing is proven again because of them, and other requests of their kind are as before.
func TestUnusualRequestsCostOthersNothing(t *testing.T) {
	d := newDoubter(t, func(*Spec) {})
	const odd = `{"model":"m","prompt":"abc","brand_new_field":1}`
	source := func(body string) TokenSource {
		t.Helper()
		decision, err := d.p.Pick(t.Context(), &Request{Route: openai.Completions, Body: []byte(body)})
		if err != nil {
			t.Fatal(err)
		}
		defer decision.End(Completed)
		if body == odd {
			decision.Usage(99, 0)
		} else {
			decision.Usage(70, 0)
		}
		return decision.Tokens
	}
	for range 60 {
		source(odd)
		if got := source(textBody); got != TokensExact {
			t.Fatalf("the tokens of another request are %v", got)
		}
	}
	if got := source(odd); got == TokensExact {
		t.Error("the tokens of the unusual requests are still made in process")
	}
	if d.doubts != 0 {
		t.Errorf("%d doubts", d.doubts)
	}
	d.c.advance(distrustFor)
	if got := source(odd); got != TokensExact {
		t.Errorf("an hour later their tokens are %v", got)
	}
}

// TestDoubtsAboutAKindHoldForRequestsWithTraits as well.
func TestDoubtsAboutAKindHoldForRequestsWithTraits(t *testing.T) {
	var c checks
	now := time.Unix(0, 0)
	for range doubtEnough {
		c.answered(now, class{source: TokensEngine, kind: openai.KindTools}, asker{}, false)
	}
	tools, chat := openai.KindsOf(openai.KindChat, openai.KindTools), openai.KindsOf(openai.KindChat)
	for name, tc := range map[string]struct{ got, want bool }{
		"plain":        {c.distrusts(now, TokensEngine, tools, 0), true},
		"with fields":  {c.distrusts(now, TokensEngine, tools, TraitFields), true},
		"of adapters":  {c.distrusts(now, TokensEngine, tools, TraitAdapter), true},
		"other kinds":  {c.distrusts(now, TokensEngine, chat, TraitFields), false},
		"other source": {c.distrusts(now, TokensExact, tools, TraitFields), false},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: distrusted %v, want %v", name, tc.got, tc.want)
		}
	}
}
