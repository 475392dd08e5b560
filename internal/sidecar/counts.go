package sidecar

import (
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/relay"
)

// outcomes are those of hand-offs, in the order of counts.
var outcomes = [...]relay.Outcome{
	relay.HandedOver, relay.PrefillFailed, relay.NoParameters, relay.NoMemory, relay.DecodeFailed, relay.Refused,
}

// counts are what a Server has done.
type counts struct {
	underWay, requests, refused, broken atomic.Int64
	outcomes                            [len(outcomes)]atomic.Int64
}

func (c *counts) handoff(o relay.Outcome) {
	for i, one := range outcomes {
		if one == o {
			c.outcomes[i].Add(1)
		}
	}
}

// Stats are the numbers of requests.
type Stats struct {
	// UnderWay are the requests now, Requests all that there were, and Refused those that no engine has got. Broken are those that have ended
	// without a complete answer although the client has stayed.
	UnderWay int64 `json:"underWay"`
	Requests int64 `json:"requests"`
	Refused  int64 `json:"refused"`
	Broken   int64 `json:"broken"`
	// Handoffs are those that a picker has asked for, by outcome.
	Handoffs map[relay.Outcome]int64 `json:"handoffs"`
	// HeldBytes are those of bodies that are held now.
	HeldBytes int64 `json:"heldBytes"`
}

// Stats are the numbers until now.
func (s *Server) Stats() Stats {
	c := &s.counts
	out := Stats{UnderWay: c.underWay.Load(), Requests: c.requests.Load(), Refused: c.refused.Load(), Broken: c.broken.Load(),
		Handoffs: map[relay.Outcome]int64{}, HeldBytes: s.held.Load()}
	for i, o := range outcomes {
		out.Handoffs[o] = c.outcomes[i].Load()
	}
	return out
}
