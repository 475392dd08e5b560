package extproc

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/overload"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// TestLargeBodiesNeedAKeyWhileResourcesAreShort: behind a gateway, too, and before any of the body is taken.
func TestLargeBodiesNeedAKeyWhileResourcesAreShort(t *testing.T) {
	serve := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "{}")
	}
	large := `{"model":"m","prompt":"` + strings.Repeat("x", overload.AnonymousBody) + `"}`
	for _, tc := range []struct {
		pool      picker.Spec
		body, key string
		percent   int64
		want      int
	}{
		{spec(engine(t, serve)), large, "", 50, 200},
		{spec(engine(t, serve)), large, "", 90, 503},
		{spec(engine(t, serve)), `{"model":"m","prompt":"x"}`, "", 90, 200},
		{keyed(t, engine(t, serve)), large, "k-acme", 90, 200},
	} {
		m := new(overload.Manager)
		m.Observe(overload.Usage{Used: [overload.NumResources]int64{tc.percent}, Limit: [overload.NumResources]int64{100}})
		g := newHouse(t, Options{Overload: m}, ServeOptions{}, tc.pool).envoy(envoytest.Options{})
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+"/v1/completions", strings.NewReader(tc.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		if tc.key != "" {
			r.Header.Set("Authorization", "Bearer "+tc.key)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if answer.StatusCode != tc.want || tc.want == http.StatusServiceUnavailable && !strings.Contains(string(text), "overloaded") {
			t.Errorf("%d bytes with key %q at %d %%: status %d: %.200s", len(tc.body), tc.key, tc.percent, answer.StatusCode, text)
		}
		if got, want := int(m.State().Refused[overload.AnonymousBodies]), tc.want/503; got != want {
			t.Errorf("%d are counted as refused, want %d", got, want)
		}
	}
}
