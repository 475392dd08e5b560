package httpproxy

import (
	"net/http"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/overload"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// TestLargeBodiesNeedAKeyWhileResourcesAreShort: those of tenants and small ones pass.
func TestLargeBodiesNeedAKeyWhileResourcesAreShort(t *testing.T) {
	large := `{"model":"m","prompt":"` + strings.Repeat("x", overload.AnonymousBody) + `"}`
	small := `{"model":"m","prompt":"x"}`
	open, tenants := spec(engine(t, sum)), keyed(t, engine(t, sum))
	for _, tc := range []struct {
		pool      picker.Spec
		body, key string
		percent   int64
		want      int
	}{
		{open, large, "", 50, 200},
		{open, large, "", 90, 503},
		{open, small, "", 90, 200},
		{tenants, large, "k-acme", 90, 200},
	} {
		m := new(overload.Manager)
		m.Observe(overload.Usage{Used: [overload.NumResources]int64{tc.percent}, Limit: [overload.NumResources]int64{100}})
		h := newHouse(t, Options{Overload: m}, tc.pool)
		r := h.post("/v1/completions", tc.body, "Authorization", "Bearer "+tc.key)
		text := read(t, r)
		if r.StatusCode != tc.want || tc.want == http.StatusServiceUnavailable && (!strings.Contains(text, "overloaded") || r.Header.Get("Retry-After") == "") {
			t.Errorf("%d bytes with key %q at %d %%: status %d: %s", len(tc.body), tc.key, tc.percent, r.StatusCode, text)
		}
		refused := h.seen.count(func(r *recorder) int { return r.refused[request.RefusedOverload] })
		if want := tc.want / 503; refused != want || int(m.State().Refused[overload.AnonymousBodies]) != want {
			t.Errorf("%d are counted as refused, want %d", refused, want)
		}
		h.idle()
	}
}
