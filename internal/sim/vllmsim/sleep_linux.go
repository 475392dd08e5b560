package vllmsim

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// coarse is how much of a wait is left to the kernel's own timer: the runtime's timers can be a millisecond late.
const coarse = 2 * time.Millisecond

// sleepUntil returns when the time since start is at least at, at once if it is already. It reports false if quit was
// closed meanwhile.
func sleepUntil(start time.Time, at time.Duration, quit <-chan struct{}) bool {
	left := at - time.Since(start)
	if left > coarse {
		t := time.NewTimer(left - coarse)
		defer t.Stop()
		select {
		case <-t.C:
		case <-quit:
			return false
		}
		left = at - time.Since(start)
	}
	for left > 0 {
		ts := unix.NsecToTimespec(int64(left))
		if err := unix.Nanosleep(&ts, nil); err != nil && !errors.Is(err, unix.EINTR) {
			time.Sleep(left)
		}
		left = at - time.Since(start)
	}
	return true
}
