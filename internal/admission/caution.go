package admission

// Caution is the part of a target that predictions can use. While most requests are served, predictions can use all of it:
// a stricter limit would refuse requests that are in time. While many are refused, predictions must stay below it: another
// request can have the place, and is in time for certain. The zero value has seen no request.
type Caution struct {
	refused float64 // the part of the requests recently that were refused
}

const (
	// remembered is over how many requests the part that is refused is taken.
	remembered = 500
	// few are refused where predictions can take all of a target, many where they can take leastPart.
	few, many, leastPart = 0.1, 0.3, 0.8
)

// RecordArrival counts a request.
func (c *Caution) RecordArrival() { c.refused *= 1 - 1.0/remembered }

// Refused counts one that was refused for its target.
func (c *Caution) Refused() { c.refused = min(1, c.refused+1.0/remembered) }

// Part of a target, leastPart to 1.
func (c *Caution) Part() float64 {
	return 1 - (1-leastPart)*max(0, min(1, (c.refused-few)/(many-few)))
}
