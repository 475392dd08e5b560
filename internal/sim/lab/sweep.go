package lab

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// Matrix is what a sweep runs: strategies in configurations of workloads, loads and fleets.
type Matrix struct {
	Workloads []*Workload
	// Loads are arrival rates as parts of the one that saturates the fleet with the draw in question: where the mean time
	// to the first token under Unified is 5 times that of a fleet with next to nothing to do. Draws of a workload differ
	// in what they ask of a fleet: at the rate of another draw, some would be beyond what any strategy bears.
	Loads []float64
	// Pods, KVTokens (of a pod; 0 is the profile's) and Profiles make fleets.
	Pods     []int
	KVTokens []int
	Profiles []enginemodel.Profile
	// Full runs every fleet at every load of every workload; else each runs in two fleets that have nothing in common,
	// which change from one load to the next.
	Full bool

	Strategies []Strategy
	// Seeds draw the workloads that are generated, the arrivals of others, and what strategies leave to chance.
	Seeds       []uint64
	BlockTokens int
	EventLag    time.Duration
	Think       bool
	// Uneven engines, as in Config.
	Uneven bool
	// Admission, as in Config. The rate that saturates a fleet is that without admission.
	Admission picker.AdmissionSpec
	// Known configurations are not run again: those of a sweep of the same parameters that was not finished.
	Known []*Cell
	// Parallel runs at a time; 0 is 1.
	Parallel int
}

// Cell is a configuration of a sweep with its result.
type Cell struct {
	Workload string  `json:"workload"`
	Pods     int     `json:"pods"`
	KVTokens int     `json:"kvTokens"`
	Profile  string  `json:"profile"`
	Load     float64 `json:"load"`
	// Speeds that make the load, by seed.
	Speeds []float64 `json:"speeds"`
	// Scores of the strategies, in their order.
	Scores []Score `json:"scores"`

	workload *Workload
	profile  enginemodel.Profile
}

// Score is a strategy's mean over the seeds in a configuration.
type Score struct {
	Strategy   string  `json:"strategy"`
	TTFTMean   float64 `json:"ttftMeanSeconds"`
	TTFTP99    float64 `json:"ttftP99Seconds"`
	E2EMean    float64 `json:"e2eMeanSeconds"`
	HitRatio   float64 `json:"hitRatio"`
	Imbalance  float64 `json:"imbalance"`
	Shed       int     `json:"shed"`
	Dropped    int     `json:"dropped"`
	TTFTSpread float64 `json:"ttftMeanStandardDeviation"`
	// RateError is by how much the strategy was made to misjudge the engines' speeds; 0 if it was not.
	RateError float64 `json:"rateError,omitempty"`
}

// Name of the configuration.
func (c *Cell) Name() string {
	return fmt.Sprintf("%s, %d x %s, %dk tokens, load %g", c.Workload, c.Pods, c.Profile, c.KVTokens/1000, c.Load)
}

// Cells are the matrix's configurations.
func (m *Matrix) Cells() []*Cell {
	type fleet struct {
		pods, kv int
		profile  enginemodel.Profile
	}
	var fleets []fleet
	for _, p := range m.Profiles {
		for _, kv := range m.KVTokens {
			for _, pods := range m.Pods {
				if kv == 0 {
					kv = p.KVTokens
				}
				fleets = append(fleets, fleet{pods, kv, p})
			}
		}
	}
	var cells []*Cell
	for i, w := range m.Workloads {
		for j, load := range m.Loads {
			chosen := fleets
			if n := len(fleets); !m.Full && n > 2 {
				k := (i*len(m.Loads) + j) % (n / 2)
				chosen = []fleet{fleets[k], fleets[n-1-k]} // the last is the first with every factor changed
			}
			for _, f := range chosen {
				cells = append(cells, &Cell{Workload: w.Name, Pods: f.pods, KVTokens: f.kv, Profile: f.profile.Name, Load: load, workload: w,
					profile: f.profile})
			}
		}
	}
	return cells
}

// Run runs every strategy in every configuration. progress is called for each that is done.
func (m *Matrix) Run(ctx context.Context, progress func(done, all int, c *Cell)) ([]*Cell, error) {
	cells := m.Cells()
	work := make(chan *Cell)
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		first error
		done  int
	)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range max(1, m.Parallel) {
		wg.Go(func() {
			for c := range work {
				err := m.runCell(ctx, c)
				mu.Lock()
				if done++; err != nil && first == nil {
					first = fmt.Errorf("%s: %w", c.Name(), err)
					cancel()
				} else if err == nil && progress != nil {
					progress(done, len(cells), c)
				}
				mu.Unlock()
			}
		})
	}
	known := map[string]*Cell{}
	for _, c := range m.Known {
		known[c.Name()] = c
	}
	for i, c := range cells {
		if k := known[c.Name()]; k != nil {
			cells[i] = k
			mu.Lock()
			done++
			mu.Unlock()
			continue
		}
		work <- c
	}
	close(work)
	wg.Wait()
	return cells, first
}

func (m *Matrix) runCell(ctx context.Context, c *Cell) error {
	base := Config{
		Workload: c.workload, Pods: c.Pods, KVTokens: c.KVTokens, Profile: c.profile, BlockTokens: m.BlockTokens, EventLag: m.EventLag,
		Uneven: m.Uneven,
	}
	scores := make([][]Score, len(m.Strategies))
	for _, seed := range m.Seeds {
		w, err := c.workload.Drawn(seed)
		if err != nil {
			return err
		}
		base.Admission = picker.AdmissionSpec{}
		base.Seed, base.Workload = seed, w.Fitting(base.longest()) // what no strategy can send makes none incomparable
		speed, err := saturation(ctx, base)
		if err != nil {
			return err
		}
		base.Speed, base.Think, base.Admission = c.Load*speed, m.Think, m.Admission
		c.Speeds = append(c.Speeds, base.Speed)
		for i, s := range m.Strategies {
			if err := ctx.Err(); err != nil {
				return err
			}
			base.Strategy = s
			r, err := Run(base)
			if err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
			scores[i] = append(scores[i], Score{
				TTFTMean: r.TTFTSeconds.Mean, TTFTP99: r.TTFTSeconds.P99, E2EMean: r.E2ESeconds.Mean, HitRatio: r.HitRatio,
				Imbalance: r.Imbalance, Shed: r.Shed, Dropped: r.Dropped.Total() - base.Workload.Dropped.Total(),
			})
		}
	}
	for i, s := range m.Strategies {
		score := mean(s.Name, scores[i])
		score.RateError = s.RateError
		c.Scores = append(c.Scores, score)
	}
	return nil
}

const (
	// A fleet is saturated where the mean time to the first token is so many times that of a fleet with next to nothing
	// to do.
	saturatedAt = 5
	// bisections find the speed within a few percent.
	bisections = 6
)

// saturation is the speed at which a draw of a workload saturates a fleet under Unified, by bisection between 0 and twice
// the speed at which the fleet would answer if all requests arrived at once.
func saturation(ctx context.Context, c Config) (float64, error) {
	n := len(c.Workload.Requests)
	if n == 0 {
		return 1, nil
	}
	c.Strategy, c.Think = Strategy{Name: "saturation", Config: policy.Default(policy.Unified)}, false
	at := func(speed float64) (*Result, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		c.Speed = speed
		return Run(c)
	}
	burst, err := at(1e9)
	if err != nil {
		return 0, err
	}
	lasts := c.Workload.Requests[n-1].At + c.Workload.Requests[n-1].Tick
	low, high := 0.0, 2*lasts.Seconds()/(burst.E2ESeconds.P90/0.9)
	idle, err := at(high / 40)
	if err != nil {
		return 0, err
	}
	for range bisections {
		middle := (low + high) / 2
		r, err := at(middle)
		if err != nil {
			return 0, err
		}
		if r.TTFTSeconds.Mean > saturatedAt*idle.TTFTSeconds.Mean {
			high = middle
		} else {
			low = middle
		}
	}
	return (low + high) / 2, nil
}

// mean of the seeds.
func mean(name string, list []Score) Score {
	out := Score{Strategy: name}
	n := float64(len(list))
	for _, s := range list {
		out.TTFTMean += s.TTFTMean / n
		out.TTFTP99 += s.TTFTP99 / n
		out.E2EMean += s.E2EMean / n
		out.HitRatio += s.HitRatio / n
		out.Imbalance += s.Imbalance / n
		out.Shed += s.Shed
		out.Dropped += s.Dropped
	}
	for _, s := range list {
		out.TTFTSpread += (s.TTFTMean - out.TTFTMean) * (s.TTFTMean - out.TTFTMean) / n
	}
	out.TTFTSpread = math.Sqrt(out.TTFTSpread)
	return out
}

// Rank is how a strategy did over all configurations, relative to the best strategy of each.
type Rank struct {
	Strategy string `json:"strategy"`
	// TTFT is the geometric mean of the mean times to the first token, TTFTWorst the worst of them, in Worst.
	TTFT      float64 `json:"ttft"`
	TTFTWorst float64 `json:"ttftWorst"`
	Worst     string  `json:"worst"`
	// P99 and E2E are geometric means, of the 99th percentile to the first token and of the mean time to the end.
	P99 float64 `json:"ttftP99"`
	E2E float64 `json:"e2e"`
	// Hit is the mean of the hit ratios relative to the best.
	Hit float64 `json:"hit"`
	// Wins is the number of configurations in which the strategy has the least mean time.
	Wins int `json:"wins"`
	// Incomparable strategies have not sent all requests. They are not the best of a
	// configuration in which others have.
	Incomparable bool `json:"incomparable"`
}

// Ranking of the strategies in the configurations, by TTFT. Those that were made to misjudge speeds are never the best,
// nor are those that have not sent all requests, unless there are no others.
func Ranking(cells []*Cell) []Rank {
	if len(cells) == 0 {
		return nil
	}
	ranks := make([]Rank, len(cells[0].Scores))
	for i := range ranks {
		ranks[i].Strategy = cells[0].Scores[i].Strategy
		for _, c := range cells {
			ranks[i].Incomparable = ranks[i].Incomparable || c.Scores[i].Shed+c.Scores[i].Dropped > 0
		}
	}
	mayBeBest := measures(ranks, cells[0].Scores)
	n := float64(len(cells))
	for _, c := range cells {
		best := Score{TTFTMean: math.Inf(1), TTFTP99: math.Inf(1), E2EMean: math.Inf(1)}
		for i := range c.Scores {
			if s := &c.Scores[i]; mayBeBest[i] {
				best.TTFTMean, best.TTFTP99 = math.Min(best.TTFTMean, s.TTFTMean), math.Min(best.TTFTP99, s.TTFTP99)
				best.E2EMean, best.HitRatio = math.Min(best.E2EMean, s.E2EMean), math.Max(best.HitRatio, s.HitRatio)
			}
		}
		for i := range c.Scores {
			s, r := &c.Scores[i], &ranks[i]
			ratio := s.TTFTMean / best.TTFTMean
			r.TTFT += math.Log(ratio) / n
			r.P99 += math.Log(s.TTFTP99/best.TTFTP99) / n
			r.E2E += math.Log(s.E2EMean/best.E2EMean) / n
			if best.HitRatio > 0 {
				r.Hit += s.HitRatio / best.HitRatio / n
			}
			if ratio > r.TTFTWorst {
				r.TTFTWorst, r.Worst = ratio, c.Name()
			}
			if ratio == 1 {
				r.Wins++
			}
		}
	}
	for i := range ranks {
		r := &ranks[i]
		r.TTFT, r.P99, r.E2E = math.Exp(r.TTFT), math.Exp(r.P99), math.Exp(r.E2E)
	}
	slices.SortStableFunc(ranks, func(a, b Rank) int { return cmp.Compare(a.TTFT, b.TTFT) })
	return ranks
}

// measures reports which strategies the others are held against: those that have sent all requests and know the engines'
// speeds; where there is none, those that have sent all; where there is none, all.
func measures(ranks []Rank, scores []Score) []bool {
	for _, fit := range []func(i int) bool{
		func(i int) bool { return !ranks[i].Incomparable && scores[i].RateError == 0 },
		func(i int) bool { return !ranks[i].Incomparable },
		func(int) bool { return true },
	} {
		fits, found := make([]bool, len(ranks)), false
		for i := range ranks {
			fits[i] = fit(i)
			found = found || fits[i]
		}
		if found {
			return fits
		}
	}
	return nil
}
