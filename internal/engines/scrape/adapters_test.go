package scrape

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// TestEnginesWithAdaptersAreAskedForModelsMoreOften: an adapter can be loaded again from another path.
func TestEnginesWithAdaptersAreAskedForModelsMoreOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		var list atomic.Value
		list.Store(`{"data":[{"id":"m","root":"/m"}]}`)
		p := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/models" {
				asked.Add(1)
				_, _ = fmt.Fprint(w, list.Load())
				return
			}
			_, _ = fmt.Fprint(w, page1(0, 0))
		})
		var root atomic.Value
		s := New(Options{Dial: p.dial, Models: func(_ endpoint.ID, models []Model) {
			root.Store(models[len(models)-1].Root)
		}})
		defer s.Close()
		s.Set([]Target{target("a", 0, "pod:8000")})
		during := func(d time.Duration) int32 {
			asked.Store(0)
			time.Sleep(d)
			synctest.Wait()
			return asked.Load()
		}
		if n := during(100 * time.Second); n < 9 || n > 12 {
			t.Errorf("an engine without adapters was asked %d times in 100 s, want about 10", n)
		}
		list.Store(`{"data":[{"id":"m","root":"/m"},{"id":"sql","parent":"m","root":"/a"}]}`)
		during(15 * time.Second)
		if n := during(100 * time.Second); n < 45 || n > 56 {
			t.Errorf("an engine with an adapter was asked %d times in 100 s, want about 50", n)
		}
		list.Store(`{"data":[{"id":"m","root":"/m"},{"id":"sql","parent":"m","root":"/b"}]}`)
		during(3 * time.Second)
		if root.Load() != "/b" {
			t.Errorf("after 3 s the adapter's path is %v", root.Load())
		}
	})
}
