package picker

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/decisionlog"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// DecisionLog takes records of decisions. It must not block.
type DecisionLog interface {
	Salt() decisionlog.Salt
	Write(*decisionlog.Record)
}

// account is what the decision log gets of a request. The nil account is of one that is not logged.
type account struct {
	log    DecisionLog
	record decisionlog.Record
	start  time.Time
}

// sampler chooses so many percent of requests, evenly.
type sampler struct{ seen atomic.Int64 }

func (s *sampler) takes(percent int) bool {
	if percent <= 0 {
		return false
	}
	n := s.seen.Add(1)
	return n*int64(percent)/100 != (n-1)*int64(percent)/100
}

// account begins the account of a request that has been decided, if it is to be logged.
func (p *Picker) account(v *view, d *Decision, s *scratch, question *policy.Request, in *asked, decided time.Time) *account {
	if p.options.Decisions == nil || !v.logged.takes(v.spec.Policy.LogPercent) {
		return nil
	}
	a := &account{log: p.options.Decisions, start: in.start}
	salt := a.log.Salt()
	a.record = decisionlog.Record{
		Timestamp: in.start.UnixMilli(), Input: d.PromptTokens, Session: salt.ID(question.Session), Pool: d.Pool, Model: d.Model,
		Strategy: string(d.Strategy), Tokens: d.Tokens.String(), Scored: len(s.order), Cached: -1, Waited: milliseconds(decided.Sub(in.start)),
	}
	if d.Tokens != TokensNone {
		size := v.spec.BlockTokens
		a.record.Blocks = salt.AppendBlocks(nil, d.PromptTokens, func(n int) uint64 {
			if whole := min(n/size, len(in.keys)); whole > 0 {
				return uint64(in.keys[whole-1])
			}
			return 0
		})
	}
	for _, c := range s.order[:min(len(s.order), decisionlog.MaxCandidates)] {
		ep, candidate := &v.spec.Endpoints[s.index[c]], &s.candidates[c]
		a.record.Candidates = append(a.record.Candidates, decisionlog.Candidate{
			Endpoint: ep.Pod + "/" + strconv.Itoa(ep.ID.Rank), Matched: question.MatchTokens(candidate),
			Confirmed: min(candidate.Match.Confirmed(), question.Blocks) * question.BlockTokens,
			InFlight:  candidate.Load.InFlight, Pending: candidate.Load.PendingTokens, Cost: s.costs[c].First,
		})
	}
	return a
}

// firstToken, usage and generated take what an answer tells.
func (a *account) firstToken(now time.Time) {
	if a != nil && a.record.FirstToken == 0 {
		a.record.FirstToken = milliseconds(now.Sub(a.start))
	}
}

func (a *account) usage(cachedTokens int) {
	if a != nil {
		a.record.Cached = cachedTokens
	}
}

func (a *account) generated(tokens int) {
	if a != nil {
		a.record.Output = tokens
	}
}

// end hands the account to the log.
func (a *account) end(now time.Time, attempt int, outcome Outcome) {
	if a == nil {
		return
	}
	a.record.Attempt, a.record.Outcome, a.record.Duration = attempt, outcome.String(), milliseconds(now.Sub(a.start))
	a.log.Write(&a.record)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
