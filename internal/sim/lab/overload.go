package lab

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// Overload is a test of admission: a fleet receives a multiple of the sessions that it can serve, each at its own pace. A
// turn arrives some time after the answer to the one before; one that is refused is sent again after its Retry-After, at
// most Retries times; after a further refusal the client gives up the session.
type Overload struct {
	// Config is the fleet, the workload, the strategy and the seed.
	Config
	// Saturation is how many times as often as in the workload sessions begin where the fleet is saturated; 0 finds it.
	Saturation float64
	// Factor of the rate that saturates the fleet.
	Factor float64
	// Slowdown is how many times its unloaded time a first token can take: the time that the prefill of the entire prompt
	// takes on an idle pod that holds nothing of it.
	Slowdown float64
	// Tenants are their parts of the sessions; all have the same weight. A session is one tenant's.
	Tenants []float64
}

// Pressure is the result of a run in the second half of its horizon.
type Pressure struct {
	Name string `json:"name"`
	// Rate is how many times as often as in the workload sessions begin.
	Rate float64 `json:"rate"`
	// Offered are the requests a second that would arrive if each was answered at once, Answered those that had their first
	// token, Prompt the prompt tokens of those answered a second, Computed those that were computed.
	Offered  float64 `json:"offeredPerSecond"`
	Answered float64 `json:"answeredPerSecond"`
	Prompt   float64 `json:"promptTokensPerSecond"`
	Computed float64 `json:"computedTokensPerSecond"`
	// InTime is the part of the admitted requests that had their first token in time; those whose time is not over at the
	// end do not count.
	InTime float64 `json:"inTime"`
	// TTFTSeconds of the admitted requests, from when they were sent (the last time); a request without a first token at
	// the end has waited until then. Slowdown is TTFT over the unloaded time.
	TTFTSeconds Times `json:"ttftSeconds"`
	Slowdown    Times `json:"slowdown"`
	// HitRatio of the entire run, GaveUp sessions of it.
	HitRatio float64 `json:"hitRatio"`
	GaveUp   int     `json:"gaveUp"`
	// Shares are the tenants' parts of the computed tokens, and Unfair is how far the one that is farthest from its fair
	// share is from it, as a part of that share.
	Shares []float64 `json:"shares,omitempty"`
	Unfair float64   `json:"unfair"`
}

// Pressured are the runs of an Overload: at the saturating rate without admission, and overloaded without and with it.
type Pressured struct {
	Workload  string   `json:"workload"`
	Seed      uint64   `json:"seed"`
	Saturated Pressure `json:"saturated"`
	Off       Pressure `json:"off"`
	On        Pressure `json:"on"`
}

// Run measures.
func (o *Overload) Run(ctx context.Context) (*Pressured, error) {
	if o.Horizon <= 0 || len(o.Workload.Requests) == 0 {
		return nil, fmt.Errorf("%w: an overload needs a horizon and requests", errConfig)
	}
	saturated, err := o.saturation(ctx)
	if err != nil {
		return nil, err
	}
	on := picker.AdmissionSpec{
		Queue: true, Slowdown: o.Slowdown,
		Limits: admission.Limits{Requests: 1024, Bytes: 1 << 40, TTL: time.Minute, Hold: time.Minute},
	}
	on.Tenants = &picker.TenantsSpec{Header: tenantHeader, Default: &tenant.Class{Weight: 1}}
	out := &Pressured{Workload: o.Workload.Name, Seed: o.Seed, Saturated: saturated}
	if out.Off, err = o.press(ctx, "off", o.Factor*saturated.Rate, picker.AdmissionSpec{}); err != nil {
		return nil, err
	}
	out.On, err = o.press(ctx, "on", o.Factor*saturated.Rate, on)
	return out, err
}

// press plays the workload with sessions that begin so many times as often.
func (o *Overload) press(ctx context.Context, name string, rate float64, spec picker.AdmissionSpec) (Pressure, error) {
	if err := ctx.Err(); err != nil {
		return Pressure{}, err
	}
	var err error
	if o.Workload, err = o.Workload.reaching(rate, o.Horizon); err != nil {
		return Pressure{}, err
	}
	c := o.Config
	c.Workload = o.assign(o.Workload.crowd(c.Seed, rate, c.Horizon))
	c.Speed, c.Think, c.Admission = 1, true, spec
	r, err := Run(c)
	if err != nil {
		return Pressure{}, err
	}
	return o.judge(name, rate, &c, r), nil
}

// saturation is the fleet at the highest rate of sessions that it bears without admission: where in the second half of
// the horizon the mean time to the first token is at most five times that of a fleet with next to nothing to do. A rate
// that the fleet does not bear lets its backlog, and so the mean, grow with the horizon.
func (o *Overload) saturation(ctx context.Context) (Pressure, error) {
	at := func(rate float64) (Pressure, error) { return o.press(ctx, "saturated", rate, picker.AdmissionSpec{}) }
	if o.Saturation > 0 {
		return at(o.Saturation)
	}
	low := 0.5 * float64(o.Pods) / 8 // see generators
	idle, err := at(low)
	if err != nil {
		return idle, err
	}
	best, high := idle, math.Inf(1)
	const precision = 1.02
	for rate := 2 * low; high/low > precision; {
		p, err := at(rate)
		switch {
		case err != nil:
			return p, err
		case p.TTFTSeconds.Mean > saturatedAt*idle.TTFTSeconds.Mean:
			high = rate
		default:
			low, best = rate, p
		}
		rate = math.Sqrt(low * high)
		if math.IsInf(high, 1) {
			rate = 2 * low
		}
	}
	return best, nil
}

// assign gives each session a tenant.
func (o *Overload) assign(w *Workload) *Workload {
	out := *w
	out.Requests = slices.Clone(w.Requests)
	for i := range out.Requests {
		r := &out.Requests[i]
		rng := rand.New(rand.NewPCG(uint64(r.Session), 0x74656e616e74))
		x := rng.Float64()
		for t, part := range o.Tenants {
			r.Tenant = tenantName(t)
			if x -= part; x < 0 {
				break
			}
		}
	}
	return &out
}

func tenantName(i int) string { return string(rune('a' + i)) }

// served is a request that had its first token, or never.
type served struct {
	arrived, first  time.Duration
	input, computed int
	tenant          string
}

func (o *Overload) judge(name string, rate float64, c *Config, r *Result) Pressure {
	from, to := c.Horizon/2, c.Horizon
	seconds := (to - from).Seconds()
	p := Pressure{Name: name, Rate: rate, HitRatio: r.HitRatio, GaveUp: r.Shed}
	for i := range c.Workload.Requests {
		if c.Workload.Requests[i].At >= from {
			p.Offered += 1 / seconds
		}
	}
	var ttft, slowdown []float64
	in := 0
	shares, all := map[string]float64{}, 0.0
	for _, s := range r.served {
		if s.first >= from && s.first < to {
			p.Answered += 1 / seconds
			p.Prompt += float64(s.input) / seconds
			p.Computed += float64(s.computed) / seconds
			shares[s.tenant] += float64(s.computed)
			all += float64(s.computed)
		}
		unloaded := c.Profile.Time.Prefill(s.input, 0, enginemodel.DefaultMaxBatchedTokens)
		due := s.arrived + time.Duration(o.Slowdown*float64(unloaded))
		if s.arrived < from || due >= to {
			continue
		}
		took := min(s.first, to) - s.arrived
		ttft, slowdown = append(ttft, took.Seconds()), append(slowdown, took.Seconds()/unloaded.Seconds())
		if s.first <= due {
			in++
		}
	}
	p.InTime = float64(in) / math.Max(1, float64(len(ttft)))
	p.TTFTSeconds, p.Slowdown = timesOf(ttft), timesOf(slowdown)
	if fair := all / float64(len(o.Tenants)); fair > 0 {
		for t := range o.Tenants {
			p.Shares = append(p.Shares, shares[tenantName(t)]/all)
			p.Unfair = math.Max(p.Unfair, math.Abs(shares[tenantName(t)]/fair-1))
		}
	}
	return p
}
