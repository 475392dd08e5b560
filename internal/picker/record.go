package picker

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/decisionlog"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// DecisionLog takes records of decisions. It must not block.
type DecisionLog interface {
	Salt() decisionlog.Salt
	Write(*decisionlog.Record)
}

// account is what the decision log gets of a request, or a Recorder, or both. The nil account is of one that nobody gets.
type account struct {
	log      DecisionLog // nil when it is not logged
	record   decisionlog.Record
	recorder Recorder // nil when it is not taken down
	shown    api.Decision
	start    time.Time
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

// account begins the account of a request that has been decided, if somebody is to get it.
func (p *Picker) account(v *view, d *Decision, s *scratch, question *policy.Request, in *asked, decided time.Time) *account {
	logged := p.options.Decisions != nil && v.logged.takes(v.spec.Policy.LogPercent)
	passed, shown := int64(0), false
	if p.options.Recorder != nil {
		passed, shown = p.options.Recorder.Wants(decided)
	}
	if !logged && !shown {
		return nil
	}
	a := &account{start: in.start}
	if logged {
		a.log = p.options.Decisions
		a.describe(v, d, s, question, in, decided)
	}
	if shown {
		a.recorder = p.options.Recorder
		a.show(v, d, s, question, in, decided)
		a.shown.Passed = passed
		a.shown.ID = a.recorder.Decided(a.shown)
	}
	return a
}

// show fills in what a Recorder gets.
func (a *account) show(v *view, d *Decision, s *scratch, question *policy.Request, in *asked, decided time.Time) {
	at := v.place(d.Model)
	a.shown = api.Decision{
		Time: in.start, Explanation: *v.explanation(s, question, &in.prompt, decided, &at),
		Cached: -1, Waited: milliseconds(in.waited),
	}
	a.shown.Model, a.shown.Distrusted = d.Model, d.Distrusted
}

// describe fills in what the decision log gets.
func (a *account) describe(v *view, d *Decision, s *scratch, question *policy.Request, in *asked, decided time.Time) {
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
}

// firstToken, usage and generated take what an answer tells.
func (a *account) firstToken(now time.Time) {
	if a != nil && a.record.FirstToken == 0 {
		a.record.FirstToken = milliseconds(now.Sub(a.start))
		a.shown.FirstToken = a.record.FirstToken
	}
}

func (a *account) usage(cachedTokens int) {
	if a != nil {
		a.record.Cached, a.shown.Cached = cachedTokens, cachedTokens
	}
}

func (a *account) generated(tokens int) {
	if a != nil {
		a.record.Output = tokens
	}
}

// end hands the account over.
func (a *account) end(now time.Time, attempt int, outcome Outcome) {
	if a == nil {
		return
	}
	took := milliseconds(now.Sub(a.start))
	if a.log != nil {
		a.record.Attempt, a.record.Outcome, a.record.Duration = attempt, outcome.String(), took
		a.log.Write(&a.record)
	}
	if a.recorder != nil {
		a.shown.Attempt, a.shown.Outcome, a.shown.Duration = attempt, outcome.String(), took
		a.recorder.Ended(a.shown)
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
