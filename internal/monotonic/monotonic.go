// Package monotonic keeps times as numbers that steps of the wall clock do not change.
//
// A [time.Time] from [time.Now] has a reading of the monotonic clock, by which Sub, Before and After compare. What turns it into
// a number (UnixNano) or into text loses that reading: if the wall clock is then set back by an hour, what should end in ten
// seconds ends in an hour. TestTimesAreComparedByTheMonotonicClock finds such code.
package monotonic

import "time"

// epoch is where numbers begin to count.
var epoch = time.Now()

// Of is the time in nanoseconds, comparable with the numbers of other times of this process only. It is never 0, which can
// therefore stand for no time. Times without a reading of the monotonic clock, such as those of simulations, are compared by their
// wall clock.
func Of(t time.Time) int64 {
	if n := int64(t.Sub(epoch)); n != 0 {
		return n
	}
	return 1
}

// Time is the time of a number. Its wall clock is the one that was in force when the process began.
func Time(n int64) time.Time { return epoch.Add(time.Duration(n)) }
