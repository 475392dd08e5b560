package lab

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Report is what a command prints: the runs, and the bounds of their workload.
type Report struct {
	Setup   Setup     `json:"setup"`
	Results []*Result `json:"results"`
	Bounds  Bounds    `json:"bounds"`
}

// Setup is what all runs of a report have in common.
type Setup struct {
	Workload    string        `json:"workload"`
	Requests    int           `json:"requests"`
	Sessions    int           `json:"sessions"`
	Pods        int           `json:"pods"`
	KVTokens    int           `json:"kvTokens"`
	Profile     string        `json:"profile"`
	BlockTokens int           `json:"blockTokens"`
	Speed       float64       `json:"speed"`
	Arrivals    string        `json:"arrivals"`
	Pickers     int           `json:"pickers"`
	EventLag    time.Duration `json:"eventLagNanoseconds"`
}

// SetupOf a run, and leaves in its workload what the engines can take: bounds and numbers of requests are of that.
func SetupOf(c *Config) (Setup, error) {
	if err := c.fill(); err != nil {
		return Setup{}, err
	}
	c.Workload = c.Workload.Fitting(c.longest())
	sessions := map[int]bool{} // of the requests that are left
	for i := range c.Workload.Requests {
		sessions[c.Workload.Requests[i].Session] = true
	}
	s := Setup{
		Workload: c.Workload.Name, Requests: len(c.Workload.Requests), Sessions: len(sessions), Pods: c.Pods,
		KVTokens: c.KVTokens, Profile: c.Profile.Name, BlockTokens: c.BlockTokens, Speed: c.Speed, Arrivals: "timestamps",
		Pickers: c.Pickers, EventLag: c.EventLag,
	}
	if c.Think {
		s.Arrivals = "think time"
	}
	return s, nil
}

// WriteJSON writes the report as JSON.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteTable writes the report as text. drops adds what was not sent.
func (r *Report) WriteTable(w io.Writer, drops bool) error {
	s := &r.Setup
	fmt.Fprintf(w, "%s: %d requests of %d sessions; %d pods %s with %d tokens of KV cache each; speed %g, arrivals by %s, %d pickers, event lag %v\n\n",
		s.Workload, s.Requests, s.Sessions, s.Pods, s.Profile, s.KVTokens, s.Speed, s.Arrivals, s.Pickers, s.EventLag)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "strategy\tseed\trequests\tshed\thit\tTTFT mean\tp50\tp90\tp99\tE2E mean\tp99\timbalance\tdecision p99\t")
	for _, x := range r.Results {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.2f\t%s\t\n", x.Strategy, x.Seed, x.Requests, x.Shed, percent(x.HitRatio),
			seconds(x.TTFTSeconds.Mean), seconds(x.TTFTSeconds.P50), seconds(x.TTFTSeconds.P90), seconds(x.TTFTSeconds.P99),
			seconds(x.E2ESeconds.Mean), seconds(x.E2ESeconds.P99), x.Imbalance, micros(x.DecisionSeconds.P99))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nbounds of the hit ratio: %s with one infinite cache, %s with one cache of all pods' memory (LRU)\n",
		percent(r.Bounds.InfiniteCacheHitRatio), percent(r.Bounds.PooledLRUHitRatio))
	if drops {
		r.writeDrops(w)
	}
	return nil
}

// writeDrops lists the requests that runs did not send.
func (r *Report) writeDrops(w io.Writer) {
	seen := map[string]bool{}
	for _, x := range r.Results {
		d := x.Dropped
		line := fmt.Sprintf("%s, seed %d: not sent %d requests (%d beyond the turns of a session, %d beyond the number of requests, %d too long for the context, %d refused when they were logged); shed %d",
			x.Strategy, x.Seed, d.Total(), d.Turns, d.Requests, d.TooLong, d.Refused, x.Shed)
		if !seen[line] {
			fmt.Fprintln(w, line)
		}
		seen[line] = true
	}
}

func percent(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }

// seconds with three digits that count.
func seconds(x float64) string {
	switch {
	case x < 0.9995:
		return fmt.Sprintf("%.0f ms", 1000*x)
	case x < 9.995:
		return fmt.Sprintf("%.2f s", x)
	case x < 99.95:
		return fmt.Sprintf("%.1f s", x)
	}
	return fmt.Sprintf("%.0f s", x)
}

func micros(x float64) string { return fmt.Sprintf("%.0f µs", 1e6*x) }
