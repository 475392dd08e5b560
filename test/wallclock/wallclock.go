// Package wallclock makes times as a process reads them after its wall clock was set: forward when a virtual machine resumes, or
// back by NTP.
package wallclock

import (
	"fmt"
	"time"
	"unsafe"
)

// Set returns a time from time.Now as it would have been read if the wall clock had been set by d before: its reading of the
// monotonic clock is the same.
func Set(t time.Time, d time.Duration) time.Time {
	// Package time has no means for this. In a time with a monotonic reading the first word has, from its top, one bit that is
	// set, 33 bits of seconds since 1885, and 30 bits of nanoseconds.
	set := t
	*(*uint64)(unsafe.Pointer(&set)) += uint64(int64(d/time.Second)) << 30
	if set.Sub(t) != 0 || set.Round(0).Sub(t.Round(0)) != d {
		panic(fmt.Sprintf("%v cannot be set by %v: want a time from time.Now, and seconds", t, d))
	}
	return set
}
