package lab

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/enginemodel"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// Overload is a test of admission: a workload comes so many times faster than its fleet can answer.
type Overload struct {
	// Config is the fleet, the workload, the strategy and the seed. Its speed is the one that
	// saturates the fleet; 0 finds it (see Matrix.Loads).
	Config
	// Factor of the rate that saturates the fleet.
	Factor float64
	// Slowdown is how many times its unloaded time a first token may take: what the prefill of the whole prompt takes on
	// a pod that has nothing to do and holds nothing of it.
	Slowdown float64
	// Tenants are their parts of the arrivals; all have the same weight. A session is one tenant's.
	Tenants []float64
}

// Pressure is what came of a run, at a speed, between the times when a fifth and all of the requests had come.
type Pressure struct {
	Name  string  `json:"name"`
	Speed float64 `json:"speed"`
	// Offered and Answered are requests a second, Prompt the prompt tokens of those answered a second, Computed those
	// that were computed.
	Offered  float64 `json:"offeredPerSecond"`
	Answered float64 `json:"answeredPerSecond"`
	Prompt   float64 `json:"promptTokensPerSecond"`
	Computed float64 `json:"computedTokensPerSecond"`
	// InTime is the part of the admitted requests that had their first token in time.
	InTime float64 `json:"inTime"`
	// TTFTSeconds of the admitted requests, from their arrival; Slowdown is TTFT over the unloaded time.
	TTFTSeconds Times `json:"ttftSeconds"`
	Slowdown    Times `json:"slowdown"`
	// HitRatio of the whole run, Shed requests of it.
	HitRatio float64 `json:"hitRatio"`
	Shed     int     `json:"shed"`
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
	c := o.Config
	c.Workload = o.assign(c.Workload)
	speed := c.Speed
	if speed == 0 {
		var err error
		if speed, err = saturation(ctx, c); err != nil {
			return nil, err
		}
	}
	out := &Pressured{Workload: c.Workload.Name, Seed: c.Seed}
	on := picker.AdmissionSpec{
		Queue: true, Slowdown: o.Slowdown,
		Limits: admission.Limits{Requests: 1024, Bytes: 1 << 40, TTL: time.Minute, Hold: time.Minute},
	}
	on.Tenants = &picker.TenantsSpec{Header: tenantHeader, Default: &tenant.Class{Weight: 1}}
	for _, p := range []struct {
		into  *Pressure
		name  string
		speed float64
		spec  picker.AdmissionSpec
	}{
		{&out.Saturated, "saturated", speed, picker.AdmissionSpec{}},
		{&out.Off, "off", o.Factor * speed, picker.AdmissionSpec{}},
		{&out.On, "on", o.Factor * speed, on},
	} {
		c.Speed, c.Admission = p.speed, p.spec
		r, err := Run(c)
		if err != nil {
			return nil, err
		}
		*p.into = o.judge(p.name, &c, r)
	}
	return out, nil
}

// assign gives each session a tenant.
func (o *Overload) assign(w *Workload) *Workload {
	out := *w
	out.Requests = slices.Clone(w.Requests)
	for i := range out.Requests {
		r := &out.Requests[i]
		rng := rand.New(rand.NewPCG(uint64(r.Session), 0x74656e616e74)) //nolint:gosec // a simulation
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

// served is a request that had its first token.
type served struct {
	came, first     time.Duration
	input, computed int
	tenant          string
}

func (o *Overload) judge(name string, c *Config, r *Result) Pressure {
	arrivals := c.Workload.arrivals(c.Seed, c.Speed)
	from, to := arrivals[len(arrivals)/5], arrivals[len(arrivals)-1]
	seconds := (to - from).Seconds()
	p := Pressure{Name: name, Speed: c.Speed, HitRatio: r.HitRatio, Shed: r.Shed}
	p.Offered = float64(len(arrivals)-len(arrivals)/5) / seconds
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
		if s.came < from {
			continue
		}
		took := (s.first - s.came).Seconds()
		slow := took / c.Profile.Time.Prefill(s.input, 0, enginemodel.DefaultMaxBatchedTokens).Seconds()
		ttft, slowdown = append(ttft, took), append(slowdown, slow)
		if slow <= o.Slowdown {
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
