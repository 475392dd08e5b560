package scrape

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Pages that begin at any time are asked at few times, none of them much off its turn.
func TestPagesAreAskedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pages, busy = 300, 200 * time.Millisecond
		p := &page{options: &Options{Busy: busy}}
		var mu sync.Mutex
		asked := map[time.Time]int{}
		var wait sync.WaitGroup
		for i := range pages {
			wait.Go(func() {
				time.Sleep(time.Duration(i) * busy / pages)
				for range 5 {
					start := time.Now()
					if !p.pause(t.Context(), busy) {
						t.Error("it gives up")
					}
					if waited := time.Since(start); waited < busy*9/10 || waited > busy*11/10+busy/10 {
						t.Errorf("it waits for %v", waited)
					}
					mu.Lock()
					asked[time.Now()]++
					mu.Unlock()
				}
			})
		}
		wait.Wait()
		if most := 7 * 20; len(asked) > most { // twenty ticks in each of seven turns
			t.Errorf("asked at %d times, want at most %d", len(asked), most)
		}
		for at, n := range asked {
			if n > pages/2 {
				t.Errorf("%d of %d pages are asked at once, at %v", n, pages, at)
			}
		}
	})
}
