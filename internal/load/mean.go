package load

// AssumedRate is the prefill rate that is assumed before one is learned, tokens/s: about an 8B model on one H100. It is that
// of a fast engine, so that a pool that has just started is not full.
const AssumedRate = 20_000

// PinnedPart is the part of the cached blocks of a prompt that no other request is using at the time. The request takes
// these from what is free.
const PinnedPart = 0.3

// Mean is the mean of the speeds that endpoints have learned, weighted by how reliable each is (View.Trust). The zero value
// knows no speed.
type Mean struct {
	sum    Speed
	weight float64
}

// Add counts an endpoint, if it has learned anything.
func (m *Mean) Add(v *View) {
	if !(v.Rate > 0 && v.Trust > 0) {
		return
	}
	m.sum.PerToken += v.Trust / v.Rate
	m.sum.PerPair += v.Trust * v.PairSeconds
	m.sum.Overhead += v.Trust * v.Overhead
	m.sum.PerContext += v.Trust * v.ContextSeconds
	m.weight += v.Trust
}

// Known reports whether any endpoint has learned anything.
func (m *Mean) Known() bool { return m.weight > 0 }

// Speed returns the mean; zero while nothing is known.
func (m *Mean) Speed() Speed {
	if m.weight == 0 {
		return Speed{}
	}
	return Speed{m.sum.Overhead / m.weight, m.sum.PerToken / m.weight, m.sum.PerPair / m.weight, m.sum.PerContext / m.weight}
}
