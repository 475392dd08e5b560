package picker

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// hotPicker is a pool with one endpoint that holds what it was sent.
func hotPicker(t *testing.T) (*Picker, *clock, func(body []byte)) {
	t.Helper()
	c := newClock()
	spec := testSpec(t, 1)
	spec.Policy.Strategy = policy.Default(policy.LongestPrefix)
	p := newPicker(t, c, spec)
	return p, c, func(body []byte) {
		t.Helper()
		d := pick(t, p, body)
		keys := append([]kvblock.Key(nil), d.keys...)
		d.End(Completed)
		hold(feed(t, p, "pod-0"), keys...)
	}
}

func TestPrefixesThatAreHitAgainAreKept(t *testing.T) {
	p, c, ask := hotPicker(t)
	const pool = "default/m"
	ask(completion("m", 0, 161, true)) // nothing is there yet
	ask(completion("m", 0, 161, true))
	if got := p.Hottest(pool, 1<<20); len(got) != 0 {
		t.Fatalf("%d prefixes after one hit: most are never hit again", len(got))
	}
	ask(completion("m", 0, 161, true))
	got := p.Hottest(pool, 1<<20)
	if len(got) != 1 || len(got[0]) != 160 || got[0][159] != 159 {
		t.Fatalf("%d prefixes, want the one of ten whole blocks", len(got))
	}
	for range 4 {
		ask(completion("m", 5000, 321, true))
	}
	if got = p.Hottest(pool, 1<<20); len(got) != 2 || got[0][0] != 5000 {
		t.Errorf("%d prefixes, want two, the one that is hit more first", len(got))
	}
	if got = p.Hottest(pool, 319); len(got) != 1 || got[0][0] != 0 {
		t.Errorf("%d prefixes for 319 tokens, want the one that fits", len(got))
	}
	c.advance(2 * hotLife)
	for range 2 {
		ask(completion("m", 0, 161, true))
	}
	if got = p.Hottest(pool, 1<<20); got[0][0] != 0 {
		t.Error("want the prefix that was hit recently before one that was hit more often long ago")
	}
	if got := p.Hottest("default/other", 1<<20); got != nil {
		t.Error("a pool that is not there")
	}
}

func TestSecretsAndAdaptersAreNotKept(t *testing.T) {
	p, _, ask := hotPicker(t)
	salted := []byte(`{"model":"m","cache_salt":"s","prompt":[` + "1" + repeated(",1", 99) + `]}`)
	short := completion("m", 0, hotBlocks*16-15, true)
	for range 5 {
		ask(salted)
		ask(short)
	}
	if got := p.Hottest("default/m", 1<<20); len(got) != 0 {
		t.Errorf("%d prefixes are kept", len(got))
	}
}

func repeated(s string, n int) (out string) {
	for range n {
		out += s
	}
	return out
}

func TestPrefixesStayWithinTheirBounds(t *testing.T) {
	var h hot
	r := rand.New(rand.NewPCG(1, 2))
	now := time.Unix(0, 0)
	ids := make([]uint32, 16_000)
	const favourites = 20
	for range 20_000 {
		now = now.Add(10 * time.Millisecond)
		key := kvblock.Key(1 + r.IntN(favourites))
		if r.IntN(4) > 0 {
			key = kvblock.Key(1000 + r.IntN(3000))
		}
		if h.hit(now, key) {
			h.keep(now, key, ids[:16+r.IntN(len(ids)-16)])
		}
		tokens := 0
		if len(h.prefixes) > hotPrefixes || h.tokens > hotTokens {
			t.Fatalf("%d prefixes with %d tokens", len(h.prefixes), h.tokens)
		}
		if r.IntN(500) == 0 {
			for _, p := range h.prefixes {
				tokens += len(p.ids)
			}
			if tokens != h.tokens {
				t.Fatalf("%d tokens are counted, %d are there", h.tokens, tokens)
			}
		}
	}
	kept := 0
	for key := range kvblock.Key(favourites) {
		if h.prefixes[key+1] != nil {
			kept++
		}
	}
	if kept < favourites-2 {
		t.Errorf("only %d of the %d prefixes that are hit most are kept", kept, favourites)
	}
}
