package picker

// Candidates is the number of endpoints that were scored for the request.
func (t *Target) Candidates() int { return t.rankedAmong }
