package picker

import (
	"errors"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/decisionlog"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// DecisionLog takes records of decisions. It must not block.
type DecisionLog interface {
	Salt() decisionlog.Salt
	Write(*decisionlog.Record)
}

// account is what the decision log gets of a request, or a Recorder, or both. The nil account records nothing.
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

// logs reports whether some decisions of a pool are logged.
func (p *Picker) logs(v *view) bool {
	return p.options.Decisions != nil && v.spec.Policy.LogPercent > 0
}

// account begins the account of a decided request, if the request is logged or recorded; else it returns nil.
func (p *Picker) account(v *view, d *Decision, s *scratch, question *policy.Request, state *pickState, decided time.Time) *account {
	logged := p.logs(v) && v.logged.takes(v.spec.Policy.LogPercent)
	passed, shown := int64(0), false
	if p.options.Recorder != nil {
		passed, shown = p.options.Recorder.Wants(decided)
	}
	if !logged && !shown {
		return nil
	}
	a := &account{start: state.start}
	if logged {
		a.log = p.options.Decisions
		a.describe(v, s, question, state, decided)
	}
	if shown {
		a.recorder = p.options.Recorder
		a.show(v, d, s, question, state, decided)
		a.shown.Passed = passed
		a.shown.ID = a.recorder.Decided(a.shown)
	}
	return a
}

// show fills in what a Recorder gets.
func (a *account) show(v *view, d *Decision, s *scratch, question *policy.Request, state *pickState, decided time.Time) {
	at := v.place(d.Model)
	at.prefills = state.leg == PrefillLeg
	a.shown = api.Decision{
		Request: state.id, Time: state.start, Explanation: *v.explanation(s, question, &state.prompt, decided, &at),
		Cached: -1, Waited: milliseconds(state.waited),
	}
	a.shown.Model, a.shown.Distrusted, a.shown.Route = d.Model, d.Distrusted, d.routed.reason()
	a.shown.Hooks = d.hooked.String()
	if state.plans != nil && !state.handedBefore { // after a hand-off that failed, they are those of the decision before
		a.shown.Plans = state.plans.explain(v)
	}
}

// describe fills in what the decision log gets.
func (a *account) describe(v *view, s *scratch, question *policy.Request, state *pickState, decided time.Time) {
	a.record = v.recordOf(a.log.Salt(), s, question, state)
	a.record.Scored, a.record.Waited = len(s.candidates), milliseconds(decided.Sub(state.start))
	s.predicted = resize(s.predicted, len(s.candidates))
	policy.Predict(question, s.candidates, s.predicted)
	if a.record.Plan = state.compared; a.record.Plan == nil {
		a.record.Plan = state.plans.record(v)
	}
	// More of them than can be tried.
	s.shadowOrder = policy.Rank(question, s.candidates, s.costs, s.shadowOrder, decisionlog.MaxCandidates)
	for _, c := range s.shadowOrder {
		candidate := &s.candidates[c]
		l := &candidate.Load
		a.record.Candidates = append(a.record.Candidates, decisionlog.Candidate{
			Endpoint: nameOf(&v.spec.Endpoints[s.index[c]]), Matched: question.MatchTokens(candidate),
			Confirmed: min(candidate.Match.Confirmed(), question.Blocks) * question.BlockTokens,
			InFlight:  l.InFlight, Decoding: l.Decoding, Pending: math.Round(l.PendingTokens),
			Waiting: l.Waiting, KVUsage: thousandths(l.KVUsage), Rate: math.Round(l.Rate),
			Delay: thousandths(1000 * candidate.Delay), Predicted: thousandths(1000 * s.predicted[c]), Cost: s.costs[c].First,
		})
	}
}

// recordOf is what a record has of the request alone.
func (v *view) recordOf(salt decisionlog.Salt, s *scratch, question *policy.Request, state *pickState) decisionlog.Record {
	r := decisionlog.Record{
		Timestamp: state.start.UnixMilli(), Request: state.id, Input: question.PromptTokens, Session: salt.ID(question.Session),
		Pool: v.spec.Name, Model: s.request.Model, Strategy: string(v.spec.Policy.Strategy.Type), Tokens: state.source.String(), Cached: -1,
		Candidates: []decisionlog.Candidate{},
	}
	r.Hooks = state.hooked.String()
	if route := state.routing.describe(s.request.Model); route != nil {
		r.Route, r.Asked = route.reason(), route.Asked
	}
	// Keys of its blocks; of its text chunks that should be as long.
	size, known, key := v.spec.BlockTokens, len(state.keys), func(i int) uint64 { return uint64(state.keys[i]) }
	if state.source == TokensApproximate {
		chunks := s.chunks[fallback]
		known, key = len(chunks), func(i int) uint64 { return uint64(chunks[i]) }
	}
	if whole := r.Input / size; whole == 0 || whole > known {
		return r
	}
	r.Blocks = salt.AppendBlocks(nil, r.Input, func(n int) uint64 {
		if n < size {
			return 0
		}
		return key(n/size - 1)
	})
	return r
}

// refused records a request that was refused, or whose client left while it waited: it is part of the
// load, so a replay of the log must include it.
func (p *Picker) refused(v *view, s *scratch, state *pickState, err error) {
	log := p.options.Decisions
	if log == nil || state.unparsed || state.source == TokensNone || !v.logged.takes(v.spec.Policy.LogPercent) {
		return
	}
	question := v.question(s, state, p.now())
	r := v.recordOf(log.Salt(), s, &question, state)
	r.Outcome = ClientGone.String()
	if refusal := (*Error)(nil); errors.As(err, &refusal) {
		r.Outcome, r.Reason = "refused", refusal.Code
	}
	r.Duration = milliseconds(p.now().Sub(state.start))
	r.Waited = r.Duration
	log.Write(&r)
}

// thousandths rounds to three digits behind the point.
func thousandths(x float64) float64 { return math.Round(1000*x) / 1000 }

// firstToken, usage and generated record what an answer reports.
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

// missed takes why nothing was found of what the index had.
func (a *account) missed(cause Miss) {
	if a != nil {
		a.record.Miss, a.shown.Miss = string(cause), string(cause)
	}
}

func (a *account) generated(tokens int) {
	if a != nil {
		a.record.Output = tokens
	}
}

// nameOf is pod/rank.
func nameOf(ep *endpoint.Endpoint) string { return ep.Pod + "/" + strconv.Itoa(ep.ID.Rank) }

// end hands the account over. The request was with the endpoint last, at that attempt from 0.
func (a *account) end(now time.Time, ep *endpoint.Endpoint, attempt int, outcome Outcome) {
	if a == nil {
		return
	}
	took := milliseconds(now.Sub(a.start))
	if a.log != nil {
		a.record.Endpoint, a.record.Attempt, a.record.Outcome, a.record.Duration = nameOf(ep), attempt, outcome.String(), took
		a.log.Write(&a.record)
	}
	if a.recorder != nil {
		a.shown.Attempt, a.shown.Outcome, a.shown.Duration = attempt, outcome.String(), took
		a.recorder.Ended(a.shown)
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
