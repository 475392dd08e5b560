package lab

import "time"

// kind of an event. Of events at the same time the lower kinds are handled first.
type kind uint8

const (
	// stepEnd: pod n has ended a step.
	stepEnd kind = iota
	// reached: request n has arrived at its pod on another island.
	reached
	// begins: the first token of request n has arrived from there, ends: all of its answer.
	begins
	ends
	// broughtIn: pod n has brought an adapter in.
	broughtIn
	// lagOver: the oldest cache events under way reach the pickers.
	lagOver
	// peerReceives: the oldest message of a picker reaches its peer.
	peerReceives
	// scrapes: the pickers read the engines' metrics.
	scrapes
	// looks: the pickers look after those that wait.
	looks
	// wakes: the pods of pool n are ready.
	wakes
	// peerSends: link n is polled for messages from a picker to a peer.
	peerSends
	// arrival: request n arrives.
	arrival
)

// event is something that happens at a time; n is the pod or the request.
type event struct {
	at     time.Duration
	n      int32
	kind   kind
	number uint32 // events of a kind at one time happen in the order in which they were entered
}

func (e *event) before(f *event) bool {
	switch {
	case e.at != f.at:
		return e.at < f.at
	case e.kind != f.kind:
		return e.kind < f.kind
	}
	return e.number < f.number
}

// agenda is a heap of events, the next one first.
type agenda struct {
	heap  []event
	added uint32
}

func (a *agenda) add(at time.Duration, k kind, n int) {
	a.added++
	e := event{at: at, kind: k, n: int32(n), number: a.added} // pods and requests are fewer
	a.heap = append(a.heap, e)
	i := len(a.heap) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !e.before(&a.heap[parent]) {
			break
		}
		a.heap[i] = a.heap[parent]
		i = parent
	}
	a.heap[i] = e
}

// pop takes the next event; there must be one.
func (a *agenda) pop() event {
	first := a.heap[0]
	n := len(a.heap) - 1
	e := a.heap[n]
	a.heap = a.heap[:n]
	i := 0
	for {
		child := 2*i + 1
		if child >= n {
			break
		}
		if child+1 < n && a.heap[child+1].before(&a.heap[child]) {
			child++
		}
		if !a.heap[child].before(&e) {
			break
		}
		a.heap[i] = a.heap[child]
		i = child
	}
	if n > 0 {
		a.heap[i] = e
	}
	return first
}
