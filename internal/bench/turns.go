package bench

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Way is one way to the engines: a balancer, or a picker with one strategy.
type Way struct {
	Name string
	// URL takes the requests.
	URL string
	// Enter makes the way ready for a turn; nil where it always is.
	Enter func(ctx context.Context) error
}

// Order is the order of the turns of two ways, as 0 and 1: each pair is turned round after the one before, so that what
// changes slowly on the engines favours neither.
func Order(pairs int) []int {
	var order []int
	for i := range pairs {
		order = append(order, i%2, 1-i%2)
	}
	return order
}

// Driver sends the load of one turn and returns the requests; a program of the user's can take its place and returns none.
type Driver func(ctx context.Context, way *Way, turn int) ([]Sample, error)

// Turn is what was measured of one turn.
type Turn struct {
	Way     string        `json:"way"`
	Seconds float64       `json:"seconds"`
	Engines []EngineDelta `json:"engines"`
	Figures Figures       `json:"figures"`

	samples []Sample
}

// Goals are what a request has to keep to be good.
type Goals struct {
	TTFT     time.Duration `json:"ttftNanoseconds"`
	PerToken time.Duration `json:"perTokenNanoseconds"`
}

// Plan is what is measured.
type Plan struct {
	Engines []Engine
	// Before and After are the two ways to them.
	Before, After *Way
	Pairs         int
	Goals         Goals
	Drive         Driver
	// Began is called before each turn.
	Began func(turn, of int, way *Way)
}

// Run plays all turns. On an error it returns the turns before it, too.
func (p *Plan) Run(ctx context.Context) ([]Turn, error) {
	var turns []Turn
	order := Order(p.Pairs)
	for i, which := range order {
		way := [...]*Way{p.Before, p.After}[which]
		p.Began(i+1, len(order), way)
		turn, err := p.turn(ctx, way, i+1)
		if err != nil {
			return turns, fmt.Errorf("turn %d, %s: %w", i+1, way.Name, err)
		}
		turns = append(turns, *turn)
	}
	return turns, nil
}

func (p *Plan) turn(ctx context.Context, way *Way, number int) (*Turn, error) {
	if way.Enter != nil {
		if err := way.Enter(ctx); err != nil {
			return nil, err
		}
	}
	before, err := ReadCounters(ctx, p.Engines)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	samples, err := p.Drive(ctx, way, number)
	if err != nil {
		return nil, err
	}
	took := time.Since(start)
	after, err := ReadCounters(ctx, p.Engines)
	if err != nil {
		return nil, err
	}
	t := &Turn{Way: way.Name, Seconds: took.Seconds(), Engines: between(p.Engines, before, after), samples: samples}
	t.Figures = figuresOf(t, &p.Goals)
	return t, nil
}

// Figures are what is compared. Times are in seconds, and 0 where no requests were recorded.
type Figures struct {
	Requests int    `json:"requests"`
	Failed   int    `json:"failed"`
	Error    string `json:"firstError,omitempty"`
	// HitRatio is the part of the prompt tokens that the engines found in their prefix caches, by their own counters.
	HitRatio float64 `json:"hitRatio"`
	// PromptTokens that the engines looked up, and that the answers' usage reports.
	PromptTokens      float64 `json:"promptTokens"`
	UsagePromptTokens float64 `json:"usagePromptTokens"`
	TTFT              Spread  `json:"ttftSeconds"`
	// PerToken is the mean time of an output token after the first, of each request; Gap the time between streamed events.
	PerToken Spread `json:"perTokenSeconds"`
	Gap      Spread `json:"gapSeconds"`
	Total    Spread `json:"totalSeconds"`
	// Goodput is the number of requests in a second that kept the goals, GoodRatio their part of all.
	Goodput     float64 `json:"goodRequestsPerSecond"`
	GoodRatio   float64 `json:"goodRatio"`
	TokenRate   float64 `json:"outputTokensPerSecond"`
	Preemptions float64 `json:"preemptions"`
}

// Spread are quantiles of a time, by nearest rank.
type Spread struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

func figuresOf(t *Turn, goals *Goals) Figures {
	f := Figures{Requests: len(t.samples)}
	var hits, generated float64
	for _, e := range t.Engines {
		f.PromptTokens += e.PromptTokens
		hits += e.CachedTokens
		generated += e.GeneratedTokens
		f.Preemptions += e.Preemptions
	}
	f.HitRatio = ratio(hits, f.PromptTokens)
	f.TokenRate = ratio(generated, t.Seconds)
	var ttft, perToken, gap, total []time.Duration
	good := 0
	for i := range t.samples {
		s := &t.samples[i]
		if s.Err != "" {
			if f.Failed == 0 {
				f.Error = s.Err
			}
			f.Failed++
			continue
		}
		f.UsagePromptTokens += float64(s.Prompt)
		ttft, total, gap = append(ttft, s.TTFT), append(total, s.Total), append(gap, s.gaps...)
		if s.Output > 1 {
			perToken = append(perToken, s.PerToken())
		}
		if s.TTFT <= goals.TTFT && s.PerToken() <= goals.PerToken {
			good++
		}
	}
	f.TTFT, f.PerToken, f.Gap, f.Total = spread(ttft), spread(perToken), spread(gap), spread(total)
	f.Goodput, f.GoodRatio = ratio(float64(good), t.Seconds), ratio(float64(good), float64(f.Requests))
	return f
}

func ratio(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

// spread sorts times and returns their quantiles.
func spread(times []time.Duration) Spread {
	slices.Sort(times)
	at := func(percent int) float64 {
		if len(times) == 0 {
			return 0
		}
		rank := (percent*len(times) + 99) / 100
		return times[max(rank, 1)-1].Seconds()
	}
	return Spread{P50: at(50), P90: at(90), P99: at(99)}
}
