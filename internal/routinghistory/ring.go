package routinghistory

// ring is an order of places, which are numbers from 1 on. Place 0 is where it begins and ends: the place behind it is the first one, the
// place before it the last one. A ring must begin with place 0, which is linked to itself.
type ring []links

// links are the places before and behind a place.
type links struct{ prev, next int32 }

// grow adds a place, which is in no order yet.
func (r *ring) grow() int32 {
	*r = append(*r, links{})
	return int32(len(*r) - 1) // at most the limit of what is remembered
}

// link puts a place behind another one.
func (r ring) link(n, before int32) {
	next := r[before].next
	r[n] = links{prev: before, next: next}
	r[next].prev, r[before].next = n, n
}

// unlink takes a place out of the order.
func (r ring) unlink(n int32) {
	at := r[n]
	r[at.prev].next, r[at.next].prev = at.next, at.prev
}
