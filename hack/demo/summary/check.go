package summary

import "fmt"

// The limits of a run that can call itself right.
const (
	// MaxTotalDeviation bounds the difference of predicted and delivered hits, as a part of the delivered.
	MaxTotalDeviation = 0.02
	// MaxRequestDeviation bounds the sum of the differences of each request, as a part of the prompt tokens.
	MaxRequestDeviation = 0.05
)

// Check returns what is wrong with a run, a sentence each; none if nothing is.
func (s *Summary) Check() []string {
	var wrong []string
	if s.Requests == 0 {
		wrong = append(wrong, "no request was sent")
	}
	if s.Errors > 0 {
		wrong = append(wrong, fmt.Sprintf("%d of %d requests failed, the first with: %s", s.Errors, s.Requests, s.FirstError))
	}
	if d := s.TotalDeviation(); d > MaxTotalDeviation {
		wrong = append(wrong, fmt.Sprintf("predicted hits (%d tokens) and delivered hits (%d tokens) differ by %.2f %%, at most %g %% is right",
			s.Predicted, s.Delivered, 100*d, 100*MaxTotalDeviation))
	}
	if d := s.RequestDeviation(); d > MaxRequestDeviation {
		wrong = append(wrong, fmt.Sprintf("the differences of predicted and delivered hits of each request sum up to %d tokens, %.2f %% of the prompts' %d, at most %g %% is right",
			s.AbsDiff, 100*d, s.Prompt, 100*MaxRequestDeviation))
	}
	return wrong
}
