// Package placement decides on which island of a pool the next pod starts, and which island gives a pod up first. It is
// pure: facts go in, and time is an argument.
//
// An island is a set of nodes (a region, a provider, a kind of GPU, spot or reserved) between which and others moving KV
// never pays. New pods are placed on the cheapest island with room. Nodes are added when a pod waits for them; an island
// where none was added in time is exhausted, and left alone for a while.
package placement

import (
	"cmp"
	"slices"
	"time"
)

// Island is one of a pool's islands, as configured.
type Island struct {
	Name string
	// Price of one pod and hour, in millionths of any currency.
	Price int64
	// Latency from the pickers and back.
	Latency time.Duration
	// Min pods are kept here, at most Max; negative: no limit.
	Min, Max int
	// Timeout is how long a pod can wait for a node here.
	Timeout time.Duration
}

// State is what is known of an island's pods.
type State struct {
	// Pods of the island that are neither draining nor about to be deleted.
	Pods int
	// Waiting is since when the longest waiting of them has had no node; zero when none waits.
	Waiting time.Time
	// Exhausted is when a pod's wait here was given up last; zero when it never was, or a pod got a node since.
	Exhausted time.Time
	// Failures in a row to get a node here.
	Failures int
}

// longestRest bounds how long an exhausted island is left alone.
const longestRest = 6 * time.Hour

// Reason reports why an island was chosen, or none.
type Reason string

// The reasons.
const (
	BelowMinimum Reason = "BelowMinimum" // the island lacks pods
	Cheapest     Reason = "Cheapest"     // the cheapest with room
	NextCheapest Reason = "NextCheapest" // the cheapest with room; cheaper ones are exhausted
	NoRoom       Reason = "NoRoom"       // every island is at its maximum
	AllExhausted Reason = "AllExhausted" // those with room give no nodes
)

// Rest is how long an island is left alone after its failures in a row: its timeout, doubled with every failure, at most
// six hours.
func (i *Island) Rest(failures int) time.Duration {
	rest := i.Timeout
	for range failures - 1 {
		if rest *= 2; rest > longestRest {
			return longestRest
		}
	}
	return rest
}

// resting reports whether an island is left alone now.
func (i *Island) resting(now time.Time, s State) bool {
	return s.Failures > 0 && now.Sub(s.Exhausted) < i.Rest(s.Failures)
}

func (i *Island) full(s State) bool { return i.Max >= 0 && s.Pods >= i.Max }

// Late reports whether a pod that has waited for a node since then should be given up, so that another island is tried.
func (i *Island) Late(now, since time.Time) bool { return now.Sub(since) >= i.Timeout }

// Choose names the island of the next pod: the cheapest of those below their minimum, else the cheapest with room. Of two
// at one price the nearer is chosen, then the one named first. Where every island with room is exhausted it names none:
// ask again at Retry.
func Choose(now time.Time, islands []Island, states map[string]State) (string, Reason) {
	var below, open []*Island
	rested := int64(-1) // the lowest price of those that rest
	room := false
	for k := range islands {
		i := &islands[k]
		s := states[i.Name]
		if i.full(s) {
			continue
		}
		room = true
		if i.resting(now, s) {
			if rested < 0 || i.Price < rested {
				rested = i.Price
			}
			continue
		}
		if s.Pods < i.Min {
			below = append(below, i)
		}
		open = append(open, i)
	}
	switch {
	case len(below) > 0:
		return slices.MinFunc(below, better).Name, BelowMinimum
	case len(open) > 0:
		best := slices.MinFunc(open, better)
		if rested >= 0 && rested < best.Price {
			return best.Name, NextCheapest
		}
		return best.Name, Cheapest
	case room:
		return "", AllExhausted
	}
	return "", NoRoom
}

// better orders islands by price, then latency. slices.MinFunc keeps the first of equals.
func better(a, b *Island) int {
	return cmp.Or(cmp.Compare(a.Price, b.Price), cmp.Compare(a.Latency, b.Latency))
}

// Retry is when the first of the islands that rest can be tried again; zero when none rests.
func Retry(now time.Time, islands []Island, states map[string]State) (first time.Time) {
	for k := range islands {
		i := &islands[k]
		if s := states[i.Name]; i.resting(now, s) && !i.full(s) {
			if t := s.Exhausted.Add(i.Rest(s.Failures)); first.IsZero() || t.Before(first) {
				first = t
			}
		}
	}
	return first
}

// Spare orders the islands that can give up a pod: those above their maximum first, then the dearest; those at or below
// their minimum are left out. An island that the pool does not name any more precedes all others.
func Spare(islands []Island, states map[string]State) []string {
	type offer struct {
		name  string
		rank  int
		price int64
	}
	named := map[string]*Island{}
	for k := range islands {
		named[islands[k].Name] = &islands[k]
	}
	var offers []offer
	for name, s := range states {
		switch i := named[name]; {
		case s.Pods == 0:
		case i == nil:
			offers = append(offers, offer{name, 0, 0})
		case i.Max >= 0 && s.Pods > i.Max:
			offers = append(offers, offer{name, 1, -i.Price})
		case s.Pods > i.Min:
			offers = append(offers, offer{name, 2, -i.Price})
		}
	}
	slices.SortFunc(offers, func(a, b offer) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.price, b.price), cmp.Compare(a.name, b.name))
	})
	names := make([]string, len(offers))
	for k, o := range offers {
		names[k] = o.name
	}
	return names
}
