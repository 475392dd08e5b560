package picker

import "time"

// Step is a part of the way from a request to its endpoint.
type Step uint8

// The steps, in their order. Each begins where the one before it that was taken has ended.
const (
	// StepParse: the request is read, its pool found, and its tenant let in.
	StepParse Step = iota
	// StepTokenize: its block keys are made.
	StepTokenize
	// StepAdmit: it has waited until the pool has room.
	StepAdmit
	// StepMatch: the index was asked for every candidate.
	StepMatch
	// StepScore: the strategy has ranked them.
	StepScore
	// StepBook: the request is counted on the best.
	StepBook
	NumSteps int = iota
)

// String is the step's name in a trace.
func (s Step) String() string {
	return [...]string{"parse", "tokenize", "admit", "match", "score", "book"}[s]
}

// Steps records when the steps of one pick have ended, for traces of requests. Those that were not taken, or
// not ended because the pick failed in them, are zero.
type Steps struct {
	Began time.Time
	Ended [NumSteps]time.Time
}

// begin takes down when the pick has begun; it has no effect on nil.
func (s *Steps) begin(at time.Time) {
	if s != nil {
		s.Began = at
	}
}

// end takes down the end of a step; on nil, which is nearly always, it does not even look at the clock.
func (s *Steps) end(step Step, now timeNow) {
	if s != nil {
		s.Ended[step] = now()
	}
}
