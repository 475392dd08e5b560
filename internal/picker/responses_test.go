package picker

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/respcache"
)

// openStore is a store that counts that it is open.
type openStore struct {
	respcache.Store
	open *int
}

func (s openStore) Close() { *s.open-- }

// TestStoresThatAreOpenAreUsed: as many as there are pools with one, whatever is applied, and also if it is refused.
func TestStoresThatAreOpenAreUsed(t *testing.T) {
	t.Parallel()
	open := 0
	p := New(Options{
		Log: logr.Discard(),
		OpenStore: func(*respcache.Redis, [kvblock.SecretBytes]byte, *respcache.Counters) (respcache.Store, error) {
			open++
			return openStore{open: &open}, nil
		},
	})
	of := func(bytes int64, shadows ...ShadowSpec) Spec {
		spec := testSpec(t, 1)
		spec.Policy.Responses = ResponseCacheSpec{MaxBytes: bytes, Life: time.Hour, Redis: respcache.Redis{Address: "redis:6379"}}
		spec.Policy.Shadows = shadows
		return spec
	}
	unknown := ShadowSpec{Name: "s", Strategy: policy.Config{Type: "Unknown"}}
	for i, step := range []struct {
		specs   []Spec
		refused bool
		want    int
	}{
		{[]Spec{of(1<<20, unknown)}, true, 0},
		{[]Spec{of(1 << 20)}, false, 1},
		{[]Spec{of(2<<20, unknown)}, true, 1},
		{[]Spec{of(2 << 20)}, false, 1},
		{[]Spec{of(2 << 20)}, false, 1},
		{[]Spec{of(0)}, false, 0},
		{[]Spec{of(1 << 20)}, false, 1},
		{nil, false, 0},
	} {
		if err := p.Apply(step.specs); (err != nil) != step.refused || open != step.want {
			t.Errorf("step %d: %v, %d stores are open instead of %d", i, err, open, step.want)
		}
	}
}

// TestAKeyTakesNoCopyOfTheBody counts the bytes that are allocated to look up requests with bodies of almost 1 MiB, the most that is looked
// up, in the response cache, and to name their prompts: a copy of one body would be more than all of them together.
func TestAKeyTakesNoCopyOfTheBody(t *testing.T) {
	const requests, most = 16, 512 << 10
	spec := testSpec(t, 1)
	p := newPicker(t, newClock(), spec)
	v := p.current.Load().pools[0]
	for name, value := range map[string]string{
		"a long text":  `"` + strings.Repeat("x", maxCachedRequest-100) + `"`,
		"token ids":    "[" + strings.Repeat("1, ", (maxCachedRequest-100)/3) + "1]",
		"many strings": "[" + strings.Repeat(`"\"a", `, (maxCachedRequest-100)/7) + `"b"]`,
	} {
		body := fmt.Appendf(nil, `{"model":"m", "temperature":0, "prompt":"p", "x":%s}`, value)
		in := &Request{Route: openai.Completions, Body: body, Headers: map[string][]string{"X-A": {"b"}}}
		var r openai.Request
		if err := openai.ParseFor(openai.Completions, body, "m", &r); err != nil {
			t.Fatal(err)
		}
		if len(body) > maxCachedRequest || len(body) < maxCachedRequest*9/10 {
			t.Fatalf("%s: the body has %d bytes", name, len(body))
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range requests {
			if _, ok := v.responseKey(in, &r, &caller{name: "a"}); !ok {
				t.Fatalf("%s: the request has no key", name)
			}
			if _, ok := v.keyOfRendered(&r, len(body), 1); !ok {
				t.Fatalf("%s: the prompt has no key", name)
			}
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > most {
			t.Errorf("%s: %d bytes for %d requests, at most %d", name, n, requests, most)
		}
	}
}
