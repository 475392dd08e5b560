package decisionlog

import (
	"github.com/kvasir-dev/kvasir/internal/sim/trace"
)

// usualAnswer is the length in tokens of the answers of a log without any answer lengths.
const usualAnswer = 256

// Trace makes a request trace of a log, for a lab to replay: the requests with a prompt that neither a picker nor an engine
// has refused (refused ones can have been sent again), their times counted from the first. If there is no prompt to match
// (a form, an image), the length is that of the body, and has no meaning. Answers whose length is not known get the mean of
// the others, or usualAnswer where none is known; prompts without ids share nothing with any other.
func Trace(list []Record) []trace.Request {
	total, known := 0, 0
	for i := range list {
		if list[i].Output > 0 {
			total += list[i].Output
			known++
		}
	}
	mean := usualAnswer
	if known > 0 {
		mean = max(1, total/known)
	}
	out := make([]trace.Request, 0, len(list))
	numbers, fresh := map[uint64]int{}, 0
	number := func() int { fresh++; return fresh - 1 }
	for i := range list {
		r := &list[i]
		if r.Input < 1 || r.Tokens == "none" || r.Outcome == "rejected" || r.Outcome == "refused" {
			continue
		}
		q := trace.Request{Timestamp: r.Timestamp - list[0].Timestamp, Input: r.Input, Output: r.Output}
		if q.Output < 1 {
			q.Output = mean
		}
		for range (r.Input + BlockTokens - 1) / BlockTokens {
			at := len(q.Blocks)
			if at >= len(r.Blocks) {
				q.Blocks = append(q.Blocks, number())
				continue
			}
			n, ok := numbers[r.Blocks[at]]
			if !ok {
				n = number()
				numbers[r.Blocks[at]] = n
			}
			q.Blocks = append(q.Blocks, n)
		}
		if r.Session != 0 {
			session := int(r.Session)
			q.Session = &session
		}
		out = append(out, q)
	}
	return out
}
