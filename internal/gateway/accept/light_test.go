package accept

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestLightFramesOfOrdinaryClientsAreFree: what requests and answers bring with them, whatever their order, and a few more.
func TestLightFramesOfOrdinaryClientsAreFree(t *testing.T) {
	for name, act := range map[string]func(l *light) int{
		"pings while idle":        func(l *light) int { time.Sleep(time.Second / freePerSecond); return l.cost(1, 0, 0) },
		"an end and a reset each": func(l *light) int { return l.cost(0, 1, 0) + l.cost(1, 0, 0) + l.cost(1, 0, 0) },
		"resets of all at once": func(l *light) (fields int) {
			for range mostEarned / freePerRequest {
				fields += l.cost(0, 1, 0)
			}
			for range mostEarned / freePerRequest {
				fields += l.cost(1, 0, 0)
			}
			return fields
		},
		"windows of Go's client": func(l *light) int { return l.cost(0, 0, 4<<10) + l.cost(2, 0, 0) },
		"windows for long answers": func(l *light) (fields int) {
			for range 8 {
				fields += l.cost(0, 0, 32<<10) // a stream's and the connection's, for half of the smallest window
			}
			return fields + l.cost(2*8, 0, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l light
				for n := range 10_000 {
					if fields := act(&l); fields > 0 {
						t.Fatalf("%d fields are charged after %d rounds", fields, n)
					}
				}
			})
		})
	}
}

// TestLightFramesCost: beyond those of a new connection; and neither time nor what was earned once adds up to many.
func TestLightFramesCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l light
		step := func(what string, got, want int) {
			t.Helper()
			if got != want {
				t.Errorf("%s: %d fields, want %d", what, got, want)
			}
		}
		step("as many as are free", l.cost(freeFrames, 0, 0), 0)
		step("one more", l.cost(1, 0, 0), lightFields)
		time.Sleep(time.Hour)
		step("after an hour", l.cost(freeFrames+1, 0, 0), lightFields)
		time.Sleep(time.Second)
		step("after a second", l.cost(freePerSecond+1, 0, 0), lightFields)
		step("much that was earned", l.cost(0, 1<<20, 1<<40), 0)
		step("no more than can be saved", l.cost(mostEarned+freeFrames+1, 0, 0), lightFields)
	})
}
