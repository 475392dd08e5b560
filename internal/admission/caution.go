package admission

// Caution is how much of a target predictions have to keep to. Where most are served one that is a little too long would
// refuse what is in time; where many are refused somebody else can have the place, and is in time for certain. The zero
// value has seen nothing.
type Caution struct {
	refused float64 // the part of the requests of late that were refused
}

const (
	// remembered is over how many requests the part that is refused is taken.
	remembered = 500
	// few are refused where predictions may take all of a target, many where they may take leastPart.
	few, many, leastPart = 0.1, 0.3, 0.8
)

// Came counts a request.
func (c *Caution) Came() { c.refused *= 1 - 1.0/remembered }

// Refused counts one that was refused for its target.
func (c *Caution) Refused() { c.refused = min(1, c.refused+1.0/remembered) }

// Part of a target, leastPart to 1.
func (c *Caution) Part() float64 {
	return 1 - (1-leastPart)*max(0, min(1, (c.refused-few)/(many-few)))
}
