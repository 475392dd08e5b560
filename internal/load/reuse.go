package load

import "time"

// reuse is how much of the prompts recently was in a cache: tokens sent and computed, which count less the older they
// were at the last of them. Without requests it stays as it is.
type reuse struct {
	prompted, computed float64
	last               time.Time
}

func (r *reuse) add(now time.Time, w Work) {
	kept := decayed(now.Sub(r.last), lately)
	r.prompted, r.computed = kept*r.prompted+w.Context, kept*r.computed+w.Tokens
	r.last = now
}
