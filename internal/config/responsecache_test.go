package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// TestTheResponseCacheIsTranslated: there is none without the field, and the defaults are those of the API.
func TestTheResponseCacheIsTranslated(t *testing.T) {
	t.Parallel()
	for field, want := range map[string]picker.ResponseCacheSpec{
		"":                               {},
		"responseCache: {type: Exact}, ": {MaxBytes: 32 << 20, Life: 10 * time.Minute},
		"responseCache: {type: Exact, requests: OnRequest, maxBytes: 2Mi, timeToLiveSeconds: 7}, ": {MaxBytes: 2 << 20, Life: 7 * time.Second, OnRequest: true},
	} {
		d := open(t, "pool.yaml", smallPool, "policy.yaml", strings.Replace(smallPolicy, "strategy: {", field+"strategy: {", 1))
		s, problems := load(t, d)
		wantNoProblem(t, problems)
		if diff := cmp.Diff(want, only(t, s).Policy.Responses); diff != "" {
			t.Errorf("%s (-want +got):\n%s", field, diff)
		}
	}
}
