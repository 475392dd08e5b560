//go:build !linux

package vllmsim

import "time"

// sleepUntil returns when the time since start is at least at, at once if it is already. It reports false if quit was
// closed meanwhile.
func sleepUntil(start time.Time, at time.Duration, quit <-chan struct{}) bool {
	left := at - time.Since(start)
	if left <= 0 {
		return true
	}
	t := time.NewTimer(left)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-quit:
		return false
	}
}
