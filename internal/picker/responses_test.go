package picker

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

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
