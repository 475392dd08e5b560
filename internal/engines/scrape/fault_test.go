package scrape

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/vllm"
)

// TestAPanicConcernsItsPageOnly: a page whose answer makes us panic fails, and is asked again; others are read.
func TestAPanicConcernsItsPageOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/models" {
				_, _ = fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
				return
			}
			_, _ = fmt.Fprint(w, page1(1, 0))
		})
		got := newLog()
		good, bad := target("good", 0, "good:8000"), target("bad", 0, "bad:8000")
		s := New(Options{Dial: p.dial, Observe: func(id endpoint.ID, m vllm.Metrics, at time.Time) {
			if id == bad.ID {
				panic("a fault of ours")
			}
			got.observe(id, m, at)
		}, Models: func(id endpoint.ID, _ []Model) {
			if id == bad.ID {
				panic("a fault of ours")
			}
		}})
		defer s.Close()
		s.Set([]Target{good, bad})
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, st := range s.Stats() {
			broken := st.Address == bad.Address
			if (st.Panics > 0) != broken || (st.Failures > 0) != broken || (st.LastError != nil) != broken || st.Scrapes < 10 {
				t.Errorf("%+v", st)
			}
			if broken && (st.Panics < st.Failures || st.Interval != DefaultIdle || st.ModelFailures == 0) {
				t.Errorf("%+v", st)
			}
		}
		if len(got.take()) < 10 {
			t.Error("the other page was not read")
		}
	})
}
